"""What handlers can do: from any thread, at once, and without ever blocking the session."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from relay.core.errors import RelayError
from relay.core.ids import derived_ulid, new_ulid
from relay.core.message import Mode
from relay.directive.grammar import Match
from relay.session.builtin import send_fields
from relay.session.detector import Detection
from relay.session.memory_commands import Command

#: So many texts may handlers give the agent within a minute in which the person says nothing.
TEXTS_MAX = 60

Enqueue = Callable[[dict[str, Any]], "asyncio.Future[dict[str, Any]]"]


class SessionActions:
    """The session's side of ``ctx``; see :class:`relay.hooks.context.Actions`.

    ``send(fields)`` and ``request(op, fields)`` belong to the session's loop and are only called
    there.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        send: Enqueue,
        request: Callable[[str, dict[str, Any]], asyncio.Future[dict[str, Any]]],
        now_ms: Callable[[], int],
        *,
        own_name: str,
        person: str,
        texts_max: int = TEXTS_MAX,
        note: Callable[[str], None] = lambda text: None,
        memory: dict[str, Any] | None = None,
    ) -> None:
        self._loop = loop
        self._send = send
        self._request = request
        self._now_ms = now_ms
        self._own_name = own_name
        self._person = person
        self._texts_max = texts_max
        self._note = note
        self._memory = memory or {}
        #: What the agent says to ``@memory:`` goes here.
        self.remember: Callable[[Command], None] = lambda command: None
        self._given: deque[int] = deque()  # when handlers gave the agent texts, in ms
        self._lock = threading.Lock()
        self._told = False

    def inject(self, text: str) -> tuple[str, Future[Any]]:
        """A handler's text for this very agent: stored, then delivered like any other message.

        Beyond TEXTS_MAX a minute without a word of the person's it is refused: a handler that
        answers what the agent says to its texts would go on for ever.
        """
        if self._admits():
            return self.tell(text)
        refused: Future[Any] = Future()
        refused.set_exception(
            RelayError(
                f"handlers have given the agent {self._texts_max} texts within a minute",
                hint="write to the agent, or wait a minute",
                code="too_many",
            )
        )
        return new_ulid(self._now_ms()), refused

    def tell(self, text: str) -> tuple[str, Future[Any]]:
        """A message of relay's own to this very agent."""
        return self._post({"to": [self._own_name], "body": text, "notice": True})

    def person(self) -> None:
        """The person has spoken to the agent: handlers may answer again."""
        with self._lock:
            self._given.clear()
            self._told = False

    def _admits(self) -> bool:
        if not self._texts_max:
            return True
        now = self._now_ms()
        with self._lock:
            while self._given and now - self._given[0] >= 60_000:
                self._given.popleft()
            full = len(self._given) >= self._texts_max
            if not full:
                self._given.append(now)
                self._told = False
                return True
            first, self._told = not self._told, True
        if first:
            self._note(
                f"handlers have given the agent {self._texts_max} texts within a minute: more are"
                " refused until you write to it, or the minute is over"
            )
        return False

    def send(
        self, to: str, text: str, *, mode: Mode | None, thread: str | None
    ) -> tuple[str, Future[Any]]:
        """A message from this agent to others."""
        names = [name.strip() for name in to.split(",") if name.strip()]
        fields = {"to": names, "body": text, "thread": thread}
        return self._post(fields | ({"mode": mode.value} if mode else {}))

    def notify(self, topic: str, text: str) -> tuple[str, Future[Any]]:
        """A message to the person, in the thread ``topic``: ``relay inbox`` shows it."""
        return self._post({"to": [self._person], "body": text, "thread": topic})

    def agents(self) -> Future[list[dict[str, Any]]]:
        """Who is there, as ``relay agents`` lists them."""
        answer: Future[list[dict[str, Any]]] = Future()

        def ask() -> None:
            _chain(self._request("agents", {}), answer, lambda fields: fields["agents"])

        self._call(ask, answer)
        return answer

    def memory(self, op: str, fields: dict[str, Any]) -> Future[dict[str, Any]]:
        """Ask the broker's op ``memory_<op>``, in the places that apply here."""
        answer: Future[dict[str, Any]] = Future()

        def ask() -> None:
            request = self._request(f"memory_{op}", {**self._memory, **fields})
            _chain(request, answer, lambda reply: reply)

        self._call(ask, answer)
        return answer

    def memory_command(self, action: str, text: str) -> None:
        """Do what ``@memory:action text`` does, and tell the agent what came of it."""
        self._command(Command(new_ulid(self._now_ms()), action, text))

    def answer(self, identifier: str, text: str) -> None:
        """Tell the agent what came of the command with this id, once however often it is asked."""
        own = identifier[:10] + derived_ulid(0, identifier, "memory")[10:]
        if self._admits():
            self._post({"to": [self._own_name], "body": text, "notice": True, "id": own})

    def _command(self, command: Command) -> None:
        self._call(lambda: self.remember(command), Future())

    def for_match(self, heard: Detection) -> MatchActions:
        """The same for the handlers of one match: what they send first is that match."""
        return MatchActions(self, heard)

    def _post(self, fields: dict[str, Any]) -> tuple[str, Future[Any]]:
        identifier = fields.setdefault("id", new_ulid(self._now_ms()))
        answer: Future[Any] = Future()
        self._call(lambda: _chain(self._send(fields), answer, lambda reply: reply), answer)
        return identifier, answer

    def _call(self, what: Callable[[], None], answer: Future[Any]) -> None:
        if _running_loop() is self._loop:
            what()  # at once, so that what one agent says leaves in the order it was said
            return
        try:
            self._loop.call_soon_threadsafe(what)
        except RuntimeError:
            answer.set_exception(RelayError("the session has ended"))


class MatchActions(SessionActions):
    """Actions that answer one match: relay's own handler sends the match itself, once.

    The message gets the id of what was heard, so hearing it again sends nothing twice, and the
    attributes that stood beside the target.
    """

    def __init__(self, base: SessionActions, heard: Detection) -> None:
        self.__dict__.update(base.__dict__)
        self._heard: Detection | None = heard

    def send(
        self, to: str, text: str, *, mode: Mode | None, thread: str | None
    ) -> tuple[str, Future[Any]]:
        heard, self._heard = self._heard, None
        match = heard.found if heard is not None else None
        if heard is None or not isinstance(match, Match) or (to, text) != _said(match):
            self._heard = heard
            return super().send(to, text, mode=mode, thread=thread)
        return self._post(send_fields(match, heard.id))

    def memory_command(self, action: str, text: str) -> None:
        heard = self._heard
        match = heard.found if heard is not None else None
        if heard is None or not isinstance(match, Match) or (action, text) != _said(match):
            super().memory_command(action, text)
            return
        self._heard = None
        self._command(Command(heard.id, action, text, dict(match.attributes)))


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
    """Bring the end of an asyncio future to a thread-safe one."""

    def done(future: asyncio.Future[dict[str, Any]]) -> None:
        if future.cancelled():
            target.set_exception(RelayError("the session has ended"))
        elif (error := future.exception()) is not None:
            target.set_exception(error)
        else:
            target.set_result(convert(future.result()))

    source.add_done_callback(done)
