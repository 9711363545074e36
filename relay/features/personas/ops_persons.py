"""The ops of persons: who is behind the addresses of all channels. Changed by the person alone.

This decides who counts as the owner, who may do everything.
"""

from __future__ import annotations

import re

from relay.broker.batch import Batch, ClientRequest, Served, serve
from relay.broker.kernel import Kernel
from relay.core.dispatch import MAIN_SESSION, RELAY_CHANNEL, PersonType
from relay.core.errors import UsageError
from relay.core.visible import is_visible
from relay.features.personas.dispatch_rows import alias_label
from relay.features.personas.ops import (
    PERSON_ADD,
    PERSON_MERGE,
    PERSONS,
    PersonAdd,
    PersonChanged,
    PersonMerge,
    PersonRow,
    PersonRows,
    PersonsQuery,
)
from relay.features.personas.turn_engine import TurnEngine
from relay.ledger import persons
from relay.ledger.persons import Person

#: Persons in one answer; addresses in one request; characters of a name.
SHOWN_MAX = 1000
_ADDRESSES_MAX = 64
_NAME_MAX = 200
_CHANNEL = re.compile(r"[a-z][a-z0-9_.-]{0,63}")


class PersonOps:
    """Lists, adds and merges persons."""

    def __init__(self, kernel: Kernel, turns: TurnEngine) -> None:
        self._ledger = kernel.ledger
        self._directory = kernel.directory
        self._turns = turns

    def ops(self) -> list[Served]:
        """The ops."""
        return [
            serve(PERSONS, self.persons),
            serve(PERSON_ADD, self.add),
            serve(PERSON_MERGE, self.merge),
        ]

    def persons(self, request: ClientRequest[PersonsQuery], batch: Batch) -> PersonRows:
        """Everybody, or the one who is meant by ``who``."""
        who = request.fields.get("who")
        if who is not None:
            person = persons.find(self._ledger, _text(who, "who"))
            return {"persons": [_shown(person)], "more": False}
        found = persons.everybody(self._ledger, SHOWN_MAX + 1)
        return {"persons": list(map(_shown, found[:SHOWN_MAX])), "more": len(found) > SHOWN_MAX}

    def add(self, request: ClientRequest[PersonAdd], batch: Batch) -> PersonChanged:
        """Make somebody known, or add to what is known of them."""
        self._directory.check_person(request, "say who somebody is")
        fields = request.fields
        name = _text(fields["name"], "the name")
        given = fields.get("addresses") or []
        if len(given) > _ADDRESSES_MAX:
            raise UsageError(f"addresses are a list of at most {_ADDRESSES_MAX}")
        relationship, type_ = fields.get("relationship"), fields.get("type")
        if type_ is not None and type_ not in persons.GIVEN_TYPES:
            raise UsageError(
                f"nobody can be {type_!r}", hint=f"one of {', '.join(persons.GIVEN_TYPES)}"
            )
        addresses = [_address(one) for one in given]
        self._ledger.begin()
        person = persons.add(
            self._ledger,
            name,
            addresses,
            type_=None if type_ is None else PersonType(type_),
            relationship=None if relationship is None else _text(relationship, "relationship"),
            now_ms=batch.now_ms,
        )
        return {"person": _shown(person)}

    def merge(self, request: ClientRequest[PersonMerge], batch: Batch) -> PersonChanged:
        """Two persons are one."""
        self._directory.check_person(request, "say that two persons are one")
        one = persons.find(self._ledger, _text(request.fields["one"], "one"))
        into = persons.find(self._ledger, _text(request.fields["into"], "into"))
        self._ledger.begin()
        persons.merge(self._ledger, one, into, batch.now_ms)
        why = f"{one.name} is {into.name}"
        for channel, address in one.addresses:
            theirs = [known for where, known in into.addresses if where == channel]
            if into.type is PersonType.OWNER:
                label = MAIN_SESSION
            elif theirs:
                label = f"{channel}:dm:{theirs[0]}"
            else:
                continue  # it stays the conversation on that channel
            alias_label(self._ledger, f"{channel}:dm:{address}", label, why, batch.now_ms)
        batch.after.append(self._turns.look_again)
        return {"person": _shown(persons.find(self._ledger, into.id))}


def _shown(person: Person) -> PersonRow:
    return {
        "id": person.id,
        "name": person.name,
        "type": person.type.value,
        "relationship": person.relationship,
        "created_ms": person.created_ms,
        "updated_ms": person.updated_ms,
        "addresses": list(person.addresses),
    }


def _text(value: str, what: str) -> str:
    if not value.strip() or len(value) > _NAME_MAX:
        raise UsageError(f"{what} must be a text of at most {_NAME_MAX} characters")
    if not is_visible(value):
        raise UsageError(f"{what} has characters that cannot be seen: {value!r}")
    return value.strip()


def _address(value: list[str]) -> tuple[str, str]:
    if len(value) != 2:
        raise UsageError("an address is a channel and what it is there")
    channel, address = _text(value[0], "a channel"), _text(value[1], "an address")
    if not _CHANNEL.fullmatch(channel):
        raise UsageError(
            f"{channel!r} cannot be a channel", hint="lower-case letters, digits, _ . -"
        )
    if channel == RELAY_CHANNEL:
        raise UsageError("in relay names are known by themselves", hint="name another channel")
    return channel, address
