"""Runs a child process of the broker: its socket, its log, its requests, its end.

The memory service, workers and headless turns are such processes. When one ends, every request that
waits for it fails; the caller decides what to do then.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from relay.core.child_process import kill_below
from relay.core.errors import RelayError
from relay.core.log import Log

#: Bytes of one line: a page of memories fits, even if every byte is escaped.
_LINE_MAX = 32 * 1024 * 1024
#: Bytes of a service's output that are read at a time, and the pause after so many: a flood leaves
#: the broker its time, and holds the service up for no more than that.
_READ, _READ_PAUSE = 256 * 1024, 0.001
#: Bytes of its output that are logged in a second, and that may wait for that; more is left out.
_OUTPUT_RATE = 1024 * 1024
#: Bytes of its output that are kept for whoever asks for it.
_PRINTED = 16 * 1024
#: Bytes that are masked at a time, and the pause after it as a multiple of the time that it took:
#: the broker needs the processor, and in the worst case masking takes 2 s for each MiB.
_PIECE, _REST = 16 * 1024, 20
#: Seconds in which a service's last output is logged; the rest is left out.
_LAST_WORDS = 1.0
#: Seconds in which the processes that it has started are found and killed.
_KILLING = 2.0
#: Seconds in which a process that was killed at the broker's end is reaped.
_REAPING = 3.0


class ServiceEnded(RelayError):
    """The process has ended, and will not answer."""

    code = "worker_ended"

    def __init__(self, how: str) -> None:
        super().__init__(f"the process {how}")
        self.how = how


class Starts:
    """Bounds how often something is started: ``most`` times in so many seconds."""

    def __init__(self, most: int) -> None:
        self._times: deque[float] = deque(maxlen=most)

    def may(self, seconds: float) -> bool:
        """Whether it may be started once more; if so, that is counted."""
        times, now = self._times, time.monotonic()
        if len(times) == times.maxlen and now - times[0] < seconds:
            return False
        times.append(now)
        return True


class ServiceProcess(asyncio.Protocol):
    """The running process; its standard input is the socket. Raises OSError when it cannot start.

    ``received`` gets each line. It returns the number of the request that the line answers, with
    the answer or the error; None if it answers none. If it raises ValueError (an invalid line), the
    process is killed. ``ended(how)`` is called once: when the process is reaped and all that it has
    said and printed is read, and before the waiting requests fail. What it prints is logged.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        cwd: str,
        log: str,
        received: Callable[[bytes], tuple[int, Any] | None],
        ended: Callable[[str], None],
        env: Mapping[bytes, bytes] | None = None,
    ) -> None:
        self._received = received
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray()
        self._searched = 0
        self._early: list[bytes] = []  # lines that are sent before there is a transport
        self._transport: asyncio.Transport | None = None
        self._pending: dict[int, asyncio.Future[Any]] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        #: Set once the process has ended, and what it printed is logged.
        self.gone = asyncio.Event()
        self._finished = self.killed = False
        #: Why it was killed, given by whoever did.
        self.why: object = None
        self._how = ""  # how the process ended, once it is reaped
        self._read_all = False
        self._reading: asyncio.TimerHandle | None = None  # goes on with the output
        self._printed = Printed()
        ours, theirs = socket.socketpair()
        self._output, their_output = socket.socketpair()
        try:
            self._popen = subprocess.Popen(
                command,
                stdin=theirs.fileno(),
                stdout=their_output.fileno(),
                stderr=their_output.fileno(),
                cwd=cwd,
                env=env,
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            self._output.close()
            raise
        finally:
            theirs.close()
            their_output.close()
        connecting = self._loop.create_connection(lambda: self, sock=ours)
        self._connecting = self._loop.create_task(connecting)  # a loop holds tasks weakly
        self._log = _OutputLog(Log(log), self._loop, self.gone)
        self._output.setblocking(False)
        self._loop.add_reader(self._output, self._read_output)
        threading.Thread(target=self._reap, daemon=True).start()

    def send(self, line: bytes) -> None:
        """Send one line."""
        if self._transport is None:
            self._early.append(line)
        else:
            self._transport.write(line)

    @property
    def idle(self) -> bool:
        """Whether no request waits for its answer."""
        return not self._pending

    def ask(self, number: int, line: bytes) -> asyncio.Future[Any]:
        """Send a request. The future gets its answer, or ServiceEnded."""
        future = self._pending[number] = self._loop.create_future()
        future.add_done_callback(lambda _: self._pending.pop(number, None))
        self.send(line)
        return future

    def kill_after(self, limit: str, seconds: float, why: object = None) -> None:
        """Kill it after so many seconds, unless this ``limit`` is set anew or lifted before."""
        self.lift(limit)
        self._timers[limit] = self._loop.call_later(seconds, self.kill, why)

    def lift(self, limit: str) -> None:
        """Cancel a limit of ``kill_after``."""
        if (timer := self._timers.pop(limit, None)) is not None:
            timer.cancel()

    async def answered(self, seconds: float) -> None:
        """Wait until it has answered all that it was asked, though no longer than so many
        seconds."""
        if self._pending:
            await asyncio.wait(list(self._pending.values()), timeout=seconds)

    async def close(self, seconds: float) -> bool:
        """Let it end, and kill it after so many seconds. Returns whether it ended by itself."""
        self.finish()
        for deadline in (seconds, _REAPING):
            with suppress(TimeoutError):
                await asyncio.wait_for(self.gone.wait(), deadline)
                break
            self.kill()
        return not self.killed

    def finish(self) -> None:
        """End our side of the stream: no more requests will come."""
        self._finished = True
        if self._transport is not None and self._transport.can_write_eof():
            self._transport.write_eof()

    def kill(self, why: object = None) -> None:
        """Kill it at once, with all processes that it has started."""
        self.why = self.why or why
        if not self.killed and not self._how:
            self.killed = True
            threading.Thread(target=self._kill, daemon=True).start()

    def _kill(self) -> None:
        """A thread: kill the processes that it has started, then itself. Those outside its process
        group can be found only while it lives."""
        with suppress(OSError, subprocess.SubprocessError):
            if self._popen.returncode is None:  # else its pid may be another process's
                kill_below(self._popen.pid, _KILLING)
        self._popen.kill()  # the thread that reaps it does the rest

    # -- the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(b"".join(self._early))
        self._early.clear()
        if self._finished:
            transport.write_eof()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\n", self._searched)) >= 0:
            line = bytes(self._buffer[: end + 1])
            del self._buffer[: end + 1]
            self._searched = 0
            try:
                answer = self._received(line)
            except ValueError:
                self.kill()
                return
            if answer is not None:
                self._settle(*answer)
        self._searched = len(self._buffer)
        if self._searched > _LINE_MAX:
            self.kill()

    def connection_lost(self, error: Exception | None) -> None:
        self._read_all = True
        if not self._how:
            self._popen.kill()  # it has closed its socket, so it has ended its own children
        self._report_end()

    def _settle(self, number: int, answer: object) -> None:
        future = self._pending.get(number)
        if future is None or future.done():
            return
        if isinstance(answer, RelayError):
            future.set_exception(answer)
        else:
            future.set_result(answer)

    # -- the process

    def _reap(self) -> None:
        """A thread: wait for the process, end what it has started, reap it."""
        if hasattr(os, "waitid"):  # not on macOS before Python 3.13
            with suppress(ChildProcessError):
                os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOWAIT)
        else:
            self._popen.wait()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        status = self._popen.wait()
        names = {one.value: one.name for one in signal.Signals}
        killer = names.get(-status, f"signal {-status}")
        how = f"was ended by {killer}" if status < 0 else f"ended with status {status}"
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._reaped, how)

    def _reaped(self, how: str) -> None:
        self._how = how
        self._report_end()

    def _report_end(self) -> None:
        if not (self._how and self._read_all):
            return
        for limit in list(self._timers):
            self.lift(limit)
        self._read_printed()
        self._stop_reading()
        self._output.close()  # a child that lives on may hold the other end
        self._ended(self._how)
        for number in list(self._pending):
            self._settle(number, ServiceEnded(self._how))
        self._log.close()

    # -- what it prints

    def take_printed(self) -> Printed:
        """What it has printed since this was called last. What it has printed before it said
        something is part of it when that is received."""
        self._read_printed()
        printed, self._printed = self._printed, Printed()
        return printed

    def _read_printed(self) -> None:
        for _ in range(16):  # a socket holds less: more is only there where it prints without end
            if self._output.fileno() < 0 or not self._read_piece():
                return

    def _read_output(self) -> None:
        if self._read_piece() >= _READ // 4:  # a flood
            self._stop_reading()
            self._reading = self._loop.call_later(_READ_PAUSE, self._read_on)

    def _read_on(self) -> None:
        self._loop.add_reader(self._output, self._read_output)

    def _stop_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
        self._loop.remove_reader(self._output)

    def _read_piece(self) -> int:
        try:
            data = self._output.recv(_READ)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""
        if not data:  # it has closed its end
            self._stop_reading()
            return 0
        self._log.add(data)
        self._printed.add(data)
        return len(data)


