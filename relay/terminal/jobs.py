"""Job control: the agent and relay stop and go on together, in the foreground or behind it.

The outer terminal is raw only while we are its foreground process group; in the background the
agent is a background process of its own terminal, so that reading it stops the agent as it would
without relay.
"""

from __future__ import annotations

import os
import time

from relay.session import frames
from relay.terminal import signals, tty
from relay.terminal.console import Console
from relay.terminal.link import Link
from relay.terminal.process import Direct, Monitored
from relay.terminal.signals import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Jobs:
    """Whether the agent is stopped, and whose the outer terminal is. No descriptor is read here.

    ``console`` and ``master`` (-1) are missing when there is no terminal.
    """

    def __init__(
        self, agent: Monitored | Direct, link: Link, console: Console | None, master: int
    ) -> None:
        self._agent = agent
        self._link = link
        self._console = console
        self._master = master
        self._stopped = False

    def start(self) -> None:
        """Take the terminal, if it is ours to take."""
        if self._console is not None and not self._console.background:
            self._go_raw()

    def agent_continued(self) -> None:
        """The agent runs, whoever continued it."""
        self._stopped = False

    def agent_stopped(self, number: int, pending: Callable[[], bytes]) -> None:
        """Signal ``number`` stopped the agent: give the terminal back, and stop as well.

        Returns when we are continued. ``pending`` reads the signals that came meanwhile; those
        that are not job control's are sent to us again.
        """
        self._stopped = True
        self._link.event(frames.JOB, frames.STOPPED)
        self._link.flush(time.monotonic())
        if self._console is not None:
            while self._console.pending and self._console.flush():
                pass
            self.leave()
        signals.stop_self(group=number == signal.SIGTSTP)
        came = pending()
        if number == signal.SIGSTOP and signal.SIGCONT not in came:
            # Nobody can stop and continue us here; whoever stopped the agent will continue it.
            self.start()
        else:
            self.continued(time.monotonic())
        for other in came:
            if other != signal.SIGCONT:
                os.kill(os.getpid(), other)

    def continued(self, now: float) -> None:
        """We are running again, in the foreground or not: the agent likewise."""
        self._link.resumed(now)
        foreground = True
        if self._console is not None:
            foreground = tty.in_foreground(self._console.keys)
            self._console.background = not foreground
            if foreground:
                self._go_raw()
                self.resize()
        if self._stopped:
            self._stopped = False
            self._agent.resume(foreground)
            self._link.event(frames.JOB, frames.CONTINUED)

    def look_for_foreground(self) -> None:
        """In the background: notice that a shell's ``fg`` has given us the terminal."""
        console = self._console
        if console is None or not console.background or console.gone:
            return
        if tty.in_foreground(console.keys):
            console.background = False
            self._go_raw()
            self.resize()
            self._agent.set_foreground(True)

    def leave(self) -> None:
        """Restore the outer terminal."""
        if self._console is not None:
            self._console.modes.leave()
            self._agent.going_raw(None, None)

    def resize(self) -> None:
        """Hand the outer terminal's size on, if it has changed."""
        if self._console is None:
            return
        size = tty.read_size(self._console.screen)
        if size.packed() != self._console.size.packed():
            self._console.size = size
            tty.write_size(self._master, size)
            self._link.event(frames.SIZE, size.packed())

    def _go_raw(self) -> None:
        if self._console is not None:
            self._console.modes.enter(self._agent.going_raw)
