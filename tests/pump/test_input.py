"""Keys and words on their way into a real terminal: what the person pressed counts at once."""

from __future__ import annotations

import os
import select
import termios
import tty
from collections.abc import Iterator

import pytest

from relay.protocol import frames
from relay.protocol.frames import ANY_SEQUENCE
from relay.pump.agent_process import Monitored
from relay.pump.input import HOLD, QUEUE_MAX, Input, WriteGate
from relay.pump.session_link import SessionLink


class Notes(SessionLink):
    """A link that only remembers."""

    def __init__(self) -> None:
        super().__init__(lambda: (-1, 0), lambda *_: b"", bytes(8))
        self.said: list[tuple[int, bytes]] = []

    def event(self, kind: int, payload: bytes) -> None:
        self.said.append((kind, payload))

    def answers(self) -> list[tuple[int, int]]:
        """(WRITTEN or REFUSED, id), in order."""
        kinds = (frames.WRITTEN, frames.REFUSED)
        return [(k, int.from_bytes(p, "big")) for k, p in self.said if k in kinds]


class Typist:
    """An Input, its link, and the agent's end of the terminal."""

    def __init__(self) -> None:
        self.master, self.slave = os.openpty()
        tty.setraw(self.slave)
        for fd in (self.master, self.slave):
            os.set_blocking(fd, False)
        self.link = Notes()
        self.input = Input(self.master, os.ttyname(self.slave), Monitored(-1, -1), self.link)

    def read(self, now: float, end: bytes = b"") -> bytes:
        """All that the agent can get, what waits included; to ``end``, however late it comes."""
        got = b""
        while select.select([self.slave], [], [], 0.2 if got.endswith(end) else 30.0)[0]:
            got += os.read(self.slave, 65536)
            self.input.write(now)
        return got

    def ask(self, number: int, text: bytes) -> None:
        sequence = self.input.gate.sequence.to_bytes(4, "big")
        self.input.obey(number.to_bytes(4, "big") + sequence + text)


@pytest.fixture
def typist() -> Iterator[Typist]:
    made = Typist()
    yield made
    os.close(made.master)
    os.close(made.slave)


def test_words_behind_waiting_keys_are_refused_after_another_key(typist: Typist) -> None:
    now = 1.0
    while not typist.input.gate.keys:  # until the terminal is full
        typist.input.press(b"k" * 4096, now)
        now += 1.0
    typist.ask(7, b"<WORDS>")
    typist.input.write(now)
    os.read(typist.slave, 65536)  # the agent makes room, and a key comes before we know
    typist.input.press(b"NEW", now + 1)
    assert typist.read(now + 1, b"kNEW").endswith(b"kNEW")
    assert typist.link.answers() == [(frames.REFUSED, 7)]


def test_the_second_words_are_refused_after_a_key_during_the_first(typist: Typist) -> None:
    typist.ask(1, b"w" * 100_000)
    typist.ask(2, b"<SECOND>")
    typist.input.write(1.0)
    typist.input.press(b"KEY", 1.5)
    assert typist.read(1.6, b"wKEY").endswith(b"wKEY")
    assert typist.link.answers() == [(frames.WRITTEN, 1), (frames.REFUSED, 2)]


def test_text_goes_in_whole_and_in_order_past_the_lane(typist: Typist) -> None:
    assert not typist.input.direct  # not before somebody looked
    typist.input.write(1.0)
    assert typist.input.direct
    typist.input.keep(b"kept ")
    assert not typist.input.direct
    typist.input.press(b"pressed\r", 1.0)
    assert typist.read(1.0) == b"kept pressed\r"
    kinds = [payload[4:5] for kind, payload in typist.link.said if kind == frames.ACTIVITY]
    assert kinds == [frames.TYPED, frames.ENTERED]


# -- the write gate ----------------------------------------------------------------------------


def head_of(gate: WriteGate, now: float, settled: bool) -> bytearray:
    """The next bytes; empty for none."""
    head = gate.head(now, settled)
    return bytearray() if head is None else head


@pytest.mark.parametrize(
    ("keys", "kinds"),
    [
        (b"\x03", [frames.INTERRUPTED]),
        (b"\x1a", [frames.FLUSHED, frames.CLEARED]),
        (b"\x1c", [frames.FLUSHED, frames.CLEARED]),
        (b"ab\x03", [frames.TYPED, frames.INTERRUPTED]),
        (b"a\x03b", [frames.FLUSHED, frames.CLEARED, frames.TYPED]),
    ],
    ids=["ctrl-c", "ctrl-z", "ctrl-backslash", "behind text", "among text"],
)
def test_only_the_interrupt_key_by_itself_ends_what_is_open(
    typist: Typist, keys: bytes, kinds: list[bytes]
) -> None:
    modes = termios.tcgetattr(typist.slave)
    modes[3] |= termios.ISIG | termios.ICANON
    termios.tcsetattr(typist.slave, termios.TCSANOW, modes)
    typist.input.press(keys, 0.0)
    assert [p[4:5] for kind, p in typist.link.said if kind == frames.ACTIVITY] == kinds


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
    assert gate.refused(True) == [(frames.REFUSED, 2)]
    assert head_of(gate, 0.0, True) == b"c"


def test_nothing_is_decided_inside_a_key_sequence() -> None:
    gate = WriteGate()
    gate.words(1, 0, b"a")
    gate.report_waits(True)
    assert gate.refused(False) == [] and head_of(gate, 0.0, False) == b""
    assert gate.refused(True) == [(frames.REFUSED, 1)]


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
