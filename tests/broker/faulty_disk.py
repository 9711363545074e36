"""A disk that counts, forgets and fails: SQLite's file functions, wrapped in a broker's process.

    python -m tests.broker.faulty_disk HOME CONTROL DISK FULL|OFF

becomes the broker of HOME. What is synced is copied to the folder DISK, and of the rest some
writes, as a disk does that has not been asked to: what is found there is what a power failure
leaves. Through the file CONTROL a test reads how often was synced, and lets writes fail.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from relay.core.paths import Home

#: What may fail, and SQLite's word for it: see ``Control.fail``.
FAULTS = {"sync": 10 | 4 << 8, "write": 10 | 3 << 8, "full": 13}
#: Of the writes that nobody asked to be synced so many are on the disk all the same.
EARLY = 0.3
ROOT = Path(__file__).parent.parent.parent

_Address = ctypes.c_void_p


class _Methods(ctypes.Structure):
    """``sqlite3_io_methods``."""

    _fields_ = [
        ("version", ctypes.c_int),
        ("close", _Address),
        ("read", _Address),
        ("write", _Address),
        ("truncate", _Address),
        ("sync", _Address),
        *((f"other_{number}", _Address) for number in range(13)),
    ]


class _File(ctypes.Structure):
    """``sqlite3_file``."""

    _fields_ = [("methods", ctypes.POINTER(_Methods))]


class _Vfs(ctypes.Structure):
    """``sqlite3_vfs``, as far as it is needed."""

    _fields_ = [
        *((name, ctypes.c_int) for name in ("version", "size", "path_max")),
        *((name, _Address) for name in ("next", "name", "data", "open")),
    ]


_OPEN = ctypes.CFUNCTYPE(ctypes.c_int, _Address, _Address, _Address, ctypes.c_int, _Address)
_WRITE = ctypes.CFUNCTYPE(ctypes.c_int, _Address, _Address, ctypes.c_int, ctypes.c_int64)
_TRUNCATE = ctypes.CFUNCTYPE(ctypes.c_int, _Address, ctypes.c_int64)
_SYNC = ctypes.CFUNCTYPE(ctypes.c_int, _Address, ctypes.c_int)


def _default_vfs() -> _Vfs | None:
    """The functions that SQLite opens files with; None where this Python does not show them."""
    try:
        import _sqlite3

        library = ctypes.CDLL(_sqlite3.__file__)
        library.sqlite3_vfs_find.restype = ctypes.POINTER(_Vfs)
        return cast(_Vfs, library.sqlite3_vfs_find(None).contents)
    except (ImportError, AttributeError, OSError, ValueError):
        return None


AVAILABLE = _default_vfs() is not None


class Control:
    """What the broker's process and the test both see."""

    def __init__(self, path: Path) -> None:
        path.touch()
        if not path.stat().st_size:
            path.write_bytes(bytes(16))
        with open(path, "r+b") as file:
            self._shared = mmap.mmap(file.fileno(), 16)

    @property
    def syncs(self) -> int:
        """How often the ledger's log was synced."""
        return int.from_bytes(self._shared[:8], "little")

    def synced(self) -> None:
        """Count one more."""
        self._shared[:8] = (self.syncs + 1).to_bytes(8, "little")

    @property
    def failing(self) -> str:
        """What fails now."""
        return ["", *FAULTS][self._shared[8]]

    def fail(self, what: str = "") -> None:
        """Let one of FAULTS fail from now on, or nothing."""
        self._shared[8] = ["", *FAULTS].index(what)


class _Written:
    """One file: what was written to it, and what of that is on the disk."""

    def __init__(self, path: str, disk: Path) -> None:
        self.is_log = path.endswith("-wal")
        self._copy = disk / os.path.basename(path)
        self._waiting: list[Callable[[], None]] = []
        if not self._copy.exists():
            shutil.copyfile(path, self._copy)

    def _put(self, data: bytes, at: int) -> None:
        with open(self._copy, "r+b") as file:
            file.seek(at)
            file.write(data)

    def write(self, data: bytes, at: int) -> None:
        self._waiting.append(lambda: self._put(data, at))
        if random.random() < EARLY:
            self._put(data, at)

    def truncate(self, size: int) -> None:
        self._waiting.append(lambda: os.truncate(self._copy, size))

    def sync(self) -> None:
        for apply in self._waiting:
            apply()
        self._waiting.clear()

    def forget(self) -> None:
        """A sync has failed: what was to be written is dropped, as Linux does."""
        self._waiting.clear()


