# What every child program of these tests begins with: stage.py puts this text before its own.
from __future__ import annotations

import fcntl
import os
import signal
import struct
import sys  # noqa: F401 - for the program that follows, as is the next
import termios
import tty  # noqa: F401

FOLDER = os.path.dirname(os.path.abspath(__file__))


def tell(name: str, data: bytes = b"") -> None:
    """Let the test know: the file ``name`` appears, whole."""
    path = os.path.join(FOLDER, name)
    part = f"{path}.{os.urandom(4).hex()}"  # a signal's handler may tell the same in its middle
    with open(part, "wb") as file:
        file.write(data)
    os.rename(part, path)


def show(name: str, value: object) -> None:
    """The same with a JSON value."""
    import json

    tell(name, json.dumps(value).encode())


def wait(name: str) -> None:
    """Block until the test says go(name)."""
    path = os.path.join(FOLDER, name)
    try:  # noqa: SIM105 - contextlib takes longer to import than all of the rest
        os.mkfifo(path)
    except FileExistsError:
        pass
    with open(path, "rb", buffering=0) as fifo:
        fifo.read(1)


def write(data: bytes, fd: int = 1) -> None:
    """Write all of it."""
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


def read(count: int, fd: int = 0) -> bytes:
    """Read so many bytes, or what there is until the end."""
    got = bytearray()
    while len(got) < count:
        data = os.read(fd, min(count - len(got), 65536))
        if not data:
            break
        got += data
    return bytes(got)


def hear(count: int = 65536, fd: int = 0) -> bytes:
    """os.read, but the handler of a signal that comes just before it runs now, not after it."""
    import select

    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    before = signal.set_wakeup_fd(wake)
    try:
        while True:
            ready = select.select([fd, woken], [], [])[0]
            if fd in ready:
                return os.read(fd, count)
            os.read(woken, 512)  # the handlers have run when select returned
    finally:
        signal.set_wakeup_fd(before)
        os.close(woken)
        os.close(wake)


def size() -> list[int]:
    """[rows, columns, x pixels, y pixels] of the terminal on stdin."""
    return list(struct.unpack("HHHH", fcntl.ioctl(0, termios.TIOCGWINSZ, bytes(8))))
