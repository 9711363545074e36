"""The file ``.orchestration/active_intents.yaml`` of one project: read, and its statuses changed.

A file of its own beside ``intents``, which is pure. It is read at each use and parsed when it has
changed, so that what a person saves holds from the next tool call on.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
import time

from relay.core.errors import RelayError
from relay.core.files import lock_open_file, write_atomically
from relay.governance.intents import (
    FILE_MAX,
    FOLDER,
    INTENTS_FILE,
    Intent,
    IntentDocument,
    Status,
    check_id,
    parse,
    with_status,
)
from relay.governance.yaml_tree import IntentsError, Mistake

#: How long a change waits for another one. Seconds.
_LOCK_WAIT, _LOCK_POLL = 5.0, 0.02
_MAKE = "relay init --governed writes one to begin with"


class IntentsFile:
    """The intents of the project in ``root``. Safe to use from several threads."""

    def __init__(self, root: str) -> None:
        self.path = os.path.join(root, FOLDER, INTENTS_FILE)
        self._folder = os.path.join(root, FOLDER)
        self._lock = threading.Lock()
        self._data: bytes | None = None
        self._made: IntentDocument | IntentsError = IntentDocument()

    def read(self) -> IntentDocument:
        """What is in the file now. Raises IntentsError, also where there is no such file."""
        folder = self._open_folder()
        try:
            data, _ = _read(folder)
        finally:
            os.close(folder)
        return self._document(data)

    def set_status(
        self, id: str, status: Status, only_from: tuple[Status, ...] = tuple(Status)
    ) -> Intent:
        """Write another status of an intent into the file, and return it as it is then.

        Raises IntentsError, NotFound (it says which ids are valid), and RelayError where the intent
        has none of the statuses ``only_from``, or the file cannot be written.
        """
        folder = self._open_folder()
        try:
            _wait_for_lock(folder)
            data, mode = _read(folder)
            intent = check_id(self._document(data), id)
            if intent.status == status:
                return intent
            if intent.status not in only_from:
                raise RelayError(
                    f"intent {id} is {intent.status}, so it does not become {status}",
                    hint="a person changes it with: relay intent status ID STATUS",
                    code="intent_status",
                )
            changed = with_status(data.decode(), id, status)
            if _read(folder)[0] != data:
                raise RelayError(
                    f"{self.path} has been saved by somebody else just now, so it is not changed",
                    hint="try again",
                )
            write_atomically(self.path, changed, mode=mode)
            return check_id(self._document(changed.encode()), id)
        except OSError as error:
            raise RelayError(
                f"cannot write {self.path}: {error.strerror}", hint="check the folder's permissions"
            ) from None
        finally:
            os.close(folder)

    def _document(self, data: bytes) -> IntentDocument:
        with self._lock:
            if data != self._data:
                try:
                    self._made = parse(_decoded(data))
                except IntentsError as error:
                    self._made = error
                self._data = data
            made = self._made
        if isinstance(made, IntentsError):
            raise IntentsError(made.mistakes, made.hint)  # a new one: the old has a traceback
        return made

    def _open_folder(self) -> int:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            return os.open(self._folder, flags)
        except FileNotFoundError:
            raise _unusable("the folder is not there", _MAKE) from None
        except OSError as error:
            raise _unusable(f"{FOLDER} is no folder that can be read: {error.strerror}") from None


def _read(folder: int) -> tuple[bytes, int]:
    """The bytes and the mode of the file in an open folder. Raises IntentsError."""
    # Not blocking: a FIFO that lies there must not stop anybody.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        fd = os.open(INTENTS_FILE, flags, dir_fd=folder)
    except FileNotFoundError:
        raise _unusable("the file is not there", _MAKE) from None
    except OSError as error:
        said = "is a link" if error.errno == errno.ELOOP else error.strerror
        raise _unusable(f"the file cannot be read: {said}") from None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise _unusable("it is not a file")
        with open(fd, "rb", closefd=False) as file:
            data = file.read(FILE_MAX + 1)
    except OSError as error:
        raise _unusable(f"the file cannot be read: {error.strerror}") from None
    finally:
        os.close(fd)
    if len(data) > FILE_MAX:
        raise _unusable(f"the file has more than {FILE_MAX} bytes")
    return data, stat.S_IMODE(status.st_mode)


def _decoded(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise IntentsError([Mistake(line, "this is not UTF-8")]) from None


def _wait_for_lock(folder: int) -> None:
    # The folder itself is locked, so that nothing of relay's lies in the project for it.
    end = time.monotonic() + _LOCK_WAIT
    while not lock_open_file(folder):
        if time.monotonic() >= end:
            raise RelayError(f"somebody else changes {FOLDER}/{INTENTS_FILE}", hint="try again")
        time.sleep(_LOCK_POLL)


def _unusable(text: str, hint: str = "") -> IntentsError:
    return IntentsError([Mistake(0, text)], hint)
