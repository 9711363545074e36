"""The host of an agent: a terminal that nobody sits at, whose program is answered what it asks it,
and the socket by which several viewers see it and type into it.

A process of its own, started for ``relay spawn`` (relay.app.spawning) or by the broker for a
persona (relay.features.personas.known_personas); it ends with its program. What is to be run comes
on standard input, as JSON: name, argv, cwd, env. Its pid is printed first.

What each viewer is sent is drawn from the emulator's state, never the program's own bytes: so
whoever comes late, is slow, or has a larger terminal sees the same as everybody else. One thread;
only ``wake`` is called from another.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import struct
import sys
import time
from contextlib import suppress

from relay.app.driven_program import DrivenProgram
from relay.config.spawned_agents import ended, not_ended
from relay.core import descriptors, processes
from relay.core.errors import RelayError, error_fields, only_the_person
from relay.core.json_text import dumps, loads
from relay.core.paths import Home
from relay.protocol.frames import KEYS, SIZE, Decoder, FrameError
from relay.screen.terminal_modes import TerminalPicture

#: Seconds between two pictures: what is drawn meanwhile is seen in the next one. The first one
#: after a rest is sent at once, and one that the program says is not whole waits so long at most.
FRAME, _WHOLE = 0.02, 0.15
#: Viewers at once.
VIEWERS_MAX = 16
#: Seconds that a viewer has to say what it wants, and to read what was drawn last.
_GREETING, _LAST = 5.0, 1.0
_LINE_MAX = 4096
#: The smallest and largest terminal that there is.
_LEAST, _MOST = 2, 1000
#: The terminal, before somebody looks at it.
COLUMNS, ROWS = 120, 40
#: A program that one of these signals has ended did not end by itself: the machine went down, and
#: ``relay resume`` brings it back. ``relay release`` notes the end before it sends one. Agents that
#: catch a signal exit with 128 + its number, as a shell has it.
_TOLD = {
    status
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
    for status in (-number, 128 + number)
}
#: Others exit as if by themselves: such an end is withdrawn if this host is told to end within so
#: many seconds.
_SHUTDOWN = 5.0
#: Of a program that ends within so many seconds the log has as many rows as it showed last.
_EARLY, _ROWS_SHOWN = 30.0, 5


def main() -> None:
    """Run it to its end, in a child of the process that was started, which nobody has to reap."""
    wanted = loads(sys.stdin.read())
    if os.fork():
        os._exit(0)
    taken = wanted["env"]
    env = {name: one for name, one in {**os.environ, **taken}.items() if one is not None}
    try:
        os.chdir(wanted["cwd"] or os.path.expanduser("~"))
    except OSError as error:
        raise SystemExit(f"{wanted['name']} cannot work in its folder: {error}") from error
    home = Home(env["RELAY_HOME"])
    server = AttachServer(home, wanted["name"], (COLUMNS, ROWS))
    server.listen()
    print(os.getpid(), flush=True)  # from now on it can be attached to
    began = time.monotonic()
    with DrivenProgram(wanted["argv"], env, COLUMNS, ROWS, server.wake) as program:
        server.serve(program)
        if time.monotonic() - began < _EARLY:
            _tell(wanted["name"], program)
        server.close(program)
        status = program.exit_status
    if status not in _TOLD:
        _note_end(home, wanted["name"], _how(status or 0))


def _note_end(home: Home, name: str, how: str) -> None:
    """Note that it has ended by itself, unless the machine goes down."""
    signal.signal(signal.SIGTERM, _raise_interrupt)
    try:
        ended(home, name, how, os.getpid())
        time.sleep(_SHUTDOWN)
    except KeyboardInterrupt:
        not_ended(home, name, how, os.getpid())


def _raise_interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _how(status: int) -> str:
    return f"by signal {-status}" if status < 0 else f"with status {status}"


def _tell(name: str, program: DrivenProgram) -> None:
    """Print why it has ended so early."""
    from relay.directive.redact import redact  # some MB of patterns, for few hosts

    lines: list[str] = []
    wraps = False
    for row in program.rows():
        if wraps:  # a row that is full goes on in the next one
            lines[-1] += row
        elif row:
            lines.append(row)
        wraps = len(row) == COLUMNS
    what = f"{name} has ended {_how(program.exit_status or 0)}"
    # Who has started it waits for its end, unless they have seen enough.
    with suppress(BrokenPipeError), open(sys.stdout.fileno(), "w", encoding="utf-8") as told:
        told.write(redact("\n".join([what, *lines[-_ROWS_SHOWN:]])))


class _Viewer:
    """One connection; it has no size before it has said what it wants."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.since = time.monotonic()
        self.size: tuple[int, int] | None = None
        self.may_type = False
        self.line = b""
        self.decoder = Decoder()
        self.out = b""
        #: What it shows; None: nothing that is known.
        self.shown: TerminalPicture | None = None

    def read(self) -> bytes | None:
        """What has come; None: it has gone."""
        try:
            return self.connection.recv(65536) or None
        except BlockingIOError:
            return b""
        except OSError:
            return None

    def flush(self) -> bool:
        """Write what it takes now; whether it is there."""
        try:
            self.out = self.out[self.connection.send(self.out) :]
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True

    def show(self, picture: TerminalPicture) -> None:
        """Have it show ``picture``, once it has read what was sent before."""
        if self.size is not None and not self.out and self.shown != picture:
            self.out = picture.drawn_over(self.shown)
            self.shown = picture


