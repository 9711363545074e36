"""Memories on a server: the contract, a server that is away, one that refuses, and other clients.

The server is the one of tests.memory.qdrant_server, which is not the real one: see there.
"""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from qdrant_client import QdrantClient
from qdrant_client import models as m

from relay.core.errors import ConfigError, NotFound, error_fields
from relay.memory.backend import Backend, StoreUnavailable
from relay.memory.records import Outcome
from relay.memory.vectors.mem0_points import open_mem0
from relay.memory.vectors.qdrant_points import open_qdrant
from relay.testing.memory_contract import FACTS, NOW, PROJECT, BackendContract, save, texts
from tests.memory.qdrant_process import QdrantProcess
from tests.memory.vectors.cheap import Cheap

KEY = "right-key-of-the-test"

Opened = Callable[..., Backend]


@pytest.fixture(scope="module")
def server() -> Iterator[QdrantProcess]:
    """One for all that leave it as it is."""
    with QdrantProcess() as process:
        yield process


def opened(kind: str, url: str, folder: Path, **more: Any) -> Backend:
    """The backend ``kind`` with the collection of ``folder``, which is new for each test."""
    store = {"provider": "qdrant", "url": url, "collection_name": collection(folder), **more}
    return OPENERS[kind]({"vector_store": store}, str(folder), Cheap())


def collection(folder: Path) -> str:
    """Its name."""
    return hashlib.sha256(str(folder).encode()).hexdigest()[:16]


OPENERS: dict[str, Opened] = {"qdrant": open_qdrant, "mem0": open_mem0}
kinds = pytest.mark.parametrize("kind", sorted(OPENERS))


class OnAServer(BackendContract):
    own_files = False
    kind = ""

    @pytest.fixture(autouse=True)
    def _on(self, server: QdrantProcess) -> None:
        self.url = server.url

    def make(self, folder: Path) -> Backend:
        return opened(self.kind, self.url, folder)


class TestQdrantOnAServer(OnAServer):
    kind = "qdrant"


class TestMem0OnAServer(OnAServer):
    kind = "mem0"


# -- a server that is away


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QdrantProcess]:
    """One with a key, which may be killed by a test that starts it again."""
    with QdrantProcess(tmp_path_factory.mktemp("qdrant"), KEY) as process:
        yield process


def away(server: str, caught: pytest.ExceptionInfo[StoreUnavailable], why: str) -> None:
    """The message names the server and the reason, and what to do."""
    assert server.removeprefix("http://") in caught.value.message
    assert why in caught.value.message.lower() and caught.value.hint


