"""Programs find in an index of mem0's on a qdrant server, and the server goes away.

The server is the one of tests.features.memory.qdrant_server, which is not the real one: see there.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.test_handlers import project
from tests.e2e.wrapped import python, relay, relay_json, say, wait_registered, wrapped
from tests.features.memory.e2e.test_memory import TALKS, save
from tests.features.memory.qdrant_process import QdrantProcess
from tests.support import wait_until

#: As the design document writes it.
CONFIG = """\
config = {{
    "memory": {{
        "backend": {backend!r},
        "config": {{
            "vectorStore": {{"provider": "qdrant", "url": {url!r}, "apiKeyEnv": "SHOP_QDRANT_KEY"}}
        }},
    }}
}}
"""
KEY = "key-of-the-shop"
FACT = "The staging database is called heron"
LATER = "Deploys wait for the heron to be restored"
SOON = 60.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[QdrantProcess]:
    with QdrantProcess(tmp_path / "qdrant", KEY) as process:
        yield process


@pytest.fixture
def shop(
    server: QdrantProcess,
    tmp_path: Path,
    models: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Path]:
    """A project whose index is on the server; the command line works in it."""
    folder = project(tmp_path, CONFIG.format(backend="mem0", url=server.url))
    monkeypatch.chdir(folder)
    monkeypatch.setenv("SHOP_QDRANT_KEY", KEY)
    yield folder
    relay("broker", "stop", status=None)


def filled() -> tuple[int, int]:
    index = relay_json("memory", "stats")["index"]
    return index["filled"], index["total"]


def test_what_is_saved_while_the_server_is_away_is_in_the_index_when_it_is_back(
    shop: Path, server: QdrantProcess
) -> None:
    with wrapped(python(TALKS), name="Ada", cwd=shop) as ada:
        wait_registered("Ada")
        save(ada, FACT, timeout=SOON)
        wait_until(lambda: filled() == (1, 1), SOON, "the index to be filled")
        server.kill()
        saved = save(ada, LATER, timeout=SOON)
        ada.type(say("@memory:search heron\n"))
        ada.wait_for(rf"2 found for .*heron[\s\S]*{saved}", SOON)
    stats = relay_json("memory", "stats")
    assert f"127.0.0.1:{server.port}" in stats["problem"] and filled() == (1, 2)
    report = relay("doctor", status=None)
    assert f"127.0.0.1:{server.port}" in report and "refused" in report
    server.start()
    wait_until(lambda: filled() == (2, 2), SOON, "the index to be filled")
    with wrapped(python(TALKS), name="Bob", cwd=shop) as bob:
        wait_registered("Bob")
        bob.type(say("@memory:search where do we keep data before it goes live?\n"))
        bob.wait_for(r"memory: \d found for .*heron", SOON)
