"""Who is known: the registered agents with their connections, and the persons. In memory."""

from __future__ import annotations

import hashlib
import hmac
import os
from contextlib import suppress
from typing import TypeVar

from relay.broker.batch import AnyRequest, Client
from relay.broker.delivery_states import absent
from relay.broker.identity import Ancestry, Membership, Standing, WrappedRuns
from relay.broker.routing import Route, Routing, suggestions
from relay.core.agent_names import owner_name, owner_words
from relay.core.build import build, is_older
from relay.core.errors import NotFound, RelayError, only_the_person
from relay.core.message import AgentState, State
from relay.core.processes import marks_above
from relay.ledger.schema import AgentRecord
from relay.protocol.agent_ops import AgentRow
from relay.protocol.broker import Json
from relay.protocol.message_ops import DeliveryRow, HistoryRow, MessageRow

SomeRow = TypeVar("SomeRow", MessageRow, HistoryRow, DeliveryRow)

#: The reason for the state of an agent that waits for a person's yes or no.
_ASKS = "waits for your yes or no: relay items"
#: … of an agent whose session does not run: it is not heard, and nothing reaches it.
_DEAF = "deaf: its session has ended, and starts again within a minute"


def token_hash(token: str) -> str:
    """The hash of a run's token, which is stored in its place."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


class Member:
    """One agent or person."""

    def __init__(self, record: AgentRecord) -> None:
        self.update(record)
        #: The #channels that it is in, and those whose presence it follows.
        self.channels: tuple[str, ...] = ()
        self.presence: tuple[str, ...] = ()
        #: The build of its session.
        self.version: str | None = None
        #: Whether it is an agent with a connection, or one that lost it a moment ago.
        self.live = False
        #: Whether it runs, but its session has been away for longer than a moment.
        self.deaf = False
        #: The connection of its session.
        self.client: Client | None = None
        #: The source of the agent's words, as its session reports it.
        self.source = ""
        self.notes: list[str] = []
        self.remark = ""
        #: For requests about memories: the agent's project (str or None), the treatment of secrets
        #: and the store, as the run was first registered; nothing later changes them. None: its
        #: session has not registered at this broker yet.
        self.memory: Json | None = None
        self._memory_of: str | None = None  # the run
        self.approvals = 0  # calls of its that wait for the person's yes or no
        #: The message that made this agent speak, "" after a word of the person, and its hops.
        self.cause = ""
        self.hops = record.hops

    def update(self, record: AgentRecord) -> None:
        """Take over a stored record."""
        self.record = record
        self.name = record.name
        self.person = record.person
        self.roles = tuple(filter(None, record.roles.split(",")))
        # The recipients of a message to this agent alone, as most messages are: while it is here,
        # and while it is not.
        self.routing = Routing((Route(record.name),))
        self.routing_away = Routing((Route(record.name, reason=absent(record.name)),))

    def caused_by(self, id_: str, hops: int) -> None:
        """From now on this agent's words follow from the message ``id_``; "": from none."""
        self.cause, self.hops = id_, hops

    def remember_with(self, memory: Json) -> None:
        """Set the fields of the agent's requests about memories, once in a run: later values are
        ignored."""
        if self._memory_of != self.record.run:
            self.memory, self._memory_of = memory, self.record.run

    @property
    def last_seen_ms(self) -> int:
        """When its session last sent something, or the broker lost it."""
        return self.record.last_seen_ms

    def be_in(self, channels: tuple[str, ...]) -> None:
        """Set the #channels that it is in."""
        self.channels = channels

    def leave(self, record: AgentRecord) -> None:
        """Mark the agent as gone, unless it has come back meanwhile."""
        if self.client is None:
            self.live = self.deaf = False
            self.update(record)

    def fields(self, unread: int) -> AgentRow:
        record = self.record
        state, reason = record.state, record.reason
        if self.approvals:
            state, reason = AgentState.BLOCKED.value, _ASKS
        if self.deaf:
            state, reason = AgentState.STARTING.value, _DEAF
        if not self.live:
            state = AgentState.GONE.value
        return {
            "name": self.name,
            "state": state,
            "reason": reason or (self.live and self.remark) or None,
            "kind": record.kind,
            "pid": record.pid if self.live else None,
            "cwd": record.cwd,
            "command": record.command,
            "unread": unread,
            "since_ms": record.since_ms,
            "last_seen_ms": record.last_seen_ms,
            "source": self.source,
            "notes": [*self.notes, *self._outdated()],
            "version": self.version if self.live else None,
            "run": record.run,
            "conversation": record.conversation,
            "roles": list(self.roles),
            "channels": list(self.channels),
        }

    def _outdated(self) -> list[str]:
        """Notes on a session of an older relay than this broker."""
        if self.client is None or not is_older(self.version, build()):
            return []
        version = self.version or "without a number"
        return [f"its session is of an older relay, {version}: relay reload {self.name}"]