@kinds
def test_a_server_that_is_away_at_first(kind: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(StoreUnavailable) as caught:
        opened(kind, url, tmp_path)
    away(url, caught, "refused")


@kinds
def test_a_server_that_is_killed_between_two_saves(
    kind: str, mortal: QdrantProcess, tmp_path: Path
) -> None:
    backend = opened(kind, mortal.url, tmp_path, api_key=KEY)
    first = save(backend, FACTS[0]).memory
    mortal.kill()
    try:
        asks: list[Callable[[], object]] = [
            lambda: save(backend, FACTS[1]),
            lambda: texts(backend, "redis"),
            lambda: backend.get(first.id),
            lambda: backend.forget(first.id),
            lambda: backend.list([PROJECT], 5),
            lambda: list(backend.export()),
            lambda: backend.restore([first]),
            lambda: backend.stats(),
        ]
        for ask in asks:
            with pytest.raises(StoreUnavailable) as caught:
                ask()
            away(mortal.url, caught, "refused")
    finally:
        mortal.start()
    assert backend.list([PROJECT], 5) == [first]
    second = save(backend, FACTS[1], now=NOW + 1).memory
    assert backend.list([PROJECT], 5) == [second, first]
    assert texts(backend, "redis port")[0] == FACTS[0]
    backend.close()


@kinds
def test_a_server_that_hangs(kind: str, mortal: QdrantProcess, tmp_path: Path) -> None:
    backend = opened(kind, mortal.url, tmp_path, api_key=KEY, timeout=1)
    pid = mortal.pid
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(StoreUnavailable) as caught:
            save(backend, FACTS[0], new_id="hung0001")
        away(mortal.url, caught, "timed out")
    finally:
        os.kill(pid, signal.SIGCONT)
    saved = save(backend, FACTS[0], new_id="hung0001")
    assert saved.outcome in (Outcome.NEW, Outcome.SAME) and saved.memory.id == "hung0001"
    assert backend.list([PROJECT], 5) == [saved.memory]
    backend.close()


@kinds
@pytest.mark.parametrize("key", ["wrong-key", None])
def test_a_server_that_wants_another_key(
    kind: str, key: str | None, mortal: QdrantProcess, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        opened(kind, mortal.url, tmp_path, **({"api_key": key} if key else {}))
    assert mortal.url in caught.value.message and "API key" in caught.value.message
    assert "api_key" in caught.value.hint and "wrong-key" not in str(error_fields(caught.value))


@kinds
def test_vectors_of_another_length(kind: str, server: QdrantProcess, tmp_path: Path) -> None:
    opened(kind, server.url, tmp_path).close()
    store = {"provider": "qdrant", "url": server.url, "collection_name": collection(tmp_path)}
    with pytest.raises(ConfigError) as caught:
        OPENERS[kind]({"vector_store": store}, str(tmp_path), Cheap(dims=32))
    assert "64" in caught.value.message and "32" in caught.value.message and caught.value.hint


# -- other clients


@kinds
def test_what_another_client_does_meanwhile_is_seen(
    kind: str, server: QdrantProcess, tmp_path: Path
) -> None:
    one, other = (opened(kind, server.url, tmp_path) for _ in range(2))
    mine = save(one, FACTS[0]).memory
    theirs = save(other, FACTS[1], now=NOW + 1, agent="bob").memory
    assert one.list([PROJECT], 5) == [theirs, mine] and one.get(theirs.id[:4]) == theirs
    assert texts(one, "deploy from main")[0] == FACTS[1]
    again = save(one, FACTS[1], now=NOW + 2)
    assert (again.outcome, again.memory.id) == (Outcome.SAME, theirs.id)
    newer = save(other, "Redis moved to port 7000", supersedes=mine.id).memory
    found = texts(one, "redis port")
    assert found[0] == newer.text and FACTS[0] not in found
    other.forget(theirs.id)
    with pytest.raises(NotFound):
        one.get(theirs.id)
    assert sum(one.stats().counts.values()) == 2
    one.close()
    other.close()


@kinds
def test_what_is_not_a_memory_of_relay_stays_out_of_sight(
    kind: str, server: QdrantProcess, tmp_path: Path
) -> None:
    backend = opened(kind, server.url, tmp_path)
    mine = save(backend, FACTS[0]).memory
    client = QdrantClient(url=server.url, check_compatibility=False)
    payload = {"data": "The tests need Redis, says another", "user_id": "relay:project:/src/shop"}
    vector: dict[str, Any] = {"": [1.0] * 64}
    foreign = m.PointStruct(id=1, vector=vector, payload=payload)
    client.upsert(collection(tmp_path), [foreign])
    assert client.count(collection(tmp_path)).count == 2
    assert texts(backend, "redis") == [FACTS[0]]
    assert backend.list([PROJECT], 5) == [mine] == list(backend.export())
    assert backend.stats().counts == {PROJECT: 1}
    backend.forget(mine.id)
    assert [record.id for record in client.scroll(collection(tmp_path))[0]] == [1]
    client.close()
    backend.close()


class _NoQdrant(BaseHTTPRequestHandler):
    """Answers everything, as another program that somebody took for qdrant."""

    def do_GET(self) -> None:
        """An object, but none of qdrant's."""
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(b'{"models": []}')

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


@kinds
def test_what_is_no_qdrant_is_named_as_such(
    kind: str, server: QdrantProcess, tmp_path: Path
) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _NoQdrant) as other:
        thread = threading.Thread(target=other.serve_forever, args=(0.02,))
        thread.start()
        try:
            for url in (f"{server.url}/dashboard", f"http://127.0.0.1:{other.server_port}"):
                with pytest.raises(ConfigError, match="does not answer as a qdrant server") as told:
                    opened(kind, url, tmp_path)
                assert url in told.value.message and "address" in told.value.hint
        finally:
            other.shutdown()
            thread.join(10)
