"""Keeps the conversations that wait for a model, each in a file until its facts are saved.

A file is on the disk before anybody is told so; mode 0600. It holds no key: a conversation that
needs one names its server, and waits until a request brings the key again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from dataclasses import dataclass, field, fields
from pathlib import Path

from relay.core.errors import RelayError, StorageError
from relay.core.files import make_private_folder, unlink_if_there, write_atomically
from relay.core.paths import Home
from relay.features.memory.memory_requests import Json

#: Conversations that are kept, those that failed too; bytes of one, as UTF-8.
FILES_MAX = 32
TEXT_MAX = 64 * 1024
#: Runs that are remembered as done: a request that is repeated is then not done again.
DONE_MAX = 256
_DONE = "done.list"
_NOT_KEPT = ("key", "tries", "not_before", "problem")
#: What a file of an earlier relay says beside that.
_FORMER = ("store", "store_key", "deaths")


@dataclass
class Extraction:
    """The end of one session's conversation, and what has become of it."""

    run: str
    agent: str
    text: str  # empty once there are facts
    asked_ms: int
    llm: dict[str, str]  # as relay.config.llm has it, without the key
    needs_key: bool
    fields: Json = field(default_factory=dict)  # of each save: where it belongs, what is secret
    facts: list[str] | None = None  # what the model found, once it has
    failed: str | None = None  # why nothing more is tried
    # What follows is in no file.
    key: str = field(default="", repr=False)
    tries: int = 0
    not_before: float = 0.0  # monotonic seconds
    problem: RelayError | None = None  # of the last try

    @property
    def lacks(self) -> str:
        """What must be given again, after another broker had it; "" when all is there."""
        if self.facts is None and self.needs_key and not self.key:
            return "the key of the model's server"
        return ""


class ExtractionFolder:
    """Reads and writes the files of one memory service. What cannot be read is left as it is."""

    def __init__(self, path: str) -> None:
        self._path = path

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
                print(f"{name} is not a conversation that waits for a model: {error}", flush=True)
        return sorted(found, key=lambda one: (one.asked_ms, one.run))

    def _names(self) -> list[str]:
        try:
            return os.listdir(self._path)
        except FileNotFoundError:
            return []
        except OSError as error:
            print(f"conversations that wait for a model cannot be read: {error}", flush=True)
            return []

    def write(self, one: Extraction) -> None:
        """Durable when this returns. Raises StorageError."""
        names = (each.name for each in fields(one) if each.name not in _NOT_KEPT)
        record = {name: getattr(one, name) for name in names}
        self._replace(self._name(one.run), json.dumps(record))

    def remove(self, run: str) -> None:
        """It is done, or given up. Raises StorageError."""
        try:
            unlink_if_there(os.path.join(self._path, self._name(run)))
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
        self._replace(_DONE, "\n".join(runs[-DONE_MAX:]))

    @staticmethod
    def _name(run: str) -> str:
        return f"{hashlib.sha256(run.encode()).hexdigest()[:32]}.json"

    def _replace(self, name: str, text: str) -> None:
        try:
            make_private_folder(self._path)
            write_atomically(os.path.join(self._path, name), text)
        except OSError as error:
            raise _failed(error) from error


def left_in(home: Home) -> tuple[str, list[Extraction]]:
    """The folder and what is in it, read without a broker."""
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
        record = json.load(file)
    return Extraction(**{key: value for key, value in record.items() if key not in _FORMER})


def _failed(error: OSError) -> StorageError:
    return StorageError(
        f"a conversation cannot be kept for the memory: {error.strerror or error}",
        hint="make room on the disk of RELAY_HOME, and let it be writable",
    )
