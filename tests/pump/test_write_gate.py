"""What goes into the agent's terminal next."""

from __future__ import annotations

from relay.protocol.frames import ANY_SEQUENCE
from relay.pump.input import HOLD, QUEUE_MAX, WriteGate


def head_of(gate: WriteGate, now: float, settled: bool) -> bytearray:
    """The next bytes; empty for none."""
    head = gate.head(now, settled)
    return bytearray() if head is None else head


def test_keys_go_at_once() -> None:
    gate = WriteGate()
    gate.press(b"keys")
    head = head_of(gate, 0.0, True)
    assert head == b"keys"
    assert gate.taken(head, 4) is None
    assert not gate.waiting and head_of(gate, 0.0, True) == b""


def test_keys_wait_behind_words_that_have_begun() -> None:
    gate = WriteGate()
    assert gate.words(1, 0, b"words")
    head = head_of(gate, 0.0, True)
    assert head == b"words"
    assert gate.taken(head, 2) is None
    gate.press(b"k")
    head = head_of(gate, HOLD - 0.1, True)
    assert head == b"rds"
    assert gate.deadline(HOLD - 0.1) == HOLD and gate.deadline(HOLD) is None
    assert gate.taken(head, 3) == 1
    assert head_of(gate, 0.0, True) == b"k"


def test_keys_do_not_wait_for_ever() -> None:
    gate = WriteGate()
    gate.words(1, 0, b"words")
    head = head_of(gate, 0.0, True)
    gate.taken(head, 2)
    gate.press(b"k")
    assert head_of(gate, HOLD, True) == b"k"


def test_words_are_refused_after_typing_but_not_once_begun() -> None:
    gate = WriteGate()
    gate.words(1, 4, b"a")
    gate.words(2, 4, b"b")
    gate.words(3, ANY_SEQUENCE, b"c")
    gate.sequence = 4
    assert gate.refused(True) == []
    assert head_of(gate, 0.0, True) == b"a"
    gate.sequence = 5
    assert gate.refused(True) == []
    head = head_of(gate, 0.0, True)
    assert gate.taken(head, 1) == 1
    assert gate.refused(True) == [2]
    assert head_of(gate, 0.0, True) == b"c"


def test_nothing_is_decided_inside_a_key_sequence() -> None:
    gate = WriteGate()
    gate.words(1, 0, b"a")
    gate.report_waits(True)
    assert gate.refused(False) == [] and head_of(gate, 0.0, False) == b""
    assert gate.refused(True) == [1]


def test_keys_before_words() -> None:
    gate = WriteGate()
    gate.press(b"k")
    gate.words(1, ANY_SEQUENCE, b"a")
    assert head_of(gate, 0.0, True) == b"k"


def test_the_queue_is_bounded_and_forgets_what_has_not_begun() -> None:
    gate = WriteGate()
    assert all(gate.words(n, 0, b"w") for n in range(QUEUE_MAX))
    assert not gate.words(99, 0, b"w")
    assert head_of(gate, 0.0, True) == b"w"
    gate.forget()
    head = head_of(gate, 0.0, True)
    assert gate.taken(head, 1) == 0
    assert not gate.waiting


def test_words_that_have_begun_are_certain_to_go_in() -> None:
    """The session that asked for them was killed: the next one must not ask again."""
    gate = WriteGate()
    for number in (1, 2, 3):
        gate.words(number, 0, b"words")
    head = head_of(gate, 0.0, True)
    gate.taken(head, 5)
    head = head_of(gate, 0.0, True)
    gate.taken(head, 2)
    gate.forget()
    assert gate.certain == [1, 2]
    gate.taken(head_of(gate, 0.0, True), 3)
    assert gate.certain == [1, 2] and not gate.waiting
