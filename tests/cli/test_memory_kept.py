"""``relay memory kept``: what waits for a store that is away, and how it gets elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run

AWAY = """
from relay.memory.backend import StoreUnavailable


def away():
    raise StoreUnavailable("nothing listens there")


config = {"memory": {"backend": "custom", "config": {"object": away}}}
"""


@pytest.fixture
def away(relay: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The configuration of a store that cannot be reached; the folder has none of its own."""
    folder = tmp_path / "shop"
    (folder / ".git").mkdir(parents=True)
    monkeypatch.chdir(folder)
    file = tmp_path / "away.py"
    file.write_text(AWAY)
    assert relay("trust", str(file)).returncode == 0
    return str(file)


def answer(relay: Run, *words: str) -> Any:
    done = relay("memory", *words, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def refused(relay: Run, *words: str) -> tuple[int, str]:
    done = relay("memory", *words)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


def test_saves_for_a_wrong_address_are_moved_to_the_store_of_the_folder(
    relay: Run, away: str
) -> None:
    assert answer(relay, "kept") == []
    told = [answer(relay, "save", "--config", away, f"fact {n}")["id"] for n in range(3)]
    (store,) = answer(relay, "kept")
    assert (store["kept"], store["refused"]) == (3, 0) and store["store"].endswith("away.py")
    key = store["key"]
    status, why = refused(relay, "kept", key[:6], "--move")
    assert status == 1 and "relay broker stop" in why
    assert relay("broker", "stop").returncode == 0

    waiting = answer(relay, "kept", key)
    assert [(one["id"], one["text"]) for one in waiting] == [
        (id_, f"fact {n}") for n, id_ in enumerate(told)
    ]
    status, why = refused(relay, "kept", key, "--move", "--config", away)
    assert status == 2 and "that is the store of this folder" in why
    assert answer(relay, "kept", key, "--move") == {"new": 3, "same": 0, "conflicting": 0}
    assert answer(relay, "kept") == []
    assert sorted(one["id"] for one in answer(relay, "list")) == sorted(told)


def test_what_is_another_memory_there_stays(relay: Run, away: str) -> None:
    id_ = answer(relay, "save", "--config", away, "a fact")["id"]
    row = {"id": id_, "text": "another", "scope": "user", "owner": ""}
    line = json.dumps({**row, "created_ms": 1, "updated_ms": 1})
    assert relay("memory", "import", "-", stdin=line).returncode == 0
    assert relay("broker", "stop").returncode == 0
    (store,) = answer(relay, "kept")
    moved = relay("memory", "kept", store["key"], "--move")
    assert moved.stdout == "0 saves are moved\n" and "1 stay" in moved.stderr
    assert answer(relay, "kept") == [store]
    assert answer(relay, "show", id_)["text"] == "another"


def test_what_is_wrong_is_said(relay: Run, away: str) -> None:
    assert refused(relay, "kept", "abc")[0] == 3
    status, why = refused(relay, "kept", "--move")
    assert status == 2 and "which saves" in why
    done = relay("memory", "kept")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "no save waits for any store\n")
