"""Whether the session keeps up with a flood, and misses nothing of it.

    python bench/scan.py [--megabytes 100] [--messages 400] [--corpus NAME] [--json]

Each corpus is noise with messages of every shape planted in it. It goes the way that an agent's
output goes in a session: the pump's frames, decoded; the screen source; the grammar; a checkpoint
for every acknowledgement. Printed are messages missed, doubled, altered, and heard though nobody
said them; MB/s of CPU of that way and of the bare emulator on the same bytes, in turns; and the
memory of the process over the first tenth and at its highest after that. The clock that the
source sees runs as if the bytes came at 50 MB/s.

The exit status is 1 when anything is heard wrongly, or slower than 10 MB/s.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import pyghostty.core
from corpora import COLS, NAMES, ROWS, Words, planted

from relay.directive.grammar import Match
from relay.protocol import frames
from relay.screen.source import ScreenSource
from relay.session.detector import Detection, DirectiveDetector, Heard
from relay.session.pump_link import PumpLink
from relay.session.session import ACK_BYTES
from relay.session.session_events import AgentWrote, EventQueue
from relay.session.sources import SourceSelector

GOAL = 10.0
NAMESPACES = ("relay", "memory")
CLOCK = 50e6  # bytes a second
FRAME = 64 * 1024  # of output in one frame of the pump's
READ = 256 * 1024  # what the event loop reads at once
SEGMENT = 4_000_000
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(slots=True)
class Result:
    """Rates in MB/s of CPU, memory in MB."""

    corpus: str
    megabytes: float
    planted: int
    missed: int
    doubled: int
    altered: int
    invented: int
    rate: float
    emulator: float
    ratio: float
    memory_first: float
    memory_then: float

    @property
    def good(self) -> bool:
        wrong = self.missed + self.doubled + self.altered + self.invented
        return not wrong and self.rate >= GOAL


class Session:
    """The part of a session through which output goes."""

    def __init__(self) -> None:
        self.heard: list[Words] = []
        self._now = 0.0
        self._acknowledged = self._size = 0
        self._queue = EventQueue()
        self._link = PumpLink(self._queue)
        self._ears = SourceSelector(
            DirectiveDetector("run", 0, NAMESPACES),
            ScreenSource(COLS, ROWS, namespaces=NAMESPACES),
            None,
        )

    def receive(self, data: bytes) -> None:
        """What was read from the pump's socket."""
        self._link.data_received(data)
        while (event := self._queue.take()) is not None:
            if isinstance(event, AgentWrote):
                self._output(event.data)

    def finish(self) -> None:
        """The agent rests, and exits."""
        end = self._now + 15.0
        while (due := self._ears.next_deadline()) is not None and due < end:
            self._hear(self._ears.tick(due))
        self._hear(self._ears.finish(end))

    def _output(self, payload: bytes) -> None:
        self._size += len(payload)
        self._now = self._size / CLOCK
        self._hear(self._ears.output(payload, self._now))
        if self._size - self._acknowledged >= ACK_BYTES:
            self._acknowledged = self._size
            self._ears.checkpoint({})

    def _hear(self, heard: list[Heard]) -> None:
        for one in heard:
            if isinstance(one, Detection):
                found = one.found
                body = found.body if isinstance(found, Match) else f"({type(found).__name__})"
                self.heard.append(Words(found.target, body))


def segments(name: str, size: int, messages: int, expected: list[Words]) -> Iterator[bytes]:
    """The corpus in large pieces; what must be heard is added to ``expected``."""
    waiting = bytearray()
    for piece in planted(name, size, messages):
        waiting += piece.data
        if piece.words is not None:
            expected.append(piece.words)
        if len(waiting) >= SEGMENT:
            yield bytes(waiting)
            waiting.clear()
    yield bytes(waiting)


def reads(data: bytes) -> list[bytes]:
    """``data`` as the session reads it from the pump."""
    framed = b"".join(
        frames.pack(frames.OUTPUT, data[at : at + FRAME]) for at in range(0, len(data), FRAME)
    )
    return [framed[at : at + READ] for at in range(0, len(framed), READ)]


def memory() -> float:
    """MB of this process that are in memory now."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * _PAGE / 1e6


def scan(name: str, size: int, messages: int) -> Result:
    """Run one corpus through."""
    session = Session()
    terminal = pyghostty.core.Terminal(COLS, ROWS, scrollback=1000)
    expected: list[Words] = []
    ours = bare = first = then = 0.0
    done = 0
    for segment in segments(name, size, messages, expected):
        pieces = reads(segment)
        start = time.process_time()
        for piece in pieces:
            session.receive(piece)
        ours += time.process_time() - start
        start = time.process_time()
        for at in range(0, len(segment), FRAME):
            terminal.feed(segment[at : at + FRAME])
        bare += time.process_time() - start
        done += len(segment)
        if done <= size // 10 or not first:
            first = max(first, memory())
        then = max(then, memory())
    start = time.process_time()
    session.finish()
    ours += time.process_time() - start
    wrong = compare(expected, session.heard)
    rate, emulator = done / 1e6 / ours, done / 1e6 / bare
    return Result(
        name, done / 1e6, len(expected), *wrong, rate, emulator, rate / emulator, first, then
    )


def compare(expected: list[Words], heard: list[Words]) -> tuple[int, int, int, int]:
    """How many are missed, doubled, altered, invented. Each message has its number in its words."""
    there, wanted = Counter(map(_number, heard)), {_number(words): words for words in expected}
    missed = sum(1 for number in wanted if number not in there)
    doubled = sum(there[number] - 1 for number in wanted if there[number] > 1)
    invented = sum(count for number, count in there.items() if number not in wanted)
    altered = 0
    for words in heard:
        meant = wanted.get(_number(words))
        if meant is not None and meant != words:
            altered += 1
            if altered <= 3:
                at = len(os.path.commonprefix([meant.body, words.body]))
                print(f"after {meant.body[max(0, at - 40) : at]!r}", file=sys.stderr)
                print(f"meant {meant.body[at : at + 40]!r}", file=sys.stderr)
                print(f"heard {words.body[at : at + 40]!r}", file=sys.stderr)
    return missed, doubled, altered, invented


def _number(words: Words) -> str:
    found = words.body.split("message ", 1)
    return found[1].split()[0] if len(found) == 2 else f"? {words}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--megabytes", type=float, default=100.0)
    parser.add_argument("--messages", type=int, default=400)
    parser.add_argument("--corpus", choices=NAMES, action="append")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results: list[Result] = []
    if not options.json:
        print(
            f"{'':12} {'planted':>7} {'missed':>6} {'doubled':>7} {'altered':>7} {'invented':>8}"
            f" {'MB/s':>7} {'emulator':>8} {'ratio':>6}   memory, MB"
        )
    for name in options.corpus or NAMES:
        result = scan(name, int(options.megabytes * 1e6), options.messages)
        results.append(result)
        if not options.json:
            print(
                f"{name:12} {result.planted:7} {result.missed:6} {result.doubled:7}"
                f" {result.altered:7} {result.invented:8} {result.rate:7.1f}"
                f" {result.emulator:8.1f} {result.ratio:6.2f}"
                f"   {result.memory_first:.1f} -> {result.memory_then:.1f}",
                flush=True,
            )
    if options.json:
        print(json.dumps([asdict(result) for result in results]))
    return 0 if all(result.good for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
