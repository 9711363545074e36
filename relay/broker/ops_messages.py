"""The ``send`` and ``event`` ops: from a request to a message or an event that can be stored."""

from __future__ import annotations

import re
from contextlib import suppress
from functools import partial

from relay.broker.batch import Accepted, AnyRequest, Batch, ClientRequest, Served, serve
from relay.broker.directory import Member
from relay.broker.kernel import Kernel
from relay.broker.loop_guard import HeldMessages
from relay.broker.obligations import overdue
from relay.broker.open_items import ANSWER
from relay.broker.ops_agents import person_record
from relay.broker.ops_query import one_id
from relay.broker.routing import EVERYONE, TARGETS_MAX, Route, Routing, route, with_role
from relay.core import json_text
from relay.core.agent_names import channel_of, valid_name
from relay.core.dispatch import TICK_KIND, PersonType
from relay.core.errors import RelayError, UsageError
from relay.core.ids import new_ulid
from relay.core.message import AWAITED, BODY_MAX, BY_HOOK, MODES, REPORTED, QueueMode, State
from relay.core.visible import is_visible
from relay.ledger import persons, queries
from relay.ledger.obligation_rows import told_meta
from relay.protocol.broker import ABOUT, Json, not_unicode
from relay.protocol.message_ops import EVENT, SEND, EventStored, MessageSent, Send, StoreEvent

_ID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")
_FOLLOWUP, _STEER = QueueMode.FOLLOWUP.value, QueueMode.STEER.value
#: Events by which a session claims something that is done once: only sessions may send them.
OF_SESSIONS = frozenset(
    {
        *("match", "session_start", "session_end", "tool_call", "output", "idle"),
        *("notification", "pre_compress", "wedged", "unanswered", TICK_KIND),
    }
)
#: Characters of a thread's name, at most.
THREAD_MAX = 256
#: The size of a message's attributes, in bytes of JSON, at most.
META_MAX = 64 * 1024