class AttachServer:
    """Serves the viewers of ``program``, which is the agent ``name``, until it has ended.

    ``size`` is its terminal's while nobody looks; with viewers, that of the smallest of theirs.
    """

    def __init__(self, home: Home, name: str, size: tuple[int, int]) -> None:
        self._path = home.host_socket(name)
        self._name = name
        self._size = self._now = size
        self._viewers: list[_Viewer] = []
        self._waker, self._woken = socket.socketpair()
        for one in (self._waker, self._woken):
            one.setblocking(False)
        self._listener: socket.socket | None = None
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._woken, selectors.EVENT_READ)

    def wake(self) -> None:
        """The program has written something, or ended."""
        with suppress(OSError):  # it is full, and wakes already
            self._waker.send(b".")

    def listen(self) -> None:
        """Open the socket, unless another host of this name has it, and no liar."""
        with socket.socket(socket.AF_UNIX) as other, suppress(OSError):
            other.settimeout(1.0)  # one whose queue is full would keep us for ever
            other.connect(self._path)
            around = tuple(processes.marks_above(os.getpid()))
            if processes.side_of(processes.peer(other), around) is processes.PERSON:
                return
        with suppress(FileNotFoundError):
            os.unlink(self._path)
        listener = socket.socket(socket.AF_UNIX)
        listener.setblocking(False)
        listener.bind(self._path)  # in a folder of mode 0700
        os.chmod(self._path, 0o600)
        listener.listen(VIEWERS_MAX)
        self._selector.register(listener, selectors.EVENT_READ)
        self._listener = listener

    def serve(self, program: DrivenProgram) -> None:
        """Until the program has ended."""
        drawn, changed = 0.0, 0.0  # when the last picture was sent; since when one is due, or 0
        while program.runs:
            now = time.monotonic()
            due = None
            if changed and self._viewers:
                due = max(drawn + FRAME, now)
                if program.is_drawing:
                    due = max(due, min(changed + _WHOLE, now + FRAME))
            if any(viewer.size is None for viewer in self._viewers):
                due = min(due or now + _GREETING, now + _GREETING)
            for key, _ in self._selector.select(None if due is None else due - now):
                if key.fileobj is self._woken:
                    changed = changed or time.monotonic()
                    with suppress(BlockingIOError):
                        self._woken.recv(4096)
                elif key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.data, _Viewer):
                    changed = self._attend(key.data, program) or changed
            now = time.monotonic()
            for viewer in self._viewers[:]:
                if viewer.size is None and now > viewer.since + _GREETING:
                    self._drop(viewer, program)
            if changed and now >= drawn + FRAME and not self._waits(program, now - changed):
                drawn, changed = now, 0.0
                self._show(program)

    def close(self, program: DrivenProgram) -> None:
        """Show all viewers what the program showed last, and close."""
        self._show(program)
        end = time.monotonic() + _LAST
        for viewer in self._viewers[:]:
            while viewer.out and viewer.flush() and time.monotonic() < end:
                time.sleep(FRAME)
            self._drop(viewer, None)
        if self._listener is not None:
            with suppress(OSError):
                os.unlink(self._path)
            self._listener.close()
        self._selector.close()
        self._waker.close()
        self._woken.close()

    @staticmethod
    def _waits(program: DrivenProgram, since: float) -> bool:
        return since < _WHOLE and program.is_drawing

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        if len(self._viewers) >= VIEWERS_MAX or not descriptors.is_own_peer(connection):
            connection.close()
            return
        connection.setblocking(False)
        viewer = _Viewer(connection)
        self._viewers.append(viewer)
        self._selector.register(connection, selectors.EVENT_READ, viewer)

    def _attend(self, viewer: _Viewer, program: DrivenProgram) -> float:
        """Do what a viewer wants, and when a picture is due for it: now, or 0."""
        if viewer.out:
            if not viewer.flush():
                self._drop(viewer, program)
                return 0.0
            if not viewer.out:
                self._selector.modify(viewer.connection, selectors.EVENT_READ, viewer)
        data = viewer.read()
        try:
            if data is None:
                self._drop(viewer, program)
            elif viewer.size is None:
                return self._greet(viewer, data, program)
            elif data:
                return self._obey(viewer, data, program)
        except (FrameError, struct.error, ValueError, KeyError, TypeError):
            self._drop(viewer, program)
        return time.monotonic()

    def _greet(self, viewer: _Viewer, data: bytes, program: DrivenProgram) -> float:
        """Its first line: {cols, rows, read_only}. The answer is a line, too."""
        viewer.line += data
        line, newline, rest = viewer.line.partition(b"\n")
        if not newline:
            if len(viewer.line) > _LINE_MAX:
                raise ValueError
            return 0.0
        wanted = loads(line.decode())
        if not _is_persons(viewer.connection):
            self._refuse(viewer, only_the_person("attach to agents"))
            self._drop(viewer, program)
            return 0.0
        viewer.may_type = not wanted.get("read_only")
        viewer.out = dumps({"ok": True, "name": self._name}).encode() + b"\n"
        if not viewer.flush():
            raise ValueError
        self._resize(viewer, _bounded(int(wanted["cols"]), int(wanted["rows"])), program)
        return self._obey(viewer, rest, program)

    @staticmethod
    def _refuse(viewer: _Viewer, error: RelayError) -> None:
        viewer.out = dumps({"ok": False, "error": error_fields(error)}).encode() + b"\n"
        viewer.flush()

    def _obey(self, viewer: _Viewer, data: bytes, program: DrivenProgram) -> float:
        for kind, payload in viewer.decoder.feed(data):
            if kind == KEYS and viewer.may_type:
                program.type(payload)
            elif kind == SIZE:
                cols, rows, _, _ = struct.unpack(">4H", payload)
                self._resize(viewer, _bounded(cols, rows), program)
        return time.monotonic()

    def _resize(self, viewer: _Viewer, size: tuple[int, int], program: DrivenProgram) -> None:
        viewer.size, viewer.shown = size, None
        self._settle(program)

    def _settle(self, program: DrivenProgram) -> None:
        """Give the terminal the size that all viewers have room for."""
        sizes = [viewer.size for viewer in self._viewers if viewer.size is not None]
        size = (min(x for x, _ in sizes), min(y for _, y in sizes)) if sizes else self._size
        if size != self._now:
            self._now = size
            program.resize(*size)
            for viewer in self._viewers:
                viewer.shown = None

    def _show(self, program: DrivenProgram) -> None:
        """Send a picture to all who have read the one before."""
        ready = [one for one in self._viewers if one.size is not None and not one.out]
        if ready:
            known = [viewer.shown.history for viewer in ready if viewer.shown is not None]
            picture = program.picture(min(known, default=1 << 62))
            for viewer in ready:
                viewer.show(picture)
                if viewer.out and not viewer.flush():
                    self._drop(viewer, program)
                elif viewer.out:
                    both = selectors.EVENT_READ | selectors.EVENT_WRITE
                    self._selector.modify(viewer.connection, both, viewer)

    def _drop(self, viewer: _Viewer, program: DrivenProgram | None) -> None:
        self._viewers.remove(viewer)
        self._selector.unregister(viewer.connection)
        viewer.connection.close()
        if program is not None:
            self._settle(program)


def _bounded(cols: int, rows: int) -> tuple[int, int]:
    return min(max(cols, _LEAST), _MOST), min(max(rows, _LEAST), _MOST)


def _is_persons(connection: socket.socket) -> bool:
    """Whether the kernel says that the person has connected. Where it cannot say (see
    docs/security.md) the verb itself has asked."""
    return not processes.MARKS or processes.side_of(processes.peer(connection)) is processes.PERSON
