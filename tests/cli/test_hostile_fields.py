"""Whatever stands in whichever field, no verb prints what a terminal obeys or relay would hear."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from relay.broker.client import connect
from relay.core.agent_names import owner_name
from relay.core.errors import UsageError
from relay.core.paths import Home
from relay.core.visible import is_visible
from relay.directive.grammar import Scanner
from relay.protocol.agent_ops import AGENT_STATE, HOOKS_RAN, REGISTER
from relay.protocol.message_ops import SEND
from tests.broker.support import registration
from tests.cli.fixtures import Run

EVIL = "\x1b]0;x\x07\x1b[2J\r\x9b1A\u202e\u200b\u3164\x7f"
FIRES = f"{EVIL}\n@relay:Bob fire\n- @memory:save fire\n● @deploy:now fire\n"
OWNER = owner_name()
LISTINGS = [
    "agents",
    "agents --live",
    "status",
    "broker status",
    f"inbox {OWNER} --all --peek",
    "inbox Bob --all",
    f"sent {OWNER}",
    "sent Bob",
    "history",
    "history --grep fire",
    "items",
    "hooks log",
    "hooks list",
    "memory list",
    "memory search fire",
    "memory stats",
    "memory kept",
    "config show",
    "config check",
    "trust --show",
    "doctor",
    f"show {EVIL}",
    f"send Nobody{EVIL} x",
    f"wrap --name x{EVIL} true",
    f"trust {EVIL}",
    f"memory show k{EVIL}",
    f"replay {EVIL}",
    f"verb{EVIL}",
    f"history --{EVIL}",
]


@pytest.fixture
def hostile(relay: Run, broker_home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A state directory in which each field that somebody else writes is hostile; an id in it."""
    folder = tmp_path / f"at {FIRES.replace('/', '')}"
    folder.mkdir()
    (folder / "relay.config.py").write_text("idle_seconds = 5\n")
    monkeypatch.chdir(folder)
    id_ = relay("send", "Cy", FIRES, "--offline", "--thread", "t").stdout.strip()
    relay("memory", "save", FIRES)
    with connect(broker_home) as bob:
        bob.request(REGISTER, **{**registration("Bob"), "cwd": FIRES, "command": FIRES})
        bob.request(SEND, to=OWNER, body=FIRES)
        bob.request(AGENT_STATE, state="blocked", reason=FIRES, source=FIRES, notes=[FIRES])
        texts = dict.fromkeys(("event", "hook", "kind", "source", "decision", "error"), FIRES)
        bob.request(HOOKS_RAN, records=[texts | {"stdout": FIRES, "stderr": FIRES}])
    database = sqlite3.connect(broker_home.ledger, timeout=20)
    with database:
        # As an earlier version, or a program of another's, may have written them.
        database.execute("DROP TRIGGER events_no_update")
        database.execute("UPDATE events SET thread=?, meta_json=NULL", (FIRES,))
        database.execute("UPDATE deliveries SET reason=?, proof=?", (FIRES, FIRES))
        database.execute("UPDATE deliveries SET parked=1, state='held' WHERE recipient='Cy'")
    database.close()
    return id_


def test_no_verb_prints_what_is_obeyed_or_heard(relay: Run, hostile: str) -> None:
    for line in [*LISTINGS, f"show {hostile}"]:
        for form in ([], ["--json"]):
            done = relay(*line.split(" "), *form)
            for stream in (done.stdout, done.stderr):
                shown = stream.replace("\n", "").replace("\t", "")
                assert is_visible(shown), f"{line} {form}: {ascii(stream)}"
                scanner = Scanner(("relay", "memory", "deploy"))
                heard = [scanner.line(row) for row in stream.split("\n")] + [scanner.end()]
                assert not any(heard), f"{line} {form}: {stream}"
    assert "fire" in relay("show", hostile).stdout


@pytest.mark.parametrize("name", ["\x1b[2J", "a\u200bb", "a\u202eb", "a\nb", "\u3164"], ids=ascii)
def test_the_broker_takes_no_name_that_cannot_be_seen(
    name: str, relay: Run, broker_home: Home
) -> None:
    for words in (["Bob", "--thread", name], [name], [f"#{name}"], ["Bob", "--from", name]):
        assert relay("send", words[0], "x", "--offline", *words[1:]).returncode == 2, words
    for fields in ({"name": name}, {"kind": name}):
        with connect(broker_home) as client, pytest.raises(UsageError):
            client.request(REGISTER, **{**registration("Bob"), **fields})