class MessageOps:
    """Checks and routes messages."""

    def __init__(self, kernel: Kernel, held: HeldMessages) -> None:
        self._features = kernel.features
        self._ledger = kernel.ledger
        self._directory = kernel.directory
        self._windows = kernel.windows
        self._held = held

    def ops(self) -> list[Served]:
        return [serve(SEND, self.send), serve(EVENT, self.event)]

    # -- the ops

    def send(self, request: ClientRequest[Send], batch: Batch) -> MessageSent | None:
        """Check and route one message; it is stored with its batch."""
        fields = request.fields
        body = _body(fields["body"])
        if fields.get("notice"):
            return self._notice(request, batch, body)
        member = self._directory.speaker(request)
        sender = self._sender(member, fields.get("from"), batch)
        origin = "person" if member is None else "agent"
        mode = fields.get("mode")
        if mode is None:
            mode = _FOLLOWUP
        elif mode not in MODES:
            raise UsageError(
                f"there is no mode {mode!r} in this version", hint=f"modes: {', '.join(MODES)}"
            )
        to, id_, thread = self._to(fields), fields.get("id"), _thread(fields)
        # The common case is one recipient who is known: then nobody else is looked for.
        known = self._directory.get(to) if isinstance(to, str) else None
        is_here = known is not None and (known.live or known.person)
        if member is None and not is_here:
            asked = self._features.addressed(request, sender, thread, batch)
            if asked is not None:
                return asked
        cause, thread = self._follows_from(fields, thread, to, member)
        message = Accepted(
            request=request,
            id=new_ulid(batch.now_ms) if id_ is None else checked_id(id_),
            given=id_ is not None,
            kind="message",
            sender=sender,
            origin=origin,
            body=body,
            mode=mode,
            thread=thread,
            meta=_meta(
                fields,
                {} if known is not None else self._audience(to, sender),
                cause,
                "" if member else _terminal(request),
                proven=member is None and self._directory.is_owners_word(request, sender),
            ),
        )
        repeated = self._is_repeated(message)
        try:
            if known is not None and known.name.lower() != sender.lower():
                message.routing = known.routing if is_here else known.routing_away
            else:
                message.routing = self._route(to, sender, origin == "person", fields)
        except RelayError:
            if not repeated:
                raise
            # It was accepted, and the answer was lost; other agents may run by now.
            message.routing = Routing(())
        # A program that was called for an agent's words continues the agent's chain.
        by = member or self._directory.behind(request.client)
        if not repeated:
            if by is not None:
                self._held.admit(message, by, request.client, batch)
            self._held.hold_over_cap(message, batch)
            if fields.get("answer") or fields.get("await"):
                message.by_message = bool(fields.get("await"))
                message.owed_by = self._who_owes(message.routing)
        message.handled, message.cwd = True, None if by is None else by.record.cwd
        self._windows.collect(message, batch)
        return None

    def _follows_from(
        self, fields: Send, thread: str | None, to: str | list[str] | None, member: Member | None
    ) -> tuple[str, str | None]:
        """The message that this one follows from ("": none), and its thread: an answer is in the
        thread of its question, unless it names another one."""
        if about := fields.get("re"):
            with suppress(*(() if member is None else (RelayError,))):  # agents write much there
                id_ = one_id(self._ledger, about)
                return id_, thread or queries.origin(self._ledger, id_)[1]
        cause = "" if member is None else member.cause
        if cause and thread is None:
            sender, of_cause, channel = queries.origin(self._ledger, cause)
            for one in [to] if isinstance(to, str) else to or ():
                if one.lower() in (sender.lower(), channel):
                    thread = of_cause
        return cause, thread

    def _who_owes(self, routing: Routing) -> tuple[str, ...]:
        """The recipients that can owe an answer: agents, not persons."""
        members = ((one, self._directory.get(one.to)) for one in routing.routes)
        return tuple(
            one.to
            for one, member in members
            if one.state is not State.FAILED and (member is None or not member.person)
        )

    def _is_repeated(self, message: Accepted) -> bool:
        """Whether its sender has sent it before. Raises UsageError for the id of another sender,
        whose own message it would suppress."""
        if not message.given or not self._ledger.known([message.id]):
            return False
        if queries.sender_of(self._ledger, message.id) != message.sender.lower():
            raise UsageError(f"the id {message.id} is taken", hint="leave it out")
        return True

    def _notice(self, request: ClientRequest[Send], batch: Batch, body: str) -> MessageSent | None:
        """A message from relay to an agent, for which that agent's own session has asked."""
        member = self._directory.member_of(request.client)
        if member is None:
            raise UsageError("only a registered session can leave its agent a notice")
        id_ = request.fields.get("id")
        message = Accepted(
            id=new_ulid(batch.now_ms) if id_ is None else checked_id(id_),
            kind="message",
            sender="relay",
            origin="relay",
            body=body,
            request=request,
            given=id_ is not None,
            mode=_STEER if request.fields.get("mode") == _STEER else _FOLLOWUP,
            thread=_thread(request.fields),
            routing=Routing((Route(member.name),)),
            meta=_as_meta({"attributes": BY_HOOK}) if request.fields.get("by_hook") else None,
        )
        repeated = self._is_repeated(message)
        if (question := request.fields.get("question")) and not repeated:
            text = overdue(self._ledger, self._directory, question, member.name, body)
            if text is None:
                return {"id": message.id, "from": "relay", "duplicate": True, "deliveries": []}
            message.body, message.meta = text, told_meta(question)
            batch.cut = True  # so that the end of that turn finds it
        if request.fields["notice"] == ABOUT and not repeated:
            self._held.admit_notice(message, member, batch)
        self._windows.collect(message, batch)
        return None

    def event(self, request: ClientRequest[StoreEvent], batch: Batch) -> EventStored | None:
        """Check one event that is not a message; with ``outside`` it is of another channel."""
        fields = request.fields
        if "outside" in fields:
            if not self._features.outside(request, batch):
                raise UsageError("no feature that is installed takes events of other channels")
            return None
        kind = fields.get("kind", "")
        if not re.fullmatch(r"[a-z][a-z0-9_.-]{0,63}", kind):
            raise UsageError("an event needs a kind: lower-case letters, digits, _ . -")
        if kind == "message":
            raise UsageError("a message is sent with the op send")
        of_session = self._directory.member_of(request.client) is not None
        if kind in (ANSWER, "unanswered"):
            raise RelayError(f"only the broker tells of {kind}", code="forbidden")
        if kind == TICK_KIND or (kind in OF_SESSIONS and not of_session):
            raise RelayError(f"only an agent's session tells of a {kind}", code="forbidden")
        body = fields.get("body") or ""
        if len(body) > BODY_MAX:
            raise _too_large(len(body))
        id_, meta = fields.get("id"), fields.get("meta")
        member = self._directory.speaker(request)
        event = Accepted(
            id=new_ulid(batch.now_ms) if id_ is None else checked_id(id_),
            kind=kind,
            sender=self._sender(member, fields.get("from"), batch),
            origin="person" if member is None else "agent",
            body=body,
            request=request,
            given=id_ is not None,
            thread=_thread(fields),
            meta=_as_meta({"meta": meta}) if meta else None,
        )
        self._is_repeated(event)
        event.hops = self._directory.hops(member, request.client) or 0
        event.handled, event.cwd = True, None if member is None else member.record.cwd
        self._windows.collect(event, batch)
        return None

    # -- sender and receivers

    def _sender(self, member: Member | None, name: str | None, batch: Batch) -> str:
        if member is not None:
            if name is not None and name.lower() != member.name.lower():
                raise UsageError(
                    f"{member.name} cannot speak as {name}", hint="leave the sender out"
                )
            return member.name
        return self._directory.owner if name is None else self._person(name, batch)

    def _person(self, name: str, batch: Batch) -> str:
        """A person's name as it is stored; a new one is stored. Agents' names are refused."""
        if not valid_name(name):
            raise UsageError(
                f"{name!r} cannot be a name",
                hint="letters, digits, _ . - (at most 64), and none of relay's own words",
            )
        member = self._directory.get(name)
        if member is not None and not member.person:
            raise UsageError(
                f"{member.name} is an agent; nobody else can speak as it",
                hint="choose another name with --from, or leave it out",
            )
        if member is not None:
            return member.name
        record = person_record(name, "person", batch.now_ms)
        self._ledger.begin()
        self._ledger.save_agent(record)
        known = (name, PersonType.KNOWN)
        persons.ensure_members(self._ledger, [known], batch.now_ms)
        self._ledger.release_waiting(name, batch.now_ms)
        batch.after.append(partial(self._directory.put_new, record))
        batch.cut = True  # the next message may be to this person
        return name

    def _to(self, fields: Send) -> str | list[str] | None:
        """Whom a message is for, with the person's name for the words that mean them."""
        to = fields.get("to")
        if isinstance(to, str):
            return self._directory.meant(to)
        return to and [self._directory.meant(one) for one in to]

    def _audience(self, to: str | list[str] | None, sender: str) -> dict[str, str]:
        """The attributes that say whom else a message to several went to, and that the sender is
        not in the #channel, and so would not get an answer that is sent there."""
        for one in [to] if isinstance(to, str) else to or ():
            if one == EVERYONE:
                return {"audience": "everyone"}
            if one.startswith("#"):
                channel, member = channel_of(one) or one, self._directory.get(sender)
                inside = member is not None and channel in member.channels
                return {"channel": channel} | ({} if inside else {"sender": "outside"})
            if with_role(one, self._directory.members):
                return {"role": one.lower()}
        return {}

    def _route(
        self, to: str | list[str] | None, sender: str, is_person: bool, fields: Send
    ) -> Routing:
        if to is None:
            raise UsageError("a message needs a recipient", hint="relay send NAME TEXT")
        targets = [to] if isinstance(to, str) else to
        strict = is_person and not fields.get("offline")
        peers = self._directory.members
        elsewhere = {
            one: self._features.elsewhere(one, fields)
            for one in targets[:TARGETS_MAX]
            if one.lower() not in peers and not with_role(one, peers)
        }
        return route(targets, sender, peers, strict=strict, elsewhere=elsewhere)


