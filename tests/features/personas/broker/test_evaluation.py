"""From an event to evaluations and dispatches: a broker, its workers, and what is stored."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from relay.broker.client import connect
from relay.config.trust import trust
from relay.core.errors import RelayError
from relay.core.paths import Home
from relay.core.processes import read_process
from relay.features.personas import evaluation
from relay.features.personas.ops import HOOK_SWITCH, ROUTES
from relay.features.personas.workers import WorkerKind, WorkerPool
from relay.protocol.broker_ops import STATUS
from relay.protocol.message_ops import EVENT, SEND, SHOW, STATE
from relay.protocol.op import Auth
from tests.broker.fixtures import Configure
from tests.broker.support import LineLog, broker_process, kill_broker, register, wait_for_broker
from tests.support import wait_until

Json = dict[str, Any]


@pytest.fixture
def config(served: None, configure: Configure) -> Configure:
    """The user's configuration, and a broker."""
    return configure


def rows(home: Home, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(home.ledger)) as db:
        return db.execute(query).fetchall()


def settled(home: Home, events: int) -> None:
    """Wait until so many evaluations are stored and nothing is due."""

    def done() -> bool:
        [(found, due)] = rows(
            home, "SELECT (SELECT count(*) FROM evaluations), (SELECT count(*) FROM due)"
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
    home: Home, config: Configure
) -> None:
    config(FAMILY)
    with connect(home) as client:
        id_ = client.request(EVENT, outside=outside("1", "your code"))["id"]
        settled(home, 3)
    said = rows(home, "SELECT hook_id, fired, error FROM evaluations ORDER BY hook_id")
    assert [one[:2] for one in said] == [("user/broken", 0), ("user/family", 1), ("user/other", 1)]
    assert said[0][2].startswith("ZeroDivisionError: division by zero (line ")
    with connect(home) as client:
        shown = client.request(SHOW, id=id_)["message"]["evaluations"]
        counted = client.request(STATUS)["evaluations"]
    assert [(one["hook"], one["state"]) for one in shown] == [
        ("user/family", "fired"),
        ("user/other", "fired"),
        ("user/broken", "failed"),
    ]
    assert shown[2]["error"] == said[0][2]
    assert counted == {"fired": 2, "not_fired": 0, "failed": 1}
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
        ("user/other", "default", "mail:dm:mom@x", "followup", 0, id_, 1, "user", minimal),
    ]


def test_a_project_evaluates_its_own_agents_and_the_person_everything(
    home: Home, config: Configure, tmp_path: Path
) -> None:
    shop = tmp_path / "shop"
    config("@relay.route\ndef own(event): return event.sender")
    config("@relay.route\ndef shop(event): return True", shop)
    with connect(home) as person:
        for name, cwd in (("Inside", shop / "src"), ("Outside", tmp_path)):
            cwd.mkdir(parents=True, exist_ok=True)
            with register(home, name, run=name, cwd=str(cwd)) as agent:
                agent.request(EVENT, kind="match", body="x")
        person.request(EVENT, outside=outside("1"))
        settled(home, 4)
    said = rows(
        home,
        "SELECT e.agent, h.hook_id, h.error FROM evaluations h JOIN events e ON e.seq=h.event"
        " ORDER BY e.seq, h.hook_id",
    )
    assert [(one[0], one[1].partition("/")[2]) for one in said] == [
        ("Inside", "shop"),
        ("Inside", "own"),
        ("Outside", "own"),
        ("mom@x", "own"),
    ]
    assert "what it returned is not a result: the result must be a dictionary" in said[1][2]


def test_a_hook_that_disables_itself_fires_once_until_it_is_enabled(
    home: Home, config: Configure
) -> None:
    config("@relay.route\ndef once(event): return {'fire': True, 'disableHook': True}")
    fired = "SELECT count(*) FROM dispatches"
    with connect(home) as client:
        client.request(EVENT, outside=outside("1"))
        settled(home, 1)
        client.request(EVENT, outside=outside("2"))
        off = client.request(ROUTES)["rows"][0]["disabled"]
        assert off is not None and off["reason"] == "it disabled itself"
        client.request(HOOK_SWITCH, hook="once", on=True)
        client.request(EVENT, outside=outside("3"))
        settled(home, 2)
    assert rows(home, fired) == [(2,)]


