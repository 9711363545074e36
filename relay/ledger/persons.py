"""Who is behind the addresses of all channels: persons, filled by the person and by what comes.

One connection, one owner: see relay.ledger.store. On the channel ``relay`` an address is a name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from relay.core.agent_names import owner_name
from relay.core.dispatch import RELAY_CHANNEL, PersonType
from relay.core.errors import NotFound, UsageError
from relay.core.ids import new_ulid
from relay.ledger.store import Ledger

Address = tuple[str, str]

_COLUMNS = "p.id, p.name, p.type, p.relationship, p.created_ms, p.updated_ms"
#: Whom a channel has brought, and nobody has said anything of yet: their address may be taken over.
_BROUGHT = (PersonType.UNKNOWN, PersonType.WEBHOOK, PersonType.SYSTEM)
#: What ``relay person add`` may make of somebody.
GIVEN_TYPES = (PersonType.KNOWN, PersonType.OWNER, *_BROUGHT)


@dataclass(frozen=True, slots=True)
class Person:
    """One person, agent or program. Times in milliseconds."""

    id: str
    name: str
    type: PersonType
    relationship: str | None
    created_ms: int
    updated_ms: int
    addresses: tuple[Address, ...] = ()

    @property
    def about(self) -> dict[str, str | None]:
        """What an event's ``metadata["person"]`` says of them."""
        return {"id": self.id, "name": self.name, "relationship": self.relationship}


def ensure(
    ledger: Ledger, channel: str, address: str, *, name: str, type_: PersonType, now_ms: int
) -> str:
    """The id of who has this address; somebody new of ``type_`` where nobody has."""
    found = ledger.row(
        "SELECT person FROM person_addresses WHERE channel=? AND address=?", (channel, address)
    )
    if found is not None:
        return str(found[0])
    id_ = new_ulid(now_ms)
    ledger.change(
        "INSERT INTO persons (id, name, type, created_ms, updated_ms) VALUES (?,?,?,?,?)",
        (id_, name, type_.value, now_ms, now_ms),
    )
    ledger.change("INSERT INTO person_addresses VALUES (?,?,?)", (channel, address, id_))
    return id_


def ensure_members(ledger: Ledger, members: Iterable[tuple[str, PersonType]], now_ms: int) -> None:
    """Make persons of those who can get messages in relay and are none yet: (name, type)."""
    known = {
        row[0].lower()
        for row in ledger.rows(
            "SELECT address FROM person_addresses WHERE channel=?", (RELAY_CHANNEL,)
        )
    }
    for name, type_ in members:
        if name.lower() not in known:
            ledger.begin()
            ensure(ledger, RELAY_CHANNEL, name, name=name, type_=type_, now_ms=now_ms)


def sender_type(ledger: Ledger, channel: str, sender: str, origin: str) -> PersonType:
    """What the sender of an event is; ``origin`` as the event's row has it."""
    if origin == "agent":
        return PersonType.AGENT
    if origin == "relay":
        return PersonType.SYSTEM
    found = ledger.row(
        "SELECT p.type FROM person_addresses a JOIN persons p ON p.id = a.person"
        " WHERE a.channel=? AND a.address=?",
        (channel, sender),
    )
    if found is not None:
        return PersonType(found[0])
    if channel != RELAY_CHANNEL:
        return PersonType.UNKNOWN
    return PersonType.OWNER if sender.lower() == owner_name().lower() else PersonType.KNOWN


def with_address(ledger: Ledger, channel: str, address: str) -> Person | None:
    rows = ledger.rows(
        f"SELECT {_COLUMNS} FROM person_addresses a JOIN persons p ON p.id = a.person"
        " WHERE a.channel=? AND a.address=?",
        (channel, address),
    )
    return _persons(ledger, rows)[0] if rows else None


def everybody(ledger: Ledger, limit: int) -> list[Person]:
    """All persons who are not merged into others, by name: at most ``limit``, of those whom only
    a channel has brought the newest."""
    rows = ledger.rows(
        f"SELECT {_COLUMNS} FROM persons p WHERE merged_into IS NULL"
        " ORDER BY type IN (?,?,?), id DESC LIMIT ?",
        (*_BROUGHT, limit),
    )
    return sorted(_persons(ledger, rows), key=lambda one: one.name.lower())


