"""The fast lane between two real terminals: what passes at once, and what is left to the pump."""

from __future__ import annotations

import os
import select
import tty
from collections.abc import Iterator

import pytest

from relay.protocol import frames
from relay.pump.agent_process import Monitored
from relay.pump.fast_path import FLOOD_LATEST, FLOOD_RATE, QUIET, FastPath, Pace
from relay.pump.input import Input
from relay.pump.outer_terminal import PENDING_MAX, UNNOTED_MAX, OuterTerminal
from relay.pump.session_link import SessionLink


class Notes(SessionLink):
    """A link that only remembers, in order: the agent's output, and what was pressed."""

    def __init__(self) -> None:
        super().__init__(lambda: (-1, 0), lambda *_: b"", bytes(8))
        self.said: list[bytes] = []

    def output(self, data: bytes, now: float) -> None:
        self.said.append(data)

    def event(self, kind: int, payload: bytes) -> None:
        if kind == frames.ACTIVITY:
            self.said.append(b"pressed " + payload[4:5])


class Street:
    """An outer and an inner terminal, raw, and the lane between them."""

    def __init__(self) -> None:
        self.person, outer = os.openpty()
        master, self.agent = os.openpty()
        for fd in (outer, self.agent):
            tty.setraw(fd)
        for fd in (self.person, master, self.agent):
            os.set_blocking(fd, False)
        self.fds = [self.person, outer, master, self.agent]
        self.console = OuterTerminal(outer, outer)
        self.link = Notes()
        self.typed = Input(master, os.ttyname(self.agent), Monitored(-1, -1), self.link)
        self.typed.write(0.0)  # as the pump does before it waits
        self.master = master
        self.poll = select.poll()
        self.watched: list[bool] = []
        self.watch(False)
        self.poll.register(master, select.POLLIN)
        self.lane = FastPath(
            self.console, master, self.typed, self.link, self.poll.poll, lambda _, w: self.watch(w)
        )

    def watch(self, room: bool) -> None:
        self.watched.append(room)
        self.poll.register(self.console.keys, select.POLLIN | (select.POLLOUT if room else 0))

    def close(self) -> None:
        self.console.close()
        for fd in self.fds:
            os.close(fd)


@pytest.fixture
def street() -> Iterator[Street]:
    made = Street()
    yield made
    made.close()


def read(fd: int, size: int) -> bytes:
    got = b""
    while len(got) < size and select.select([fd], [], [], 10)[0]:
        got += os.read(fd, size - len(got))
    return got


def test_what_was_written_before_a_keys_echo_is_told_before_that_key(street: Street) -> None:
    os.write(street.person, b"k")
    assert street.lane.wait(10_000) == []
    os.write(street.agent, b"said meanwhile\r\nkey")
    assert street.lane.wait(10_000) == []
    street.lane.note()
    assert street.link.said == [b"said meanwhile\r\n", b"pressed t", b"key"]


def test_output_that_has_come_with_a_key_came_before_it(street: Street) -> None:
    os.write(street.agent, b"said")
    os.write(street.person, b"k")
    assert select.select([street.master], [], [], 10)[0]
    assert street.lane.wait(10_000) == []
    street.lane.note()
    assert street.link.said == [b"said", b"pressed t"]


def test_text_and_its_echo_pass_before_anybody_is_told(street: Street) -> None:
    os.write(street.person, "ké".encode())
    assert street.lane.wait(10_000) == []  # it passed, and then it was quiet
    assert read(street.agent, 3) == "ké".encode()
    os.write(street.agent, b"echo")
    assert street.lane.wait(10_000) == []
    assert read(street.person, 4) == b"echo"
    assert street.link.said == []
    street.lane.note()
    assert street.link.said == [b"pressed t", b"echo"]


def test_keys_that_mean_something_are_noted_behind_what_came_before(street: Street) -> None:
    os.write(street.agent, b"prompt")
    assert street.lane.wait(10_000) == []
    os.write(street.person, b"\r")
    assert street.lane.wait(10_000) == []
    assert read(street.agent, 1) == b"\r"
    assert street.link.said == [b"prompt", b"pressed e"]


def test_keys_are_left_while_words_are_on_their_way(street: Street) -> None:
    street.typed.gate.words(1, frames.ANY_SEQUENCE, b"w" * 100_000)
    street.typed.write(1.0)
    os.write(street.person, b"key")
    left = street.lane.wait(10_000)
    assert left == [(street.console.keys, select.POLLIN)]
    assert street.console.read() == b"key"  # nobody has read it


