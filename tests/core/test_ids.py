"""Message ids."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from relay.core.ids import derived_ulid, new_ulid

ALPHABET = set("0123456789ABCDEFGHJKMNPQRSTVWXYZ")


@given(st.integers(0, 2**48 - 1), st.binary(min_size=10, max_size=10))
def test_an_id_holds_its_time_and_its_randomness(now_ms: int, randomness: bytes) -> None:
    identifier = new_ulid(now_ms, randomness)
    assert len(identifier) == 26 and set(identifier) <= ALPHABET and identifier[0] <= "7"
    value = 0
    for char in identifier:
        value = value * 32 + "0123456789ABCDEFGHJKMNPQRSTVWXYZ".index(char)
    assert value >> 80 == now_ms
    assert (value & (2**80 - 1)).to_bytes(10, "big") == randomness


def test_ids_sort_by_time_and_differ() -> None:
    assert new_ulid(1) < new_ulid(2) < new_ulid(10**12)
    assert new_ulid(5) != new_ulid(5)


def test_a_derived_id_depends_on_every_part_of_its_key() -> None:
    assert derived_ulid(1, "run", "words", "1") == derived_ulid(1, "run", "words", "1")
    others = [
        derived_ulid(2, "run", "words", "1"),
        derived_ulid(1, "run", "words", "2"),
        derived_ulid(1, "runwords", "", "1"),
        derived_ulid(1, "run", "words\ud800", "1"),
    ]
    assert len({*others, derived_ulid(1, "run", "words", "1")}) == 5
