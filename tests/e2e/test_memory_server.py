"""Programs share a memory on a qdrant server by mem0, and the server goes away.

The server is the one of tests.memory.qdrant_server, which is not the real one: see there.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.test_handlers import project
from tests.e2e.test_memory import TALKS, save
from tests.e2e.wrapped import python, relay, relay_json, say, wait_registered, wrapped
from tests.memory.qdrant_process import QdrantProcess
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
    """A project that keeps its memories on the server; the command line works in it."""
    folder = project(tmp_path, CONFIG.format(backend="mem0", url=server.url))
    monkeypatch.chdir(folder)
    monkeypatch.setenv("SHOP_QDRANT_KEY", KEY)
    yield folder
    relay("broker", "stop", status=None)


def test_what_is_saved_while_the_server_is_away_is_found_when_it_is_back(
    shop: Path, server: QdrantProcess
) -> None:
    with wrapped(python(TALKS), name="Ada", cwd=shop) as ada:
        wait_registered("Ada")
        save(ada, FACT, timeout=SOON)
        server.kill()
        ada.type(say(f"@memory:save {LATER}\n"))
        kept = ada.wait_for(r"memory: kept as (\w{8})", SOON)[1]
        ada.type(say("@memory:search heron\n"))
        ada.wait_for(r"memory: .*cannot be reached", SOON)
    stats = relay_json("memory", "stats")
    assert stats["kept"] == 1 and f"127.0.0.1:{server.port}" in stats["problem"]
    report = relay("doctor", status=None)
    assert f"127.0.0.1:{server.port}" in report and "refused" in report
    server.start()
    wait_until(lambda: relay_json("memory", "stats")["kept"] == 0, SOON, "the save to be stored")
    found = {row["text"]: row["id"] for row in relay_json("memory", "search", "heron")}
    assert set(found) == {FACT, LATER} and found[LATER] == kept
    with wrapped(python(TALKS), name="Bob", cwd=shop) as bob:
        wait_registered("Bob")
        bob.type(say("@memory:search where do we keep data before it goes live?\n"))
        bob.wait_for(r"memory: \d found for .*heron", SOON)


def test_a_key_that_is_missing_or_wrong_is_said(
    shop: Path, server: QdrantProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_QDRANT_KEY", "key-of-another")
    said = relay("memory", "save", FACT, status=None)
    assert server.url in said and "API key" in said and "key-of-another" not in said
    monkeypatch.delenv("SHOP_QDRANT_KEY")
    assert "SHOP_QDRANT_KEY" in relay("memory", "save", FACT, status=None)
    monkeypatch.setenv("SHOP_QDRANT_KEY", KEY)
    assert relay_json("memory", "save", FACT)["outcome"] == "new"
