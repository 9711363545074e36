"""``relay attach``: the person's terminal shows a spawned agent's, and types into it."""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import sys
import termios
from contextlib import suppress

from relay.broker.client import connect, no_agent
from relay.config import names
from relay.core import descriptors, processes
from relay.core.errors import NotFound, RelayError, UsageError
from relay.core.json_text import dumps, loads
from relay.core.paths import Home
from relay.core.visible import visible
from relay.protocol import broker, frames
from relay.protocol.agent_ops import AGENTS
from relay.pump import tty
from relay.screen.terminal_modes import DISTURBING, EXPECTED, PictureFilter, reset_bytes

#: Seconds that the host has to answer.
_GREETING = 5.0
_LINE_MAX = 4096
#: Control-backslash: dtach and abduco leave by it, no agent uses it, and in no shell does it do
#: anything that one types by habit. As a terminal sends it plainly, by the kitty keyboard protocol
#: and by xterm's modifyOtherKeys.
PREFIX = b"\x1c"
_KEY = re.compile(rb"\x1b\[(\d+)(?::\d*)*(?:;(\d*)(?::(\d+))?)?(?:;[\d:]*)?u|\x1b\[27;(\d+);(\d+)~")
_KEYS = re.compile(rb"\x1b\[[\d:;]*[u~]|.", re.DOTALL)
_CTRL, _LOCKS = 4, 64 | 128
_MODIFIERS = range(57441, 57455)
_RELEASE = b"3"


class DetachKey:
    """Finds Control-backslash and ``d`` among the keys of the person. Pure.

    Control-backslash twice is typed once; before any other key it is typed with it.
    """

    def __init__(self) -> None:
        self._held = b""  # the first of the two, as it came

    def feed(self, data: bytes) -> tuple[bytes, bool]:
        """(what is to be typed, whether the person wants to leave)."""
        if not self._held and PREFIX not in data and b"\x1b[" not in data:
            return data, False
        typed = b""
        for key in _KEYS.findall(data):
            name, is_press = _named(key)
            if not self._held:
                if name == PREFIX and is_press:
                    self._held = key
                else:
                    typed += key
            elif not is_press:
                continue  # that the first one, or Control, was let go
            elif name in (b"d", b"D"):
                return typed, True
            else:
                typed += self._held if name == PREFIX else self._held + key
                self._held = b""
        return typed, False


def _named(key: bytes) -> tuple[bytes, bool]:
    """(the character that stands for the key, whether it was pressed)."""
    match = _KEY.fullmatch(key)
    if match is None:
        return key, True
    code = int(match[1] or match[5])
    held = max(int(match[2] or match[4] or 1) - 1, 0) & ~_LOCKS
    is_press = match[3] != _RELEASE and code not in _MODIFIERS
    if held == _CTRL and code == ord("\\"):
        return PREFIX, is_press
    return (bytes((code,)) if code < 128 and held in (0, 1) else key), is_press


def attach(home: Home, name: str, *, read_only: bool = False) -> bool:
    """Show the agent's terminal in this one until the person leaves it, or it ends.

    Returns whether it runs on. Raises UsageError without a terminal, NotFound, RelayError.
    """
    if not (os.isatty(0) and os.isatty(1)):
        raise UsageError("attach needs a terminal", hint=f"relay peek {name} prints what it shows")
    connection = _connect(home, name)
    modes = termios.tcgetattr(0)
    woken, waker = os.pipe()
    for fd in (woken, waker):
        os.set_blocking(fd, False)
    caught = {number: signal.getsignal(number) for number in _CAUGHT}
    for number in _CAUGHT:
        signal.signal(number, _noted)
    before = signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    view = _View(connection, name, woken, read_only=read_only)
    try:
        view.greet()
        termios.tcsetattr(0, termios.TCSANOW, tty.raw(modes))
        return view.run()
    finally:
        view.leave()
        with suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(0, termios.TCSANOW, modes)
        signal.set_wakeup_fd(before)
        for number, handler in caught.items():
            signal.signal(number, handler)
        descriptors.close([woken, waker])
        connection.close()


_CAUGHT = (signal.SIGWINCH, signal.SIGTERM, signal.SIGHUP)


def _noted(number: int, frame: object) -> None:
    """The handler: nothing. The number is in the wake-up pipe."""


