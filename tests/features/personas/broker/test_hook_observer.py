"""Hooks of what the broker does: what they are told, and that nothing waits for them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from relay.broker.client import connect
from relay.core.agent_names import owner_name
from relay.core.errors import NotFound
from relay.core.paths import Home
from relay.features.automations.ops import AUTOMATION_REGISTER
from relay.features.personas import hook_observer, workers
from relay.features.personas.ops import DISPATCH, HOOK_SWITCH, ROUTES
from relay.protocol.agent_ops import HOOK_LOG
from relay.protocol.broker_ops import STATUS
from relay.protocol.message_ops import EVENT
from tests.broker.fixtures import Configure
from tests.broker.support import broker_thread, register
from tests.support import wait_until

#: Every step, written down as it is told.
TELLS = """
import json, os, threading
lock = threading.Lock()
def tell(name):
    def told(event):
        with lock, open({log!r}, "a") as file:
            fields = {{key: event[key] for key in event if key not in ("cwd", "timestamp")}}
            file.write(json.dumps([name, fields]) + "\\n")
    return told
for name in ("after_receive_event", "after_resolve_identity", "after_run_automations",
             "after_assemble_context", "after_execute_agent", "after_deliver_response"):
    relay.on(name)(tell(name))

config = {{"personas": {{"clerk": {{"command": {command!r}, "mode": "headless", "tools": False}}}}}}
"""
ASKS = """
automation = {
    "name": "asks", "description": "asks", "triggers": {"event": {"channels": ["mail"]}},
    "handler": lambda ctx: {"fire": True, "agent": "clerk"},
}
"""
CLERK = "import sys; print('done:', sys.stdin.read().splitlines()[-1])"


def told(log: Path) -> list[tuple[str, dict[str, Any]]]:
    return [tuple(json.loads(line)) for line in log.read_text().splitlines()]


def test_each_step_tells_what_was_done(
    home: Home, served: None, configure: Configure, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    configure(TELLS.format(log=str(log), command=[sys.executable, "-c", CLERK]))
    with connect(home) as client:
        client.request(AUTOMATION_REGISTER, path="/p/asks.py", source=ASKS)
        mail = {"channel": "mail", "source_id": "1", "sender": "mom@x", "content": "hello"}
        for _ in range(2):  # a duplicate is told of once
            id_ = client.request(EVENT, outside=mail)["id"]
        wait_until(lambda: log.exists() and len(told(log)) >= 5, what="five stages")
        found = told(log)
        ran = wait_until(
            lambda: len(rows := client.request(HOOK_LOG)["rows"]) >= 5 and rows, what="runs"
        )
    assert isinstance(ran, list)
    stage = dict(found)
    assert len(found) == len(stage)
    received = stage["after_receive_event"]["received"]
    assert (received["id"], received["content"]) == (id_, "hello")
    known = stage["after_resolve_identity"]
    assert (known["principal"]["type"], known["session"]) == ("unknown", "mail:dm:mom@x")
    automations = stage["after_run_automations"]
    assert automations["automations"] == [{"name": "asks", "fired": True, "error": None}]
    assert (automations["dispatches"], automations["received"]["id"]) == (1, id_)
    assembled, executed = stage["after_assemble_context"], stage["after_execute_agent"]
    assert assembled["prompt"].endswith("hello") and assembled["persona"] == "clerk"
    assert executed["response"].strip() == "done: hello" and executed["state"] == "completed"
    assert executed["dispatches"] == assembled["dispatches"] and executed["turn"]
    hooks = {(row["event"], row["agent"], row["success"]) for row in ran if row["kind"] != "route"}
    assert ("AfterExecuteAgent", "relay", True) in hooks


def test_one_that_is_switched_off_observes_nothing_until_it_is_on_again(
    home: Home, configure: Configure, tmp_path: Path
) -> None:
    configure(
        "def writes(name):\n    def told(received):\n"
        f"        with open({str(tmp_path)!r} + '/' + name, 'a') as file:\n"
        "            print(received['content'], file=file)\n    return told\n"
        "for name in 'off', 'on':\n"
        "    relay.on('after_receive_event', name=name)(writes(name))"
    )

    def heard(name: str) -> list[str]:
        file = tmp_path / name
        return file.read_text().split() if file.exists() else []

    with broker_thread(home), connect(home) as client:
        assert client.request(HOOK_SWITCH, hook="off", on=False)["hook"] == "user/off"
        assert "switched off by" in client.request(ROUTES)["off"]["user/off"]["reason"]
        client.request(EVENT, kind="note", body="one")
        wait_until(lambda: heard("on") == ["one"], what="the other hook")
    with broker_thread(home), connect(home) as client:
        client.request(EVENT, kind="note", body="two")
        wait_until(lambda: heard("on") == ["one", "two"], what="the other hook")
        client.request(HOOK_SWITCH, hook="user/off", on=True)
        client.request(EVENT, kind="note", body="three")
        wait_until(lambda: heard("off") == ["three"], what="the hook that is on again")
        assert client.request(ROUTES)["off"] == {}
        with pytest.raises(NotFound, match="nor a hook of the broker's events"):
            client.request(HOOK_SWITCH, hook="neither", on=False)


def test_the_end_of_an_answer_is_told(
    home: Home, served: None, configure: Configure, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    configure(TELLS.format(log=str(log), command=[sys.executable, "-c", CLERK]))
    with connect(home) as client:
        client.request(DISPATCH, persona="clerk", body="hello")
        wait_until(
            lambda: log.exists() and "after_deliver_response" in log.read_text(), what="its end"
        )
    delivered = dict(told(log))["after_deliver_response"]
    assert (delivered["channel"], delivered["state"]) == ("relay", "sent")
    assert delivered["response"].strip() == "done: hello" and delivered["to"] == owner_name()


def test_a_hook_that_fails_or_hangs_holds_nothing_up(
    home: Home, configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is beyond the bound is left out, and the log says so. A broker that stops leaves no
    worker behind, nor one that takes over what waits."""
    monkeypatch.setattr(hook_observer, "WAITING_MAX", 3)
    monkeypatch.setattr(workers, "ENDING", 0.1)
    configure(
        "import time\n@relay.on('after_receive_event')\ndef broken(received): return 1 / 0\n"
        "@relay.on('after_receive_event')\ndef hangs(received): time.sleep(60)"
    )
    with broker_thread(home), register(home, "Ann") as ann, connect(home) as client:
        for number in range(30):
            ann.request(EVENT, kind="note", body=str(number))
        assert client.request(STATUS)["counts"]["events"] == 30
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
    text = Path(home.broker_log).read_text()
    assert "hooks of on_after_receive_event are slow" in text
