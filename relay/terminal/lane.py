"""The fast lane of the pump: bytes from terminal to terminal, and nothing else yet.

Whoever presses a key waits for these few lines, and a flood passes through them; what else there is
to know about the bytes is noted for later. The lane takes only what is simple: all that it leaves
is for the pump's careful way, and then nothing has been read.
"""

from __future__ import annotations

import os
import select
import time

from relay.terminal.console import PENDING_MAX, Console
from relay.terminal.input import Input
from relay.terminal.link import Link

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    #: A descriptor and what poll said of it.
    Ready = tuple[int, int]

#: Chunks that may pass before somebody must take note of them.
UNNOTED_MAX = 16
#: A pseudo-terminal yields at most 4 KiB at a time.
_READ = 8192


class Lane:
    """``console`` and ``master`` as the pump has them.

    ``watch_room(fd, wanted)`` has the pump's poll say, or no longer say, that ``fd`` takes more.
    """

    def __init__(
        self,
        console: Console,
        master: int,
        typed: Input,
        link: Link,
        watch_room: Callable[[int, bool], None],
    ) -> None:
        self._console = console
        self._master = master
        self._typed = typed
        self._link = link
        self._watch_room = watch_room
        self._unnoted: list[tuple[bool, bytes, float]] = []  # (keys?, bytes, when)
        keys, screen = console.keys, console.screen
        self._ways = {
            (master, select.POLLIN): self._output,
            (keys, select.POLLIN): self._keys,
            (screen, select.POLLOUT): self._room,
        }
        if keys == screen:
            self._ways[keys, select.POLLIN | select.POLLOUT] = self._keys_and_room

    def left(self, ready: list[Ready]) -> list[Ready]:
        """Pass on what can be; what is left of ``ready``."""
        ways = self._ways
        return [pair for pair in ready if not ((way := ways.get(pair)) and way())]

    def note(self) -> None:
        """Tell the session's link what has passed, in order."""
        for keys, data, at in self._unnoted:
            if keys:
                self._typed.note(data, at)
            else:
                self._link.output(data, at)
        self._unnoted.clear()

    def close(self) -> None:
        """The agent's terminal has gone: its number may be another descriptor's soon."""
        self._ways.pop((self._master, select.POLLIN), None)
        self._master = -1

    def _output(self) -> bool:
        console = self._console
        if len(self._unnoted) >= UNNOTED_MAX or len(console.pending) >= PENDING_MAX:
            return False
        try:
            # Once: asking in vain makes the kernel wait for whatever is still on its way.
            data = os.read(self._master, _READ)
        except OSError:
            return False
        if not data:
            return False
        waiting = bool(console.pending)
        console.write(data)
        if console.pending and not waiting:
            self._watch_room(console.screen, True)
        self._unnoted.append((False, data, time.monotonic()))
        return True

    def _keys(self) -> bool:
        if not self._typed.direct or len(self._unnoted) >= UNNOTED_MAX:
            return False
        data = self._console.read()
        if data and self._typed.pass_on(data):
            self._unnoted.append((True, data, time.monotonic()))
        elif data:
            self.note()
            self._typed.press(data, time.monotonic())
        return bool(data)

    def _room(self) -> bool:
        console = self._console
        console.flush()
        if not console.pending:
            self._watch_room(console.screen, False)
        return not console.gone

    def _keys_and_room(self) -> bool:
        return self._room() and self._keys()
