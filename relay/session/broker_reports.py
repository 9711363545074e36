"""What a session reports to the broker: deliveries, claims, events, the agent's state."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from relay.core.bounded import BoundedDict
from relay.core.errors import BrokerUnavailable, RelayError, StorageError, Timeout
from relay.core.ids import derived_ulid, new_ulid
from relay.core.message import Message, State
from relay.directive.grammar import Match
from relay.protocol.agent_ops import AGENT_STATE, PERSON
from relay.protocol.message_ops import EVENT, STATE, TURN, WAIT
from relay.protocol.op import Op
from relay.session.background import Tasks
from relay.session.detector import Detection, match_event_id, match_meta
from relay.session.run_info import RunInfo
from relay.session.session_commands import NoteOver, PersonNote, ReportAgent, ReportEvent
from relay.session.session_events import DeliveryReported, EventQueue, KindsWanted, TurnReported

if TYPE_CHECKING:
    from relay.protocol.op import Answer, Fields

T = TypeVar("T")

#: Codes of temporary refusals: the same request may be accepted later.
NOT_NOW: tuple[type[RelayError], ...] = (BrokerUnavailable, Timeout, StorageError)
#: Between tries while the broker is away or cannot store.
RETRY_SECONDS = 1.0
#: Events that wait for the broker, at most.
EVENTS_MAX = 1000
LEFT_OUT = (
    "the broker could not keep up with the agent's output: some events are missing from the ledger,"
    " and automations did not see them; messages are not affected"
)
#: How long that is said once the broker keeps up again.
LEFT_OUT_SECONDS = 600.0
#: Messages whose receipt has a remark beside the state, at most.
REMARKS_MAX = 1000


class Broker(Protocol):
    """The part of the broker's client that a session needs."""

    async def request(
        self, op: Op[Fields, Any, Answer], *args: Fields.args, **fields: Fields.kwargs
    ) -> Answer: ...


