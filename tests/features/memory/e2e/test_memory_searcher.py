"""Programs share a memory that a searcher of the configuration finds more in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.test_handlers import project
from tests.e2e.wrapped import python, relay, relay_json, say, wait_registered, wrapped
from tests.features.memory.e2e.test_memory import TALKS, save
from tests.support import wait_until

FACT = "The staging database is called heron"
#: It knows what an environment before the live one is called, unless a file says otherwise.
CONFIG = """\
import os

def search(query, limit, scope):
    broken = os.path.join({folder!r}, "broken")
    if os.path.exists(broken):
        raise RuntimeError(open(broken).read())
    return ["The staging database is called heron"] if "goes live" in query else []


memory = {{"searcher": search}}
"""
SOON = 60.0


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project whose configuration has a store of its own; the command line works in it."""
    folder = project(tmp_path, CONFIG.format(folder=str(tmp_path)))
    monkeypatch.chdir(folder)
    yield folder
    relay("broker", "stop", status=None)


def test_what_is_saved_is_found_by_what_it_means(shop: Path, tmp_path: Path) -> None:
    with wrapped(python(TALKS), name="Ada", cwd=shop) as ada:
        wait_registered("Ada")
        saved = save(ada, FACT, timeout=SOON)
        ada.type(say("@memory:search where is what goes live?\n"))
        ada.wait_for(rf"1 found for .*{saved}", SOON)
        (tmp_path / "broken").write_text("nobody listens on port 6333")
        ada.type(say("@memory:search heron\n"))
        ada.wait_for(rf"1 found for .*heron.*{saved}", SOON)
    stats = relay_json("memory", "stats")
    assert (stats["count"], stats["backend"]) == (1, "searcher")
    assert "nobody listens on port 6333" in stats["problem"]
    assert stats["store"]["file"] == str(shop / "relay.config.py")
    [row] = relay_json("memory", "list")
    assert (row["id"], row["agent"]) == (saved, "Ada")


def test_a_secret_that_is_missing_is_told_to_the_agent_and_the_person(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = {"url": "http://127.0.0.1:9", "apiKeyEnv": "NOT_SET_HERE"}
    config = {"memory": {"backend": "qdrant", "config": store}}
    folder = project(tmp_path, f"config = {config!r}\n")
    monkeypatch.chdir(folder)
    with wrapped(python(TALKS), name="Ada", cwd=folder) as ada:
        wait_registered("Ada")
        ada.type(say(f"@memory:save {FACT}\n"))
        ada.wait_for("not done: @memory:save: memory: the environment variable NOT_SET_HERE")
        wait_until(lambda: "NOT_SET_HERE" in relay("status"), what="the person to be told")
    assert "NOT_SET_HERE is not set" in relay("memory", "list", status=2)
    relay("broker", "stop", status=None)
