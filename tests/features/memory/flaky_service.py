"""A memory service whose stores do what files say: hang, die, print, fork. Each is in
``flaky/HOST`` of its home. Whatever else they do is the store's.

The host is that of the index's url. In the environment, in seconds: ``LAST_MOMENTS``, how long the
service goes on without a broker; ``APPLY_EVERY``, how often it looks for something to do;
``HANG_MAX``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from relay.core.errors import ConfigError
from relay.core.paths import Home
from relay.features.memory import service
from relay.features.memory.local.local_store import LocalStore, Memories
from relay.features.memory.records import Memory, Place, Saved, Stats
from relay.features.memory.spec import StoreSpec
from relay.features.memory.store_access import StoreAccess

ROOT = str(Path(__file__).resolve().parents[3])
COMMAND = [
    *(sys.executable, "-u", "-c"),
    f"import sys; sys.path.append({ROOT!r});"
    " from tests.features.memory.flaky_service import main; main()",
]


def folder(home: Home, host: str = "main") -> Path:
    """Where the store is, and what says how it behaves."""
    return Path(home.memory) / "flaky" / host


class FlakyAccess(StoreAccess):
    """Opens a flaky store where an index is named."""

    def __init__(self, spec: StoreSpec, home: Home) -> None:
        super().__init__(spec if spec.backend == "local" else StoreSpec(), home)
        store: Any = spec.config.get("vector_store")
        self._where = store and folder(home, str(urlsplit(str(store["url"])).hostname))
        self._flaky: Flaky | None = None

    def opened(self, places: Sequence[Place] | None = None) -> LocalStore:
        if not self._where:
            return super().opened(places)
        if self._flaky is None:
            self._where.mkdir(parents=True, exist_ok=True)
            self._flaky = Flaky(self._where)
        return self._flaky

    def caught_up(self) -> bool:
        if self._flaky is not None and self._flaky.hangs_idle():
            self._flaky.reach()
        return super().caught_up()

    def close(self) -> None:
        if self._flaky is not None:
            self._flaky.close()
        super().close()


def main() -> None:
    for name in ("LAST_MOMENTS", "APPLY_EVERY", "HANG_MAX"):
        if name in os.environ:
            setattr(service, name, float(os.environ[name]))
    setattr(service, "StoreAccess", FlakyAccess)  # noqa: B010
    service.main()


class Flaky(LocalStore):
    """``folder`` may hold ``misconfigured`` (its text is the reason), ``hang``, ``die`` (before it
    saves), ``poison`` (a text that it dies of), ``die-after`` (it has saved), ``die-forgetting``,
    ``loud``, ``fork`` and ``environ`` (which it then writes there)."""

    def __init__(self, folder: Path) -> None:
        self.home = folder
        self._note_opening()
        super().__init__(str(folder / "store"))

    def _says(self, name: str) -> str | None:
        try:
            return (self.home / name).read_text()
        except FileNotFoundError:
            return None

    def _die(self, name: str) -> None:
        """Die if the file is there; with ``once`` in it, this time only."""
        said = self._says(name)
        if said == "once":
            (self.home / name).unlink()
        if said is not None:
            os.kill(os.getpid(), signal.SIGKILL)

    def _note_opening(self) -> None:
        with open(self.home / "opened", "a") as file:
            file.write(f"{os.getpid()}\n")
        if self._says("environ") is not None:
            (self.home / "environ").write_text(json.dumps(dict(os.environ)))
        if (why := self._says("misconfigured")) is not None:
            raise ConfigError(why, hint="write it otherwise")
        self.reach()

    def hangs_idle(self) -> bool:
        """Whether it is to hang while nobody asks."""
        return self._says("hang-idle") is not None

    def reach(self) -> None:
        """Do what the files say of every request."""
        if self._says("loud") is not None:
            print("x" * 300_000)
            print("y" * 300_000, file=sys.stderr)
            os.write(1, b"neither is this an answer\n")
        if self._says("fork") is not None and os.fork() == 0:
            signal.pause()
        if self._says("hang") is not None or self.hangs_idle():
            (self.home / "hangs").touch()
            threading.Event().wait()

    def save(self, text: str, place: Place, **fields: Any) -> Saved:
        self.reach()
        if self._says("poison") == text:
            os.kill(os.getpid(), signal.SIGKILL)
        self._die("die")
        saved = super().save(text, place, **fields)
        self._die("die-after")
        return saved

    def forget(self, id_: str) -> Memory:
        self.reach()
        self._die("die-forgetting")
        return super().forget(id_)

    def list(self, *given: Any, **fields: Any) -> Memories:
        self.reach()
        return super().list(*given, **fields)

    def stats(self) -> Stats:
        self.reach()
        return super().stats()


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
