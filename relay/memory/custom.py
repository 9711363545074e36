"""The backend that a ``relay.config.py`` makes itself, loaded in the memory service.

relay calls the object in one thread. What it raises that is no RelayError becomes a StorageError
with its type and message, and so does an answer of the wrong type: nothing of it reaches an agent
as a traceback, and nothing is taken for saved that may not be.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar, Unpack

from relay.config.memory_spec import StoreSpec
from relay.core.errors import ConfigError, RelayError, StorageError
from relay.core.paths import Home
from relay.memory.backend import Backend, Hits, Memories, SaveFields
from relay.memory.records import Hit, Memory, Place, Restored, Saved, Stats

#: What the object must have; ``relay.memory.backend`` says what each does.
METHODS = (
    *("save", "search", "get", "forget", "list"),
    *("export", "restore", "stats", "close"),
)
#: Characters of the object's own words in an error.
_SAID_MAX = 300

Result = TypeVar("Result")


def load(spec: StoreSpec, home: Home) -> Backend:
    """The object of ``memory["config"]["object"]`` in the trusted file that ``spec`` names.

    The file is run again, here, once. Raises ConfigError when it is not that file any more, is
    not trusted, or makes no backend; StorageError for what the object itself raises.
    """
    from relay.config import load, trust

    file = trust.read_config(spec.file)
    if file.sha256 != spec.sha256:
        raise ConfigError(
            f"memory: {spec.file} has changed since this session or command has read it",
            hint="trust it again and start the session anew: relay trust",
        )
    if not trust.is_trusted(home, spec.file, file.sha256):
        raise ConfigError(
            f"memory: {spec.file} is not trusted, so its store is not made",
            hint="read it, then: relay trust",
        )
    settings = load.load(file, home=home).settings.memory
    if settings.custom is None:
        raise ConfigError(f"memory: {spec.file} configures no custom backend any more")
    return CheckedBackend(made(settings.custom))


def made(found: Any) -> Backend:
    """The backend that ``found`` is, or makes when it is called without arguments."""
    what = getattr(found, "__name__", type(found).__name__)
    if (isinstance(found, type) or _missing(found)) and callable(found):
        with _explained(f"{what}()"):
            found = found()
        what = type(found).__name__
    missing = _missing(found)
    if missing:
        raise ConfigError(
            f"memory: the object {what} is no backend: it has no {', '.join(missing)}",
            hint="relay.memory.backend.Backend says what each method does",
        )
    backend: Backend = found
    return backend


def lacking(found: Any) -> list[str]:
    """The methods that are known to be missing, without anything being made."""
    missing = _missing(found)
    return [] if callable(found) and not isinstance(found, type) else missing


class CheckedBackend:
    """A backend whose mistakes are errors of the store."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._closed = False

    def save(self, text: str, place: Place, **fields: Unpack[SaveFields]) -> Saved:
        """As the backend does."""
        return _asked("save", Saved, lambda: self._backend.save(text, place, **fields))

    def search(self, query: str, places: Sequence[Place], limit: int, *, now_ms: int) -> Hits:
        """As the backend does."""
        return _listed(
            "search", Hit, lambda: self._backend.search(query, places, limit, now_ms=now_ms)
        )

    def get(self, id_: str) -> Memory:
        """As the backend does."""
        return _asked("get", Memory, lambda: self._backend.get(id_))

    def forget(self, id_: str) -> Memory:
        """As the backend does."""
        return _asked("forget", Memory, lambda: self._backend.forget(id_))

    def list(
        self,
        places: Sequence[Place],
        limit: int,
        *,
        before_ms: int | None = None,
        before_id: str = "",
    ) -> Memories:
        """As the backend does."""
        return _listed(
            "list",
            Memory,
            lambda: self._backend.list(places, limit, before_ms=before_ms, before_id=before_id),
        )

    def export(
        self, places: Sequence[Place] | None = None, *, after: tuple[Place, str] | None = None
    ) -> Iterator[Memory]:
        """As the backend does; its errors come when the memories are taken."""
        with _explained("export"):
            for memory in self._backend.export(places, after=after):
                yield _typed("export", memory, Memory)

    def restore(self, memories: Iterable[Memory]) -> Restored:
        """As the backend does."""
        return _asked("restore", Restored, lambda: self._backend.restore(memories))

    def stats(self) -> Stats:
        """As the backend does."""
        return _asked("stats", Stats, self._backend.stats)

    def close(self) -> None:
        """Close it, once."""
        if not self._closed:
            self._closed = True
            with _explained("close"):
                self._backend.close()


def _asked(name: str, kind: type[Result], call: Callable[[], object]) -> Result:
    with _explained(name):
        return _typed(name, call(), kind)


def _listed(name: str, kind: type[Result], call: Callable[[], Any]) -> list[Result]:
    with _explained(name):
        return [_typed(name, item, kind) for item in call()]


def _typed(name: str, value: object, kind: type[Result]) -> Result:
    if not isinstance(value, kind):
        raise StorageError(
            f"the custom memory answered {name} with a {type(value).__name__},"
            f" not with a {kind.__name__} of relay.memory.records",
            hint="run the contract of relay.testing.memory_contract against it",
        )
    return value


def _missing(found: Any) -> list[str]:
    return [name for name in METHODS if not callable(getattr(found, name, None))]


@contextlib.contextmanager
def _explained(name: str) -> Iterator[None]:
    try:
        yield
    except RelayError:
        raise
    except Exception as error:
        said = " ".join(str(error).split())[:_SAID_MAX]
        raise StorageError(
            f"the custom memory failed in {name}: {type(error).__name__}{said and ': '}{said}",
            hint="the broker's log of the memory may say more; it is your own code",
        ) from error
