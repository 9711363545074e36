"""What handlers can do, from any thread: each action returns at once and never blocks."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from relay.core.errors import RelayError
from relay.core.ids import derived_ulid, new_ulid
from relay.core.message import QueueMode
from relay.directive.grammar import Match
from relay.hooks.context import checked_body
from relay.protocol.agent_ops import AGENTS
from relay.protocol.op import Op
from relay.session.broker_reports import Broker
from relay.session.detector import Detection
from relay.session.door import SessionFeatures
from relay.session.handler_lanes import send_fields
from relay.session.run_info import RunInfo
from relay.session.session_commands import (
    FeatureCommand,
    FeatureRequested,
    PersonNote,
    SendRequested,
)
from relay.session.session_events import EventQueue


class SessionActions:
    """The session's side of ``ctx``; see :class:`relay.hooks.context.Actions`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        events: EventQueue,
        broker: Broker,
        run: RunInfo,
        now_ms: Callable[[], int],
        features: SessionFeatures | None = None,
    ) -> None:
        self._features = features or SessionFeatures(events)
        self._loop = loop
        self._events = events
        self._broker = broker
        self._run = run
        self._now_ms = now_ms
        self._given: deque[int] = deque()  # when handlers gave the agent texts, in ms
        self._lock = threading.Lock()
        self._told = False
        #: The futures of the broker's answers, by the message's id.
        self._waiting: dict[str, list[Future[Any]]] = {}

    def inject(self, text: str, identifier: str = "") -> tuple[str, Future[Any]]:
        """A handler's text for this very agent: stored, then delivered like any other message.

        It is refused beyond TEXTS_MAX a minute without a word of the person: otherwise a handler
        that answers the agent's replies to its texts would never stop.
        """
        if self._admits():
            return self._tell(text, identifier or new_ulid(self._now_ms()), by_hook=True)
        refused: Future[Any] = Future()
        refused.set_exception(
            RelayError(
                f"handlers have given the agent {self._run.texts_max} texts within a minute",
                hint="write to the agent, or wait a minute",
                code="too_many",
            )
        )
        return new_ulid(self._now_ms()), refused

    def give(self, text: str, identifier: str) -> None:
        """A hook's text for this very agent, under this id. Raises UsageError for a bad text."""
        self.inject(checked_body(text), identifier)

    def person(self) -> None:
        """The person has spoken to the agent: handlers may answer again."""
        with self._lock:
            self._given.clear()
            self._told = False

    def settle(self, identifier: str, answer: dict[str, Any] | RelayError) -> None:
        """The broker has answered a message, or refused it."""
        for waiting in self._waiting.pop(identifier, ()):
            if isinstance(answer, RelayError):
                waiting.set_exception(answer)
            else:
                waiting.set_result(answer)

    def close(self) -> None:
        """The session ends: no answer will come any more."""
        for identifier in list(self._waiting):
            self.settle(identifier, RelayError("the session has ended"))

    def _admits(self) -> bool:
        texts_max = self._run.texts_max
        if not texts_max:
            return True
        now = self._now_ms()
        with self._lock:
            while self._given and now - self._given[0] >= 60_000:
                self._given.popleft()
            full = len(self._given) >= texts_max
            if not full:
                self._given.append(now)
                self._told = False
                return True
            first, self._told = not self._told, True
        if first:
            note = PersonNote(
                f"handlers have given the agent {texts_max} texts within a minute: more are"
                " refused until you write to it, or the minute is over"
            )
            self._call(lambda: self._events.post(note), Future())
        return False

    def send(
        self, to: str, text: str, *, mode: QueueMode | None, thread: str | None
    ) -> tuple[str, Future[Any]]:
        """A message from this agent to others."""
        names = [name.strip() for name in to.split(",") if name.strip()]
        fields = {"to": names, "body": text, "thread": thread}
        return self._post(fields | ({"mode": mode.value} if mode else {}))

    def notify(self, topic: str, text: str) -> tuple[str, Future[Any]]:
        """A message to the person, in the thread ``topic``: ``relay inbox`` shows it."""
        return self._post({"to": [self._run.person], "body": text, "thread": topic})

    def agents(self) -> Future[list[dict[str, Any]]]:
        """Who is there, as ``relay agents`` lists them."""
        return self._ask(AGENTS, {}, lambda fields: fields["agents"])

    def request(self, op: Op[..., Any, Any], fields: dict[str, Any]) -> Future[dict[str, Any]]:
        """Ask the broker as this agent, for what a feature adds to ``ctx``."""
        return self._ask(op, fields, lambda reply: reply)

    def command(self, namespace: str, action: str, text: str) -> None:
        """Do what ``@namespace:action text`` does, and tell the agent the result."""
        self._command(namespace, FeatureCommand(new_ulid(self._now_ms()), action, text))

    def answer(self, identifier: str, text: str, mode: QueueMode | None = None) -> None:
        """Tell the agent the result of the command with this id; repeated calls do nothing."""
        if self._admits():
            more = {"mode": mode.value} if mode else {}
            self._tell(text, identifier[:10] + derived_ulid(0, identifier, "memory")[10:], **more)

    def _command(self, namespace: str, command: FeatureCommand) -> None:
        self._call(lambda: self._events.post(FeatureRequested(namespace, command)), Future())

    def for_match(self, heard: Detection) -> MatchActions:
        """The actions of the handlers of one match: their first message is that match."""
        return MatchActions(self, heard)

    def _tell(self, text: str, identifier: str, **more: Any) -> tuple[str, Future[Any]]:
        to = [self._run.name]
        return self._post({"to": to, "body": text, "notice": True, "id": identifier, **more})

    def _post(self, fields: dict[str, Any]) -> tuple[str, Future[Any]]:
        identifier = fields.setdefault("id", new_ulid(self._now_ms()))
        answer: Future[Any] = Future()

        def post() -> None:
            self._waiting.setdefault(identifier, []).append(answer)
            self._events.post(SendRequested(fields))

        self._call(post, answer)
        return identifier, answer

    def _ask(
        self,
        op: Op[..., Any, Any],
        fields: dict[str, Any],
        convert: Callable[[dict[str, Any]], Any],
    ) -> Future[Any]:
        answer: Future[Any] = Future()

        def ask() -> None:
            try:
                self._features.asked(op)
            except RelayError as error:
                answer.set_exception(error)
                return
            request = asyncio.ensure_future(self._broker.request(op, **fields))
            _chain(request, answer, convert)

        self._call(ask, answer)
        return answer

    def _call(self, what: Callable[[], None], answer: Future[Any]) -> None:
        if _running_loop() is self._loop:
            what()  # at once, so that an agent's messages leave in the order they were said
            return
        try:
            self._loop.call_soon_threadsafe(what)
        except RuntimeError:
            answer.set_exception(RelayError("the session has ended"))


