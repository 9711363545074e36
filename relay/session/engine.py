"""The hook engine of one session, put together from its parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from relay.hooks.aggregator import aggregate
from relay.hooks.bus import MessageBus
from relay.hooks.context import Context, Identity
from relay.hooks.functions import FunctionRunner
from relay.hooks.handler import HookEventHandler
from relay.hooks.planner import Planner
from relay.hooks.records import HookLog
from relay.hooks.registry import Registry
from relay.hooks.runner import HookRunner


class SessionConfig:
    """What the engine asks of its session; see :class:`relay.hooks.handler.Config`."""

    def __init__(
        self, identity: Identity, context: Context, transcript_path: Callable[[], str]
    ) -> None:
        self._identity = identity
        self._context = context
        self._transcript_path = transcript_path

    @property
    def session_id(self) -> str:
        return self._identity.session_id

    @property
    def agent_name(self) -> str:
        return self._identity.agent_name

    def working_dir(self) -> str:
        return self._identity.working_dir

    def transcript_path(self) -> str:
        return self._transcript_path()

    def context(self) -> object:
        return self._context


def make_engine(
    config: SessionConfig,
    registry: Registry,
    functions: FunctionRunner,
    *,
    env: Mapping[str, str],
    bus: MessageBus | None = None,
    log: HookLog | None = None,
) -> HookEventHandler:
    """The engine over ``registry``; programs among the hooks run with ``env``."""
    runner = HookRunner(functions, cwd=config.working_dir(), env=env)
    return HookEventHandler(
        config, registry, Planner(registry), runner, aggregate, bus=bus, log=log
    )
