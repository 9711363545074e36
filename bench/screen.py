"""How fast the screen source hears, beside the bare emulator in the same run.

    python bench/screen.py [MEGABYTES]

Prints, for each corpus, MB/s of CPU of `ScreenSource.feed` and of `pyghostty`'s `Terminal.feed`
on the same bytes in the same chunks, and the ratio of the two. Rounds are interleaved, the best
of each counts. The clock that the source sees runs as if the bytes came at 50 MB/s.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import pyghostty.core
from corpora import COLS, NAMES, ROWS, noise

from relay.screen.source import ScreenSource

CHUNK = 64 * 1024  # what the pump hands over at once in a flood
ROUNDS = 3


def corpora(size: int) -> dict[str, bytes]:
    """Name to about ``size`` bytes of what a program may print."""
    return {name: noise(name, size) for name in NAMES}


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
    print(f"{'MB/s of CPU':12} {'source':>8} {'pyghostty':>10} {'ratio':>6}")
    for name, data in (corpora(size) | {"cast": noise("cast", size)}).items():
        best = [0.0, 0.0]
        for _ in range(ROUNDS):
            feeds = (ScreenSource(COLS, ROWS).feed, _bare())
            best = [max(old, _cpu(feed, data)) for old, feed in zip(best, feeds, strict=True)]
        source, bare = best
        print(f"{name:12} {source:8.1f} {bare:10.1f} {source / bare:6.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
