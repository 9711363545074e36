"""What goes into the agent's terminal next."""

from __future__ import annotations

from relay.protocol.frames import ANY_SEQUENCE
from relay.pump.write_gate import HOLD, QUEUE_MAX, Typing


def head_of(typing: Typing, now: float, settled: bool) -> bytearray:
    """The next bytes; empty for none."""
    head = typing.head(now, settled)
    return bytearray() if head is None else head


def test_keys_go_at_once() -> None:
    typing = Typing()
    typing.keys += b"keys"
    head = head_of(typing, 0.0, True)
    assert head == b"keys"
    assert typing.taken(head, 4) is None
    assert not typing.waiting and head_of(typing, 0.0, True) == b""


def test_keys_wait_behind_words_that_have_begun() -> None:
    typing = Typing()
    assert typing.words(1, 0, b"words")
    head = head_of(typing, 0.0, True)
    assert head == b"words"
    assert typing.taken(head, 2) is None
    typing.keys += b"k"
    head = head_of(typing, HOLD - 0.1, True)
    assert head == b"rds"
    assert typing.deadline(HOLD - 0.1) == HOLD and typing.deadline(HOLD) is None
    assert typing.taken(head, 3) == 1
    assert head_of(typing, 0.0, True) == b"k"


def test_keys_do_not_wait_for_ever() -> None:
    typing = Typing()
    typing.words(1, 0, b"words")
    head = head_of(typing, 0.0, True)
    typing.taken(head, 2)
    typing.keys += b"k"
    assert head_of(typing, HOLD, True) == b"k"


def test_words_are_refused_after_typing_but_not_once_begun() -> None:
    typing = Typing()
    typing.words(1, 4, b"a")
    typing.words(2, 4, b"b")
    typing.words(3, ANY_SEQUENCE, b"c")
    typing.sequence = 4
    assert typing.refused(True) == []
    assert head_of(typing, 0.0, True) == b"a"
    typing.sequence = 5
    assert typing.refused(True) == []
    head = head_of(typing, 0.0, True)
    assert typing.taken(head, 1) == 1
    assert typing.refused(True) == [2]
    assert head_of(typing, 0.0, True) == b"c"


def test_nothing_is_decided_inside_a_key_sequence() -> None:
    typing = Typing()
    typing.words(1, 0, b"a")
    typing.unreported = True
    assert typing.refused(False) == [] and head_of(typing, 0.0, False) == b""
    assert typing.refused(True) == [1]


def test_keys_before_words() -> None:
    typing = Typing()
    typing.keys += b"k"
    typing.words(1, ANY_SEQUENCE, b"a")
    assert head_of(typing, 0.0, True) == b"k"


def test_the_queue_is_bounded_and_forgets_what_has_not_begun() -> None:
    typing = Typing()
    assert all(typing.words(n, 0, b"w") for n in range(QUEUE_MAX))
    assert not typing.words(99, 0, b"w")
    assert head_of(typing, 0.0, True) == b"w"
    typing.forget()
    head = head_of(typing, 0.0, True)
    assert typing.taken(head, 1) == 0
    assert not typing.waiting


def test_words_that_have_begun_are_certain_to_go_in() -> None:
    """The session that asked for them was killed: the next one must not ask again."""
    typing = Typing()
    for number in (1, 2, 3):
        typing.words(number, 0, b"words")
    head = head_of(typing, 0.0, True)
    typing.taken(head, 5)
    head = head_of(typing, 0.0, True)
    typing.taken(head, 2)
    typing.forget()
    assert typing.certain == [1, 2]
    typing.taken(head_of(typing, 0.0, True), 3)
    assert typing.certain == [1, 2] and not typing.waiting
