"""The agent's messages to others: sent once, kept until stored, explained if they cannot be sent.

Every outgoing request has an id of its own before it leaves, is kept until the broker has it on
the disk, and is part of the checkpoint: a session that is killed sends it again under the same id.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, replace
from typing import Any

from relay.core.bounded import BoundedDict
from relay.core.errors import RelayError
from relay.core.message import Message
from relay.protocol.broker import ABOUT, OBLIGATION
from relay.session.broker_reports import NOT_NOW
from relay.session.session_commands import (
    AgentNotice,
    DriverCommand,
    PersonNote,
    SendMessage,
    SettleSend,
)

#: Messages, and bytes of their texts, that may wait for the broker: so much fits into a checkpoint.
#: Further messages are refused, and the agent is told how many.
PENDING_MAX = 10_000
PENDING_BYTES_MAX = 8 * 1024 * 1024
#: Room for so many more notices, so that the agent can be told of the refusal.
NOTICES_MAX = 100
#: Requests under way at a time: few enough that none waits in the client and is overtaken.
WINDOW = 256
#: With so many waiting messages the agent is slowed down while the broker makes progress.
BUSY_AT = 500
BUSY_BYTES_AT = 1024 * 1024
#: Between tries while the broker is away or cannot store.
RETRY_SECONDS = 1.0
#: Names of receivers that get nothing for now and of which the agent was told.
TOLD_MAX = 1000
#: Notices that are remembered. The same one is sent again after so many seconds, with the number of
#: times that it occurred in between.
NOTICES_TOLD_MAX = 1000
REPEAT_SECONDS = 600.0
#: Questions that may be open at a time; the next one replaces the oldest.
QUESTIONS_MAX = 100


class Outbox:
    """Outgoing messages of one agent. Pure: commands come out, answers and times go in."""

    def __init__(self) -> None:
        self._pending: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._queue: deque[str] = deque()  # ids that are not under way, in the order said
        self._under_way: set[str] = set()
        self._returned: set[str] = set()  # ids that the broker could not take
        self._retry_at: float | None = None  # when these are sent again
        self._bytes = 0
        self._told: set[tuple[str, str]] = set()  # (receiver that gets nothing for now, reason)
        self._notices = NoticeCounter()
        self._overflow = Overflow("not sent", "messages already wait to be stored")

    @property
    def busy(self) -> bool:
        """Whether so much waits that no more should be heard for the moment."""
        return len(self._pending) >= BUSY_AT or self._bytes >= BUSY_BYTES_AT

    @property
    def empty(self) -> bool:
        """Whether the broker has everything."""
        return not self._pending

    def send(self, fields: dict[str, Any]) -> Iterator[DriverCommand]:
        """Send a message (the fields of the broker's ``send``, with ``id``), in order."""
        identifier = fields["id"]
        if identifier in self._pending:
            return  # heard again while it waits
        notice = bool(fields.get("notice"))
        size = _size(fields)
        room = NOTICES_MAX if notice else 0
        full = len(self._pending) >= PENDING_MAX + room
        if full or self._bytes + size > PENDING_BYTES_MAX + room * 1024:
            error = RelayError(f"{len(self._pending)} messages already wait to be stored")
            if notice:
                yield from _explained(fields, error)
            else:
                to = f"@relay:{','.join(fields['to'])}"
                yield from self._overflow.refuse(to, fields["body"], len(self._pending))
            yield SettleSend(identifier, error)
            return
        self._pending[identifier] = fields
        self._bytes += size
        self._queue.append(identifier)
        yield from self._fill()

    def notice(
        self, notice: AgentNotice, to: str, new_id: Callable[[], str], now: float
    ) -> Iterator[DriverCommand]:
        """Send the agent a notice, unless it has just had the same one."""
        text = notice.text
        if not notice.each_time:
            text, note = self._notices.say(text, now)
            if note and notice.mistake:
                yield PersonNote(note)
        if text:
            fields = {"to": [to], "body": text, "notice": ABOUT, "id": new_id()}
            question = {"question": notice.question} if notice.question else {}
            yield from self.send(fields | question)

    def answered(
        self, identifier: str, answer: dict[str, Any], now: float
    ) -> Iterator[DriverCommand]:
        """The broker has this message."""
        fields = self._forget(identifier)
        if not fields.get("notice"):
            yield from self._report_unknown(answer)
        if note := fields.get("ask") and answer.get("note"):
            yield AgentNotice(note, each_time=True)
        yield SettleSend(identifier, answer)
        yield from self._go_on(now)

    def failed(self, identifier: str, error: RelayError, now: float) -> Iterator[DriverCommand]:
        """The broker has refused this message, or could not take it now."""
        if isinstance(error, NOT_NOW):
            # Not refused, only not accepted yet: it stays pending and keeps its id.
            self._under_way.discard(identifier)
            self._returned.add(identifier)
            yield PersonNote(f"a message waits: {error.message}")
        else:
            yield from _explained(self._forget(identifier), error)
            yield SettleSend(identifier, error)
        yield from self._go_on(now)

    def deadline(self) -> float | None:
        """When ``tick`` is due."""
        return self._retry_at

    def tick(self, now: float) -> Iterator[DriverCommand]:
        """Time has passed."""
        if self._retry_at is not None and now >= self._retry_at:
            self._retry_at = None
            self._queue.extendleft(i for i in reversed(self._pending) if i in self._returned)
            self._returned.clear()
            yield from self._fill()

    def state(self) -> list[dict[str, Any]]:
        """What the broker has not confirmed yet, for the checkpoint."""
        return list(self._pending.values())

    def restore(self, pending: list[dict[str, Any]]) -> Iterator[DriverCommand]:
        """Send again the messages that were not confirmed to an earlier session."""
        for fields in pending:
            yield from self.send(fields)

    def person(self) -> None:
        """The person has spoken to the agent: what it was told before may be told again."""
        self._told.clear()
        self._notices.person()

    def _go_on(self, now: float) -> Iterator[DriverCommand]:
        if self._returned and not self._under_way:
            # Once nothing is under way, returned messages are sent again in their first order.
            self._retry_at = now + RETRY_SECONDS
        yield from self._fill()
        if not self.busy:
            yield from self._overflow.told()

    def _fill(self) -> Iterator[DriverCommand]:
        """Start as many requests as may be under way, unless some must be asked again first."""
        while self._queue and len(self._under_way) < WINDOW and not self._returned:
            identifier = self._queue.popleft()
            self._under_way.add(identifier)
            yield SendMessage(self._pending[identifier])

    def _forget(self, identifier: str) -> dict[str, Any]:
        self._under_way.discard(identifier)
        fields = self._pending.pop(identifier)
        self._bytes -= _size(fields)
        return fields

    def _report_unknown(self, answer: dict[str, Any]) -> Iterator[DriverCommand]:
        """Tell the agent of names that nobody has, and of receivers that do not run.

        Once while that stays so: otherwise an agent that answers each notice would never stop.
        """
        if answer.get("duplicate"):
            return
        deliveries = answer.get("deliveries", ())
        for delivery in deliveries:
            if delivery["state"] == "failed":
                reason = delivery.get("reason", "")
                yield AgentNotice(f"not delivered to {delivery['to']}: {reason}")
        news = [one for one in deliveries if self._is_news(one)]
        held = [one for one in news if one["state"] == "held"]
        if held:
            yield AgentNotice(
                f"the message to {_names(held)} is held until the person releases it:"
                f" {held[0]['reason']}. Do not send it again, and finish your turn"
            )
        queued = [one for one in news if one["state"] == "queued"]
        for one in queued:
            if "@" in one["to"]:
                yield AgentNotice(f"the message to {one['to']} is kept: {one['reason']}")
        if absent := [one for one in queued if "@" not in one["to"]]:
            yield AgentNotice(
                f"{_names(absent)} {'are' if absent[1:] else 'is'} not running now. The message is"
                " kept, and is delivered when an agent of that name runs again"
            )
        unknown = [one["to"] for one in news if one["state"] == "waiting"]
        if not unknown:
            return
        text = f"nobody is called {', '.join(unknown)} yet."
        if guesses := answer.get("did_you_mean"):
            text += f" Did you mean {' or '.join(guesses)}?"
        here = ", ".join(answer.get("present") or ()) or "nobody else"
        text += f" Here now: {here}. @relay:me is your user."
        yield AgentNotice(f"{text} The message is kept for seven days, in case that name comes")

    def _is_news(self, delivery: dict[str, Any]) -> bool:
        """Whether this delivery has to wait, and the agent does not know the reason yet."""
        name, state = delivery["to"].lower(), str(delivery["state"])
        if not delivery.get("reason") or state == "failed":
            self._told -= {(name, why) for why in ("held", "waiting", "queued")}
            return False
        if (name, state) in self._told:
            return False
        if len(self._told) >= TOLD_MAX:
            self._told.clear()
        self._told.add((name, state))
        return True


def _names(deliveries: list[dict[str, Any]]) -> str:
    return ", ".join(delivery["to"] for delivery in deliveries)


def _size(fields: dict[str, Any]) -> int:
    """Bytes of the text as the checkpoint holds it."""
    body: str = fields["body"]
    return len(body) if body.isascii() else len(body.encode("utf-8", "surrogatepass"))


def _explained(fields: dict[str, Any], error: RelayError) -> Iterator[DriverCommand]:
    """Tell the agent that a message was not sent, and why."""
    if fields.get("notice"):
        # Explaining that to the agent would be another notice.
        yield PersonNote(f"the agent was not told something: {error.message}")
    else:
        yield AgentNotice(f"not sent: {error.line}")


class Overflow:
    """Counts messages that are refused because too many wait, and reports them together later."""

    def __init__(self, outcome: str, why: str) -> None:
        self._outcome = outcome
        self._why = why
        self._refused = 0
        self._first = ""
        self._waiting = 0  # how many there were then

    def refuse(self, head: str, body: str, waiting: int) -> Iterator[DriverCommand]:
        """Count a refused message; the first one is noted for the person at once."""
        if not self._refused:
            self._first, self._waiting = f"{head} {body[:60]}", waiting
            yield PersonNote(f"{self._outcome}, from {self._first!r} on: {waiting:,} {self._why}")
        self._refused += 1

    def told(self) -> Iterator[DriverCommand]:
        """There is room again: say how many were refused."""
        if self._refused:
            text = (
                f"{self._outcome}: {self._refused} of what you said, from {self._first!r} on,"
                f" because {self._waiting:,} {self._why}. Say it again, less at a time"
            )
            self._refused = 0
            yield AgentNotice(text, each_time=True)
            yield PersonNote(f"the agent was told: {text}")


class NoticeCounter:
    """Lets the same notice through once, then counts. Pure; time comes in.

    Otherwise an agent that repeats its mistake after each notice would never stop.
    """

    def __init__(self) -> None:
        #: When each notice was sent last, and how often it was held back since.
        self._told: BoundedDict[str, tuple[float, int]] = BoundedDict(NOTICES_TOLD_MAX)

    def say(self, text: str, now: float) -> tuple[str, str]:
        """The notice to the agent about ``text``, and the one to the person; or ""."""
        at, more = self._told.get(text, (-REPEAT_SECONDS, 0))
        if now - at >= REPEAT_SECONDS:
            self._told[text] = (now, 0)
            return text + (f" (this came {more} more times)" if more else ""), ""
        more += 1
        self._told[text] = (at, more)
        # 1, 10, 100 …: the person need not read each.
        rounded = str(more).strip("0") == "1"
        times = f" ({more} times)" if more > 1 else ""
        note = f"the agent was told once, and does it again{times}: {text}"
        return "", note if rounded else ""

    def person(self) -> None:
        """The person has spoken to the agent: what it was told before may be told again."""
        self._told.clear()


@dataclass(frozen=True, slots=True)
class Question:
    """A message with ``[await:30s]``, and the deadline for its answer; ``names`` are those who
    should answer, in lower case."""

    id: str
    to: str
    seconds: float
    due: float
    names: tuple[str, ...]


class ReplyTimeouts:
    """The questions of one agent that have had no answer yet. Pure; time comes in."""

    def __init__(self) -> None:
        self._questions: list[Question] = []

    def ask(self, message_id: str, to: str, seconds: float, now: float) -> None:
        """An answer to this message is expected within ``seconds``."""
        if any(question.id == message_id for question in self._questions):
            return
        names = tuple(to.lower().split(","))
        self._questions.append(Question(message_id, to, seconds, now + seconds, names))
        del self._questions[:-QUESTIONS_MAX]

    def reached(self, message_id: str, answer: dict[str, Any]) -> None:
        """The broker says whom the question reached: members of a channel, agents with a role."""
        for at, question in enumerate(self._questions):
            if question.id == message_id:
                more = (one["to"].lower() for one in answer.get("deliveries", ()))
                self._questions[at] = replace(question, names=(*question.names, *more))

    def state(self) -> list[Any]:
        """The state for the checkpoint; the next session counts by the same clock."""
        return [astuple(question) for question in self._questions]

    def restore(self, questions: list[Any]) -> None:
        """Go on where an earlier session was."""
        self._questions = [
            Question(one[0], one[1], one[2], one[3], tuple(one[4])) for one in questions
        ]

    def heard(self, message: Message) -> None:
        """A message has come; a notice may say that a question will not be answered."""
        if message.sender_kind != "relay":
            self.answered_by(message.sender)
        elif asked := message.attributes.get(OBLIGATION):
            self._questions = [one for one in self._questions if one.id != asked]

    def answered_by(self, sender: str) -> None:
        """``sender`` has written: the oldest question to them is answered."""
        for question in self._questions:
            if sender.lower() in question.names or "*" in question.names:
                self._questions.remove(question)
                return

    def deadline(self) -> float | None:
        """When the next question runs out."""
        return min((question.due for question in self._questions), default=None)

    def tick(self, now: float) -> Iterator[DriverCommand]:
        """Tell the agent of the questions whose time is up."""
        for question in [question for question in self._questions if question.due <= now]:
            self._questions.remove(question)
            text = f"no answer from {question.to} within {question.seconds:g} s"
            yield AgentNotice(text, each_time=True, question=question.id)
