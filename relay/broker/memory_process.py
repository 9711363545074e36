"""Runs the memory service (relay.memory.service) as a child of the broker: its socket, its log.

relay.broker.memory_proxy decides when it is started, and what it is asked.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from relay.core.files import make_private_folder
from relay.core.log import Log

if TYPE_CHECKING:
    from relay.core.paths import Home

#: Bytes of one answer: a page of memories whose every byte is escaped fits.
_LINE_MAX = 32 * 1024 * 1024
#: Bytes a second that are read of what the service prints: a flood slows down only the service.
_OUTPUT_RATE = 1024 * 1024

_RUN = "import sys; sys.path.append(sys.argv.pop(1)); from relay.memory.service import main; main()"
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
#: What starts the service. -P: nothing in its folder may take a module's place.
SERVICE = (sys.executable, "-P", "-u", "-c", _RUN, _ROOT)


class MemoryProcess(asyncio.Protocol):
    """The running service. Raises OSError when it cannot be started.

    ``answered(id, line)`` gets each answer; ``ended(how)`` is called once, when the process is
    reaped and all its answers are read.
    """

    def __init__(
        self,
        command: Sequence[str],
        home: Home,
        log: str,
        answered: Callable[[int, bytes], None],
        ended: Callable[[str], None],
    ) -> None:
        self._answered = answered
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray()
        self._searched = 0
        self._early: list[bytes] = []  # what is sent before there is a transport
        self._transport: asyncio.Transport | None = None
        self._finished = False
        self._how = ""  # how the process ended, once it is reaped
        self._read_all = False
        make_private_folder(home.memory)
        ours, theirs = socket.socketpair()
        self._output, their_output = socket.socketpair()
        try:
            self._popen = subprocess.Popen(
                [*command, home.root],
                stdin=theirs.fileno(),
                stdout=their_output.fileno(),
                stderr=their_output.fileno(),
                cwd=home.memory,
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
        self._logging = threading.Thread(target=self._log_output, args=(Log(log),), daemon=True)
        self._logging.start()
        threading.Thread(target=self._reap, daemon=True).start()

    def send(self, line: bytes) -> None:
        """Send one request."""
        if self._transport is None:
            self._early.append(line)
        else:
            self._transport.write(line)

    def finish(self) -> None:
        """Say that nothing more will be asked."""
        self._finished = True
        if self._transport is not None and self._transport.can_write_eof():
            self._transport.write_eof()

    def kill(self) -> None:
        """End it at once, with all that it has started."""
        if not self._how:
            self._popen.kill()  # the thread that reaps it does the rest

    # -- the socket

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.writelines(self._early)
        self._early.clear()
        if self._finished:
            transport.write_eof()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\n", self._searched)) >= 0:
            id_, _, line = bytes(self._buffer[: end + 1]).partition(b" ")
            del self._buffer[: end + 1]
            self._searched = 0
            if not id_.isdigit():
                self.kill()
                return
            self._answered(int(id_), line)
        self._searched = len(self._buffer)
        if self._searched > _LINE_MAX:
            self.kill()

    def connection_lost(self, error: Exception | None) -> None:
        self._read_all = True
        self.kill()  # it can answer no more
        self._report_end()

    # -- the process

    def _reap(self) -> None:
        """The thread that waits for the process, ends what it has started, and reaps it."""
        if hasattr(os, "waitid"):  # not on macOS before Python 3.13
            with suppress(ChildProcessError):
                os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOWAIT)
        else:
            self._popen.wait()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        status = self._popen.wait()
        with suppress(OSError):
            self._output.shutdown(socket.SHUT_RDWR)  # a child that lives on may hold the other end
        self._logging.join()
        self._output.close()
        names = {one.value: one.name for one in signal.Signals}
        killer = names.get(-status, f"signal {-status}")
        how = f"was ended by {killer}" if status < 0 else f"ended with status {status}"
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._reaped, how)

    def _reaped(self, how: str) -> None:
        self._how = how
        self._report_end()

    def _report_end(self) -> None:
        if self._how and self._read_all:
            self._ended(self._how)

    def _log_output(self, log: Log) -> None:
        from relay.directive.redact import redact

        pause = threading.Event()
        with suppress(OSError):
            while data := self._output.recv(64 * 1024):
                log.write(redact(data.decode(errors="backslashreplace").rstrip()))
                pause.wait(len(data) / _OUTPUT_RATE)
