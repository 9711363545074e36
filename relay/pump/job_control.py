"""Job control: the agent and relay stop and go on together, in the foreground or behind it.

The outer terminal is raw only while we are its foreground process group; in the background the
agent is a background process of its own terminal, so that reading it stops the agent as it would
without relay.
"""

from __future__ import annotations

import os
import time

from relay.core import signals
from relay.core.signals import signal
from relay.protocol import frames
from relay.pump import tty
from relay.pump.agent_process import Monitored
from relay.pump.outer_terminal import OuterTerminal
from relay.pump.session_link import SessionLink

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

#: What stops a background process that reads its terminal, changes it, or writes with tostop.
_NOT_ITS_TERMINAL = (signal.SIGTTIN, signal.SIGTTOU)
#: Passed on as they are, whatever else happens.
_FOR_THE_AGENT = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
#: The longest that a session can ask for, in seconds.
LONGEST = 60.0


class Jobs:
    """Whether the agent is stopped, and whose the outer terminal is. No descriptor is read here.

    ``console`` and ``master`` (-1) are missing when there is no terminal.
    """

    def __init__(
        self,
        agent: Monitored,
        link: SessionLink,
        console: OuterTerminal | None,
        master: int,
    ) -> None:
        self._agent = agent
        self._link = link
        self._console = console
        self._master = master
        self._stopped = False
        self._hung_up = False
        self.stops = 0  # so often we were stopped

    def start(self) -> None:
        """Take the terminal, if it is ours to take."""
        if self._console is not None and not self._console.background:
            self._go_raw()

    def agent_continued(self) -> None:
        """Somebody has continued the agent, perhaps while we were not stopped with it."""
        if self._stopped:
            self._stopped = False
            self._link.event(frames.JOB, frames.CONTINUED)

    def agent_stopped(self, number: int, pending: Callable[[], bytes]) -> None:
        """Signal ``number`` stopped the agent: give the terminal back, and stop as well.

        Returns when we are continued. ``pending`` reads the signals that came meanwhile; those
        that are not job control's are sent to us again.
        """
        self._stopped = True
        if number in _NOT_ITS_TERMINAL and self._in_foreground():
            self.continued(time.monotonic())  # a shell's ``fg`` came before the agent's read
            return
        self._link.event(frames.JOB, frames.STOPPED)
        self._link.flush(time.monotonic())
        if self._console is not None:
            self._console.drain()
            self.leave()
        signals.stop_self(number)
        self.stops += 1
        came = pending()
        for other in came:
            if other in _FOR_THE_AGENT:  # before it goes on: it may stop again at once
                self._agent.signal(other)
        if signal.SIGCONT not in came and number == signal.SIGSTOP:
            # Nobody can stop and continue us here; who stopped the agent will continue it.
            self.start()
        elif signal.SIGCONT not in came and number in _NOT_ITS_TERMINAL:
            self._orphaned()
        else:
            self.continued(time.monotonic())
        for other in came:
            if other != signal.SIGCONT and other not in _FOR_THE_AGENT:
                os.kill(os.getpid(), other)

    def _in_foreground(self) -> bool:
        return self._console is not None and tty.in_foreground(self._console.keys)

    def _orphaned(self) -> None:
        """No shell is there to give us the terminal any more, and the agent wants it.

        Without relay its read would fail, which ends most programs; here it would stop for ever. So
        it is hung up as the kernel does with stopped orphans; if it stops again, it stays stopped.
        """
        if self._hung_up:
            return
        self._hung_up = True
        self._agent.signal(signal.SIGHUP)
        self.continued(time.monotonic())

    def continued(self, now: float) -> None:
        """We are running again, in the foreground or not: the agent likewise."""
        self._link.resumed(now)
        foreground = True
        if self._console is not None:
            foreground = self._console.in_foreground()
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
        if console.in_foreground():
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
        if self._console is not None and self._console.measure():
            tty.write_size(self._master, self._console.size)
            self._link.event(frames.SIZE, self._console.size.packed())

    def _go_raw(self) -> None:
        if self._console is not None:
            self._console.modes.enter(self._agent.going_raw)


class GraceTimer:
    """Times how long the agent goes on after the person's terminal has gone. Pure.

    Only where the session asked for it, because hooks want to have something said at the end.
    """

    def __init__(self) -> None:
        self._granted = 0.0
        self._until: float | None = None

    def grant(self, seconds: float) -> None:
        """The session asks for so much time, or says with 0 that no more is needed."""
        self._granted = min(seconds, LONGEST)
        if self._until is not None and not seconds:
            self._until = 0.0

    def begin(self, now: float) -> bool:
        """The person's terminal goes: whether the agent's waits. Only the first time."""
        if self._until is not None or not self._granted:
            return False
        self._until = now + self._granted
        return True

    def holds(self, now: float) -> bool:
        """Whether the agent goes on without its person at this moment."""
        return self._until is not None and now < self._until

    def over(self, now: float) -> bool:
        """Whether its time has come; True once."""
        if self._until is None or self._until < 0 or now < self._until:
            return False
        self._until = -1.0
        return True

    def deadline(self) -> float | None:
        """When ``over`` has something to say; None for never."""
        return None if self._until is None or self._until < 0 else self._until
