"""Where the verbs that export write: stdout, a pipe, or a file that is whole or not there."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import sys
from collections.abc import Iterator
from typing import IO

from relay.cli import output
from relay.core.errors import RelayError, UsageError
from relay.core.files import unlink_if_there


@contextlib.contextmanager
def export_target(file: str | None, *, replace: bool) -> Iterator[IO[str]]:
    """stdout; a pipe or a device as it is; or a file that is there whole or not at all."""
    if file is None:
        with output.writing():
            yield sys.stdout
        return
    try:
        if _is_special(file):
            with open(file, "w", encoding="utf-8") as target:
                yield target
            return
        if os.path.exists(file) and not replace:
            raise UsageError(
                f"{file} already exists",
                hint="name another file, or give --force to replace it",
                code="exists",
            )
        with cleared_up(), _whole(os.path.realpath(file)) as target:
            yield target
    except OSError as error:
        raise RelayError(
            f"{file} cannot be written: {error.strerror or error}", hint="name another file"
        ) from error


def _is_special(file: str) -> bool:
    """A named pipe or a device: to put a file in its place would break it for everybody."""
    try:
        mode = os.stat(file).st_mode
    except FileNotFoundError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


@contextlib.contextmanager
def _whole(path: str) -> Iterator[IO[str]]:
    if os.path.isdir(path):
        raise IsADirectoryError(21, "it is a folder")
    part = f"{path}.{os.getpid()}.part"
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as target:
            yield target
            target.flush()
            os.fsync(descriptor)
        os.replace(part, path)
    finally:
        unlink_if_there(part)


@contextlib.contextmanager
def cleared_up() -> Iterator[None]:
    """Let ``kill``, and a terminal that closes, unwind the block as Ctrl-C does."""
    chosen = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is signal.SIG_DFL  # nohup ignores one
    ]
    for number in chosen:
        signal.signal(number, _end)
    try:
        yield
    finally:
        for number in chosen:
            signal.signal(number, signal.SIG_DFL)


def _end(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)
