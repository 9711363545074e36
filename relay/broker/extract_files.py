"""The conversations that wait for a model, each in a file until its facts are saved.

A file is replaced as a whole and is on the disk before anybody is told so; mode 0600. It holds no
key: what needs one names its server and its store, and waits until a request brings it again.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from relay.core.errors import StorageError
from relay.core.paths import Home
from relay.protocol.broker import Json

#: Conversations that are kept, those that failed too; bytes of one, as UTF-8.
FILES_MAX = 32
TEXT_MAX = 64 * 1024
#: Runs that are remembered as done: a request that is repeated is then not done again.
DONE_MAX = 256
_DONE = "done.list"


@dataclass
class Extraction:
    """One session's last words. ``key`` and ``secret_store`` are in no file.

    ``store``: as the request named it, None for the default or while ``store_key`` stands for one
    with secrets in it. ``facts``: what the model found, once it has; then ``text`` is empty.
    """

    run: str
    agent: str
    text: str
    asked_ms: int
    llm: dict[str, str]
    needs_key: bool
    fields: Json = field(default_factory=dict)  # of each save: where it belongs, what is secret
    store: Json | None = None
    store_key: str | None = None
    facts: list[str] | None = None
    failed: str | None = None  # why nothing more is tried
    key: str = field(default="", repr=False)
    secret_store: Json | None = field(default=None, repr=False)

    @property
    def lacks(self) -> str:
        """What must be given again, after another broker had it; "" when all is there."""
        if self.facts is None and self.needs_key and not self.key:
            return "the key of the model's server"
        if self.store_key is not None and self.secret_store is None:
            return "the store's password or key"
        return ""


class Folder:
    """The files of one folder; only the broker that holds the lock of RELAY_HOME uses it.

    ``log`` is told of a file that cannot be read; it is left as it is.
    """

    def __init__(self, path: str, log: Callable[[str], None]) -> None:
        self._path = path
        self._log = log

    def load(self) -> list[Extraction]:
        """All that wait or have failed, the oldest first. Makes nothing."""
        found = []
        for name in self._names():
            if name.endswith(".tmp"):  # cut off by a kill: nobody was told that it is kept
                with contextlib.suppress(OSError):
                    os.unlink(os.path.join(self._path, name))
        for name in self._names():
            try:
                if name.endswith(".json"):
                    found.append(_read(os.path.join(self._path, name)))
            except (OSError, ValueError, TypeError) as error:
                self._log(f"{name} is not a conversation that waits for a model: {error}")
        return sorted(found, key=lambda one: (one.asked_ms, one.run))

    def _names(self) -> list[str]:
        try:
            return os.listdir(self._path)
        except FileNotFoundError:
            return []
        except OSError as error:
            self._log(f"conversations that wait for a model cannot be read: {error}")
            return []

    def write(self, one: Extraction) -> None:
        """Durable when this returns. Raises StorageError."""
        record = asdict(one)
        for secret in ("key", "secret_store"):
            del record[secret]
        self._replace(self._name(one.run), json.dumps(record).encode())

    def remove(self, run: str) -> None:
        """It is done, or given up. Raises StorageError."""
        try:
            os.unlink(os.path.join(self._path, self._name(run)))
        except FileNotFoundError:
            return
        except OSError as error:
            raise _failed(error) from error

    def done(self) -> list[str]:
        """The runs that were done, the last at the end."""
        try:
            with open(os.path.join(self._path, _DONE), encoding="utf-8") as file:
                return file.read().split("\n")[-DONE_MAX:]
        except (OSError, ValueError):
            return []

    def write_done(self, runs: list[str]) -> None:
        """Remember these. Raises StorageError."""
        self._replace(_DONE, "\n".join(runs[-DONE_MAX:]).encode())

    @staticmethod
    def _name(run: str) -> str:
        import hashlib

        return f"{hashlib.sha256(run.encode()).hexdigest()[:32]}.json"

    def _replace(self, name: str, data: bytes) -> None:
        path = os.path.join(self._path, name)
        try:
            os.makedirs(self._path, mode=0o700, exist_ok=True)
            fd = os.open(f"{path}.tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with open(fd, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(f"{path}.tmp", path)
            folder = os.open(self._path, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise _failed(error) from error


def left_in(home: Home) -> tuple[str, list[Extraction]]:
    """The folder and what is in it, for whoever only looks, be there a broker or not."""
    path = folder_of(home)
    found = []
    for entry in sorted(Path(path).glob("*.json")):
        with contextlib.suppress(OSError, ValueError, TypeError):  # done meanwhile, or damaged
            found.append(_read(str(entry)))
    return path, found


def folder_of(home: Home) -> str:
    """Where they are."""
    return os.path.join(home.memory, "extract")


def _read(path: str) -> Extraction:
    with open(path, encoding="utf-8") as file:
        return Extraction(**json.load(file))


def _failed(error: OSError) -> StorageError:
    return StorageError(
        f"a conversation cannot be kept for the memory: {error.strerror or error}",
        hint="make room on the disk of RELAY_HOME, and let it be writable",
    )


def split(request: dict[str, Any]) -> tuple[Json | None, str | None]:
    """A request's store as a file may hold it: itself, or the key of one that has secrets.

    Raises UsageError.
    """
    from relay.config.memory_spec import StoreSpec

    store = request.get("store")
    if store is None:
        return None, None
    spec = StoreSpec.from_json(store)
    return (store, None) if spec.masked() == spec.to_json() else (None, spec.key())
