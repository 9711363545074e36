"""The pump: bytes between the outer terminal and the agent's, with a copy for the session.

One poll loop, no descriptor that blocks, every buffer bounded. Bytes go first, book-keeping after;
output goes to the person first, and to the session when there is a moment for it. Nothing that the
session does or fails to do disturbs the agent.
"""

from __future__ import annotations

import os
import select
import time

from relay.core import signals
from relay.core.signals import signal
from relay.protocol import frames
from relay.pump import monitor, tty
from relay.pump.agent_process import Event, Monitored
from relay.pump.fast_path import QUIET, FastPath, Pace
from relay.pump.input import Input
from relay.pump.job_control import GraceTimer, Jobs
from relay.pump.outer_terminal import PENDING_MAX, OuterTerminal
from relay.pump.session_link import Frame, SessionLink

#: What a terminal can hold of a program that has exited: nothing written before is beyond it.
_TAIL_MAX = 256 * 1024
#: In the background nobody tells us that a shell's ``fg`` gave us the terminal: look this often.
_BACKGROUND_LOOK = 0.25
#: A terminal that takes nothing for this many seconds does not get the tail of the output.
_TAIL_PATIENCE = 60.0
#: Seconds that the agent has after a hang-up before its terminal goes, and again before we go.
_HANGUP_GRACE = 1.0


