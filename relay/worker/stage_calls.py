"""Calls a configuration's hooks of the broker's stages, with the engine that sessions have.

A file of its own, because nothing of it has to do with evaluating events.
"""

from __future__ import annotations

import os
import time
from typing import Any

from relay.core.ids import new_ulid
from relay.hooks.aggregator import aggregate
from relay.hooks.engine import HookEventHandler
from relay.hooks.events import HookEventName
from relay.hooks.hook_log import Record, result_record
from relay.hooks.planner import Planner
from relay.hooks.registry import Registry
from relay.hooks.run_functions import FunctionRunner
from relay.hooks.runner import HookRunner


class _OfBroker:
    """What the engine asks of its session, where there is none; see relay.hooks.engine.Config."""

    session_id = agent_name = ""

    def working_dir(self) -> str:
        return os.getcwd()

    def transcript_path(self) -> str:
        return ""

    def context(self) -> object:
        return None


class StageCalls:
    """The hooks of one configuration. Belongs to the loop that awaits it."""

    def __init__(self, registry: Registry, timeout: float) -> None:
        """``timeout``: seconds of a hook that has no limit of its own."""
        functions = FunctionRunner(registry, timeout=timeout)
        runner = HookRunner(functions, cwd=os.getcwd(), env=os.environ, timeout=timeout)
        self._engine = HookEventHandler(_OfBroker(), Planner(registry), runner, aggregate)

    async def run(self, event: str, fields: dict[str, Any]) -> list[Record]:
        """Run those of ``event``. Returns how each ran; what they return counts for nothing."""
        id_ = new_ulid(int(time.time() * 1000))
        done = await self._engine.fire(HookEventName(event), fields, correlation_id=id_)
        return [result_record(one, id_) for one in done.results]