def _connect(home: Home, name: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(_GREETING)
    try:
        connection.connect(home.host_socket(name))
        if not descriptors.is_own_peer(connection):
            raise RelayError(f"the terminal of {name} is another user's", code="forbidden")
        _prove(connection, home, name)
        return connection
    except OSError as error:
        connection.close()
        if names.holder(home, name) is None:
            raise no_agent(home, name, runs=True) from error
        raise NotFound(
            f"{name} runs in a terminal of its own, which relay cannot show",
            hint=f"it was not started by relay spawn; relay peek {name} prints what it shows",
        ) from error
    except BaseException:
        connection.close()
        raise


def _prove(connection: socket.socket, home: Home, name: str) -> None:
    """Raises RelayError unless the kernel says that the other end is not an agent's, or that the
    agent ``name`` runs below it: then it is a helper's, whose terminal is inside another agent."""
    line = processes.peer(connection)
    side = processes.side_of(line)
    if side is processes.PERSON or not processes.MARKS:
        return
    if side is processes.AGENT:
        with connect(home) as client:
            rows = client.request(AGENTS)["agents"]
        pids = [row["pid"] for row in rows if row["name"].lower() == name.lower() and row["pid"]]
        if any(line[0].key == one.key for pid in pids for one in processes.ancestry(pid)):
            return
        told = f"an agent's process ({line[0].pid})"
    else:
        told = "a process that has ended, or hides whose it is,"
    raise RelayError(
        f"{told} poses as the terminal of {name}",
        hint=f"relay peek {name} prints what it shows; relay release {name} ends it",
        code="forbidden",
    )


class _View:
    """The connection to the host of ``name``, and what this terminal shows of it."""

    def __init__(
        self, connection: socket.socket, name: str, woken: int, *, read_only: bool
    ) -> None:
        self._connection = connection
        self._name = name
        self._drawn_only = PictureFilter()
        self._woken = woken
        self._read_only = read_only
        self._key = DetachKey()
        self._drawn = False
        self._kitty = False

    def greet(self) -> None:
        """Say what is wanted. Raises RelayError where it is refused."""
        size = tty.read_size(1)
        wanted = {"cols": size.cols or 80, "rows": size.rows or 24, "read_only": self._read_only}
        try:
            self._connection.sendall(dumps(wanted).encode() + b"\n")
            line = b""
            while not line.endswith(b"\n") and len(line) < _LINE_MAX:
                if not (data := self._connection.recv(1)):
                    break
                line += data
            answer = loads(line.decode())
        except (OSError, ValueError) as error:
            raise RelayError(
                "the agent's terminal does not answer", hint="it may have just ended: relay agents"
            ) from error
        if not answer.get("ok"):
            raise broker.error_from(answer.get("error") or {})
        if str(answer.get("name", "")).lower() != self._name.lower():  # its socket was moved here
            raise RelayError(
                f"what answers in place of {self._name} is the terminal of another agent",
                hint=f"relay release {self._name}, then relay resume {self._name}",
                code="forbidden",
            )
        self._connection.settimeout(None)
        # What stands here stays above, where one can scroll to. The title stands until the agent
        # sets one.
        sys.stdout.flush()
        title = f"{self._name}: " + ("q leaves it" if self._read_only else "Ctrl-\\ d leaves it")
        _write(b"\r\n" * (size.rows or 24) + f"\x1b]2;{visible(title)}\a".encode())
        self._drawn = True

    def run(self) -> bool:
        """Until the person leaves (True), or the agent ends."""
        while True:
            ready, _, _ = select.select([0, self._connection.fileno(), self._woken], [], [])
            if self._connection.fileno() in ready:
                data = self._connection.recv(65536)
                if not data:
                    return False
                data = self._drawn_only.feed(data)
                self._kitty = self._kitty or b"\x1b[=" in data or b"\x1b[>4" in data
                _write(data)
            if self._woken in ready:
                numbers = os.read(self._woken, 4096)
                if signal.SIGTERM in numbers or signal.SIGHUP in numbers:
                    return True
                self._send(frames.SIZE, tty.read_size(1).packed())
            if 0 in ready and not self._type(_keys()):
                return True

    def leave(self) -> None:
        if not self._drawn:
            return
        reset = reset_bytes(DISTURBING, EXPECTED, kitty=self._kitty, alt=True, insert=True)
        with suppress(OSError):
            # The title that the agent has set is taken back with it.
            _write(b"\x1b[?2026l" + reset + b"\x1b[999;1H\x1b[K\x1b]2;\a\r\n")

    def _type(self, data: bytes) -> bool:
        """Pass keys on; whether the person stays."""
        typed, leaves = self._key.feed(data)
        if self._read_only:
            return not leaves and bool(data) and typed not in (b"q", b"\x03")
        if typed:
            self._send(frames.KEYS, typed)
        return bool(data) and not leaves

    def _send(self, kind: int, payload: bytes) -> None:
        with suppress(OSError):  # it has ended, which the next read says
            self._connection.sendall(frames.pack(kind, payload))


def _keys() -> bytes:
    try:
        return os.read(0, 65536)
    except OSError:  # the terminal is gone
        return b""


def _write(data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(1, view) :]
        except BlockingIOError:
            select.select([], [1], [])
