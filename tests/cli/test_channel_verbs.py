"""Channels, presence and who one is, as a person types it."""

from __future__ import annotations

import json

from relay.broker.client import connect
from relay.cli.channel_verbs import status_line
from relay.core.agent_names import owner_name
from relay.core.paths import Home
from tests.broker.support import registration
from tests.cli.conftest import Run

OWNER = owner_name()


def test_a_channel_from_the_first_member_to_its_history(relay: Run, broker_home: Home) -> None:
    assert relay("status-line").stdout == "\n"  # nothing is started for it
    assert relay("channel", "join", "build").stdout == f"{OWNER} is in #build now\n"
    alone = relay("send", "#build", "anybody?")
    assert (alone.returncode, "nobody else is in #build" in alone.stderr) == (3, True)
    with connect(broker_home) as bob:
        bob.request("register", **registration("Bob"), roles=["reviewer"], join=["build"])
        bob.request("agent_state", state="blocked", reason="#[fg=red]`id` $(id)")
        assert relay("send", "#build", "two\nlines").returncode == 0
        assert relay("send", "reviewer", "for your role").returncode == 0
        bob.request("send", to="#build", body="here")
        assert relay("channel", "members", "#BUILD").stdout.split() == sorted(["Bob", OWNER])
        shown = relay("channel", "history", "build")
        assert f"{OWNER}  seen by 0 of 1" in shown.stdout and "  two\n  lines\n" in shown.stdout
        rows = json.loads(relay("channel", "history", "build", "--json").stdout)
        assert [(row["from"], row["body"]) for row in rows] == [
            *((OWNER, "two\nlines"), ("Bob", "here"))
        ]
        assert rows[1]["deliveries"] == [{"to": OWNER, "state": "queued"}]
        assert "Bob hears of the coming and going of *" in (
            relay("presence", "--name", "Bob", "*").stdout
        )
        who = relay("whoami").stdout
        assert who.splitlines()[0] == OWNER and "#build" in who
        assert relay("status-line").stdout == "1 agent, 1 blocked, 1 unread\n"
        [agent] = json.loads(relay("agents", "--json").stdout)
        assert (agent["roles"], agent["channels"]) == (["reviewer"], ["#build"])
    assert relay("channel", "leave", "build").stdout == f"{OWNER} is in #build no more\n"
    assert relay("channel", "leave", "build").returncode == 3
    [row] = json.loads(relay("channel", "list", "--json").stdout)
    assert row == {"channel": "#build", "members": ["Bob"], "here": row["here"]}


def test_a_status_line_holds_nothing_that_tmux_or_a_prompt_expands() -> None:
    hostile = "#[fg=red]#(id)%n$(id)`id`\x1b]0;x\a"
    counts = {"agents": 3, "busy": 2, "blocked": 1, "limited": 0, "unread": 2, "held": 1}
    found = {"name": hostile, "roles": [hostile], "state": "busy", "reason": hostile, **counts}
    line = status_line(found)
    assert not set("#[]()%$`\x1b\a;={}\\") & set(line)
    assert line.endswith("2 other agents, 1 busy, 1 blocked, 2 waiting")
    assert status_line({}) == ""
