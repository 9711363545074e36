"""Puts the hook engine of one session together."""

from __future__ import annotations

from collections.abc import Mapping

from relay.agents.base import AgentAdapter
from relay.hooks.aggregator import aggregate
from relay.hooks.context import Context, Identity
from relay.hooks.engine import HookEventHandler
from relay.hooks.hook_log import HookLog
from relay.hooks.planner import Planner
from relay.hooks.registry import Registry
from relay.hooks.run_functions import FunctionRunner
from relay.hooks.runner import HookRunner
from relay.session.background import Tasks
from relay.session.broker_reports import Broker
from relay.session.door import FeatureAnswer
from relay.session.invocation_log import SessionHookLog
from relay.session.remote_hooks import RemoteRequests
from relay.session.session_events import EventQueue

#: At the session's end: how long finished responses may take to be sent. Seconds.
_LAST_RESPONSES = 2.0


class SessionConfig:
    """The session's facts for the engine; see :class:`relay.hooks.engine.Config`."""

    def __init__(self, identity: Identity, context: Context, adapter: AgentAdapter | None) -> None:
        self._identity = identity
        self._context = context
        self._adapter = adapter

    @property
    def session_id(self) -> str:
        return self._identity.session_id

    @property
    def agent_name(self) -> str:
        return self._identity.agent_name

    def working_dir(self) -> str:
        return self._identity.working_dir

    def transcript_path(self) -> str:
        return (self._adapter and self._adapter.source.transcript_path) or ""

    def context(self) -> object:
        return self._context


def make_engine(
    config: SessionConfig,
    registry: Registry,
    functions: FunctionRunner,
    *,
    env: Mapping[str, str],
    log: HookLog | None = None,
) -> HookEventHandler:
    """The engine over ``registry``; programs among the hooks run with ``env``."""
    runner = HookRunner(functions, cwd=config.working_dir(), env=env, timeout=functions.timeout)
    return HookEventHandler(config, Planner(registry), runner, aggregate, log=log)


class SessionHooks:
    """A session's hook engine, its log, and the requests of other processes to it."""

    def __init__(
        self,
        config: SessionConfig,
        registry: Registry,
        functions: FunctionRunner,
        broker: Broker,
        queue: EventQueue,
        tasks: Tasks,
        *,
        env: Mapping[str, str],
        answers: Mapping[str, FeatureAnswer] | None = None,
    ) -> None:
        self._functions = functions
        self.log = SessionHookLog(broker, queue, tasks, verbose=bool(env.get("RELAY_DEBUG")))
        self.engine = make_engine(config, registry, functions, env=env, log=self.log)
        self.remote = RemoteRequests(self.engine.requests, broker, queue, answers)

    async def close(self, seconds: float) -> None:
        """Store the log, for at most ``seconds``, and close everything."""
        await self.log.settle(seconds)
        await self.engine.close()
        await self.remote.close(_LAST_RESPONSES)
        await self._functions.close()
