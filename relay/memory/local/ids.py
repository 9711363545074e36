"""Short ids: 8 characters of Crockford's base 32 in lower case, 40 bits of randomness."""

from __future__ import annotations

import os

from relay.core.errors import UsageError
from relay.memory.records import PREFIX_MIN

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
LENGTH = 8
_LOOK_ALIKE = str.maketrans("oil", "011")


def new_id(randomness: bytes | None = None) -> str:
    """A new id, from 5 random bytes."""
    value = int.from_bytes(os.urandom(5) if randomness is None else randomness, "big")
    return "".join(ALPHABET[value >> shift & 31] for shift in range(5 * (LENGTH - 1), -1, -5))


def readings(typed: str) -> list[str]:
    """What somebody may have meant who typed ``typed``, the likelier first.

    As it stands, then with o, i and l as the digits that they look like. Raises UsageError when it
    is too short to be looked for.
    """
    wanted = typed.strip().lower().encode("ascii", "replace").decode()
    if len(wanted) < PREFIX_MIN:
        raise UsageError(
            f"{typed[:80]!r} is too short for an id",
            hint=f"give at least {PREFIX_MIN} characters of it",
            code="too_short",
        )
    return list(dict.fromkeys((wanted, wanted.translate(_LOOK_ALIKE))))
