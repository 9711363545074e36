"""From an event to evaluations and dispatches: a broker, its workers, and what is stored."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from relay.broker.client import connect
from relay.config.load import load_for_session
from relay.config.trust import CONFIG_NAME, trust, user_config
from relay.core.paths import Home
from tests.support import wait_until

Json = dict[str, Any]
Configure = Callable[..., str]


@pytest.fixture
def configure(home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Configure:
    """Writes and trusts a configuration: the person's own, or that of a folder."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))

    def write(text: str, folder: Path | None = None) -> str:
        path = Path(user_config()) if folder is None else folder / CONFIG_NAME
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("from relay import *\nrelay = Relay()\n" + text)
        trust(home, str(path))
        load_for_session(home, str(path.parent))  # makes its manifest, as relay trust does
        return str(path)

    return write


def rows(home: Home, query: str) -> list[tuple[Any, ...]]:
    with sqlite3.connect(home.ledger) as db:
        return db.execute(query).fetchall()


def settled(home: Home, events: int) -> None:
    """Wait until so many evaluations are stored and nothing is due."""

    def done() -> bool:
        [(found, due)] = rows(
            home,
            "SELECT (SELECT count(*) FROM hook_evaluations),"
            " (SELECT count(*) FROM evaluations_due)",
        )
        return found >= events and not due

    wait_until(done, what=f"{events} evaluations")


def outside(id_: str, content: str = "hello", **fields: Any) -> Json:
    return {"channel": "mail", "source_id": id_, "sender": "mom@x", "content": content, **fields}


FAMILY = """
@relay.route(priority=10)
def family(event):
    if event.sender == "mom@x":
        return HookResult(fire=True, routing=HookRouting("atlas", "family:mom"))

@relay.route
def other(event):
    return "code" in event.content

@relay.route
def broken(event):
    return 1 / 0
"""


def test_what_fires_becomes_dispatches_and_all_that_was_said_is_kept(
    home: Home, served: None, configure: Configure
) -> None:
    configure(FAMILY)
    with connect(home) as client:
        id_ = client.request("event", outside=outside("1", "your code"))["id"]
        settled(home, 3)
    said = rows(home, "SELECT hook_id, fired, error FROM hook_evaluations ORDER BY hook_id")
    assert [one[:2] for one in said] == [("user/broken", 0), ("user/family", 1), ("user/other", 1)]
    assert said[0][2].startswith("ZeroDivisionError: division by zero (line ")
    made = rows(
        home,
        "SELECT d.hook_id, persona, session, d.mode, priority, e.id, hops, config, permissions_json"
        " FROM dispatches d JOIN events e ON e.seq = d.event ORDER BY d.seq",
    )
    minimal = (
        '{"level": "minimal", "tools": {"allow": ["web_search"], "deny": []}, "credentials": []}'
    )
    assert made == [
        ("user/family", "atlas", "family:mom", "followup", 10, id_, 1, "user", minimal),
        ("user/other", "default", "main", "followup", 0, id_, 1, "user", minimal),
    ]
