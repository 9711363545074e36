"""A backend of one's own: how it is found, checked and kept from failing in relay's name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from relay.config import trust
from relay.config.memory_spec import StoreSpec
from relay.core.errors import ConfigError, NotFound, StorageError
from relay.core.paths import Home
from relay.memory import custom
from relay.memory.backend import Backend
from relay.memory.local.local_store import LocalStore
from relay.memory.records import Place, Scope
from relay.memory.store_access import make
from relay.testing.memory_contract import BackendContract

USER = Place(Scope.USER)
#: A file as a user writes it; {folder} is where its store is.
FILE = """\
from relay.memory.local.local_store import LocalStore

class Mine(LocalStore):
    def __init__(self):
        super().__init__({folder!r})

config = {{"memory": {{"backend": "custom", "config": {{"object": Mine}}}}}}
"""


def trusted(home: Home, path: Path, text: str) -> StoreSpec:
    """The spec of what this file says, which may run."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    sha256 = trust.trust(home, str(path))
    return StoreSpec("custom", {}, os.path.realpath(path), sha256)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(str(tmp_path / "home"))


class TestCustom(BackendContract):
    """The contract, through the file, the loader and the checks."""

    def make(self, folder: Path) -> Backend:
        home = Home(str(folder / "home"))
        text = FILE.format(folder=str(folder / "memories"))
        return make(trusted(home, folder / "relay.config.py", text), home)


def test_a_file_that_is_not_trusted_makes_nothing(home: Home, tmp_path: Path) -> None:
    spec = trusted(home, tmp_path / "relay.config.py", FILE.format(folder=str(tmp_path / "m")))
    trust.untrust(home, spec.file)
    with pytest.raises(ConfigError, match="is not trusted"):
        make(spec, home)
    assert not (tmp_path / "m").exists()


def test_a_file_that_has_changed_makes_nothing(home: Home, tmp_path: Path) -> None:
    path = tmp_path / "relay.config.py"
    spec = trusted(home, path, FILE.format(folder=str(tmp_path / "m")))
    trusted(home, path, FILE.format(folder=str(tmp_path / "n")))
    with pytest.raises(ConfigError, match="has changed since"):
        make(spec, home)


def test_a_file_without_a_custom_backend_says_so(home: Home, tmp_path: Path) -> None:
    spec = trusted(home, tmp_path / "relay.config.py", 'config = {"memory": {}}\n')
    with pytest.raises(ConfigError, match="no custom backend"):
        make(spec, home)


def test_an_object_a_function_and_a_class_are_all_good(tmp_path: Path) -> None:
    store = LocalStore(str(tmp_path))

    class Mine(LocalStore):
        def __init__(self) -> None:
            super().__init__(str(tmp_path))

    assert custom.made(store) is store
    assert custom.made(lambda: store) is store
    assert isinstance(custom.made(Mine), Mine)
    store.close()


class Half:
    def save(self) -> None: ...
    def search(self) -> None: ...


@pytest.mark.parametrize("found", [Half, Half(), lambda: Half()])
def test_what_is_missing_is_named(found: object) -> None:
    with pytest.raises(ConfigError, match="Half is no backend: it has no get, forget, list"):
        custom.made(found)


def test_a_maker_that_fails_is_the_stores_error() -> None:
    def connect() -> None:
        raise OSError("no route to host")

    with pytest.raises(StorageError, match=r"failed in connect\(\): OSError: no route to host"):
        custom.made(connect)


class Broken:
    """Fails in every method, with its own error or with ``answer``."""

    def __init__(self, answer: object = None, error: Exception | None = None) -> None:
        self.answer, self.error, self.closed = answer, error, 0

    def __getattr__(self, name: str) -> Any:
        def method(*args: object, **options: object) -> object:
            if self.error is not None:
                raise self.error
            return self.answer

        return method


def asked(backend: Backend) -> Iterator[Any]:
    yield lambda: backend.save("x", USER, agent=None, session=None, now_ms=0)
    yield lambda: backend.search("x", [USER], 1, now_ms=0)
    yield lambda: backend.get("abc")
    yield lambda: backend.forget("abc")
    yield lambda: backend.list([USER], 1)
    yield lambda: list(backend.export())
    yield lambda: backend.restore([])
    yield lambda: backend.stats()


def test_what_it_raises_is_the_stores_error() -> None:
    for call in asked(custom.CheckedBackend(Broken(error=ValueError("bad  \n row")))):
        with pytest.raises(StorageError, match="ValueError: bad row"):
            call()


def test_errors_of_relay_pass() -> None:
    for call in asked(custom.CheckedBackend(Broken(error=NotFound("none")))):
        with pytest.raises(NotFound):
            call()


@pytest.mark.parametrize("answer", [None, {"id": "abc"}, [{"id": "abc"}]])
def test_an_answer_of_another_type_is_the_stores_error(answer: object) -> None:
    for call in asked(custom.CheckedBackend(Broken(answer))):
        with pytest.raises(StorageError):
            call()


def test_it_is_closed_once() -> None:
    closed = []

    class Mine(Broken):
        def close(self) -> None:
            closed.append(self)

    backend = custom.CheckedBackend(Mine())
    backend.close()
    backend.close()
    assert len(closed) == 1