class Printed:
    """What a process has printed: the first of it, and how much more there was."""

    def __init__(self) -> None:
        self.left_out = 0
        self._kept = bytearray()

    def add(self, data: bytes) -> None:
        """Keep it, as far as there is room."""
        room = _PRINTED - len(self._kept)
        self._kept += data[:room]
        self.left_out += max(0, len(data) - room)

    def __str__(self) -> str:
        text = self._kept.decode(errors="replace")
        return f"{text}…\n({self.left_out} bytes more were printed)\n" if self.left_out else text


class _OutputLog:
    """Logs what a process prints, in a thread: masking may take long."""

    def __init__(self, log: Log, loop: asyncio.AbstractEventLoop, logged: asyncio.Event) -> None:
        """``logged`` is set in ``loop`` once there is no more to log."""
        self._log = log
        self._loop = loop
        self._logged = logged
        self._waiting = bytearray()
        self._left_out = 0
        self._changed = threading.Condition()
        self._closed: float | None = None  # since when
        threading.Thread(target=self._run, daemon=True).start()

    def add(self, data: bytes) -> None:
        """Log it; of very much the last."""
        with self._changed:
            self._waiting += data
            self._leave_out(len(self._waiting) - _OUTPUT_RATE)
            self._changed.notify()

    def close(self) -> None:
        """There will be no more: what waits is logged for a moment longer."""
        with self._changed:
            self._closed = time.monotonic()
            self._changed.notify()

    def _run(self) -> None:
        from relay.directive.redact import redact

        while data := self._next():
            began = time.thread_time()
            self._log.write(redact(data.decode(errors="backslashreplace").rstrip()))
            self._rest(max(len(data) / _OUTPUT_RATE, _REST * (time.thread_time() - began)))
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._logged.set)

    def _next(self) -> bytes:
        """What is to be logged next; nothing once there will be no more."""
        with self._changed:
            while not self._waiting and self._closed is None:
                self._changed.wait()
            if self._closed is not None and time.monotonic() - self._closed >= _LAST_WORDS:
                self._leave_out(len(self._waiting) - _PIECE)
            left_out, self._left_out = self._left_out, 0
            data = bytes(self._waiting[:_PIECE])
            del self._waiting[:_PIECE]
        if left_out:
            self._log.write(f"{left_out} bytes of what it printed are left out")
        return data

    def _leave_out(self, count: int) -> None:
        if count > 0:
            del self._waiting[:count]
            self._left_out += count

    def _rest(self, seconds: float) -> None:
        """Leave the processor to others; after the end for no longer than the last words take."""
        until = time.monotonic() + seconds
        with self._changed:
            while (left := until - time.monotonic()) > 0:
                if self._closed is not None:
                    left = min(left, self._closed + _LAST_WORDS - time.monotonic())
                    if left <= 0:
                        return
                self._changed.wait(left)