class MatchActions(SessionActions):
    """Actions that answer one match: a handler that sends the match itself sends it once.

    The message gets the id of what was heard, so hearing it again, or a second handler that sends
    it on, sends nothing twice, and it has the attributes that stood beside the target.
    """

    def __init__(self, base: SessionActions, heard: Detection) -> None:
        self.__dict__.update(base.__dict__)
        self._heard = heard
        self._commanded = False

    def send(
        self, to: str, text: str, *, mode: QueueMode | None, thread: str | None
    ) -> tuple[str, Future[Any]]:
        match = self._heard.found
        if not isinstance(match, Match) or (to, text) != _said(match):
            return super().send(to, text, mode=mode, thread=thread)
        fields = send_fields(match, self._heard.id)
        if mode is not None:
            fields["mode"] = mode.value
        return self._post(fields | ({"thread": thread} if thread else {}))

    def command(self, namespace: str, action: str, text: str) -> None:
        match = self._heard.found
        said = isinstance(match, Match) and (match.namespace, *_said(match))
        if self._commanded or not isinstance(match, Match) or (namespace, action, text) != said:
            super().command(namespace, action, text)
            return
        self._commanded = True
        self._command(
            namespace, FeatureCommand(self._heard.id, action, text, dict(match.attributes))
        )


def _said(match: Match) -> tuple[str, str]:
    return match.target, match.body


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _chain(
    source: asyncio.Future[dict[str, Any]],
    target: Future[Any],
    convert: Callable[[dict[str, Any]], Any],
) -> None:
    """Pass the result of an asyncio future on to a thread-safe one."""

    def done(future: asyncio.Future[dict[str, Any]]) -> None:
        if future.cancelled():
            target.set_exception(RelayError("the session has ended"))
        elif (error := future.exception()) is not None:
            target.set_exception(error)
        else:
            target.set_result(convert(future.result()))

    source.add_done_callback(done)
