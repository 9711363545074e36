"""The ``send`` and ``event`` ops: from a request to a message that can be stored."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from relay.broker.batch import Batch
from relay.broker.checks import checked_body, checked_meta, checked_text, too_large
from relay.broker.directory import Directory, Member
from relay.broker.insert_messages import Accepted
from relay.broker.routing import EVERYONE, Route, Routing, route
from relay.core.errors import RelayError, UsageError
from relay.core.ids import new_ulid
from relay.core.message import BODY_MAX, AgentState, Mode, valid_name
from relay.ledger.schema import AgentRecord
from relay.ledger.store import Ledger
from relay.protocol.broker import Json

if TYPE_CHECKING:
    from relay.broker.connection import Connection

_ID = re.compile(r"[0-7][0-9A-HJKMNP-TV-Z]{25}")
_MODES = frozenset(mode.value for mode in Mode)
_FOLLOWUP = Mode.FOLLOWUP.value
THREAD_MAX = 256


class Sending:
    """Checks and routes messages. Holds no state of its own but the names it was given."""

    def __init__(self, ledger: Ledger, directory: Directory, owner: str) -> None:
        self._ledger = ledger
        self._directory = directory
        self._owner = owner
        #: Looks at what is sent before it is stored; see relay.broker.ops_held.
        self.admit: Callable[[Accepted, Member | None, Batch], None] = lambda m, member, b: None

    # -- the ops

    def send(self, connection: Connection | None, request: Json, batch: Batch) -> None:
        """Check and route one message; it is stored with its batch."""
        body = checked_body(request.get("body"))
        if request.get("notice"):
            self._notice(connection, request, batch, body)
            return
        sender, origin = self._sender(connection, request, batch)
        message = self._accept(connection, request, batch, "message", body)
        message.sender = sender
        message.origin = origin
        mode = request.get("mode")
        message.mode = _FOLLOWUP if mode is None else mode
        if not isinstance(message.mode, str) or message.mode not in _MODES:
            raise UsageError(
                f"there is no mode {mode!r}", hint=f"modes: {', '.join(sorted(_MODES))}"
            )
        attributes = request.get("attributes") or {}
        if not isinstance(attributes, dict):
            raise UsageError("attributes are names with values")
        to = request.get("to")
        if to == EVERYONE or (isinstance(to, list) and EVERYONE in to):
            # Each recipient gets a row of its own, and should know that it is not the only one.
            attributes = {**attributes, "audience": "everyone"}
        member = self._directory.get(sender) if origin == "agent" else None
        cause = {"cause": member.cause} if member is not None and member.cause else {}
        if attributes:
            message.meta = checked_meta({"attributes": attributes, **cause})
        elif cause:
            message.meta = checked_meta(cause)
        try:
            message.routing = self._route(to, sender, origin, request)
        except RelayError:
            if not message.given or not self._ledger.known([message.id]):
                raise
            # It was accepted before the answer got lost; who is there has changed since.
            message.routing = Routing(())
        if not message.given or not self._ledger.known([message.id]):
            self.admit(message, member, batch)
        batch.sends.append(message)

    def _notice(
        self, connection: Connection | None, request: Json, batch: Batch, body: str
    ) -> None:
        """A message from relay itself to the agent whose session asks for it, and to no other."""
        member = connection.member if connection is not None else None
        if member is None:
            raise UsageError("only a registered session can leave its agent a notice")
        message = self._accept(connection, request, batch, "message", body)
        message.sender, message.origin = "relay", "relay"
        message.mode = Mode.FOLLOWUP.value
        message.routing = Routing((Route(member.name),))
        batch.sends.append(message)

    def event(self, connection: Connection | None, request: Json, batch: Batch) -> None:
        """Check one event that is no message."""
        kind = request.get("kind")
        if not isinstance(kind, str) or not re.fullmatch(r"[a-z][a-z0-9_.-]{0,63}", kind):
            raise UsageError("an event needs a kind: lower-case letters, digits, _ . -")
        if kind == "message":
            raise UsageError("a message is sent with the op send")
        body = request.get("body")
        text = "" if body is None else checked_text(body, "body")
        event = self._accept(connection, request, batch, kind, text)
        if len(event.body or "") > BODY_MAX:
            raise too_large(len(event.body or ""))
        event.sender, event.origin = self._sender(connection, request, batch)
        meta = request.get("meta")
        event.meta = checked_meta({"meta": meta}) if meta else None
        batch.sends.append(event)

    # -- who speaks, who hears

    def authenticated(self, connection: Connection | None, request: Json) -> Member | None:
        """The agent that a request is from, if it is from one. Raises RelayError for a lie."""
        if connection is not None and connection.member is not None:
            return connection.member
        auth = request.get("auth")
        if auth is None:
            return None
        run, token = (auth.get("run"), auth.get("token")) if isinstance(auth, dict) else (None, "")
        member = self._directory.authenticated(run, token)
        if member is None:
            raise RelayError(
                "this run of an agent is not known to the broker",
                hint="if its agent has ended, unset RELAY_RUN and RELAY_TOKEN to speak as a person",
                code="forbidden" if self._directory.knows_run(run) else "unknown_run",
            )
        return member

    def _sender(
        self, connection: Connection | None, request: Json, batch: Batch
    ) -> tuple[str, str]:
        member = self.authenticated(connection, request)
        name = request.get("from")
        if member is not None:
            if name is not None and str(name).lower() != member.name.lower():
                raise UsageError(
                    f"{member.name} cannot speak as {name}", hint="leave the sender out"
                )
            return member.name, "agent"
        if name is None:
            return self._owner, "person"
        return self.person(name, batch), "person"

    def person(self, name: object, batch: Batch) -> str:
        """A person's name as it is known, made known if it is new. Agents' names are refused."""
        if not isinstance(name, str) or not valid_name(name):
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
        record = AgentRecord(
            name=name,
            person=True,
            kind="person",
            state=AgentState.IDLE.value,
            since_ms=batch.now_ms,
            last_seen_ms=batch.now_ms,
        )
        self._ledger.begin()
        self._ledger.save_agent(record)
        self._ledger.release_held(name, batch.now_ms)
        directory = self._directory
        batch.after.append(lambda: _known(directory, record))
        batch.cut = True  # the next message may be to this person
        return name

    def _route(self, to: Any, sender: str, origin: str, request: Json) -> Routing:
        if type(to) is str:
            # The common case, without the general one's lists.
            member = self._directory.members.get(to.lower())
            if member is not None and member.name != sender:
                return member.routing
            targets = [to]
        elif isinstance(to, list) and all(isinstance(one, str) for one in to):
            targets = to
        else:
            raise UsageError("a message needs a recipient", hint="relay send NAME TEXT")
        strict = origin == "person" and not request.get("offline")
        return route(targets, sender, self._directory.members, strict=strict)

    def _accept(
        self, connection: Connection | None, request: Json, batch: Batch, kind: str, body: str
    ) -> Accepted:
        accepted = Accepted()
        accepted.connection = connection
        accepted.n = request["n"]
        id_ = request.get("id")
        accepted.given = id_ is not None
        if id_ is None:
            id_ = new_ulid(batch.now_ms)
        elif type(id_) is not str or not _ID.fullmatch(id_):
            raise UsageError(f"{id_!r} is not a ULID")
        accepted.id = id_
        accepted.kind = kind
        accepted.body = body
        accepted.mode = None
        accepted.hops = 0
        accepted.meta = None
        accepted.routing = None
        thread = request.get("thread")
        if thread is not None and len(checked_text(thread, "thread")) > THREAD_MAX:
            raise UsageError(f"a thread's name has at most {THREAD_MAX} characters")
        accepted.thread = thread
        return accepted


def _known(directory: Directory, record: AgentRecord) -> None:
    if directory.get(record.name) is None:
        directory.put(record)