# -- what a message may hold


def _body(body: str) -> str:
    size = len(body)
    if size * 3 > BODY_MAX or not body.isascii():
        try:
            size = len(body.encode())
        except UnicodeEncodeError as error:
            raise not_unicode() from error
    if size > BODY_MAX:
        raise _too_large(size)
    if not body or body.isspace():
        raise UsageError("the message is empty", hint="relay send NAME TEXT")
    return body


def checked_id(id_: str) -> str:
    """The id that a client has chosen. Raises UsageError."""
    if not _ID.fullmatch(id_):
        raise UsageError(f"{id_!r} is not a ULID")
    return id_


def _thread(fields: Send | StoreEvent) -> str | None:
    thread = fields.get("thread")
    if thread is None:
        return None
    if len(thread) > THREAD_MAX:
        raise UsageError(f"a thread's name has at most {THREAD_MAX} characters")
    if not is_visible(thread):
        raise UsageError(f"the thread {thread!r} has characters that cannot be seen")
    return thread


def _terminal(request: AnyRequest) -> str:
    """The terminal from which a message is sent; "" for a script without one."""
    ancestors = request.client.ancestors
    return ancestors[0].place if ancestors and ancestors[0].terminal else ""


#: The attributes that say whom else a message went to. Only the broker sets them.
_AUDIENCE = ("audience", "channel", "role", "sender")


def _meta(
    fields: Send, audience: dict[str, str], cause: str, terminal: str, *, proven: bool
) -> str | None:
    """The attributes as they are stored, with the message's origin: the message it follows from,
    the person's terminal, and whether it is ``proven`` to be the owner's word."""
    attributes = fields.get("attributes") or {}
    if fields.get("answer") or fields.get("await"):
        attributes = {**attributes, **REPORTED}
    if fields.get("await"):
        attributes = {**attributes, **AWAITED}
    if attributes or audience:
        kept = {name: value for name, value in attributes.items() if name not in _AUDIENCE}
        attributes = {**kept, **audience}
    elif not (terminal or cause):
        return _PROVEN if proven else None
    more = {"attributes": attributes, "via": terminal, "cause": cause, "proven": proven}
    given = {name: value for name, value in more.items() if value}
    return _as_meta(given) if given else None


def _as_meta(fields: Json) -> str:
    text = json_text.dumps(fields)
    if len(text) > META_MAX:
        raise UsageError(f"attributes of more than {META_MAX} bytes")
    return text


#: What is stored of most messages of the person's.
_PROVEN = _as_meta({"proven": True})


def _too_large(size: int) -> UsageError:
    return UsageError(
        f"the text is {size} bytes long; the limit is {BODY_MAX}",
        hint="put it in a file and send its path",
        code="too_large",
    )
