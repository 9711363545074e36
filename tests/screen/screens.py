"""Driving a source in tests: recordings, cut streams, and what was heard."""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator, Sequence
from pathlib import Path

from relay.core.source_events import End, Line, Pause, Proof, SourceEvent
from relay.screen.source import ScreenSource

CASTS = Path(__file__).parent.parent / "casts"


def texts(events: Sequence[SourceEvent]) -> list[str]:
    """What the lines say."""
    return [event.text for event in events if isinstance(event, Line)]


def proofs(events: Sequence[SourceEvent]) -> list[str]:
    """What demonstrably stood on the screen."""
    return [event.text for event in events if isinstance(event, Proof)]


def spoken(events: Sequence[SourceEvent]) -> list[str]:
    """Lines, pauses and the end, in short."""
    names = {Pause: "(pause)", End: "(end)"}
    return [e.text if isinstance(e, Line) else names.get(type(e), "(other)") for e in events]


def until(source: ScreenSource, now: float) -> list[SourceEvent]:
    """Call ``tick`` at every deadline up to ``now``."""
    events: list[SourceEvent] = []
    for _ in range(10_000):
        due = source.next_deadline()
        if due is None or due > now:
            return events
        events += source.tick(due)
    raise AssertionError(f"the deadline {due} does not pass")


def hear(source: ScreenSource, data: bytes, chunk: int = 1 << 20, now: float = 0.0) -> list[str]:
    """Feed all at one moment in chunks, let it settle, finish; the lines."""
    events: list[SourceEvent] = []
    for at in range(0, len(data), chunk):
        events += source.feed(data[at : at + chunk], now)
    events += until(source, now + 9)
    return texts(events + source.finish(now + 9))


def cast(name: str) -> list[tuple[float, str, str]]:
    """The events (time, kind, data) of a recording."""
    packed = CASTS / f"{name}.cast.xz"
    if packed.exists():
        text = lzma.decompress(packed.read_bytes()).decode()
    else:
        text = (CASTS / f"{name}.cast").read_text(encoding="utf-8")
    lines = text.splitlines()[1:]
    return [(at, kind, data) for at, kind, data in map(json.loads, lines)]


def cut(data: bytes, sizes: Iterator[int]) -> Iterator[bytes]:
    """``data`` in pieces of the next ``sizes``."""
    at = 0
    while at < len(data):
        size = next(sizes)
        yield data[at : at + size]
        at += size