def test_events_in_flight_together_fire_a_one_shot_once(home: Home, config: Configure) -> None:
    config(
        "import time\n@relay.route\ndef once(event):\n    time.sleep(0.2)\n"
        "    return HookResult(fire=True, disable_hook=True)"
    )
    with connect(home) as client:
        for number in range(5):
            client.request(EVENT, outside=outside(str(number)))
        settled(home, 1)  # those that came after the first was done are not evaluated
    assert rows(home, "SELECT count(*) FROM dispatches") == [(1,)]
    errors = rows(home, "SELECT DISTINCT error FROM evaluations WHERE NOT fired")
    assert errors in ([], [("an earlier event had switched it off",)])


SAME = """
@relay.route(priority=5)
def first(event):
    return HookResult(True, HookRouting("atlas", "x"), PermissionSet.from_json(
        {"level": "restricted", "tools": {"allow": ["read", "web_*"]}}))

@relay.route
def second(event):
    return HookResult(True, HookRouting("atlas", "x"), PermissionSet.from_json(
        {"level": "restricted", "tools": {"allow": ["read"]}}))
"""


@pytest.mark.parametrize(
    ("merge", "allowed"),
    [("apart", [["read", "web_*"], ["read"]]), ("same_session", [["read"]])],
    ids=["apart", "same-session"],
)
def test_dispatches_to_one_session_are_merged_only_where_that_is_asked_for(
    home: Home, config: Configure, merge: str, allowed: list[list[str]]
) -> None:
    config(f"relay = Relay(merge={merge!r})\n{SAME}")
    with connect(home) as client:
        client.request(EVENT, outside=outside("1"))
        settled(home, 2)
    made = rows(home, "SELECT permissions_json FROM dispatches ORDER BY seq")
    assert [json.loads(one[0])["tools"]["allow"] for one in made] == allowed


def test_a_worker_that_dies_is_asked_again_and_the_event_that_ends_it_is_given_up(
    home: Home, config: Configure
) -> None:
    """The others pass, each evaluated, though they were under way with it."""
    config(
        "import os, time\n@relay.route\ndef deadly(event):\n    time.sleep(0.05)\n"
        "    if event.content == 'die': os._exit(3)\n    return True"
    )
    with connect(home) as client:
        for number, word in enumerate(("a", "die", "b")):
            client.request(EVENT, outside=outside(str(number), word))
        settled(home, 3)
    said = rows(
        home,
        "SELECT e.body, h.hook_id, h.error FROM evaluations h JOIN events e ON e.seq=h.event"
        " ORDER BY e.seq",
    )
    assert [one[:2] for one in said] == [
        ("a", "user/deadly"),
        ("die", "user/*"),
        ("b", "user/deadly"),
    ]
    assert "ended with status 3, 3 times while this was evaluated" in said[1][2]
    assert rows(home, "SELECT count(*) FROM dispatches") == [(2,)]


def test_a_function_that_takes_too_long_costs_only_its_own_part(
    home: Home, config: Configure
) -> None:
    config(
        "import time\n@relay.route(timeout=0.2)\ndef slow(event): time.sleep(60)\n"
        "@relay.route\ndef quick(event): return True"
    )
    with connect(home) as client:
        client.request(EVENT, outside=outside("1"))
        settled(home, 2)
    errors = rows(home, "SELECT hook_id, error FROM evaluations ORDER BY hook_id")
    assert errors == [("user/quick", None), ("user/slow", "it did not end within 0.2 s")]