class BrokerReports:
    """Asks the broker for as long as it takes, for one run of one agent."""

    def __init__(
        self,
        broker: Broker,
        events: EventQueue,
        tasks: Tasks,
        run: RunInfo,
    ) -> None:
        self._run = run
        self._broker = broker
        self._events = events
        self._tasks = tasks
        self._newest: ReportAgent | None = None
        self._known = asyncio.Event()  # the broker has the newest report on the agent
        self._known.set()
        self._untold: deque[dict[str, Any]] = deque()
        self._left_out = False
        self._events_known = asyncio.Event()  # the broker has all events
        self._events_known.set()
        self._wanted: frozenset[str] = frozenset()
        self._remarks: BoundedDict[str, str] = BoundedDict(REMARKS_MAX)
        self._presence: BoundedDict[str, str] = BoundedDict(REMARKS_MAX)  # by the message's id
        self._context: BoundedDict[str, str] = BoundedDict(REMARKS_MAX)

    def remark(self, message: Message, text: str) -> None:
        """Add a remark to the receipt of a message, which stays when the message is seen."""
        self._remarks[message.id] = text

    def person(self) -> None:
        """The person has spoken to the agent: its next words do not follow from a message."""

        async def tell() -> None:
            await self._broker.request(PERSON)

        self._tasks.spawn(self._until_answered(tell))

    async def delivery(
        self,
        message: Message,
        state: State,
        reason: str = "",
        proof: str = "",
        *,
        presence: bool = False,
    ) -> bool:
        """Report the state of a delivery; the broker has it when this returns.

        ``presence``: it is handed over next. Get what is told beside it: see ``with_news``. The
        broker may take some seconds for that.
        False for a message that was withdrawn meanwhile: it must not go over.
        """
        fields: dict[str, Any] = {"id": message.id, "state": state.value}
        self._events.post(DeliveryReported(message.id, state))
        if state in (State.SUBMITTED, State.SEEN) and not reason:
            reason = self._remarks.get(message.id, "")
        if reason:
            fields["reason"] = reason
        if proof:
            fields["proof"] = proof
        if presence:
            fields["presence"] = True
        try:
            # However long it takes: nothing is typed before the broker knows of it, and the outcome
            # must not be lost while the broker is away or its disk is full.
            answer = await self._until_answered(
                lambda: self._broker.request(STATE, **fields), "what came of a message waits"
            )
            if news := answer.get("presence"):
                self._presence[message.id] = str(news)
            if context := answer.get("context"):
                self._context[message.id] = str(context)
        except RelayError as error:
            if error.code == State.CANCELLED.value:
                self._events.post(DeliveryReported(message.id, State.CANCELLED))
                return False
            self._events.post(PersonNote(f"a delivery could not be recorded: {error.message}"))
        return True

    def with_news(self, message: Message) -> Message:
        """``message`` with what the answer to its report says: who has come and gone, and what was
        added to it."""
        news = self._presence.pop(message.id, "")
        context = self._context.pop(message.id, message.context)
        if not news and context == message.context:
            return message
        said = ", ".join(filter(None, (message.presence, news)))
        return replace(message, presence=said, context=context)

    async def look_up(self, ids: list[str], name: str) -> None:
        """Look up the last reported states of these deliveries to the agent ``name``."""
        for id_ in ids:
            try:
                ask = partial(self._broker.request, WAIT, id=id_, timeout=0)
                found = await self._until_answered(ask)
            except RelayError as error:
                told = f"how far a message is could not be asked: {error.message}"
                self._events.post(PersonNote(told))
                continue
            for row in found["deliveries"]:
                if row["to"].lower() == name.lower() and State(row["state"]).final:
                    self._events.post(DeliveryReported(id_, State(row["state"])))

    async def turn(self, fields: dict[str, Any]) -> None:
        """Report the end of a turn, again and again until the broker has it."""
        try:
            await self._until_answered(
                lambda: self._broker.request(TURN, **fields), "the answer to a message waits"
            )
        except RelayError as error:
            if error.code != "fenced":  # fenced: another attempt has begun meanwhile
                told = f"an answer could not be recorded: {error.message}"
                self._events.post(PersonNote(told))
        self._events.post(TurnReported(fields["ids"]))

    async def claim_match(self, heard: Detection) -> bool:
        """Claim this detection: False if an earlier session of this run has begun to act on it."""
        match = heard.found
        assert isinstance(match, Match)
        fields: dict[str, Any] = {
            "id": match_event_id(heard),
            "kind": "match",
            "body": match.body,
            "meta": match_meta(match),
            "thread": match.attributes.get("thread"),
        }
        return await self._until_answered(lambda: self._claim(fields), "a handler waits")

    async def claim_start(self) -> bool:
        """Claim the session-start hooks: False if they were fired in this run already."""
        identifier = derived_ulid(self._run.started_ms, self._run.run_id, "session_start")
        fields = {"id": identifier, "kind": "session_start"}
        return await self._until_answered(
            lambda: self._claim(fields), "what came of a message waits"
        )

    def agent(self, report: ReportAgent) -> None:
        """Report the agent's state and source; of several that wait only the newest is sent."""
        self._newest = report
        self._known.clear()

        async def tell() -> None:
            if self._newest is report:  # otherwise a newer report was sent already
                answer = await self._broker.request(
                    AGENT_STATE,
                    state=report.state,
                    reason=report.reason,
                    source=report.source,
                    notes=list(report.notes),
                    conversation=report.conversation,
                    usage=list(report.usage),
                    question=None if report.question is None else report.question.fields(),
                    retry=report.retry,
                    cause=report.cause,
                    account=self._run.account,
                    remark=report.remark,
                )
                self._wants(answer["wants"])
                if self._newest is report:
                    self._known.set()

        self._tasks.spawn(self._until_answered(tell))

    def event(self, report: ReportEvent) -> None:
        """Report an event for the event ledger. Events that cannot be sent wait; if there are too
        many, the oldest are dropped."""
        fields = {"kind": report.kind, "body": report.body, "meta": report.meta}
        fields["id"] = report.id or new_ulid(int(time.time() * 1000))
        self._untold.append(fields)
        self._events_known.clear()
        if len(self._untold) > EVENTS_MAX:
            del self._untold[1]  # the first is being sent
            if not self._left_out:
                self._left_out = True
                self._events.post(PersonNote(LEFT_OUT))
        if len(self._untold) == 1:
            self._tasks.spawn(self._tell_events())

    async def _tell_events(self) -> None:
        while self._untold:
            fields = self._untold[0]
            with contextlib.suppress(RelayError):  # a final refusal: the event is dropped
                await self._until_answered(partial(self._broker.request, EVENT, **fields))
            self._untold.popleft()
        if self._left_out:
            self._left_out = False
            over = partial(self._events.post, NoteOver(LEFT_OUT))
            asyncio.get_running_loop().call_later(LEFT_OUT_SECONDS, over)
        self._events_known.set()

    def _wants(self, kinds: object) -> None:
        wanted = frozenset(map(str, kinds)) if isinstance(kinds, list) else frozenset()
        if wanted != self._wanted:
            self._wanted = wanted
            self._events.post(KindsWanted(wanted))

    async def settle(self, seconds: float) -> None:
        """Wait until the broker has the agent's state and all events, at most ``seconds``."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._known.wait()
                await self._events_known.wait()

    async def _claim(self, fields: dict[str, Any]) -> bool:
        answer = await self._broker.request(EVENT, **fields)
        # In the first session of a run a duplicate is our own request, repeated because its answer
        # was lost.
        return not answer.get("duplicate") or not self._run.restarts

    async def _until_answered(self, ask: Callable[[], Awaitable[T]], waits: str = "") -> T:
        """What ``ask`` returns, asked again for as long as the broker is away or cannot store.

        Each time the person is told that it ``waits``. Raises a final refusal of the broker.
        """
        notes: dict[str, None] = {}
        try:
            while True:
                try:
                    return await ask()
                except NOT_NOW as error:
                    if waits:
                        note = f"{waits}: {error.message}"
                        notes[note] = None
                        self._events.post(PersonNote(note))
                    await asyncio.sleep(RETRY_SECONDS)
        finally:
            for note in notes:
                self._events.post(NoteOver(note))
