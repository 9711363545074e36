"""Which keys leave an attached terminal."""

from __future__ import annotations

import pytest

from relay.ui.attached_terminal import DetachKey

KITTY, RELEASE, OTHER = b"\x1b[92;5u", b"\x1b[92;5:3u", b"\x1b[27;5;92~"


@pytest.mark.parametrize(
    "chunks",
    [
        [b"ab\x1cd"],
        [b"ab\x1c", b"d"],
        [b"ab", KITTY, RELEASE, b"\x1b[57442;5:3u", b"\x1b[100;1u"],
        [b"ab" + OTHER, b"d"],
        [b"ab" + KITTY + b"d"],
    ],
    ids=["plain", "cut", "kitty", "xterm", "mixed"],
)
def test_control_backslash_and_d_leave(chunks: list[bytes]) -> None:
    key = DetachKey()
    fed = [key.feed(chunk) for chunk in chunks]
    assert b"".join(typed for typed, _ in fed) == b"ab"
    assert [leaves for _, leaves in fed] == [False] * (len(chunks) - 1) + [True]


@pytest.mark.parametrize(
    ("data", "typed"),
    [
        (b"\x1c\x1c", b"\x1c"),
        (KITTY + RELEASE + KITTY, KITTY),
        (b"\x1cx", b"\x1cx"),
        (b"\x1c\x1b[A", b"\x1c\x1b[A"),
        (b"d\x1b[200~\xe6\xbc\xa2 d\x1b[201~", b"d\x1b[200~\xe6\xbc\xa2 d\x1b[201~"),
    ],
    ids=["twice", "twice in kitty", "another key", "an arrow", "a paste"],
)
def test_every_other_key_is_typed(data: bytes, typed: bytes) -> None:
    key = DetachKey()
    got = [key.feed(data[at : at + 64]) for at in range(0, len(data), 64)]
    assert (b"".join(one for one, _ in got), any(leaves for _, leaves in got)) == (typed, False)
