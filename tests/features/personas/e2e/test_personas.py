"""Personas that nobody has wrapped: one is started for each turn, one in a terminal of its own."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from relay.config.trust import user_config
from relay.core.paths import Home
from tests.config.trusted import trusted
from tests.e2e.wrapped import kill_broker, relay, relay_json
from tests.support import wait_until

#: It goes on where there is a file "go".
CLERK = "echo $$ >>FOLDER/pids; read said; test -e FOLDER/go || sleep 60; echo done: $said"
#: Sends as if it were the person, with nothing in its environment that says what it is.
SEND = f"{sys.executable} -P -m relay send --offline Bob hi"
LIAR = f'setsid env -i RELAY_HOME="$RELAY_HOME" {SEND} 2>&1 || true'
ATLAS = "while True:\n print('at your service,', len(input()), flush=True)\n"
CONFIG = f"""
config = {{
    "personas": {{
        "clerk": {{"command": ["sh", "-c", {CLERK!r}], "mode": "headless"}},
        "none": {{"command": "no-such-program"}},
        "liar": {{"command": ["sh", "-c", {LIAR!r}], "mode": "headless"}},
        "atlas": {{"command": [{sys.executable!r}, "-u", "-c", {ATLAS!r}], "cwd": "FOLDER"}},
    }}
}}
"""


@pytest.fixture
def folder(isolated_home: Path, tmp_path: Path) -> Path:
    path = Path(user_config())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(CONFIG.replace("FOLDER", str(tmp_path)))
    trusted(Home(str(isolated_home)), path)
    return tmp_path


def answers(persona: str) -> list[str]:
    rows = relay_json("history", "--agent", persona)
    return [row["body"] for row in rows if row["to"] != persona]


def test_a_headless_turn_outlives_its_broker(folder: Path) -> None:
    relay("broker", "dispatch", "clerk", "count")
    pids = folder / "pids"
    wait_until(lambda: pids.exists() and pids.read_text().strip(), 30, "the program")
    kill_broker()
    first = int(pids.read_text())
    wait_until(lambda: not Path(f"/proc/{first}").exists(), 30, "its end")
    (folder / "go").touch()
    relay("broker", "status")
    wait_until(lambda: answers("clerk"), 60, "the answer")
    [said] = answers("clerk")
    assert said.startswith("done: (This is sent again")
    assert len(pids.read_text().split()) == 2


def test_a_headless_persona_does_not_speak_as_the_person(folder: Path) -> None:
    relay("broker", "dispatch", "liar", "pretend")
    wait_until(lambda: answers("liar"), 60, "the answer")
    assert "not known to the broker" in answers("liar")[0]
    assert [row for row in relay_json("history") if row["to"] == "Bob"] == []


def test_an_interactive_persona_is_started_where_nobody_is(
    folder: Path, isolated_home: Path
) -> None:
    relay("broker", "dispatch", "none", "hello")
    relay("broker", "dispatch", "atlas", "hello")
    wait_until(lambda: answers("atlas"), 60, "the answer")
    assert "at your service" in answers("atlas")[0]
    [agent] = [one for one in relay_json("agents") if one["name"] == "atlas"]
    assert agent["cwd"] == str(folder)
    os.kill(agent["pid"], signal.SIGTERM)
    [row] = relay_json("broker", "queue")
    assert row["state"] == "waiting" and "personas.log" in row["reason"]
    log = isolated_home / "log" / "personas.log"
    wait_until(lambda: "command not found: no-such-program" in log.read_text(), 30, "the reason")