class FaultyDisk:
    """Wraps the functions of the files of one ledger."""

    def __init__(self, ledger: str, control: Control, disk: Path) -> None:
        self._ledger = ledger
        self._control = control
        self._disk = disk
        self._files: dict[int, _Written] = {}
        self._kept: list[Any] = []  # what C refers to
        self._wrapped: dict[int, _Methods] = {}
        vfs = _default_vfs()
        assert vfs is not None
        self._really_open = _OPEN(vfs.open)
        vfs.open = self._pointer(_OPEN, self._open)

    def _pointer(self, kind: Any, call: Callable[..., int]) -> int | None:
        self._kept.append(kind(call))
        return ctypes.cast(self._kept[-1], _Address).value

    def _open(self, vfs: int, name: int | None, file: int, flags: int, out: int | None) -> int:
        result = self._really_open(vfs, name, file, flags, out)
        path = os.fsdecode(ctypes.string_at(name)) if name else ""
        if result == 0 and path in (self._ledger, self._ledger + "-wal"):
            self._files[file] = _Written(path, self._disk)
            opened = ctypes.cast(file, ctypes.POINTER(_File)).contents
            opened.methods = ctypes.pointer(self._methods(opened.methods.contents))
        return int(result)

    def _methods(self, real: _Methods) -> _Methods:
        address = ctypes.addressof(real)
        if address not in self._wrapped:
            copy = _Methods.from_buffer_copy(real)
            write, truncate, sync = _WRITE(real.write), _TRUNCATE(real.truncate), _SYNC(real.sync)

            def written(file: int, data: int, size: int, at: int) -> int:
                if self._control.failing in ("write", "full"):
                    return FAULTS[self._control.failing]
                self._files[file].write(ctypes.string_at(data, size), at)
                return int(write(file, data, size, at))

            def truncated(file: int, size: int) -> int:
                self._files[file].truncate(size)
                return int(truncate(file, size))

            def synced(file: int, flags: int) -> int:
                known = self._files[file]
                if self._control.failing == "sync":
                    known.forget()
                    return FAULTS["sync"]
                result = int(sync(file, flags))
                known.sync()
                if known.is_log:
                    self._control.synced()
                return result

            copy.write = self._pointer(_WRITE, written)
            copy.truncate = self._pointer(_TRUNCATE, truncated)
            copy.sync = self._pointer(_SYNC, synced)
            self._wrapped[address] = copy
        return self._wrapped[address]


@contextmanager
def broker_on(
    home: Home, control: Path, disk: Path, synchronous: str = "FULL"
) -> Iterator[subprocess.Popen[bytes]]:
    """A broker of ``home`` whose ledger is on such a disk; killed at the end."""
    home.create()
    shutil.rmtree(disk, ignore_errors=True)
    disk.mkdir()
    words = (home.root, str(control), str(disk), synchronous)
    command = [sys.executable, "-m", __name__, *words]
    with subprocess.Popen(command, cwd=ROOT) as process:
        try:
            yield process
        finally:
            process.kill()


def lose_power(home: Home, disk: Path) -> None:
    """Leave of the ledger what is on the disk. Its broker has been killed."""
    for end in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            os.unlink(home.ledger + end)
    for file in disk.iterdir():
        shutil.copyfile(file, Path(home.ledger).parent / file.name)


def main(root: str, control: str, disk: str, synchronous: str) -> int:
    """Be the broker."""
    from relay.broker.main import main as serve
    from relay.core import sqlite

    home = Home(root)
    wrapped = FaultyDisk(home.ledger, Control(Path(control)), Path(disk))
    configure = sqlite._configure

    def configured(connection: Any, schema: Any) -> None:
        configure(connection, schema)
        connection.execute(f"PRAGMA synchronous={synchronous}")
        connection.execute("PRAGMA wal_autocheckpoint=64")  # so that it comes to that, too

    sqlite._configure = configured
    try:
        return serve(["--home", root])
    finally:
        del wrapped  # not before: C calls it


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
