"""Programs share a memory that an object of the configuration keeps; it may be away for a while."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.test_handlers import project
from tests.e2e.test_memory import TALKS, heard, save
from tests.e2e.wrapped import python, relay, relay_json, say, wait_registered, wrapped
from tests.support import wait_until

FACT = "The staging database is called heron"
#: A store that is away while a file says why.
CONFIG = """\
import os

from relay.memory.backend import StoreUnavailable
from relay.memory.local.local_store import LocalStore


class Shared(LocalStore):
    def __init__(self):
        self._look()
        super().__init__(os.path.join({folder!r}, "shared"))

    def _look(self):
        away = os.path.join({folder!r}, "away")
        if os.path.exists(away):
            raise StoreUnavailable(open(away).read(), hint="start it")

    def save(self, *args, **options):
        self._look()
        return super().save(*args, **options)

    def search(self, *args, **options):
        self._look()
        return super().search(*args, **options)


config = {{"memory": {{"backend": "custom", "config": {{"object": Shared}}}}}}
"""
SOON = 60.0


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project whose configuration has a store of its own; the command line works in it."""
    folder = project(tmp_path, CONFIG.format(folder=str(tmp_path)))
    monkeypatch.chdir(folder)
    yield folder
    relay("broker", "stop", status=None)


def test_one_saves_and_the_other_finds_it(shop: Path, tmp_path: Path) -> None:
    second = tmp_path / "second"
    with wrapped(python(TALKS), name="Ada", cwd=shop) as ada:
        wait_registered("Ada")
        saved = save(ada, FACT, timeout=SOON)
    with wrapped(python(TALKS), name="Bob", cwd=shop, env={"HEARD": str(second)}) as bob:
        wait_registered("Bob")
        bob.type(say("@memory:list\n"))
        wait_until(lambda: FACT in heard(second), SOON, what="the memory to be read")
    stats = relay_json("memory", "stats")
    assert (stats["count"], stats["kept"], stats["store"]["backend"]) == (1, 0, "custom")
    assert stats["store"]["file"] == str(shop / "relay.config.py")
    [row] = relay_json("memory", "list")
    assert (row["id"], row["agent"]) == (saved, "Ada")
    # Nothing of it is in relay's own store.
    elsewhere = tmp_path / "default.py"
    elsewhere.write_text("config = {'memory': {}}\n")
    relay("trust", str(elsewhere))
    assert relay_json("memory", "stats", "--config", str(elsewhere))["count"] == 0


def test_what_is_saved_while_the_store_is_away_is_kept_and_stored_later(
    shop: Path, tmp_path: Path
) -> None:
    away = tmp_path / "away"
    away.write_text("nobody listens on port 6333")
    with wrapped(python(TALKS), name="Ada", cwd=shop) as ada:
        wait_registered("Ada")
        ada.type(say(f"@memory:save {FACT}\n"))
        kept = ada.wait_for(r"memory: kept as (\w{8}) \(project\) until the store can be", SOON)
        ada.wait_for("nobody listens on port 6333")
        ada.type(say("@memory:search heron\n"))
        ada.wait_for("not done: @memory:search: .*nobody listens", SOON)
        stats = relay_json("memory", "stats")
        assert stats["kept"] == 1 and "nobody listens" in stats["problem"]
        assert "kept:       1 until" in relay("memory", "stats")
        assert "1 save waits for" in relay("doctor", status=None)
        away.unlink()
        wait_until(
            lambda: relay_json("memory", "stats")["count"] == 1, SOON, what="it to be stored"
        )
        ada.type(say("@memory:search heron\n"))
        ada.wait_for(rf"1 found for .*{kept[1]}", SOON)
    stats = relay_json("memory", "stats")
    assert (stats["kept"], stats["problem"]) == (0, None)


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


#: Asks in its own tools what relay was told to remember.
TOOLS = """
import subprocess, sys
sys.stdin.readline()
command = [sys.executable, "-m", "relay", "memory", "save", "said in a tool"]
subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
print("saved " + "in a tool", flush=True)
sys.stdin.readline()
"""


def test_the_tools_of_an_agent_ask_the_store_that_it_was_started_with(
    shop: Path, tmp_path: Path
) -> None:
    named = tmp_path / "named.py"
    folder = tmp_path / "named"
    folder.mkdir()
    named.write_text(CONFIG.format(folder=str(folder)))
    relay("trust", str(named))
    options = ["--config", str(named)]
    with wrapped(python(TOOLS), name="Ada", cwd=shop, options=options) as ada:
        wait_registered("Ada")
        ada.type("\n")
        ada.wait_for("saved in a tool", SOON)
    rows = relay_json("memory", "list", "--config", str(named))
    assert [(row["text"], row["agent"]) for row in rows] == [("said in a tool", "Ada")]
    assert relay_json("memory", "list") == []