def test_a_full_terminal_is_waited_for_and_then_gets_the_rest(street: Street) -> None:
    sent = b""
    while not street.console.pending:
        chunk = b"%06d " % len(sent) * 500
        sent += chunk[: os.write(street.agent, chunk)]
        street.lane.wait(QUIET)
        street.lane.note()
    assert street.watched[-1] is True
    got = b""
    while street.console.pending:
        got += read(street.person, 4096)
        street.lane.wait(QUIET)
    assert street.watched[-1] is False and len(street.console.pending) < PENDING_MAX
    assert got + read(street.person, len(sent) - len(got)) == sent
    street.lane.note()
    assert b"".join(street.link.said) == sent


def test_somebody_takes_note_of_a_flood_in_time(street: Street) -> None:
    passed = 0
    while street.lane.wait(QUIET) == []:
        os.write(street.agent, b"x")
        passed += 1
        assert passed <= UNNOTED_MAX + 1
    street.lane.note()
    assert len(street.link.said) == UNNOTED_MAX


def test_a_flood_passes_whole_and_keys_with_it(street: Street) -> None:
    sent, got, keys = b"", b"", 0
    while len(got) < 300_000:
        if len(sent) - len(got) < 8000:
            chunk = b"%07d\n" % len(sent) * 1500
            sent += chunk[: os.write(street.agent, chunk)]
            os.write(street.person, b"k")
        street.lane.wait(1000)
        street.lane.note()
        while select.select([street.agent], [], [], 0)[0]:
            keys += os.read(street.agent, 100).count(b"k")
        while select.select([street.person], [], [], 0)[0]:
            got += os.read(street.person, 65536)
    assert sent.startswith(got) and keys > 10
    heard = b"".join(words for words in street.link.said if not words.startswith(b"pressed"))
    assert sent.startswith(heard) and len(heard) >= len(got)


def test_nothing_is_read_of_a_terminal_that_has_gone(street: Street) -> None:
    street.lane.close()
    os.write(street.agent, b"late")
    assert street.lane.wait(10_000) == [(street.master, select.POLLIN)]


# -- the pace of the session -------------------------------------------------------------------

STEP = 0.004


class Run:
    """A pump that writes at some rate; ``told`` are the moments when the session got something.

    At most ``most`` bytes at a time.
    """

    def __init__(self, most: int = 1 << 40) -> None:
        self.most = most
        self.pace = Pace()
        self.now = 1000.0
        self.written = 0
        self.heard = 0
        self.told: list[float] = []

    def go(self, rate: float, seconds: float, convenient: bool = False) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += STEP
            self.written += int(rate * STEP)
            backlog = self.written - self.heard
            if backlog and self.pace.due(self.written, backlog, convenient, self.now):
                self.heard += min(backlog, self.most)
                self.told.append(self.now)

    def gaps(self) -> list[float]:
        return [after - before for before, after in zip(self.told, self.told[1:], strict=False)]


def test_a_little_output_is_told_within_a_hundredth_of_a_second() -> None:
    run = Run()
    run.go(1_000_000, 1.0)
    assert max(run.gaps()) <= 0.010 + 2 * STEP


def test_a_quiet_moment_is_used_at_once() -> None:
    run = Run()
    run.go(5_000_000, 0.2, convenient=True)
    assert max(run.gaps()) <= 1.5 * STEP


def test_less_than_a_flood_is_never_held_back() -> None:
    run = Run()
    run.go(0.9 * FLOOD_RATE, 3.0)
    assert max(run.gaps()) <= 0.250 + 2 * STEP


def test_a_flood_goes_first_and_is_told_when_the_agent_rests() -> None:
    run = Run()
    run.go(1_000_000, 0.2)
    run.go(80_000_000, 5.0, convenient=True)
    assert run.now - run.told[-1] > 4.5
    rests = run.now
    run.go(0, 0.2, convenient=True)
    assert run.told[-1] - rests <= 0.1 + 2 * STEP and run.heard == run.written


def test_a_flood_without_end_is_told_after_a_while() -> None:
    run = Run()
    run.go(80_000_000, 2.5 * FLOOD_LATEST)
    assert FLOOD_LATEST - 1 <= max(run.gaps()) <= FLOOD_LATEST + 0.25


def test_a_session_that_is_behind_is_not_held_back_again_and_again() -> None:
    """It hears as fast as it can, however the flood's speed changes."""
    run = Run(most=100_000)
    run.go(80_000_000, 1.1 * FLOOD_LATEST, convenient=True)
    late = len(run.told)
    for _ in range(20):
        run.go(1_000_000, 0.3, convenient=True)
        run.go(80_000_000, 0.3, convenient=True)
    assert run.written - run.heard > 50_000_000
    assert max(run.gaps()[late:]) <= 0.250 + 2 * STEP
