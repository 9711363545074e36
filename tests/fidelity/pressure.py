"""Under pressure: nobody reads the terminal. What relay alone can suffer is in tests/e2e."""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

from tests.fidelity.behaviours import behaviour
from tests.fidelity.stage import Stage

#: Writes what it is given, says in a file how much was taken, and that ^C came.
_FLOOD = """
def interrupted(*_):
    tell('INT')
    os._exit(9)
signal.signal(signal.SIGINT, interrupted)
show('pid', os.getpid())
block = open(os.path.join(FOLDER, 'block'), 'rb').read()
total = 0
with open(os.path.join(FOLDER, 'total'), 'wb') as file:
    for _ in range(TIMES):
        left = memoryview(block)
        while left:
            count = os.write(1, left[:512])  # a write returns when all is taken
            left = left[count:]
            total += count
            os.pwrite(file.fileno(), struct.pack('Q', total), 0)
"""
_LINE = b"2026-01-01 12:00:00 INFO worker-3 handled a request in 12 ms, status=200\r\n"
_BLOCK = _LINE * (65536 // len(_LINE))
#: No more may wait between a child and a terminal that does not read.
_WAITING_MAX = 1 << 20
_MEMORY_MAX = 128 << 20
#: So long nobody reads; a child that is held up earlier is so for half a second.
_UNREAD = 3.0
_HELD_UP = 0.5


def _total(stage: Stage) -> int:
    try:
        return int.from_bytes((stage.folder / "total").read_bytes(), "little")
    except FileNotFoundError:
        return 0


def _flood(stage: Stage, block: bytes, times: int) -> int:
    """Start the flood and leave the terminal unread; returns what was taken of it meanwhile."""
    (stage.folder / "block").write_bytes(block)
    stage.start(stage.child(_FLOOD.replace("TIMES", str(times))))
    stage.until(lambda: _total(stage), "a flood", drain=False)
    started = moved = time.monotonic()
    taken = 0
    while (now := time.monotonic()) < started + _UNREAD and now < moved + _HELD_UP:
        if _total(stage) != taken:
            taken, moved = _total(stage), now
        time.sleep(0.01)
    return taken


@behaviour("pressure", "the terminal does not read: the child waits, no memory grows", proc=True)
def unread(stage: Stage) -> list[object]:
    taken = _flood(stage, _BLOCK, 10_000)
    assert taken > 0
    child = stage.shown("pid", drain=False)
    memory = [_peak(pid) for pid in stage.processes() if pid != child]
    return [taken < _WAITING_MAX, max(memory, default=0) < _MEMORY_MAX]


def _peak(pid: int) -> int:
    """The largest resident set that a process has had, in bytes."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return 0


@behaviour("pressure", "the terminal does not read: ^C still reaches the child", expect=True)
def unread_interrupt(stage: Stage) -> bool:
    _flood(stage, _BLOCK, 10_000)
    os.write(stage.terminal.master, b"\x03")  # type() would read as well
    stage.told("INT", drain=False)
    return True


@behaviour("pressure", "the terminal reads late: everything written arrives, in order", expect=True)
def read_late(stage: Stage) -> bool:
    stage.terminal.raw()
    noise = hashlib.shake_128(b"late").digest(64 * 1024)
    taken = _flood(stage, noise, 32)
    assert taken < 32 * len(noise), "the terminal holds it all: nothing was late"
    stage.terminal.wait(stage.limit)
    return bytes(stage.terminal.seen) == noise * 32