def find(ledger: Ledger, part: str) -> Person:
    """The one person who is meant by a name, an id (or its end) or ``channel:address``.

    Raises NotFound, and UsageError where several are."""
    channel, _, address = part.partition(":")
    if address and (found := with_address(ledger, channel, address)):
        return found
    with ledger.guard() as db:
        rows = db.execute(
            f"SELECT {_COLUMNS} FROM persons p WHERE merged_into IS NULL AND (id=? OR"
            " name=? COLLATE NOCASE OR (length(?) > 3 AND substr(id, -length(?)) = ?))",
            (part.upper(), part, part, part, part.upper()),
        ).fetchmany(2)
    if not rows:
        raise NotFound(f"nobody is known as {part}", hint="see: relay person list")
    if len(rows) > 1:
        raise _several(part)
    return _persons(ledger, rows)[0]


def add(
    ledger: Ledger,
    name: str,
    addresses: Sequence[Address],
    *,
    type_: PersonType | None,
    relationship: str | None,
    now_ms: int,
) -> Person:
    """Make a person known, or add to one of that name what is given. Who was brought by a channel
    under one of the addresses becomes this one. Raises UsageError for one that somebody has."""
    with ledger.guard() as db:
        # What a stranger calls himself proves nothing: only those that the owner has named count.
        rows = db.execute(
            f"SELECT {_COLUMNS} FROM persons p WHERE merged_into IS NULL AND name=? COLLATE NOCASE"
            " AND type NOT IN (?,?,?)",
            (name, *_BROUGHT),
        ).fetchmany(2)
    if len(rows) > 1:
        raise _several(name)
    kind = type_ or PersonType.KNOWN
    person = Person(new_ulid(now_ms), name, kind, None, now_ms, now_ms)
    if rows:
        person = _persons(ledger, rows)[0]
    if person.type is PersonType.AGENT:
        raise UsageError(f"{person.name} is an agent", hint="choose another name")
    # All that may be refused comes before what is written.
    holders = {one: with_address(ledger, *one) for one in addresses}
    for (channel, address), holder in holders.items():
        if holder is not None and holder.id != person.id and holder.type not in _BROUGHT:
            hint = f"if they are one: relay person merge {holder.id[-8:]} {person.id[-8:]}"
            raise UsageError(
                f"{channel}:{address} belongs to {holder.name}", hint=hint if rows else ""
            )
    ledger.change(
        "INSERT OR IGNORE INTO persons (id, name, type, created_ms, updated_ms) VALUES (?,?,?,?,?)",
        (person.id, name, kind.value, now_ms, now_ms),
    )
    for (channel, address), holder in holders.items():
        if holder is None:
            row = (channel, address, person.id)
            ledger.change("INSERT INTO person_addresses VALUES (?,?,?)", row)
        elif holder.id != person.id:
            merge(ledger, holder, person, now_ms)
    # Who was brought by a channel, and is named now, is known.
    promoted = PersonType.KNOWN if person.type in _BROUGHT else person.type
    ledger.change(
        "UPDATE persons SET type=?, relationship=ifnull(?, relationship), updated_ms=? WHERE id=?",
        ((type_ or promoted).value, relationship, now_ms, person.id),
    )
    return find(ledger, person.id)


def merge(ledger: Ledger, one: Person, into: Person, now_ms: int) -> None:
    """``one`` is ``into``: the addresses go over. The row stays, with what it took part in.

    Raises UsageError for an agent, which never is a person.
    """
    if one.id == into.id:
        raise UsageError(f"{one.name} is that person already")
    if PersonType.AGENT in (one.type, into.type):
        raise UsageError("an agent and a person are never one")
    if one.type is PersonType.OWNER:
        raise UsageError(
            f"{one.name} is the owner, who is nobody else",
            hint=f"relay person merge {into.id[-8:]} {one.id[-8:]}",
        )
    ledger.change("UPDATE person_addresses SET person=? WHERE person=?", (into.id, one.id))
    ledger.change(
        "UPDATE persons SET merged_into=?, updated_ms=? WHERE id=? OR merged_into=?",
        (into.id, now_ms, one.id, one.id),
    )
    ledger.change("UPDATE persons SET updated_ms=? WHERE id=?", (now_ms, into.id))


def _several(name: str) -> UsageError:
    hint = "name one by its id: relay person list"
    return UsageError(f"several persons are called {name}", hint=hint)


def _persons(
    ledger: Ledger, rows: Sequence[tuple[str, str, str, str | None, int, int]]
) -> list[Person]:
    found = []
    for id_, name, type_, relationship, created, updated in rows:
        addresses = ledger.rows(
            "SELECT channel, address FROM person_addresses WHERE person=?"
            " ORDER BY channel, address",
            (id_,),
        )
        found.append(
            Person(id_, name, PersonType(type_), relationship, created, updated, tuple(addresses))
        )
    return found
