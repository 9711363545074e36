"""The pump's fast path: bytes from terminal to terminal at once, their book-keeping later.

A person who presses a key waits for these few lines, and a flood passes through them. The fast path
takes only what is simple; what it leaves has not been read, and is for the pump's main loop.
"""

from __future__ import annotations

import os
import select
import time

from relay.pump.input import TEXT, Input
from relay.pump.outer_terminal import PENDING_MAX, OuterTerminal
from relay.pump.session_link import SessionLink

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    #: A descriptor and what poll said of it.
    Ready = tuple[int, int]

#: What has passed is noted once nothing has come for this many ms: nobody is to wait for it, and
#: the session must not wake up in the middle of an answer to a key.
QUIET = 1
_READ = 8192  # a pseudo-terminal yields some 4 KiB at a time
#: A read of this many bytes has more behind it: at most this many are made between two looks at the
#: keys.
_FULL = 4000
_AT_ONCE = 4
#: Where no quiet moment comes, the session gets its copy after this many seconds, and when this
#: many bytes wait after some more.
_LATEST = 0.010
_MUCH = 256 * 1024
_MUCH_LATEST = 0.250
#: A flood: at least this many bytes a second, seen for this many seconds.
FLOOD_RATE = 8 * 1024 * 1024
_WINDOW = 0.050
#: Seconds that a session waits for a flood to end; then it reads without a rest, until it is no
#: more than this many bytes behind.
FLOOD_LATEST = 10.0
_BEHIND = 1024 * 1024


class FastPath:
    """``console`` and ``master`` as the pump has them; ``poll`` waits for all that the pump has.

    ``watch_room(fd, wanted)`` has it say, or no longer say, that ``fd`` takes more.
    """

    def __init__(
        self,
        console: OuterTerminal,
        master: int,
        typed: Input,
        link: SessionLink,
        poll: Callable[[float | None], list[Ready]],
        watch_room: Callable[[int, bool], None],
    ) -> None:
        self._console = console
        self._master = master
        self._typed = typed
        self._link = link
        self._poll = poll
        self._watch_room = watch_room
        self._unnoted: list[tuple[bool, bytes, float]] = []  # (keys?, bytes, when)

    def wait(self, timeout: float | None) -> list[Ready]:
        """Wait, and pass on what is simple, until there is something else to do: that is returned.

        Empty when nothing came: within ``timeout`` (ms, None for ever), or for QUIET ms after
        something has passed.
        """
        # One frame and local names: after a sleep nothing of the interpreter is in the processor's
        # caches, and each function more on the way of a key costs microseconds.
        poll, read, write, clock = self._poll, os.read, os.write, time.monotonic
        console, typed, unnoted = self._console, self._typed, self._unnoted
        keys, screen, master, pending = console.keys, console.screen, self._master, console.pending
        read_keys, come, room = console.read, select.POLLIN, select.POLLOUT
        while True:
            ready = poll(timeout)
            if not ready or len(unnoted) >= console.unnoted_max:
                return ready
            if len(ready) > 1:
                # What was written before a key comes before its echo, for the session too.
                ready.sort(key=lambda one: one[0] != master)
            left = []
            for fd, events in ready:
                data = b""
                if fd == keys and events == come and typed.direct:
                    data = read_keys()
                    if data and not data.translate(None, TEXT):
                        try:
                            written = write(master, data)
                        except OSError:
                            written = 0
                        unnoted.append((True, data, clock()))
                        if written < len(data):
                            typed.keep(data[written:])
                    elif data:
                        self.note()
                        typed.press(data, clock())
                elif fd == master and events == come and len(pending) < PENDING_MAX:
                    try:
                        # Once: asking in vain makes the kernel wait for what is still on its way.
                        data = read(fd, _READ)
                    except OSError:
                        data = b""
                    if data:
                        self._show(data)
                        if len(data) >= _FULL:
                            data += self._more()
                        unnoted.append((False, data, clock()))
                elif fd == screen and events == room and self._make_room():
                    continue
                if not data:
                    left.append((fd, events))
            if left:
                return left
            timeout = QUIET

    def note(self) -> None:
        """Tell the session's link what has passed, in order."""
        unnoted = self._unnoted
        for number, (keys, data, at) in enumerate(unnoted):
            if not keys:
                self._link.output(data, at)
                continue
            if number + 1 < len(unnoted) and not unnoted[number + 1][0]:
                # What was still written before the echo of these keys is no part of it.
                _, shown, then = unnoted[number + 1]
                echo = max(shown.find(data), 0)
                if echo:
                    self._link.output(shown[:echo], then)
                    unnoted[number + 1] = (False, shown[echo:], then)
            self._typed.note(data, at)
        unnoted.clear()

    def close(self) -> None:
        """The agent's terminal has gone: its number may be another descriptor's soon."""
        self._master = -1

    def _show(self, data: bytes) -> None:
        console = self._console
        waiting = bool(console.pending)
        console.write(data)
        if console.pending and not waiting:
            self._watch_room(console.screen, True)

    def _more(self) -> bytes:
        """Pass on what stands behind a full read: to poll for each costs a flood a good part."""
        passed = []
        for _ in range(_AT_ONCE - 1):
            if self._console.pending:
                break
            try:
                data = os.read(self._master, _READ)
            except OSError:
                break
            if not data:
                break
            self._show(data)
            passed.append(data)
            if len(data) < _FULL:
                break
        return b"".join(passed)

    def _make_room(self) -> bool:
        console = self._console
        console.flush()
        if not console.pending:
            self._watch_room(console.screen, False)
        return not console.gone


class Pace:
    """Decides when the session gets its copy of the output. Pure; times are monotonic.

    In a quiet moment; where none comes, a moment later: what it reads soon costs nobody anything.
    A flood goes to the terminal first, for the session's work on it would slow it down: the session
    reads it when the agent rests, or has flooded for long.
    """

    def __init__(self) -> None:
        self._informed_at = 0.0
        self._behind_at = 0.0  # since when the session has been behind
        self._flooding = False
        self._seen_at = 0.0
        self._seen = 0

    def due(self, written: int, backlog: int, convenient: bool, now: float) -> bool:
        """Whether the session is to get ``backlog`` bytes now, of ``written`` in all.

        ``convenient``: nothing else is to be done just now, or the session is awake anyway.
        """
        self._look(written, now)
        if backlog < _BEHIND:
            self._behind_at = now
        if self._flooding and now - self._behind_at < FLOOD_LATEST:
            return False
        patience = _MUCH_LATEST if backlog >= _MUCH else _LATEST
        if not convenient and now - self._informed_at < patience:
            return False
        self._informed_at = now
        return True

    def _look(self, written: int, now: float) -> None:
        passed = now - self._seen_at
        if passed >= _WINDOW:
            self._flooding = written - self._seen >= FLOOD_RATE * passed
            self._seen_at, self._seen = now, written