class Pump:
    """One agent's run. ``console`` and ``master`` (-1) are missing when there is no terminal.

    ``path`` names the agent's side of it. ``signals_fd`` is the read end of the pipe into which
    signals are written.
    """

    def __init__(
        self,
        agent: Monitored,
        link: SessionLink,
        signals_fd: int,
        console: OuterTerminal | None = None,
        master: int = -1,
        path: str | None = None,
    ) -> None:
        self.agent = agent
        self.link = link
        self.console = console
        self.master = master
        self.jobs = Jobs(agent, link, console, master)
        self.failure = 0  # errno: the agent could not be started
        self.input = Input(master, path, agent, link)
        self._signals_fd = signals_fd
        self._path = path
        self._unread: int | None = None  # what the agent left of its input when it ended
        self._status: int | None = None  # the agent's wait status
        self._hangup_at: float | None = None
        self._farewell = GraceTimer()
        self._tail_until = 0.0
        self._poll = select.poll()
        self._polled: dict[int, int] = {}
        self._fast_path: FastPath | None = None
        if console is not None:
            self._fast_path = FastPath(
                console, master, self.input, link, self._poll.poll, self._watch_room
            )
        self._pace = Pace()

    # -- the loop

    def run(self) -> int:
        """Pump until the agent has ended and its output is out; returns its wait status."""
        self.jobs.start()
        self._register()
        while not self._finished():
            timeout = self._timeout()
            if self._fast_path is None or self._status is not None:
                ready = dict(self._poll.poll(timeout))
            else:
                ready = dict(self._fast_path.wait(timeout))
                self._fast_path.note()
            now = time.monotonic()
            self._handle(ready, now)
            self._inform(ready, now)
            self._register()
        assert self._status is not None
        return self._status

    def _handle(self, ready: dict[int, int], now: float) -> None:
        stops = self.jobs.stops
        if self._signals_fd in ready:
            self._signals(now)
        if self.agent.fd in ready:
            self._events(self.agent.events(), now)
        if self.jobs.stops != stops:
            ready = {}  # of another time: poll says anew what there is
        # Keys before the session's frames: a WRITE must see that the person typed before it.
        console = self.console
        if console is not None:
            if ready.get(console.keys, 0) & ~select.POLLOUT:
                self._keys(now)
            if ready.get(console.screen, 0) & ~select.POLLIN and console.flush():
                self._tail_until = now + _TAIL_PATIENCE
        readable = ready.get(self.master, 0) & ~select.POLLOUT
        if readable and self._status is None and self._may_read():
            self._copy(now)
        if self.link.fd in ready:
            for frame in self.link.receive(now):
                self._obey(frame, now)
        self._timers(now)
        self.input.write(now)

    def _inform(self, ready: dict[int, int], now: float) -> None:
        """Let the session have its copy, if this is the moment."""
        link = self.link
        if link.fd < 0:
            return
        if ready.get(link.fd, 0) & select.POLLOUT:
            link.writable()
        convenient = not ready or link.fd in ready
        due = self._pace.due(link.written, link.backlog, convenient, now)
        if due or link.fresh or link.full:
            link.flush(now)

    def _finished(self) -> bool:
        if self._status is None:
            return False
        console = self.console
        if console is None or console.gone or not console.pending:
            return True
        return time.monotonic() >= self._tail_until

    def _register(self) -> None:
        """Tell poll what we wait for, where that has changed."""
        wanted = {self._signals_fd: select.POLLIN}
        if self._status is None:
            wanted[self.agent.fd] = select.POLLIN
        if self.console is not None:
            reading = self._status is None and self.input.hungry
            wanted.update(self.console.interest(reading))
        if self.master >= 0 and self._status is None:
            events = select.POLLIN if self._may_read() else 0
            if self.input.wants_to_write(time.monotonic()):
                events |= select.POLLOUT
            if events:
                wanted[self.master] = events
        if self.link.fd >= 0:
            blocked = select.POLLOUT if self.link.blocked else 0
            wanted[self.link.fd] = select.POLLIN | blocked
        for fd in self._polled.keys() - wanted.keys():
            self._poll.unregister(fd)
        for fd, events in wanted.items():
            # Registered anew each time for the session: its number may be another socket by now.
            if self._polled.get(fd) != events or fd == self.link.fd:
                self._poll.register(fd, events)
        self._polled = wanted

    def _watch_room(self, fd: int, wanted: bool) -> None:
        """Have poll say, or no longer say, that ``fd`` takes more."""
        events = self._polled.get(fd, 0) & ~select.POLLOUT | (select.POLLOUT if wanted else 0)
        if events:
            self._poll.register(fd, events)
            self._polled[fd] = events
        elif self._polled.pop(fd, 0):
            self._poll.unregister(fd)

    def _timeout(self) -> float | None:
        """How long to wait, in ms; None for ever."""
        if self.link.fd >= 0 and self.link.unsent and not self.link.blocked:
            return QUIET
        now = time.monotonic()
        times = [self.link.deadline(), self.input.deadline(now), self._hangup_at]
        times.append(self._farewell.deadline())
        if self.console is not None and self.console.background:
            times.append(now + _BACKGROUND_LOOK)
        if self._status is not None:
            times.append(self._tail_until)
        deadline = min((at for at in times if at is not None), default=None)
        return None if deadline is None else max(0, deadline - now) * 1000 + 1

    def _timers(self, now: float) -> None:
        if self._farewell.over(now) and self._status is None:
            self._pass_hangup_on()
        if self.console is not None and self.console.gone:
            self._hang_up(now)
        self.link.tick(now)
        self.input.tick(now)
        self.jobs.look_for_foreground()
        if self._hangup_at is not None and now >= self._hangup_at and self._status is None:
            if self.master >= 0:
                self._close_master()
                self._hangup_at = now + _HANGUP_GRACE
            else:
                self._status = signal.SIGHUP  # it outlives its terminal, as without relay

    # -- bytes

    def _may_read(self) -> bool:
        if self.link.full and not self.link.dropped:
            return False
        return self.console is None or len(self.console.pending) < PENDING_MAX

    def _copy(self, now: float) -> int:
        """Copy one read of the agent's output; 0 when there is none now."""
        try:
            data = os.read(self.master, 65536)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""  # Linux says EIO when nobody holds the other side any more
        if not data:
            self._close_master()
            return 0
        if self.console is not None:
            self.console.write(data)
        self.link.output(data, now)
        return len(data)

    def _drain(self, now: float) -> None:
        """The agent has ended: what it wrote before is in the terminal's buffers, read all of it.

        A read does not say that there is nothing before the kernel has handed on what was written
        (n_tty flushes its work queue); a grandchild that goes on writing is cut off at _TAIL_MAX.
        """
        left = _TAIL_MAX
        while self.master >= 0 and left > 0:
            copied = self._copy(now)
            if not copied:
                break
            left -= copied
        self._tail_until = now + _TAIL_PATIENCE

    def _keys(self, now: float) -> None:
        assert self.console is not None
        data = self.console.read()
        if data:
            self.input.press(data, now)

    # -- the session's frames

    def _obey(self, frame: Frame, now: float) -> None:
        kind, payload = frame
        if kind == frames.WRITE and len(payload) >= 8:
            self.input.obey(payload)
        elif kind == frames.WRITE_AT and len(payload) >= 16:
            self.input.obey(payload, looked=True)
        elif kind == frames.FAREWELL and len(payload) == 2:
            self._farewell.grant(int.from_bytes(payload, "big"))
        else:
            self.link.broken(now)
        if self.link.fd < 0:
            self.input.gate.forget()

    # -- signals and the agent's life

    def _signals(self, now: float) -> None:
        for number in self._pending_signals():
            if number == signal.SIGWINCH:
                self.jobs.resize()
            elif number == signal.SIGCHLD:
                self._reap(now)
            elif number == signal.SIGCONT:
                self.jobs.continued(now)
            elif self._status is not None:
                self._tail_until = now  # who wants us to end does not wait for what is unread
            elif number == signal.SIGHUP:
                # A terminal that goes is often told twice: by its end, and by this.
                if not self._take_leave(now) and not self._farewell.holds(now):
                    self._pass_hangup_on()
            elif number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTSTP):
                self._key_signal(number)
            else:
                self.agent.signal(number)

    def _pending_signals(self) -> bytes:
        try:
            return os.read(self._signals_fd, 4096)
        except BlockingIOError:
            return b""

    def _key_signal(self, number: int) -> None:
        """A signal that a terminal sends to its whole foreground group: to us and to a child."""
        if self.master < 0 and signals.from_terminal():
            return
        self.agent.signal_foreground(number)

    def _reap(self, now: float) -> None:
        while True:
            pid = self.link.pid
            if not pid:
                return
            try:
                ended, _ = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                ended = pid
            if not ended:
                return
            for frame in self.link.receive(now):
                self._obey(frame, now)
            self.link.reaped(ended, now)
            self.input.gate.forget()

    def _events(self, events: list[Event], now: float) -> None:
        for index, (kind, number) in enumerate(events):
            if kind == monitor.STARTED:
                self.link.open(now)
            elif kind == monitor.FAILED:
                self.failure = number
            elif kind == monitor.STOPPED:
                if any(later in (monitor.CONTINUED, monitor.EXITED) for later, _ in events[index:]):
                    continue  # it is over already: we must not stop now
                self._drain(now)
                self.jobs.agent_stopped(number, self._pending_signals)
            elif kind == monitor.CONTINUED:
                self.jobs.agent_continued()
            elif kind == monitor.EXITED:
                self._status = number
                self._unread = tty.unread(self._path) if self._path is not None else None
                self._drain(now)

    def _hang_up(self, now: float) -> None:
        """The outer terminal has gone: so has the agent's, in a moment."""
        if self._hangup_at is None:
            if self._take_leave(now) or self._farewell.holds(now):
                return
            self._hangup_at = now + _HANGUP_GRACE
            for number in (signal.SIGHUP, signal.SIGCONT):
                self.agent.signal_foreground(number)

    def _take_leave(self, now: float) -> bool:
        """Whether the agent may go on for a while, because its session wants it to."""
        if self.link.fd < 0 or self._status is not None or not self._farewell.begin(now):
            return False
        self.link.event(frames.GOING, b"")
        return True

    def _pass_hangup_on(self) -> None:
        self.agent.signal_foreground(signal.SIGHUP)
        self.agent.signal(signal.SIGHUP)
        self.agent.signal_foreground(signal.SIGCONT)

    def _close_master(self) -> None:
        if self.master >= 0:
            if self.master in self._polled:
                self._poll.unregister(self.master)
                del self._polled[self.master]
            os.close(self.master)
            self.master = -1
            self.input.close()
            if self._fast_path is not None:
                self._fast_path.close()

    # -- the end

    def close(self) -> bool:
        """Restore the terminal and take leave. Whether the session still has something to read."""
        now = time.monotonic()
        self.jobs.leave()
        self.agent.quit()
        self._close_master()
        if self.link.pid or self.link.fd >= 0 or not self.failure:
            self.link.event(frames.EXIT, _exit_payload(self._status or 0, self._unread))
            return self.link.finish(now)
        return False


def _exit_payload(status: int, unread: int | None) -> bytes:
    left = "null" if unread is None else str(unread)
    if os.WIFSIGNALED(status):
        return f'{{"status":null,"signal":{os.WTERMSIG(status)},"unread":{left}}}'.encode()
    return f'{{"status":{os.WEXITSTATUS(status)},"signal":null,"unread":{left}}}'.encode()
