"""How fast the screen source hears, beside the bare emulator in the same run.

    python -m bench.screen [MEGABYTES]

Prints, for each corpus, MB/s of CPU of `ScreenSource.feed` and of `pyghostty`'s `Terminal.feed`
on the same bytes in the same chunks, and the ratio of the two. Rounds are interleaved, the best
of each counts. The clock that the source sees runs as if the bytes came at 50 MB/s.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyghostty.core

from relay.terminal.lines import LineSource
from relay.terminal.screen import ScreenSource

CHUNK = 4096  # what a terminal hands over in one read
ROUNDS = 3
COLS, ROWS = 80, 24
_CASTS = Path(__file__).parent.parent / "tests" / "casts"


def _plain(number: int) -> bytes:
    return b"2026-01-01 12:00:00 INFO worker %d finished its part of the job\r\n" % number


def _coloured(number: int) -> bytes:
    return (
        b"\x1b[32m2026-01-01\x1b[0m \x1b[1;34mINFO\x1b[0m \x1b[38;5;208mworker\x1b[0m "
        b"%d \x1b[2mfinished its part\x1b[22m\r\n" % number
    )


def _adversarial(number: int) -> bytes:
    return b"@relay:Bob message %d with @everything:that can look like one\r\n" % number


def _tui() -> bytes:
    cast = (_CASTS / "claude-classic-80x24.cast").read_text().splitlines()[1:]
    events = [json.loads(line) for line in cast]
    return "".join(event[2] for event in events if event[1] == "o").encode()


def _fill(piece: Callable[[int], bytes], size: int) -> bytes:
    lines: list[bytes] = []
    total = 0
    while total < size:
        lines.append(piece(len(lines)))
        total += len(lines[-1])
    return b"".join(lines)


def corpora(size: int) -> dict[str, bytes]:
    """Name to about ``size`` bytes of what a program may print."""
    tui = _tui()
    return {
        "plain": _fill(_plain, size),
        "coloured": _fill(_coloured, size),
        "tui": tui * max(1, size // 8 // len(tui)),
        "adversarial": _fill(_adversarial, size),
    }


def _cpu(feed: Callable[[bytes, float], object], data: bytes) -> float:
    """MB/s of CPU."""
    start = time.process_time()
    for at in range(0, len(data), CHUNK):
        feed(data[at : at + CHUNK], at / 50e6)
    return len(data) / 1e6 / (time.process_time() - start)


def _bare() -> Callable[[bytes, float], object]:
    terminal = pyghostty.core.Terminal(COLS, ROWS, scrollback=1000)
    return lambda data, _: terminal.feed(data)


def main(argv: list[str]) -> int:
    size = int(float(argv[0]) * 1e6) if argv else 8_000_000
    print(f"{'MB/s of CPU':12} {'source':>8} {'pyghostty':>10} {'ratio':>6} {'lines only':>11}")
    for name, data in corpora(size).items():
        best = [0.0, 0.0, 0.0]
        for _ in range(ROUNDS):
            feeds = (ScreenSource(COLS, ROWS).feed, _bare(), LineSource(COLS, ROWS).feed)
            best = [max(old, _cpu(feed, data)) for old, feed in zip(best, feeds, strict=True)]
        source, bare, lines = best
        print(f"{name:12} {source:8.1f} {bare:10.1f} {source / bare:6.2f} {lines:11.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