class Directory:
    """Everybody by lower-case name, the agents by run, the connected ones by connection."""

    def __init__(self, runs: WrappedRuns | None = None) -> None:
        self.runs = runs or WrappedRuns()
        #: The person whose broker this is.
        self.owner = owner_name()
        self._owner_words = owner_words()
        self.members: dict[str, Member] = {}
        self._runs: dict[str, Member] = {}
        self._bound: dict[Client, Member] = {}
        self._ancestries: dict[Client, Ancestry] = {}
        self._ancestries_at = 0  # the number of registrations that they hold for

    def get(self, name: str) -> Member | None:
        """The member with this name, whatever its case."""
        return self.members.get(name.lower())

    def meant(self, name: str) -> str:
        """``name``, or the owner's where the word means them. No agent's name can be such a word;
        another person's can."""
        key = name.lower()
        if key not in self._owner_words:
            return name
        member = self.members.get(key)
        return name if member is not None and member.person else self.owner

    def put(self, record: AgentRecord) -> Member:
        key = record.name.lower()
        member = self.members.get(key)
        if member is None:
            member = self.members[key] = Member(record)
        else:
            if member.record.run != record.run:
                if member.record.run:
                    self._runs.pop(member.record.run, None)
                # An earlier run's chain of messages does not continue in this one.
                member.caused_by("", 0)
            member.update(record)
        if record.run:
            self._runs[record.run] = member
        return member

    def put_new(self, record: AgentRecord) -> None:
        if self.get(record.name) is None:
            self.put(record)

    # -- connections

    def bind(self, client: Client, member: Member) -> Client | None:
        """Make ``client`` the session of ``member``. Returns the connection that it replaces."""
        before = member.client
        if before is not None and before is not client:
            del self._bound[before]
        member.client = client
        member.live, member.deaf = True, False
        self._bound[client] = member
        return before if before is not client else None

    def unbind(self, client: Client) -> Member | None:
        """Forget a closed connection. Returns its member, if it had one."""
        member = self._bound.pop(client, None)
        self._ancestries.pop(client, None)
        if member is not None:
            member.client = None
        return member

    def member_of(self, client: Client) -> Member | None:
        """The agent that registered over this connection."""
        return self._bound.get(client)

    def behind(self, client: Client) -> Member | None:
        """The agent that called the person's program (a handler, a hook) behind this connection,
        which speaks as the person."""
        run = self.ancestry_of(client).served_by
        return self._runs.get(run) if run else None

    def around(self, member: Member, client: Client) -> list[Member]:
        """``member``, which speaks over ``client``, and the agents inside which it was started, the
        outermost last: an agent that starts or registers others may speak through them."""
        found = [member]
        for run in self.ancestry_of(client).above:
            outer = self._runs.get(run)
            if outer is not None and outer not in found:
                found.append(outer)
        return found

    def hops(self, member: Member | None, client: Client) -> int | None:
        """The hops of what ``member`` says over ``client``, or the person's program that an agent
        called; None for the person's own words."""
        by = member or self.behind(client)
        return None if by is None else max(one.hops for one in self.around(by, client))

    # -- identity of the client

    def ancestry_of(self, client: Client) -> Ancestry:
        """What the kernel says of it. Looked up once, and again after each registration."""
        if self._ancestries_at != self.runs.changes:
            self._ancestries.clear()
            self._ancestries_at = self.runs.changes
        ancestry = self._ancestries.get(client)
        if ancestry is None:
            ancestry = self._ancestries[client] = self.runs.ancestry(client.ancestors)
        return ancestry

    def speaker(self, request: AnyRequest) -> Member | None:
        """The agent that a request is from; None for the person. Raises RelayError for a lie.

        The kernel decides. A token counts only where the kernel cannot tell: for a process outside
        the agent that got the token from it, and for a run that is not registered.
        """
        member = self._bound.get(request.client)
        if member is not None:
            return member
        auth = request.fields.get("auth")
        standing = self.ancestry_of(request.client).standing
        if auth is None and standing.place is Membership.OUTSIDE:
            return None
        run, token = (auth.get("run"), auth.get("token")) if isinstance(auth, dict) else (None, "")
        if standing.place is Membership.RUN:
            member = self._runs.get(standing.run)
            if member is not None and auth is not None and run != standing.run:
                raise RelayError(
                    f"this was asked inside the agent {member.name}, and RELAY_RUN names another",
                    code="forbidden",
                )
        elif self._may_show_token(request.client, standing, run):
            member = self._authenticated(run, token)
        if member is not None:
            return member
        known = isinstance(run, str) and run in self._runs
        if known and standing.place in (Membership.OUTSIDE, Membership.RUN):
            raise RelayError(
                "RELAY_RUN names an agent, and RELAY_TOKEN is not its token", code="forbidden"
            )
        if standing.place is Membership.UNKNOWN and (known or auth is None):
            raise RelayError(
                "relay cannot tell who is asking: the process has gone, runs in another container,"
                " or has ancestors that cannot be seen",
                hint="relay doctor says more",
                code="forbidden",
            )
        raise RelayError("this run of an agent is not known to the broker", code="unknown_run")

    def _may_show_token(self, client: Client, standing: Standing, run: object) -> bool:
        """Whether a token of ``run`` counts over ``client``: not where the kernel can tell who
        belongs to that run, or will once its session has registered."""
        if standing.place is Membership.OUTSIDE:
            return True
        if not isinstance(run, str) or self.runs.is_proven(run):
            return False
        known = self._runs.get(run)
        pid = 0 if known is None else known.record.pid
        monitor = next(marks_above(pid), None) if pid else None
        if monitor is None:
            return True
        own = next((one for one in client.ancestors if one.is_marked), None)
        return own is not None and own.key == monitor.key

    def is_outside(self, client: Client) -> bool:
        """Whether the process behind ``client`` is below no run of an agent."""
        return self.ancestry_of(client).standing.place is Membership.OUTSIDE

    def is_broker(self, client: Client) -> bool:
        """Whether ``client`` is this process: a feature that asks for somebody elsewhere."""
        return bool(client.ancestors) and client.ancestors[0].pid == os.getpid()

    def is_owners_word(self, request: AnyRequest, sender: str) -> bool:
        """Whether the words of ``request`` are proven to be the owner's, so that agents may take
        them for their user's.

        The kernel decides: the client is below no run, and no program that relay has called, which
        acts on the words of others. A claim (another name, ``unproven``) can only take this away.
        """
        ancestry = self.ancestry_of(request.client)
        return (
            sender.lower() == self.owner.lower()
            and not request.fields.get("unproven")
            and ancestry.standing.place is Membership.OUTSIDE
            and not ancestry.is_called
        )

    def check_person(self, request: AnyRequest, what: str) -> str:
        """The person and their terminal, in words. Raises RelayError for anybody else: only the
        person may do ``what``."""
        member = None
        with suppress(RelayError):
            member = self.speaker(request)
            if member is None and self.is_outside(request.client):
                return f"{self.owner}, {request.client.ancestors[0].place}"
        raise only_the_person(what, "" if member is None else member.name)

    def named(self, request: AnyRequest) -> Member:
        """The member whose messages are meant: ``name``, or the client itself. Raises NotFound."""
        name = request.fields.get("name")
        if name is None:
            own = self.speaker(request)
            name = own.name if own is not None else self.owner
        member = self.get(self.meant(str(name)))
        if member is None:
            raise self.nobody(str(name))
        return member

    def nobody(self, name: str) -> NotFound:
        """The error for a name that nobody has, with the one that is probably meant."""
        guesses = suggestions([name], self.members)
        hint = f"did you mean {' or '.join(guesses)}?" if guesses else "relay agents lists them"
        return NotFound(
            f"nobody is called {name}",
            hint=f"{hint} (you are {self.owner})",
            details={"did_you_mean": guesses},
        )

    def _authenticated(self, run: object, token: object) -> Member | None:
        member = self._runs.get(run) if isinstance(run, str) else None
        if member is None or not isinstance(token, str) or member.record.token_hash is None:
            return None
        if not hmac.compare_digest(member.record.token_hash, token_hash(token)):
            return None
        return member

    # -- lists

    def with_absence(self, rows: list[SomeRow]) -> list[SomeRow]:
        """``rows`` of deliveries; the reason says so where the recipient does not run.

        That reason is not stored: such a delivery waits for the next agent of that name.
        """
        for row in rows:
            if row["state"] == State.QUEUED.value:
                member = self.get(row["to"] or "")
                if member is not None and member.deaf:
                    row["reason"] = f"{member.name} is {_DEAF}"
                elif member is not None and not member.live and not member.person:
                    row["reason"] = absent(member.name)
        return rows

    def agents(self) -> list[Member]:
        """All agents: those that run first, then by name."""
        found = [m for m in self.members.values() if not m.person]
        return sorted(found, key=lambda m: (not m.live, m.name.lower()))

    def persons(self) -> list[str]:
        return sorted(m.name for m in self.members.values() if m.person)
