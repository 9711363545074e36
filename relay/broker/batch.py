"""What is committed together: requests, the messages that they become, and what follows.

relay.broker.committer runs and commits it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from relay.broker.routing import Route, Routing
from relay.core.ids import new_ulid
from relay.core.message import QueueMode
from relay.core.processes import Process
from relay.hooks.events import HookEventName
from relay.ledger.event_rows import OutsideEvent
from relay.protocol.broker import Json, encode
from relay.protocol.message_ops import MessageRow
from relay.protocol.op import Op


class Client(Protocol):
    """One client's connection, as the ops see it."""

    ancestors: Sequence[Process]  # the client's process and its ancestors; empty: unknown
    closed: bool  # nothing more can be sent
    paused: bool  # the client does not read

    @property
    def unsent(self) -> int:
        """Bytes that the client has not read yet."""

    def send(self, line: bytes) -> None:
        """Send one line, together with the others of this turn of the event loop."""

    def defer(self) -> None:
        """Note that a request will be answered later. Raises RelayError for one too many."""

    def undefer(self) -> None:
        """Note that such a request has its answer."""

    def answered(self, size: int) -> None:
        """A request of ``size`` characters has been dealt with."""

    def close(self) -> None:
        """Send what is collected, then close."""


Asked = TypeVar("Asked", bound=Mapping[str, Any], covariant=True)
Answer = TypeVar("Answer")


@dataclass(slots=True, eq=False)
class ClientRequest(Generic[Asked]):
    """One request of a client."""

    client: Client
    n: int  # the client's number for it, which the answer repeats
    op: str
    fields: Asked  # as its op describes them
    size: int  # characters of its line


#: A request of any op.
AnyRequest = ClientRequest[Any]


@dataclass(slots=True, eq=False)
class Accepted:
    """A message or an event that will be a row: everything is checked, nothing is stored yet."""

    request: AnyRequest | None  # the request to answer
    id: str
    given: bool  # the client chose the id, so this may be a repetition
    kind: str
    sender: str
    origin: str
    body: str | None
    mode: str | None = None
    thread: str | None = None
    meta: str | None = None
    routing: Routing | None = None
    hops: int = 0
    outside: OutsideEvent | None = None  # set where it came over another channel than relay's own
    owed_by: tuple[str, ...] = ()  # agents that the sender asks for an answer
    by_message: bool = False  # … which must be a message
    handled: bool = False  # handlers of the person's may want to hear of it
    cwd: str | None = None  # of the agent that says it
    # Known once it is written:
    seq: int = 0
    numbers: Sequence[int] = ()
    created_ms: int = 0

    @classmethod
    def notice(cls, to: str, body: str, thread: str, now_ms: int) -> Accepted:
        """A message from relay itself."""
        return cls(
            request=None,
            id=new_ulid(now_ms),
            given=False,
            kind="message",
            sender="relay",
            origin="relay",
            body=body,
            mode=QueueMode.FOLLOWUP.value,
            thread=thread,
            routing=Routing((Route(to),)),
        )

    @property
    def parked(self) -> bool:
        """Whether it is held for the person's decision."""
        return self.routing is not None and any(one.parked for one in self.routing.routes)

    def row(self, index: int) -> MessageRow:
        """The protocol's row of the delivery to recipient number ``index``."""
        assert self.routing is not None
        route = self.routing.routes[index]
        row: MessageRow = {
            "id": self.id,
            "kind": self.kind,
            "from": self.sender,
            "from_kind": self.origin,
            "to": route.to,
            "body": self.body or "",
            "mode": self.mode,
            "thread": self.thread,
            "created_ms": self.created_ms,
            "updated_ms": self.created_ms,
            "state": route.state.value,
            "reason": route.reason,
            "proof": None,
            "attempts": 0,
            "delivery": self.numbers[index],
        }
        if self.meta:
            row.update(json.loads(self.meta))
        return row


class Observer(Protocol):
    """Reports to hooks what the broker has done: see relay.features.personas.hook_observer."""

    def wants(self, event: HookEventName) -> bool:
        """Whether a hook is registered for it."""

    def observe(self, event: HookEventName, fields: Json) -> None:
        """Report it to the hooks. Returns at once."""


class Batch:
    """The requests of one commit: what to answer, and what to do once it is on the disk."""

    def __init__(self, now_ms: int, observer: Observer | None = None) -> None:
        self.now_ms = now_ms
        self._observer = observer
        self.requests: list[AnyRequest] = []
        self.owed: list[AnyRequest] = []  # requests of earlier batches that a job continues
        self.answers: list[tuple[Client, bytes]] = []
        self.after: list[Callable[[], object]] = []
        self.on_failure: list[Callable[[], object]] = []  # instead of ``after``
        self.sends: list[Accepted] = []
        self.stored: list[Accepted] = []  # the messages that were written
        self.offered = False  # whether ``after`` offers what is stored
        self.last: list[Job] = []  # jobs that need them written, committed with them
        self.cut = False  # what follows must see this batch committed

    def part(self) -> _Part:
        """Undo everything that was added within when it raises, and nothing else; except ``owed``,
        which the caller answers."""
        return _Part(self)

    def is_observed(self, event: HookEventName) -> bool:
        """Whether a hook wants to know of it."""
        return self._observer is not None and self._observer.wants(event)

    def observe(self, event: HookEventName, fields: Callable[[], Json | None]) -> None:
        """Report an event to hooks once the batch is committed. ``fields`` is called now, and only
        if a hook is registered for the event; None: there is nothing to report."""
        observer = self._observer
        if observer is not None and observer.wants(event) and (told := fields()) is not None:
            self.after.append(partial(observer.observe, event, told))

    def answer(self, client: Client, n: int, fields: Mapping[str, object]) -> None:
        self.answers.append((client, encode({"n": n, "ok": True, **fields})))


class _Part:
    """``Batch.part``. One for each message: a generator would take as long as all the rest."""

    __slots__ = ("_batch", "_lists", "_failing", "_offered")

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        lists: tuple[list[Any], ...] = (batch.answers, batch.after, batch.sends, batch.last)
        self._lists = [(one, len(one)) for one in lists]
        self._failing, self._offered = len(batch.on_failure), batch.offered

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            for one, size in self._lists:
                del one[size:]
            self._batch.offered = self._offered
            self._batch.after += self._batch.on_failure[self._failing :]


#: Carries out one op. Returns the answer's fields; None when it answers in another way.
Handler = Callable[[AnyRequest, Batch], Any]


class Served(NamedTuple):
    """An op, and what carries it out."""

    op: Op[..., Any, Any]
    handler: Handler


def serve(
    op: Op[..., Asked, Answer],
    handler: Callable[[ClientRequest[Asked], Batch], Answer | None],
) -> Served:
    """An op with what carries it out. None: it answers in another way, or later."""
    return Served(op, handler)


#: Work of the broker itself, queued with the requests.
Job = Callable[[Batch], None]