def test_a_function_that_hangs_again_and_again_is_switched_off_and_its_workers_are_replaced(
    home: Home, config: Configure, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    config(
        "import os\n@relay.route(timeout=0.2)\ndef spins(event):\n"
        "    while 'spin' in event.content: pass\n"
        f"@relay.route\ndef quick(event):\n    with open({str(pids)!r}, 'a') as file:\n"
        "        print(os.getpid(), file=file)\n    return True"
    )
    contents = ["spin 1", "ends", "spin 2", "spin 3", "spin 4", "spin 5"]
    with connect(home) as client:
        for number, content in enumerate(contents):
            client.request(EVENT, outside=outside(content, content))
            settled(home, 2 * (number + 1) - (number > 4))
        errors = rows(
            home, "SELECT error FROM evaluations WHERE hook_id='user/spins' ORDER BY event"
        )
        late = ("it did not end within 0.2 s",)
        assert errors == [late, (None,), late, late, late]
        shown = {row["hook"]: row["disabled"] for row in client.request(ROUTES)["rows"]}
        assert shown["user/quick"] is None
        off = shown["user/spins"]
        assert off is not None and off["reason"] == "3 calls in a row did not end"
        workers = [int(pid) for pid in pids.read_text().split()]
        assert workers[1] == workers[2] and len(set(workers)) == 5
        wait_until(lambda: not any(map(read_process, workers[:-1])), what="the end of the others")
        client.request(HOOK_SWITCH, hook="spins", on=True)
        client.request(EVENT, outside=outside("spin 6", "spin 6"))
        settled(home, 13)
    assert rows(home, "SELECT count(*) FROM evaluations WHERE error NOT NULL") == [(5,)]


def test_an_exit_or_what_no_ledger_can_hold_is_an_error_of_its_function(
    home: Home, config: Configure
) -> None:
    config(
        "@relay.route\ndef number(event): return {'fire': True, 'context': {'extracted':"
        " {'n': 1e999}}}\n"
        "@relay.route\ndef text(event): return {'fire': True, 'routing': {'session': '\\ud800'}}\n"
        "@relay.route\ndef exits(event): raise SystemExit('on purpose')"
    )
    with connect(home) as client:
        client.request(EVENT, outside=outside("1"))
        settled(home, 3)
    exits, *errors = [
        one for (one,) in rows(home, "SELECT error FROM evaluations ORDER BY hook_id")
    ]
    assert exits.startswith("SystemExit: on purpose (line ")
    assert ["not JSON compliant" in errors[0], "surrogates" in errors[1]] == [True, True]
    assert rows(home, "SELECT count(*) FROM dispatches") == [(0,)]


def test_what_relay_itself_cannot_store_is_all_taken_back_and_said(
    home: Home, config: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ValueError("a fault of relay's")

    config("@relay.route\ndef once(event): return {'fire': True, 'disable_hook': True}")
    with connect(home) as client, monkeypatch.context() as patched:
        patched.setattr(evaluation, "add_dispatches", broken)
        client.request(EVENT, outside=outside("1"))
        settled(home, 1)
        patched.undo()
        client.request(EVENT, outside=outside("2"))
        settled(home, 2)
        assert client.request(ROUTES)["rows"][0]["disabled"]
    said = rows(home, "SELECT hook_id, fired, error FROM evaluations ORDER BY event")
    why = "what was said of it cannot be stored: ValueError: a fault of relay's"
    assert said == [("user/*", 0, why), ("user/once", 1, None)]


def test_what_is_not_trusted_any_more_or_cannot_run_evaluates_nothing_and_says_so(
    home: Home, config: Configure
) -> None:
    path = config("@relay.route\ndef any(event): return True")
    with connect(home) as client:
        Path(path).write_text("changed")
        client.request(ROUTES)  # the broker looks again
        client.request(EVENT, outside=outside("1"))
        Path(path).write_text("import nothing_of_the_kind\n")
        trust(home, path)
        assert client.request(ROUTES)["rows"] == []
        client.request(EVENT, outside=outside("2"))
        told = wait_until(
            lambda: client.request(ROUTES)["problems"].get(path), what="the broker to say it"
        )
    assert told is not None and "nothing_of_the_kind" in told
    left = "user leaves 1 events unevaluated"
    wait_until(lambda: left in Path(home.broker_log).read_text(), what="the log to say it")
    assert rows(home, "SELECT count(*) FROM due") == [(0,)]


def test_a_killed_broker_goes_on_with_what_is_due_and_dispatches_once(
    home: Home, configure: Configure
) -> None:
    """SIGKILL while the worker has the events: nothing acknowledged is lost or done twice."""
    configure("import time\n@relay.route\ndef slow(event):\n    time.sleep(0.2)\n    return True")
    with connect(home) as client:
        ids = {client.request(EVENT, outside=outside(str(n)))["id"] for n in range(10)}
    kill_broker(home)
    assert rows(home, "SELECT count(*) FROM due") == [(10,)]
    with connect(home):
        settled(home, 10)
    made = rows(home, "SELECT e.id FROM dispatches d JOIN events e ON e.seq=d.event")
    assert len(made) == 10 and {one[0] for one in made} == ids


def test_dispatches_carry_on_the_chain_of_what_the_agent_said(
    home: Home, config: Configure
) -> None:
    """What an agent says after a message of another one is one hop further; so is what follows."""
    config("@relay.route\ndef every(event): return True")
    with register(home, "Ann", run="a") as ann, register(home, "Bob", run="b") as bob:
        id_ = ann.request(SEND, to="Bob", body="hi")["id"]
        for state in ("delivering", "submitted"):
            bob.request(STATE, id=id_, state=state)
        bob.request(SEND, to="Ann", body="hello")
        bob.request(EVENT, kind="match", body="x")
        settled(home, 3)
    assert rows(home, "SELECT hops FROM dispatches ORDER BY event") == [(2,), (3,), (2,)]


def test_an_agent_tells_no_events_that_only_sessions_tell_and_switches_no_hooks(
    home: Home, config: Configure
) -> None:
    config("@relay.route\ndef any(event): return True")
    with register(home, "Ann", run="a"), connect(home) as inside:
        auth: Auth = {"run": "a", "token": "secret"}
        for kind in ("tool_call", "timer_tick", "output", "idle", "session_end"):
            with pytest.raises(RelayError) as refused:
                inside.request(EVENT, kind=kind, body="x", auth=auth)
            assert refused.value.code == "forbidden"
        with pytest.raises(RelayError) as refused:
            inside.request(HOOK_SWITCH, hook="any", on=False, auth=auth)
        assert refused.value.code == "forbidden"
    assert rows(home, "SELECT count(*) FROM events") == [(0,)]


def test_a_worker_speaks_for_the_person_and_not_for_a_run(
    home: Home, config: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever environment its broker was started with; its folder is not importable."""
    for name in ("RELAY_RUN", "RELAY_TOKEN", "RELAY_SOCKET"):
        monkeypatch.setenv(name, "stolen")
    path = config(
        "import os, sys\n@relay.route\ndef env(event):\n"
        "    found = {k: v for k, v in os.environ.items() if k.startswith('RELAY_')}\n"
        "    found['path'] = sys.path\n"
        "    return {'fire': True, 'context': {'extracted': found}}"
    )
    with connect(home) as client:
        client.request(EVENT, outside=outside("1"))
        settled(home, 1)
    [(context,)] = rows(home, "SELECT context_json FROM dispatches")
    found = json.loads(context)["extracted"]
    assert found["RELAY_HOME"] == home.root and "stolen" not in found.values()
    assert os.path.dirname(path) not in found["path"] and "" not in found["path"]


def test_a_broker_does_not_end_by_idleness_while_a_route_function_waits_for_the_clock(
    home: Home, configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure("@relay.route(kinds=['timer_tick'])\ndef tick(event): return False")
    monkeypatch.setenv("RELAY_BROKER_IDLE", "0.1")
    with broker_process(home) as broker:
        wait_for_broker(home)
        with pytest.raises(subprocess.TimeoutExpired):
            broker.wait(1)  # ten times as long as it waits for somebody
        with connect(home) as client:
            client.request(HOOK_SWITCH, hook="tick", on=False)
        assert broker.wait(20) == 0


async def test_a_hot_worker_that_has_ended_refuses_what_it_is_asked_and_the_next_one_answers(
    home: Home,
) -> None:
    """A question may reach a worker after its end: whoever asked must not wait for ever."""
    echo = (
        "import json, os, socket\n"
        "channel = socket.socket(fileno=0)\n"
        "channel.sendall(b'{\"ready\": {}}\\n')\n"
        "for line in channel.makefile('rb'):\n"
        "    asked = json.loads(line)\n"
        "    if asked['do'] == 'die': os._exit(3)\n"
        "    said = json.dumps({'id': asked['id'], 'said': asked['do']})\n"
        "    channel.sendall(said.encode() + b'\\n')"
    )
    home.create()
    command = (sys.executable, "-c", echo)
    kind = WorkerKind("k", "a test", command, home.root, "test.log", idle=60.0)

    log = LineLog()
    pool = WorkerPool(home, log)
    first = pool.get(kind)
    assert pool.get(kind) is first
    assert (await first.ask({"do": "one"}))["said"] == "one"
    for _ in range(2):
        with pytest.raises(RelayError, match="its worker ended with status 3") as raised:
            await first.ask({"do": "die"})
        assert raised.value.code == "worker_ended"
    assert log.lines == ["the worker of a test ended with status 3: see test.log"]
    second = pool.get(kind)
    assert (await second.ask({"do": "two"}))["said"] == "two"
    other = pool.get(replace(kind, idle=30.0))  # another kind takes its place
    assert second.leaving and pool.running("k") == [other]
    await pool.close()
