"""Keys and words on their way into a real terminal: what the person pressed counts at once."""

from __future__ import annotations

import os
import select
import tty
from collections.abc import Iterator

import pytest

from relay.protocol import frames
from relay.pump.agent_process import Direct
from relay.pump.input import Input
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
        self.input = Input(self.master, os.ttyname(self.slave), Direct(0, -1), self.link)

    def read(self, now: float) -> bytes:
        """All that the agent can get, what waits included."""
        got = b""
        while select.select([self.slave], [], [], 0.2)[0]:
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
    assert typist.read(now + 1).endswith(b"kNEW")
    assert typist.link.answers() == [(frames.REFUSED, 7)]


def test_the_second_words_are_refused_after_a_key_during_the_first(typist: Typist) -> None:
    typist.ask(1, b"w" * 100_000)
    typist.ask(2, b"<SECOND>")
    typist.input.write(1.0)
    typist.input.press(b"KEY", 1.5)
    assert typist.read(1.6).endswith(b"wKEY")
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
