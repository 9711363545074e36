"""Who is known: the registered agents with their connections, and the persons. In memory."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import re
from typing import TYPE_CHECKING

from relay.broker.routing import Route, Routing
from relay.core.message import AgentState, valid_name
from relay.ledger.schema import AgentRecord
from relay.protocol.broker import Json

if TYPE_CHECKING:
    from relay.broker.connection import Connection


def token_hash(token: str) -> str:
    """What is stored of a run's token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def person_name(login: str) -> str:
    """A login name made into a valid name: what agents call the person at the keyboard."""
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", login).strip("-._")[:58] or "person"
    return name if valid_name(name) else f"{name}-user"


def owner_login() -> str:
    """The login name of this process's user, from the system and not from the environment."""
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid{os.getuid()}"


class Member:
    """One agent or person. ``live``: an agent that has a connection or lost it a moment ago."""

    __slots__ = (
        "record",
        "name",
        "person",
        "routing",
        "live",
        "connection",
        "grace",
        "cursor",
        "window",
        "behind",
        "refilling",
        "missed",
        "source",
        "notes",
        "cause",
        "hops",
    )

    def __init__(self, record: AgentRecord) -> None:
        self.update(record)
        self.live = False
        self.connection: Connection | None = None
        self.grace: asyncio.TimerHandle | None = None
        # What was pushed to the connection: up to this event, and these ids are still in hand.
        self.cursor = 0
        self.window: set[str] = set()
        # The ledger holds more beyond the cursor; a query for it is on its way; something came
        # that this query may not find.
        self.behind = False
        self.refilling = False
        self.missed = False
        self.source = ""
        self.notes: list[str] = []
        # The last message that made this agent speak, and its hops; "" after a word of the person.
        self.cause = ""
        self.hops = 0

    def update(self, record: AgentRecord) -> None:
        """Take over what was stored."""
        self.record = record
        self.name = record.name
        self.person = record.person
        # What a message to this one alone comes to; most messages are.
        self.routing = Routing((Route(record.name),))


class Directory:
    """Everybody by lower-case name, and the agents by run."""

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self._runs: dict[str, Member] = {}

    def get(self, name: str) -> Member | None:
        """The member with this name, whatever its case."""
        return self.members.get(name.lower())

    def put(self, record: AgentRecord) -> Member:
        """Add or update a member."""
        key = record.name.lower()
        member = self.members.get(key)
        if member is None:
            member = self.members[key] = Member(record)
        else:
            if member.record.run != record.run:
                if member.record.run:
                    self._runs.pop(member.record.run, None)
                # What made an earlier run speak is nothing that this one speaks of.
                member.cause, member.hops = "", 0
            member.update(record)
        if record.run:
            self._runs[record.run] = member
        return member

    def authenticated(self, run: object, token: object) -> Member | None:
        """The agent whose run and token these are."""
        member = self._runs.get(run) if isinstance(run, str) else None
        if member is None or not isinstance(token, str) or member.record.token_hash is None:
            return None
        if not hmac.compare_digest(member.record.token_hash, token_hash(token)):
            return None
        return member

    def knows_run(self, run: object) -> bool:
        """Whether some agent's run has this id."""
        return isinstance(run, str) and run in self._runs

    def agents(self) -> list[Member]:
        """All agents, those that are there first, then by name."""
        found = [m for m in self.members.values() if not m.person]
        return sorted(found, key=lambda m: (not m.live, m.name.lower()))

    def persons(self) -> list[str]:
        """The names of all persons."""
        return sorted(m.name for m in self.members.values() if m.person)


def agent_fields(member: Member, unread: int) -> Json:
    """One agent as the ``agents`` op shows it."""
    record = member.record
    return {
        "name": member.name,
        "state": record.state if member.live else AgentState.GONE.value,
        "reason": record.reason,
        "kind": record.kind,
        "pid": record.pid if member.live else None,
        "cwd": record.cwd,
        "command": record.command,
        "unread": unread,
        "since_ms": record.since_ms,
        "last_seen_ms": record.last_seen_ms,
        "source": member.source,
        "notes": list(member.notes),
        "run": record.run,
    }
