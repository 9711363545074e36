"""The pump with real terminals and processes, everything else at random.

What holds at the end whatever happened: the terminal saw the agent's bytes, the agent read the
keys, and the sessions, however many were killed, got the output together.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from relay.protocol import frames
from tests.pump import fuzz_session
from tests.pump.fuzz_agent import output
from tests.pump.fuzzing import rounds, seed
from tests.pump.outer import Fake, Outer, alive, stop_sessions
from tests.support import wait_until

PY = sys.executable
HERE = Path(__file__).parent
SIZE = 300_000
KEYS = 20_000
#: Beside the two of its own accord: one more death within a minute, and the pump has had enough.
KILLS = 3
WORD = re.compile(rb"\x80([\xa0-\xaf]{8})\xb0*\x81")


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[Fake]:
    fake = Fake(tmp_path / "fake")
    yield fake
    stop_sessions(fake)


def outer_of(fake: Fake, number: int) -> Outer:
    return Outer({**os.environ, "FAKE": str(fake.folder), "FUZZ_SEED": str(number)})


def send(pid: int, number: signal.Signals) -> None:
    """Signal a session, which may have ended of its own accord just now."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


class Chaos:
    """One run: a person, a killer of sessions, and somebody who resizes and stops things."""

    def __init__(self, outer: Outer, fake: Fake, number: int) -> None:
        self.outer = outer
        self.fake = fake
        self.rng = random.Random(number)
        self.keys = bytes(self.rng.randrange(0x80) for _ in range(KEYS))
        self.typed = 0
        self.kills = 0
        self.stopped: set[int] = set()

    def run(self) -> None:
        """All keys but the last."""
        steps = [self.type, self.type, self.type, self.resize, self.kill, self.stop, self.go_on]
        while self.typed < KEYS - 1:
            self.rng.choice([*steps, self.stop_pump, self.look])()
        self.go_on()
        (self.fake.folder / "calm").touch()

    def type(self) -> None:
        end = min(KEYS - 1, self.typed + self.rng.choice((1, 5, 200, 3000)))
        self.outer.type(self.keys[self.typed : end])
        self.typed = end

    def look(self) -> None:
        """The terminal reads; between looks it does not, unless keys are pressed."""
        self.outer.read(self.rng.choice((0.0, 0.01, 0.05)))

    def resize(self) -> None:
        self.size = (self.rng.randint(20, 200), self.rng.randint(5, 60))
        self.outer.resize(*self.size)

    def session(self) -> int | None:
        pids = self.fake.pids()
        return pids[-1] if pids and alive(pids[-1]) else None

    def kill(self) -> None:
        pid = self.session()
        if pid is not None and self.kills < KILLS and self.rng.random() < 0.3:
            self.kills += 1
            self.stopped.discard(pid)
            send(pid, signal.SIGKILL)

    def stop(self) -> None:
        pid = self.session()
        if pid is not None:
            self.stopped.add(pid)
            send(pid, signal.SIGSTOP)

    def go_on(self) -> None:
        for pid in self.stopped:
            send(pid, signal.SIGCONT)
        self.stopped.clear()

    def stop_pump(self) -> None:
        assert self.outer.process is not None
        os.kill(self.outer.process.pid, signal.SIGSTOP)
        self.look()
        os.kill(self.outer.process.pid, signal.SIGCONT)


@pytest.mark.parametrize("number", range(rounds(3)))
def test_whatever_happens_nothing_is_lost_doubled_or_changed(
    fake: Fake, tmp_path: Path, number: int
) -> None:
    chosen = seed(number)
    result = tmp_path / "result"
    with outer_of(fake, chosen) as outer:
        outer.raw()
        agent = [str(HERE / "fuzz_agent.py"), str(chosen), str(SIZE), str(KEYS), str(result)]
        outer.start(PY, str(HERE / "fuzz_driver.py"), PY, "-S", *agent)
        outer.until(b"READY")
        chaos = Chaos(outer, fake, chosen)
        chaos.run()
        chaos.resize()
        outer.type(chaos.keys[-1:])
        assert outer.wait() == 0
    wanted = b"READY" + output(chosen, SIZE)
    assert bytes(outer.seen) == wanted
    told = json.loads(result.read_text())
    got = bytes.fromhex(told["got"])
    assert bytes(byte for byte in got if byte < 0x80) == chaos.keys
    assert tuple(told["size"]) == chaos.size
    fake.wait(frames.EXIT)
    assert fake.stream() == wanted
    assert (fake.folder / "spool").exists(), "nothing ever waited on disk"
    check_words(fake, bytes(byte for byte in got if byte >= 0x80))
    check_starts(fake, chaos.size)


