"""A store that does what files in its folder say: away, hanging, dying, printing, forking.

Whatever else it does is the local store's. ``calls`` has a line for each save that reached it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from relay.core.errors import ConfigError, StorageError
from relay.memory.backend import Hits, Memories, StoreUnavailable
from relay.memory.local.local_store import LocalStore
from relay.memory.records import Memory, Place, Restored, Saved, Stats


class Flaky:
    """A backend. ``folder`` may hold ``away`` (its text is the reason), ``misconfigured``,
    ``unusable`` (found out by a save), ``hang``, ``die`` (before it saves), ``poison`` (a text that
    it dies of), ``die-after`` (it has saved), ``die-forgetting``, ``refuse`` (a word that no save
    may hold), ``broken`` (every save fails), ``loud``, ``fork`` and ``environ`` (which
    it then writes there)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._opened()
        self._store = LocalStore(str(folder / "store"))

    def _says(self, name: str) -> str | None:
        try:
            return (self.folder / name).read_text()
        except FileNotFoundError:
            return None

    def _die(self, name: str) -> None:
        """Die if the file is there; with ``once`` in it, this time only."""
        said = self._says(name)
        if said == "once":
            (self.folder / name).unlink()
        if said is not None:
            os.kill(os.getpid(), signal.SIGKILL)

    def _opened(self) -> None:
        with open(self.folder / "opened", "a") as file:
            file.write(f"{os.getpid()}\n")
        if self._says("environ") is not None:
            (self.folder / "environ").write_text(json.dumps(dict(os.environ)))
        if (why := self._says("misconfigured")) is not None:
            raise ConfigError(why, hint="write it otherwise")
        self._reach()

    def _reach(self) -> None:
        if self._says("loud") is not None:
            print("x" * 300_000)
            print("y" * 300_000, file=sys.stderr)
            os.write(1, b"neither is this an answer\n")
        if self._says("fork") is not None and os.fork() == 0:
            signal.pause()
        if self._says("hang") is not None:
            (self.folder / "hangs").touch()
            threading.Event().wait()
        if (why := self._says("away")) is not None:
            raise StoreUnavailable(why or "nobody listens on port 6333", hint="start it")

    def save(self, text: str, place: Place, **fields: Any) -> Saved:
        self._reach()
        with open(self.folder / "calls", "a") as file:
            file.write(f"{text}\n")
        if (why := self._says("unusable")) is not None:
            raise ConfigError(why)
        if self._says("poison") == text:
            os.kill(os.getpid(), signal.SIGKILL)
        self._die("die")
        if self._says("broken") is not None:
            raise StorageError("the disk of the server is full")
        if self._says("refuse") in text.split():
            from relay.core.errors import UsageError

            raise UsageError("the store takes no such text")
        saved = self._store.save(text, place, **fields)
        self._die("die-after")
        return saved

    def search(self, query: str, places: Sequence[Place], limit: int, *, now_ms: int) -> Hits:
        self._reach()
        return self._store.search(query, places, limit, now_ms=now_ms)

    def get(self, id_: str) -> Memory:
        self._reach()
        return self._store.get(id_)

    def forget(self, id_: str) -> Memory:
        self._reach()
        self._die("die-forgetting")
        return self._store.forget(id_)

    def list(
        self,
        places: Sequence[Place],
        limit: int,
        *,
        before_ms: int | None = None,
        before_id: str = "",
    ) -> Memories:
        self._reach()
        return self._store.list(places, limit, before_ms=before_ms, before_id=before_id)

    def export(
        self, places: Sequence[Place] | None = None, *, after: tuple[Place, str] | None = None
    ) -> Iterator[Memory]:
        self._reach()
        return self._store.export(places, after=after)

    def restore(self, memories: Iterable[Memory]) -> Restored:
        self._reach()
        return self._store.restore(memories)

    def stats(self) -> Stats:
        self._reach()
        return self._store.stats()

    def close(self) -> None:
        self._store.close()


def saying(folder: Path, **what: str | None) -> None:
    """Write, or with None take away, the files that say what the store does."""
    folder.mkdir(exist_ok=True)
    for name, text in what.items():
        path = folder / name.replace("_", "-")
        if text is None:
            path.unlink(missing_ok=True)
        else:
            # Whole or not at all: another process may look at any time.
            part: Mapping[str, Path] = {"part": path.with_suffix(".part")}
            part["part"].write_text(text)
            part["part"].replace(path)
