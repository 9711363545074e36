"""A session for handlers: records what they ask for and answers at once."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from relay.hooks.context import Agent, Context, Identity
from relay.model import Mode


class FakeActions:
    """Answers every request; ``refusal``, when set, is what the answers end with instead."""

    def __init__(self, agents: list[Agent] | None = None) -> None:
        self.done: list[tuple[object, ...]] = []
        self.refusal: BaseException | None = None
        self.known = agents or []

    def inject(self, text: str) -> tuple[str, Future[Any]]:
        return self._did("inject", text)

    def send(
        self, to: str, text: str, *, mode: Mode | None, thread: str | None
    ) -> tuple[str, Future[Any]]:
        return self._did("send", to, text, mode, thread)

    def notify(self, topic: str, text: str) -> tuple[str, Future[Any]]:
        return self._did("notify", topic, text)

    def agents(self) -> Future[list[Agent]]:
        future: Future[list[Agent]] = Future()
        future.set_result(self.known)
        return future

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
