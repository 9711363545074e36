"""Which bytes of a terminal are typing, whatever the chunks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.protocol.frames import CLEARED, ENTERED, TYPED
from relay.pump.activity import CARRY_MAX, Classifier

NOTHING: list[bytes] = []
CASES = [
    (b"a", [TYPED]),
    ("é".encode(), [TYPED]),
    (b"\r", [ENTERED]),
    (b"abc\r", [TYPED, ENTERED]),
    (b"abc\rd", [ENTERED, TYPED]),
    (b"\n", [TYPED]),
    (b"\x03", [CLEARED]),
    (b"\x04", [CLEARED]),
    (b"abc\x15", [TYPED, CLEARED]),
    (b"\x7f", [TYPED]),
    (b"\x1b[A", [TYPED]),
    (b"\x1bOA", [TYPED]),
    (b"\x1bOM", [ENTERED]),
    (b"\x1b\r", [TYPED]),  # Alt-Enter: a newline in the draft
    (b"\x1b[13u", [ENTERED]),
    (b"\x1b[13;1u", [ENTERED]),
    (b"\x1b[13;129u", [ENTERED]),  # num lock is on
    (b"\x1b[57414u", [ENTERED]),
    (b"\x1b[13;2u", [TYPED]),
    (b"\x1b[27;2;13~", [TYPED]),
    (b"\x1b[27;5;99~", [CLEARED]),
    (b"\x1b[99;5u", [CLEARED]),
    (b"\x1b[117;5u", [CLEARED]),
    (b"\x1b[27u", [CLEARED]),
    (b"\x1b[97;1:1;97u", [TYPED]),
    (b"\x1b[97;1:3u", NOTHING),  # released
    (b"\x1b[13;1:3u", NOTHING),
    (b"\x1b[1;1:3A", NOTHING),
    (b"\x1b[3;1:3~", NOTHING),
    (b"\x1b[57441;2u", NOTHING),  # Shift alone
    (b"\x1b[200~a\rb\x1b[201~", [TYPED]),
    (b"\x1b[200~a\rb\x1b[201~\r", [TYPED, ENTERED]),
    (b"\x1b[200~\x03\x1b[201~", [TYPED]),
    (b"\x1b[?62;22c", NOTHING),  # DA1
    (b"\x1b[>0;276;0c", NOTHING),  # DA2
    (b"\x1b[12;40R", NOTHING),  # CPR
    (b"\x1b[?2026;2$y", NOTHING),  # DECRPM
    (b"\x1b[0n", NOTHING),
    (b"\x1b[?997;1n", NOTHING),
    (b"\x1b[?1u", NOTHING),  # kitty flags
    (b"\x1b[4;600;800t", NOTHING),
    (b"\x1b[I", NOTHING),
    (b"\x1b[O", NOTHING),
    (b"\x1b[<0;10;20M", NOTHING),
    (b"\x1b[<0;10;20m", NOTHING),
    (b"\x1b[32;10;20M", NOTHING),
    (b"\x1b[M !!", NOTHING),
    (b"\x1b[M\x1b\r\x03", NOTHING),
    (b"\x1b]11;rgb:0000/0000/0000\x1b\\", NOTHING),
    (b"\x1b]11;rgb:0000/0000/0000\x07", NOTHING),
    (b"\x1bP>|some terminal 1.0\x1b\\", NOTHING),
    (b"\x1b_Gi=31;OK\x1b\\", NOTHING),
    (b"\x1b]52;c;" + b"A" * 5000 + b"\x1b\\", NOTHING),
    (b"\x1b]11;x\x1b\\\x1b[?62c\rx", [ENTERED, TYPED]),
    (b"\x1b[" + b"1" * 200 + b"u", [TYPED]),
]


@pytest.mark.parametrize(("data", "wanted"), CASES)
def test_cases(data: bytes, wanted: list[bytes]) -> None:
    classifier = Classifier()
    assert classifier.feed(data) == wanted
    assert not classifier.pending


@pytest.mark.parametrize(
    ("data", "wanted"),
    [(b"\x1b", [CLEARED]), (b"\x1b[", [TYPED]), (b"\x1bP", [TYPED]), (b"\x1bO", [TYPED])],
)
def test_a_sequence_that_does_not_go_on_was_a_key(data: bytes, wanted: list[bytes]) -> None:
    classifier = Classifier()
    assert classifier.feed(data) == []
    assert classifier.pending
    assert classifier.flush() == wanted
    assert not classifier.pending
    assert classifier.feed(b"a") == [TYPED]


def test_a_newline_enters_in_a_line_program() -> None:
    assert Classifier().feed(b"words\n", cooked=True) == [TYPED, ENTERED]


def test_escape_clears_no_line_of_the_kernel() -> None:
    classifier = Classifier()
    classifier.feed(b"\x1b", cooked=True)
    assert classifier.flush(cooked=True) == [TYPED]


pieces = st.lists(
    st.one_of(st.binary(max_size=8), st.sampled_from([data for data, _ in CASES])), max_size=8
).map(b"".join)


@given(pieces, st.lists(st.integers(0, 400), max_size=6), st.booleans())
def test_chunks_do_not_change_the_verdict(data: bytes, cuts: list[int], cooked: bool) -> None:
    whole = Classifier()
    wanted = whole.feed(data, cooked) + whole.flush(cooked)
    split = Classifier()
    found: list[bytes] = []
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    for start, end in zip(edges, edges[1:], strict=False):
        found += split.feed(data[start:end], cooked)
        assert len(split._carry) <= CARRY_MAX
    found += split.flush(cooked)
    assert found[-1:] == wanted[-1:]
    assert set(found) == set(wanted)


@pytest.mark.parametrize("key", [b"\x1a", b"\x1c"])
def test_a_signal_key_clears_the_line_of_a_line_program(key: bytes) -> None:
    assert Classifier().feed(b"draft" + key, True) == [TYPED, CLEARED]
    assert Classifier().feed(b"draft" + key, False) == [TYPED]
