"""How a wrap tells the wrap around it which part of the output it hears itself. Pure.

A wrap that finds itself below a run (RELAY_RUN) writes a sequence to its terminal before its agent
starts, and another behind the last byte. Terminals ignore both. They name the run that they are
for, which no file and no page knows, and the process of the inner wrap.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

#: Bytes of the longest sequence.
_LENGTH_MAX = 80
_START = b"\x1b]7702;"


def begins(run_id: str, pid: int) -> bytes:
    """What the inner wrap ``pid`` writes first, for the run ``run_id`` around it."""
    return _START + f"in;{run_id};{pid}".encode() + b"\x1b\\"


def ends(run_id: str, pid: int) -> bytes:
    return _START + f"out;{run_id};{pid}".encode() + b"\x1b\\"


class NestedOutput:
    """Divides the output of the run ``run_id`` into its own and that of a wrap inside it."""

    def __init__(self, run_id: str, pid: int = 0, agent: int = 0) -> None:
        """``pid``: the inner wrap whose output comes first; 0 is none. ``agent``, the process that
        is wrapped, is no wrap inside, whatever its output says."""
        self._agent = agent
        import re  # not for the pump, which only writes

        run = re.escape(run_id.encode())
        self._marks = re.compile(rb"\x1b\]7702;(in|out);" + run + rb";([0-9]{1,10})\x1b\\")
        self.pid = pid  # the inner wrap that hears what comes next
        self._before = b""  # the end of what came before: a sequence may begin in it

    def split(self, data: bytes) -> Iterator[tuple[bytes, int]]:
        """The parts of ``data``, whole and in order, each with the process that hears it, or 0."""
        known = len(self._before)
        window = self._before + data
        self._before = window[-_LENGTH_MAX:]
        at = known
        if _START in window:
            for mark in self._marks.finditer(window):
                if mark.end() <= known:
                    continue  # dealt with
                yield window[at : mark.end()], self.pid
                at = mark.end()
                inner = int(mark[2]) if mark[1] == b"in" else 0
                self.pid = inner if inner != self._agent else 0
        if at < len(window):
            yield window[at:], self.pid