def check_words(fake: Fake, words: bytes) -> None:
    """Words are whole, in one piece and never twice; only the exit may cut the last."""
    whole = [int(_hex(match[1]), 16) for match in WORD.finditer(words)]
    rest = WORD.sub(b"", words)
    assert rest.count(bytes([fuzz_session.WORD_BEGIN])) <= 1
    assert fuzz_session.WORD_END not in rest and words.endswith(rest)
    assert len(set(whole)) == len(whole)
    written = [int.from_bytes(payload, "big") for payload in fake.frames(frames.WRITTEN)]
    refused = [int.from_bytes(payload, "big") for payload in fake.frames(frames.REFUSED)]
    assert not set(refused) & set(whole)
    # What the pump called written, and the agent did not live to read, came after all the rest.
    assert [number for number in written if number in whole] == [
        number for number in whole if number in written
    ]


def _hex(digits: bytes) -> str:
    return "".join(f"{byte & 15:x}" for byte in digits)


def check_starts(fake: Fake, size: tuple[int, int]) -> None:
    """Each session began where the one before had acknowledged, the last with the size known."""
    hellos = [json.loads(payload) for payload in fake.frames(frames.HELLO)]
    offsets = [hello["offset"] for hello in hellos]
    assert offsets == sorted(offsets)
    for offset, checkpoint in zip(offsets, fake.frames(frames.CHECKPOINT), strict=True):
        assert not checkpoint or int(checkpoint.split()[1]) <= offset
    sizes = [(hellos[-1]["cols"], hellos[-1]["rows"])]
    last = max(at for at, entry in enumerate(fake.log()) if entry["kind"] == chr(frames.HELLO))
    for entry in fake.log()[last:]:
        if entry["kind"] == chr(frames.SIZE):
            payload = bytes.fromhex(entry["hex"])
            sizes.append((int.from_bytes(payload[:2], "big"), int.from_bytes(payload[2:4], "big")))
    assert sizes[-1] == size


def left_over(fake: Fake) -> list[int]:
    """The processes of this run that are still there."""
    if not os.path.isdir("/proc/self"):
        return [pid for pid in fake.pids() if alive(pid)]
    mark = f"FAKE={fake.folder}\0".encode()
    found = []
    for name in os.listdir("/proc"):
        try:
            if name.isdecimal() and mark in Path("/proc", name, "environ").read_bytes():
                found.append(int(name))
        except OSError:
            continue
    return [pid for pid in found if alive(pid)]


@pytest.mark.parametrize("number", range(rounds(4)))
def test_a_pump_killed_at_any_moment_leaves_the_terminal_as_it_was_and_nobody_behind(
    fake: Fake, tmp_path: Path, number: int
) -> None:
    chosen = seed(number)
    rng = random.Random(chosen)
    with outer_of(fake, chosen) as outer:
        before = outer.modes()
        agent = [str(HERE / "fuzz_agent.py"), str(chosen), "100000000", "1", str(tmp_path / "r")]
        outer.start(PY, str(HERE / "fuzz_driver.py"), PY, "-S", *agent)
        moment = rng.random()
        if moment < 0.3:
            # While it starts: some time that its parts need.
            outer.read(moment)
        else:
            outer.until(b"READY")
            goal = len(outer.seen) + rng.randrange(400_000)
            outer.until(lambda seen: len(seen) >= goal)
        assert outer.process is not None
        outer.process.kill()
        outer.process.wait()
        wait_until(lambda: outer.modes() == before, 10, "restored modes")
        wait_until(lambda: not left_over(fake), 10, "the end of every process")
