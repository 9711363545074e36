"""A session for handlers: records what they ask for and answers at once."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from relay.core.message import QueueMode
from relay.hooks.context import Agent, Context, Identity
from relay.hooks.engine import HookEventHandler
from relay.hooks.registry import Registry
from relay.hooks.run_functions import FunctionRunner
from relay.session.session_hooks import SessionConfig, make_engine


class FakeActions:
    """Answers every request; ``refusal``, when set, is what the answers end with instead."""

    def __init__(self, agents: list[Agent] | None = None) -> None:
        self.done: list[tuple[object, ...]] = []
        self.refusal: BaseException | None = None
        self.known = agents or []
        self.memories: dict[str, Any] = {"memories": []}

    def inject(self, text: str) -> tuple[str, Future[Any]]:
        return self._did("inject", text)

    def send(
        self, to: str, text: str, *, mode: QueueMode | None, thread: str | None
    ) -> tuple[str, Future[Any]]:
        return self._did("send", to, text, mode, thread)

    def notify(self, topic: str, text: str) -> tuple[str, Future[Any]]:
        return self._did("notify", topic, text)

    def agents(self) -> Future[list[Agent]]:
        future: Future[list[Agent]] = Future()
        future.set_result(self.known)
        return future

    def request(self, op: str, fields: dict[str, Any]) -> Future[dict[str, Any]]:
        self.done.append((op.removeprefix("memory_"), fields))
        future: Future[dict[str, Any]] = Future()
        if self.refusal is None:
            future.set_result(self.memories)
        else:
            future.set_exception(self.refusal)
        return future

    def command(self, namespace: str, action: str, text: str) -> None:
        self.done.append(("command", namespace, action, text))

    def _did(self, *what: object) -> tuple[str, Future[Any]]:
        self.done.append(what)
        future: Future[Any] = Future()
        if self.refusal is None:
            future.set_result({})
        else:
            future.set_exception(self.refusal)
        return f"ID{len(self.done)}", future


IDENTITY = Identity(
    agent_id="alice",
    agent_name="Alice",
    session_id="RUN1",
    working_dir="/",
    env={"HOME": "/home/alice"},
    task="the task",
)


def context(actions: FakeActions) -> Context:
    """A context for an agent named Alice."""
    return Context(IDENTITY, actions)


def engine(
    registry: Registry,
    functions: FunctionRunner,
    actions: FakeActions,
    identity: Identity = IDENTITY,
) -> HookEventHandler:
    """The hook engine as a session of ``identity`` has it."""
    config = SessionConfig(identity, Context(identity, actions), None)
    return make_engine(config, registry, functions, env={})
