"""From an event to the runs of automations and what follows: a broker, its workers, the ledger."""

from __future__ import annotations

import json
import os
import random
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from relay.broker import committer
from relay.broker.client import BrokerClient, connect
from relay.broker.loop_guard import LoopGuard
from relay.broker.ops_messages import OF_SESSIONS
from relay.core.dispatch import Event
from relay.core.errors import RelayError, StorageError, Timeout
from relay.core.ids import new_ulid
from relay.core.message import HeldFor
from relay.core.paths import Home
from relay.features.automations import automation_rows, automation_runs, automations, run_queues
from relay.features.automations.automation_rows import AutomationStatus, RegisteredVersion
from relay.features.automations.automation_runner import AutomationRunner, RunAnswer
from relay.features.automations.automation_runs import SeenEvent, SeenEvents
from relay.features.automations.definition import Definition
from relay.features.automations.ops import (
    AUTOMATION_DELETE,
    AUTOMATION_DISABLE,
    AUTOMATION_ENABLE,
    AUTOMATION_RUNS,
    AUTOMATION_UPDATE,
)
from relay.features.personas import dispatch_rows, evaluation
from relay.features.personas.ops import DISPATCH, PERSON_ADD
from relay.ledger.store import Ledger
from relay.protocol.agent_ops import AGENT_STATE
from relay.protocol.message_ops import CANCEL, EVENT, SEND, STATE
from tests.broker.fixtures import Configure
from tests.broker.support import broker_thread, decide, kill_broker, register
from tests.features.personas.broker.test_evaluation import outside, rows
from tests.features.personas.broker.test_turn_engine import Persona, inbox
from tests.support import unchecked, wait_until

Json = dict[str, Any]

KILLS = int(os.environ.get("RELAY_KILLS", "1"))
_FILE = """
from relay import Automation, AutomationResult
{code}
automation = Automation(name={name!r}, description="a test's", handler=handler, **{fields!r})
"""


def install(home: Home, name: str, code: str, folder: str | None = None, **fields: Any) -> str:
    """Register an automation whose handler ``code`` defines, as the broker's op does; no broker
    runs. Returns its id."""
    home.create()
    source = _FILE.format(name=name, code=code, fields=fields)
    told = Definition.of({"name": name, "description": "a test's", **fields}).to_json()
    version = RegisteredVersion(f"/{name}.py", "0" * 64, source, told, "a test")
    id_ = new_ulid(1)
    with closing(Ledger(home.ledger)) as ledger:
        ledger.begin()
        automation_rows.add(ledger, id_, name, AutomationStatus.ACTIVE, folder, version, 1)
        ledger.commit()
    return id_


def ran(home: Home, runs: int, seconds: float = 20.0) -> list[Json]:
    """The runs, in the order in which they were stored, once there are so many and nothing is
    due."""
    names = ("body", "name", "fired", "retry", "error", "result", "log")

    def done() -> bool:
        [(due,)] = rows(home, "SELECT count(*) FROM due")
        return not due and rows(home, "SELECT count(*) FROM automation_runs")[0][0] >= runs

    wait_until(done, seconds, what=f"{runs} runs")
    found = rows(
        home,
        "SELECT e.body, a.name, r.fired, r.retry, r.error, r.result_json, r.log"
        " FROM automation_runs r JOIN events e ON e.seq = r.event"
        " JOIN automations a ON a.id = r.automation ORDER BY r.seq",
    )
    return [dict(zip(names, row, strict=True)) for row in found]


def dispatched(home: Home) -> list[tuple[Any, ...]]:
    """What follows: (hook, persona, session, prompt, data)."""
    found = rows(
        home, "SELECT hook_id, persona, session, context_json FROM dispatches ORDER BY seq"
    )
    told = [json.loads(one[-1]) for one in found]
    return [
        (*one[:3], said.get("system_prompt"), said.get("extracted"))
        for one, said in zip(found, told, strict=True)
    ]


def test_what_fires_becomes_a_dispatch_and_each_run_is_kept(home: Home) -> None:
    install(
        home,
        "codes",
        "def handler(ctx):\n"
        "    ctx.log.info('seen %s', ctx.principal.name)\n"
        "    return AutomationResult(fire='code' in ctx.event.content, agent='atlas',"
        " context={'prompt': 'help', 'data': {'from': ctx.event.sender}})",
        triggers={"event": {"channels": ["mail"]}},
    )
    install(home, "other", "def handler(ctx): return True", triggers={"event": {"types": ["x"]}})
    with broker_thread(home), connect(home) as client:
        client.request(EVENT, outside=outside("1", "your code"))
        client.request(EVENT, outside=outside("2", "hello"))
        client.request(EVENT, outside={**outside("3", "hello"), "channel": "sms"})
        found = ran(home, 2)
    assert [(one["body"], one["fired"]) for one in found] == [("your code", 1), ("hello", 0)]
    assert "seen mom@x" in found[0]["log"]
    assert dispatched(home) == [
        ("automation/codes", "atlas", "mail:dm:mom@x", "help", {"from": "mom@x"})
    ]


def test_an_answer_that_is_exactly_the_quiet_text_is_recorded_and_goes_nowhere(home: Home) -> None:
    install(
        home,
        "watch",
        "def handler(ctx): return AutomationResult(fire=True, agent='atlas',"
        " quiet_when='NOTHING', delivery_context={'channel': 'relay'})",
        triggers={"event": {"channels": ["mail"]}},
    )
    said = ["NOTHING\n", "NOTHING new but this"]
    with broker_thread(home), connect(home) as client:
        atlas = Persona(home)
        for number, text in enumerate(said):
            client.request(EVENT, outside=outside(str(number)))
            atlas.answer(atlas.next()["id"], text=text)
        wait_until(lambda: inbox(client) == [("atlas", said[1])], what="the answer that is news")
        atlas.client.close()
    answers = (
        "SELECT content, state, open, delivery_json LIKE '%quiet%' FROM answers ORDER BY rowid"
    )
    assert rows(home, answers) == [(said[0], "quiet", 0, 0), (said[1], "sent", 0, 0)]


def test_blocking_ones_run_by_priority_before_all_else_and_what_they_add_travels_with_it(
    home: Home, configure: Configure
) -> None:
    """With the dispatches of route functions, and of those that do not block."""
    configure("@relay.route\ndef late(event): return HookResult(True, HookRouting('atlas'))")
    slow = "import time\ndef handler(ctx):\n    time.sleep(0.2)\n    return {'enrich': "
    install(home, "low", slow + "{'by': 'low', 'low': 1}}", blocking=True, priority=1)
    both_at_once = "{'by': 'high', 'high': 1}, 'fire': True, 'agent': 'eve', 'disable': True}"
    install(home, "high", slow + both_at_once, blocking=True, priority=2)
    fires = "def handler(ctx): return {'fire': True, 'agent': 'bob', 'context': {'data': {'x': 1}}}"
    install(home, "plain", fires, priority=3)
    with broker_thread(home), connect(home) as client:
        client.request(EVENT, outside=outside("1"))
        found = ran(home, 3)
    assert [one["name"] for one in found] == ["high", "low", "plain"]
    both, session = {"by": "high", "high": 1, "low": 1}, "mail:dm:mom@x"
    assert sorted(dispatched(home), key=lambda one: one[1]) == [
        ("user/late", "atlas", session, None, both),
        ("automation/plain", "bob", session, None, {**both, "x": 1}),
        ("automation/high", "eve", session, None, {"by": "high", "high": 1}),
    ]


def test_a_blocking_one_that_hangs_holds_an_event_up_until_its_deadline(
    home: Home, configure: Configure
) -> None:
    configure("@relay.route\ndef late(event): return True")
    hangs = "import time\ndef handler(ctx): time.sleep(60)"
    install(home, "hangs", hangs, blocking=True, deadline=0.3)
    with broker_thread(home), connect(home) as client:
        client.request(EVENT, outside=outside("1"))
        [run] = ran(home, 1)
        wait_until(lambda: dispatched(home), what="the route function's dispatch")
    assert "did not end within 0.3 s" in run["error"]


ADDS = "def handler(ctx): return {'enrich': {'flight': 'UA123', 'to': ctx.event.metadata['to']}}"
SLEEPS = "import time\ndef handler(ctx): time.sleep(60)"


def handed_over(agent: BrokerClient) -> Json:
    """What the session is told as its agent gets the next message."""
    while (push := agent.next_push(20)) is None or push["push"] != "deliver":
        assert push is not None
    answer = agent.request(STATE, id=push["id"], state="delivering", presence=True)
    return cast(Json, answer)


@pytest.mark.parametrize("op", ["dispatch", "send"])
def test_what_is_added_reaches_what_the_person_asks_a_persona(
    home: Home, configure: Configure, op: str
) -> None:
    """Which is asked once, though an automation fires to it."""
    configure("config = {'personas': {'atlas': {'command': 'true', 'mode': 'headless'}}}")
    install(home, "adds", ADDS, blocking=True)
    install(home, "fires", "def handler(ctx): return {'fire': True, 'agent': 'Atlas'}")
    with broker_thread(home), connect(home) as client:
        if op == "send":
            client.request(SEND, to="atlas", body="go")
        else:
            client.request(DISPATCH, persona="atlas", body="go", extracted={"to": "Oslo"})
        ran(home, 2)
    to = ["atlas"] if op == "send" else "Oslo"  # what was said with it counts more
    assert dispatched(home) == [
        ("relay/dispatch", "atlas", "main", None, {"flight": "UA123", "to": to})
    ]


def test_a_persona_is_asked_once_what_is_added_is_known_or_the_time_is_up(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(home, "adds", ADDS, blocking=True, priority=1)
    with broker_thread(home), connect(home) as client:
        atlas = Persona(home)
        client.request(DISPATCH, persona="atlas", body="go")
        asked = atlas.next()
        assert '{"flight": "UA123", "to": ["atlas"]}' in asked["body"]
        atlas.answer(asked["id"])
        atlas.client.close()
    install(home, "sleeps", SLEEPS, blocking=True)
    for module in (dispatch_rows, automations):
        monkeypatch.setattr(module, "ORDER_WAIT_MS", 500)
    with broker_thread(home), connect(home) as client:
        atlas = Persona(home, run="run-2")
        client.request(DISPATCH, persona="atlas", body="again")
        assert atlas.next()["body"].endswith("again")
        atlas.nothing()
        atlas.client.close()


def test_an_agent_is_told_what_was_added_to_a_message_before_it_gets_that(home: Home) -> None:
    """Whoever wrote it. What is too much in all is left out."""
    slow = "import time\ndef handler(ctx):\n    time.sleep(0.2)\n    return {'enrich': {'n': 1}}"
    install(home, "slow", slow, blocking=True, priority=2)
    install(home, "much", "def handler(ctx): return {'enrich': {'x': 'x' * 5000}}", blocking=True)
    with broker_thread(home), connect(home) as person, register(home, "Bob") as bob:
        with register(home, "Ann", "run-2") as ann:
            ann.request(SEND, to="Bob", body="hi")
            assert json.loads(handed_over(bob)["context"]) == {"n": 1}
        id_ = str(person.request(SEND, to="Bob", body="hello")["id"])
        told = handed_over(bob)
        assert (told["id"], told["attempts"]) == (id_, 1)
        assert json.loads(told["context"]) == {"n": 1}


def test_an_agent_gets_a_message_in_time_whatever_automations_do(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(automations, "MESSAGE_WAIT", 0.3)
    install(home, "sleeps", SLEEPS, blocking=True)
    with broker_thread(home), connect(home) as person, register(home, "Bob") as bob:
        person.request(SEND, to="Bob", body="hi")
        told = handed_over(bob)
        assert told["state"] == "delivering" and "context" not in told
        assert rows(home, "SELECT state FROM due") == [("blocked",)]


def test_a_message_that_waits_for_what_is_added_outlives_the_broker_and_the_session(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not being delivered yet: it can be withdrawn, and counts as no attempt."""
    waits = "import os, time\ndef handler(ctx):\n    while not os.path.exists({path!r}):\n"
    waits += "        time.sleep(0.01)\n    return {{'enrich': {{'n': 1}}}}"
    path = os.path.join(home.root, "go")
    install(home, "waits", waits.format(path=path), blocking=True)
    delivery = "SELECT state, attempts FROM deliveries ORDER BY event"

    def waiting(agent: BrokerClient) -> None:
        while (push := agent.next_push(20)) is None or push["push"] != "deliver":
            assert push is not None
        with pytest.raises(Timeout):
            agent.request(STATE, id=push["id"], state="delivering", presence=True, deadline=0.3)

    with broker_thread(home), connect(home) as person:
        with register(home, "Bob") as bob:
            kept = person.request(SEND, to="Bob", body="hi")["id"]
            taken_back = person.request(SEND, to="Bob", body="no")["id"]
            waiting(bob)
        person.request(CANCEL, id=taken_back)
        assert rows(home, delivery) == [("queued", 0), ("cancelled", 0)]
    with broker_thread(home), register(home, "Bob", "run-2") as bob:
        waiting(bob)
        Path(path).touch()
        ran(home, 2)
        told = bob.request(STATE, id=kept, state="delivering", attempt=1, presence=True)
        assert told["attempts"] == 1 and json.loads(told["context"]) == {"n": 1}


def test_a_one_shot_fires_once_whatever_has_come_meanwhile(home: Home) -> None:
    once = "def handler(ctx): return AutomationResult(fire=True, disable=True)"
    id_ = install(home, "once", once)
    with broker_thread(home), connect(home) as client:
        for number in range(20):
            client.request(EVENT, outside=outside(str(number)))
        assert len(ran(home, 1)) == 1
    assert len(dispatched(home)) == 1
    status = rows(home, f"SELECT status, reason FROM automations WHERE id='{id_}'")
    assert status == [("disabled", "it disabled itself")]


def test_one_runs_for_one_event_at_a_time_and_keeps_what_it_has_counted(home: Home) -> None:
    counts = (
        "import time\ndef handler(ctx):\n    seen = ctx.state.get('seen', 0)\n"
        "    time.sleep(0.002)\n    ctx.state['seen'] = seen + 1\n"
        "    return {'fire': False, 'enrich': {'seen': seen}}"
    )
    install(home, "counts", counts)
    with broker_thread(home), connect(home) as client:
        for number in range(20):
            client.request(EVENT, outside=outside(str(number), str(number)))
        found = ran(home, 20)
    assert [(int(one["body"]), json.loads(one["result"])["enrich"]["seen"]) for one in found] == [
        (number, number) for number in range(20)
    ]


BREAKS = "def handler(ctx): return 1 / 0 if 'bad' in ctx.event.content else False"


def test_a_circuit_opens_after_five_errors_and_one_probe_closes_or_opens_it_anew(
    home: Home,
) -> None:
    """It outlives the broker; what comes while it is open is counted, and not run later."""
    id_ = install(home, "breaks", BREAKS)
    circuit = f"SELECT errors, opened_ms IS NOT NULL, skipped FROM automations WHERE id='{id_}'"

    def more(*contents: str) -> None:
        with broker_thread(home), connect(home) as client:
            for content in contents:
                client.request(EVENT, outside=outside(new_ulid(1), content))
            wait_until(
                lambda: rows(home, "SELECT count(*) FROM due") == [(0,)], what="all to be done"
            )

    def five_minutes_pass() -> None:
        with closing(Ledger(home.ledger)) as ledger, ledger.guard() as db:
            ledger.begin()
            db.execute("UPDATE automations SET opened_ms = opened_ms - 300001")
            ledger.commit()

    more("bad", "bad", "bad", "bad", "good", *["bad"] * 5, "good", "bad", "good")
    assert rows(home, circuit) == [(5, 1, 3)]
    more("good")
    assert rows(home, circuit) == [(5, 1, 4)]
    five_minutes_pass()
    more("bad", "good")
    assert rows(home, circuit) == [(6, 1, 5)]
    five_minutes_pass()
    more("good", "bad")
    assert rows(home, circuit) == [(1, 0, 5)]
    errors = [one["error"] is not None for one in ran(home, 13)]
    assert errors == [True] * 4 + [False] + [True] * 6 + [False, True]


def documented() -> dict[str, tuple[str, str]]:
    """What docs/broker.md says of each kind of event: who sees it, route functions, automations."""
    page = Path(__file__).parents[4] / "docs" / "broker.md"
    found: dict[str, tuple[str, str]] = {}
    for line in page.read_text().partition("| kind | when |")[2].splitlines()[2:]:
        if not line.startswith("|"):
            break
        kinds, *_, routes, ours = (cell.strip() for cell in line.strip("|").split("|"))
        for kind in kinds.split(", "):
            found[kind.strip("`")] = routes, ours
    return found


def test_the_table_of_kinds_says_which_events_handlers_see(
    home: Home, configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that sessions tell, the clock, the person and others."""
    kinds = documented()
    names = sorted({*kinds, "note"} - {"any other"})
    configure(
        "@relay.route\ndef all(event): return False\n"
        f"@relay.route(kinds={names!r})\ndef named(event): return False"
    )
    never = "def handler(ctx): return False"
    install(home, "all", never)
    install(home, "named", never, triggers={"event": {"types": names}})
    with (
        broker_thread(home),
        connect(home) as person,
        register(home, "Ann", "a") as ann,
        register(home, "Bob", "b") as bob,
    ):
        for kind in OF_SESSIONS - {"timer_tick", "unanswered"}:
            bob.request(EVENT, kind=kind, body="x")
        ann.request(EVENT, kind="note", body="x")
        person.request(DISPATCH, persona="nobody-yet", body="x")
        with monkeypatch.context() as guarded:
            guarded.setattr(LoopGuard, "check", lambda *_: (HeldFor.RATE, "held, for once"))
            ann.request(SEND, to="Bob", body="x")
        decide(person, "yes")
        ann.request(SEND, to="Bob", body="x", answer=True)
        bob.request(AGENT_STATE, state="gone")  # it is unanswered
        wait_until(
            lambda: {"timer_tick", "unanswered"} <= {one for (one,) in rows(home, _KINDS)},
            what="a tick of the clock",
        )
        ran(home, 1)
    stored = {kind for (kind,) in rows(home, _KINDS)}
    assert stored == set(names)
    for column, seen in enumerate((_SEEN_BY_ROUTES, _SEEN_BY_AUTOMATIONS)):
        told = {kind: kinds.get(kind, kinds["any other"])[column] for kind in names}
        by = {name: {one[1] for one in rows(home, seen) if one[0] == name} for name in _SEEING}
        assert by["all"] == {kind for kind in names if told[kind] == "yes"}
        assert by["named"] == {kind for kind in names if told[kind] != "no"}


_SEEING = ("all", "named")
_KINDS = "SELECT DISTINCT kind FROM events"
_SEEN_BY_ROUTES = (
    "SELECT DISTINCT replace(v.hook_id, 'user/', ''), e.kind FROM evaluations v"
    " JOIN events e ON e.seq = v.event"
)
_SEEN_BY_AUTOMATIONS = (
    "SELECT DISTINCT a.name, e.kind FROM automation_runs r JOIN events e ON e.seq = r.event"
    " JOIN automations a ON a.id = r.automation"
)


def test_a_project_s_own_run_for_its_agents_alone_and_mean_its_personas(
    home: Home, tmp_path: Path, configure: Configure
) -> None:
    shop = tmp_path / "shop"
    configure("", shop)
    install(home, "shop", "def handler(ctx): return True", folder=str(shop))
    with broker_thread(home), connect(home) as person:
        for name, cwd in (("Inside", shop / "src"), ("Outside", tmp_path), ("Like", f"{shop}-2")):
            with register(home, name, run=name, cwd=str(cwd)) as agent:
                agent.request(EVENT, kind="match", body=name)
        person.request(EVENT, outside=outside("1"))
        found = ran(home, 1)
    assert [one["body"] for one in found] == ["Inside"]
    [(config,)] = rows(home, "SELECT config FROM dispatches")
    assert config.startswith("shop-")


def test_principals_are_those_of_the_persons_table(home: Home) -> None:
    family = {"principal": {"relationship": "family"}, "event": {"direction": "received"}}
    told = "def handler(ctx): return {'enrich': {'who': vars_of(ctx.principal)}}\n"
    told += "def vars_of(who): return [str(who.type), who.name, who.relationship]"
    install(home, "family", told, triggers=family)
    install(home, "moms", told, triggers={"principal": {"name": "mom"}})
    install(home, "agents", told, triggers={"principal": {"type": "agent"}})
    install(home, "owner", told, triggers={"principal": {"type": "owner"}})
    with broker_thread(home), connect(home) as person:
        person.request(PERSON_ADD, name="Mom", relationship="family", addresses=[["mail", "mom@x"]])
        person.request(EVENT, outside=outside("1", "from mom"))
        stranger = {"sender": "eve@x", "sender_name": "Mom"}  # proves nothing
        person.request(EVENT, outside={**outside("2", "from another"), **stranger})
        with register(home, "Ann") as agent:
            agent.request(EVENT, kind="match", body="from ann")
        person.request(EVENT, kind="note", body="from me")
        found = ran(home, 4)
    who = {one["body"]: json.loads(one["result"])["enrich"]["who"][:2] for one in found}
    assert who["from mom"] == ["known", "Mom"] and who["from ann"] == ["agent", "Ann"]
    assert sorted(one["name"] for one in found) == ["agents", "family", "moms", "owner"]


def test_without_an_agent_the_persona_of_the_session_is_meant(home: Home) -> None:
    install(home, "fires", "def handler(ctx): return True")
    with broker_thread(home), connect(home) as client:
        client.request(EVENT, outside=outside("1"))
        ran(home, 1)
    with closing(Ledger(home.ledger)) as ledger, ledger.guard() as db:
        ledger.begin()
        db.execute(
            "INSERT INTO agent_sessions (id, source, persona, label, created_ms, updated_ms)"
            " VALUES ('s', 'relay', 'atlas', 'mail:dm:mom@x', 1, 1)"
        )
        ledger.commit()
    with broker_thread(home), connect(home) as client:
        client.request(EVENT, outside=outside("2"))
        ran(home, 2)
    assert [one[1] for one in dispatched(home)] == ["default", "atlas"]


def test_a_killed_broker_runs_what_has_no_result_again_and_marks_it(home: Home) -> None:
    """SIGKILL while they run, again and again: each event is evaluated, dispatched and counted once
    by each."""
    counts = "import time\ndef handler(ctx):\n    time.sleep(0.02)\n"
    counts += "    ctx.state['seen'] = ctx.state.get('seen', 0) + 1\n    return True"
    for name, blocking in (("first", True), ("second", True), ("third", False), ("fourth", False)):
        install(home, name, counts, blocking=blocking)

    def runs() -> int:
        return int(rows(home, "SELECT count(*) FROM automation_runs")[0][0])

    for kill in range(KILLS):
        with connect(home) as client:
            for number in range(kill * 10, kill * 10 + 10):
                client.request(EVENT, outside=outside(str(number), str(number)))
            enough = range(runs() + 6)
            wait_until(partial(lambda few: runs() not in few, enough), what="some runs")
        kill_broker(home)
    with connect(home):
        found = ran(home, KILLS * 40, 20 + 5 * KILLS)
    pairs = [(one["body"], one["name"]) for one in found]
    assert len(set(pairs)) == len(pairs) == len(dispatched(home)) == KILLS * 40
    assert rows(home, "SELECT DISTINCT value_json FROM automation_state") == [(str(KILLS * 10),)]
    # Of each, at each kill, the one that may have begun.
    retries = [one for one in found if one["retry"]]
    print(f"{KILLS} kills, {len(found)} runs, {len(retries)} retries")
    assert 0 < len(retries) <= KILLS * 4


def test_after_kills_each_order_is_there_once_with_what_is_added(home: Home) -> None:
    slow = "import time\ndef handler(ctx):\n    time.sleep(0.02)\n    return {'enrich': {'n': 1}}"
    install(home, "slow", slow, blocking=True)
    asked = []

    def runs() -> int:
        return int(rows(home, "SELECT count(*) FROM automation_runs")[0][0])

    for kill in range(KILLS):
        with connect(home) as client:
            asked += [
                client.request(DISPATCH, persona="atlas", body=f"{kill} {number}")["id"]
                for number in range(6)
            ]
        few = range(kill * 6 + 2)
        wait_until(partial(lambda few: runs() not in few, few), what="some runs")
        kill_broker(home)
    with connect(home):
        ran(home, len(asked))
    assert [id_ for (id_,) in rows(home, "SELECT id FROM dispatches ORDER BY seq")] == asked
    assert {str(one[-1]) for one in dispatched(home)} == {"{'n': 1}"}


def test_a_tick_is_for_whose_schedule_it_is_and_the_minute_s_for_who_asks_for_it(
    home: Home,
) -> None:
    """Who has no triggers gets none, though it is run for every event."""
    tick = {"event": {"types": ["timer_tick"]}}
    told = "def handler(ctx): return False"
    install(home, "minutely", told, triggers=tick)
    install(home, "every", told)
    install(home, "own", told, schedule={"at": "2020-01-01"}, triggers=tick)
    install(home, "other", told, schedule={"at": "2020-01-01"}, triggers=tick)
    with closing(Ledger(home.ledger)) as ledger, ledger.guard() as db:
        ledger.begin()
        db.execute("UPDATE automations SET next_tick_ms=1 WHERE name='own'")
        ledger.commit()
    with broker_thread(home):
        found = ran(home, 2)
    assert sorted(one["name"] for one in found) == ["minutely", "own"]


TELLS = """
import json
for name in ("after_resolve_identity", "after_run_automations"):
    def tell(event, name=name):
        with open({log!r}, "a") as file:
            about = [event.get(key) for key in ("principal", "automations", "dispatches")]
            file.write(json.dumps([name, event["received"]["content"], *about]) + "\\n")
    relay.on(name)(tell)
"""


def test_hooks_of_both_stages_are_told_once_of_each_event_that_automations_may_want(
    home: Home, configure: Configure, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    configure(TELLS.format(log=str(log)))
    install(home, "first", "def handler(ctx): return 1 / 0", blocking=True)
    install(home, "second", "def handler(ctx): return True")
    install(home, "never", "def handler(ctx): return True", triggers={"principal": {"name": "x"}})
    with broker_thread(home), connect(home) as client:
        client.request(EVENT, outside=outside("1", "one"))
        wait_until(lambda: log.exists() and log.read_text().count("\n") == 2, what="both stages")
    told = {name: rest for name, *rest in map(json.loads, log.read_text().splitlines())}
    content, who, *_ = told["after_resolve_identity"]
    assert (content, who["name"]) == ("one", "mom@x")
    content, _, runs, count = told["after_run_automations"]
    assert [(one["name"], one["fired"]) for one in runs] == [("first", False), ("second", True)]
    assert (content, count) == ("one", 1) and "ZeroDivisionError" in runs[0]["error"]


def test_an_update_takes_over_at_the_next_run_and_a_disabled_one_is_run_no_more(
    home: Home, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Of what was due to it nothing is left, also not once it is enabled."""
    monkeypatch.setattr(run_queues, "PAGE_OF_RUNS", 3)
    waits = (
        "import os, time\n"
        "def handler(ctx):\n"
        f"    gate = os.path.join({str(tmp_path)!r}, ctx.event.source_id)\n"
        "    while not os.path.exists(gate): time.sleep(0.01)\n"
        "    return {'enrich': {'is': "
    )
    install(home, "waits", waits + "'old'}}", deadline=60.0)
    versions = "SELECT version, count(*) FROM automation_runs GROUP BY 1 ORDER BY 1"
    with broker_thread(home), connect(home) as client:
        for number in range(30):
            client.request(EVENT, outside=outside(str(number)))
        (tmp_path / "0").touch()
        wait_until(lambda: rows(home, versions), what="a run")
        source = _FILE.format(name="waits", code=waits + "'new'}}", fields={"deadline": 60.0})
        client.request(AUTOMATION_UPDATE, path="/waits.py", source=source)
        (tmp_path / "1").touch()
        (tmp_path / "2").touch()
        wait_until(lambda: len(rows(home, versions)) == 2, what="a run of the new version")
        client.request(AUTOMATION_DISABLE, name="waits", reason="enough")
        wait_until(
            lambda: rows(home, "SELECT count(*) FROM due") == [(0,)], what="nothing to be due"
        )
        assert sum(count for _, count in rows(home, versions)) == 3
        (tmp_path / "last").touch()
        client.request(AUTOMATION_ENABLE, name="waits")
        client.request(EVENT, outside=outside("last", "last"))
        found = ran(home, 4)
    assert [found[-1]["body"], len(found)] == ["last", 4]


def test_an_event_that_cannot_be_matched_at_first_is_stored_and_matched_again(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(home, "fires", "def handler(ctx): return True")
    see, tries = SeenEvents.see, iter([RuntimeError("a fault"), RuntimeError("another")])

    def seldom(self: SeenEvents, event: Event) -> SeenEvent:
        for fault in tries:
            raise fault
        return see(self, event)

    monkeypatch.setattr(SeenEvents, "see", seldom)
    monkeypatch.setattr(committer, "AGAIN_AFTER", 0.05)
    with broker_thread(home), connect(home) as client:
        id_ = client.request(EVENT, outside=outside("1", "one"))["id"]
        client.request(EVENT, outside=outside("2", "two"))
        found = ran(home, 2)
    assert sorted(one["body"] for one in found) == ["one", "two"]
    assert rows(
        home,
        f"SELECT count(*) FROM dispatches d JOIN events e ON e.seq = d.event WHERE e.id='{id_}'",
    ) == [(1,)]


def test_what_is_too_much_to_travel_with_an_event_is_left_out_from_the_least_important_on(
    home: Home,
) -> None:
    for priority, name in enumerate(("low", "high")):
        much = f"def handler(ctx): return {{'enrich': {{{name!r}: 'x' * 40_000}}}}"
        install(home, name, much, blocking=True, priority=priority)
    install(home, "fires", "def handler(ctx): return True")
    with broker_thread(home), connect(home) as client:
        client.request(EVENT, outside=outside("1"))
        ran(home, 3)
    [(*_, extracted)] = dispatched(home)
    assert list(extracted) == ["high"]
    assert "more than 65536 bytes are added to it" in Path(home.broker_log).read_text()


def test_commits_that_fail_lose_nothing_and_do_nothing_twice(
    home: Home, configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three of ten do, whatever they are of."""
    configure("@relay.route\ndef late(event): return HookResult(True, HookRouting('atlas'))")
    counts = "def handler(ctx):\n    ctx.state['seen'] = ctx.state.get('seen', 0) + 1\n"
    counts += "    return {'fire': True, 'enrich': {'seen': 1}}"
    for name, blocking in (("first", True), ("second", True), ("third", False), ("fourth", False)):
        install(home, name, counts, blocking=blocking)
    commit, chance = Ledger.commit, random.Random(1)
    failing = False

    def seldom(self: Ledger) -> None:
        if failing and chance.random() < 0.3:
            raise StorageError("the disk is full")
        commit(self)

    monkeypatch.setattr(Ledger, "commit", seldom)
    for module in (committer, evaluation):
        monkeypatch.setattr(module, "AGAIN_AFTER", 0.01)
    with broker_thread(home), connect(home) as client:
        failing = True
        for number in range(15):
            for _ in range(100):
                with suppress(RelayError):
                    client.request(EVENT, outside=outside(str(number), str(number)))
                    break
        found = ran(home, 60)
        wait_until(lambda: len(dispatched(home)) == 75, what="the dispatches")
        failing = False
    assert len({(one["body"], one["name"]) for one in found}) == len(found) == 60
    assert rows(home, "SELECT DISTINCT value_json FROM automation_state") == [("15",)]
    assert all(one[-1] for one in dispatched(home))  # of the route function, too


@pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "not-blocking"])
def test_what_the_loop_guard_holds_is_evaluated_once_it_is_let_go(
    home: Home, configure: Configure, monkeypatch: pytest.MonkeyPatch, blocking: bool
) -> None:
    """Once, by route functions and automations, though what came later was evaluated before it."""
    configure("@relay.route\ndef every(event): return event.kind == 'message'")
    install(home, "every", "def handler(ctx): return False", blocking=blocking)
    bodies = "SELECT e.body FROM {} t JOIN events e ON e.seq = t.event ORDER BY t.seq"

    def said() -> list[list[str]]:
        found = (rows(home, bodies.format(one)) for one in ("dispatches", "automation_runs"))
        return [[body for (body,) in one] for one in found]

    with ExitStack() as stack:
        stack.enter_context(broker_thread(home))
        person = stack.enter_context(connect(home))
        ann, *_ = [
            stack.enter_context(register(home, name, run=name)) for name in ("Ann", "Bob", "Cid")
        ]
        with monkeypatch.context() as guarded:
            guarded.setattr(LoopGuard, "check", lambda *_: (HeldFor.RATE, "held, for once"))
            no = ann.request(SEND, to=["Bob", "Cid"], body="no")["id"]
            ann.request(SEND, to="Bob", body="go on")
        ann.request(SEND, to="Bob", body="not held")
        evaluated = ["not held"]
        wait_until(lambda: said() == [evaluated] * 2, what="what is not held")
        decide(person, "no", no)
        decide(person, "yes")
        evaluated.append("go on")
        wait_until(lambda: said() == [evaluated] * 2, what="what was let go")
    assert not rows(home, "SELECT * FROM due")


def test_what_follows_from_what_an_agent_says_is_one_hop_further(home: Home) -> None:
    """So the loop guard ends what follows from itself, as with route functions."""
    install(
        home, "fires", "def handler(ctx): return True", triggers={"event": {"types": ["match"]}}
    )
    with (
        broker_thread(home),
        register(home, "Ann", run="a") as ann,
        register(home, "Bob", run="b") as bob,
    ):
        id_ = ann.request(SEND, to="Bob", body="hi")["id"]
        for state in ("delivering", "submitted"):
            bob.request(STATE, id=id_, state=state)
        ann.request(EVENT, kind="match", body="x")
        bob.request(EVENT, kind="match", body="x")
        ran(home, 2)
    assert rows(home, "SELECT hops FROM dispatches ORDER BY event") == [(1,), (2,)]


@pytest.mark.parametrize("blocking", [True, False], ids=["blocking", "not-blocking"])
def test_where_no_worker_can_be_started_now_it_is_run_later(
    home: Home, monkeypatch: pytest.MonkeyPatch, blocking: bool
) -> None:
    install(home, "fires", "def handler(ctx): return True", blocking=blocking)
    run, refusals = AutomationRunner.run, iter([RelayError("no process is left", code="busy")] * 2)

    async def seldom(self: AutomationRunner, *args: Any, **options: Any) -> RunAnswer:
        for refusal in refusals:
            raise refusal
        return await run(self, *args, **options)

    monkeypatch.setattr(AutomationRunner, "run", seldom)
    monkeypatch.setattr(run_queues, "BUSY_AFTER", 0.02)
    with broker_thread(home), connect(home) as client:
        client.request(EVENT, outside=outside("1"))
        [found] = ran(home, 1)
    assert found["fired"] and not found["error"]
    assert Path(home.broker_log).read_text().count("no process is left") == 2


@pytest.mark.parametrize("op", [AUTOMATION_DISABLE, AUTOMATION_DELETE], ids=["off", "deleted"])
def test_one_that_is_switched_off_while_it_runs_holds_nothing_up_any_more(
    home: Home, configure: Configure, op: str
) -> None:
    configure("@relay.route\ndef late(event): return True")
    hangs = "import time\ndef handler(ctx): time.sleep(60)"
    install(home, "hangs", hangs, blocking=True, deadline=60.0)
    install(home, "too", hangs, deadline=60.0)
    with broker_thread(home), connect(home) as client:
        id_ = client.request(EVENT, outside=outside("1"))["id"]
        running = wait_until(
            lambda: client.request(AUTOMATION_RUNS, name="hangs")["running"], what="it to run"
        )
        assert running is not None and running["event"] == id_
        unchecked(client).request(op, name="hangs")
        wait_until(
            lambda: rows(home, "SELECT count(*) FROM automations WHERE begun") == [(2,)],
            what="the other to run",
        )
        unchecked(client).request(op, name="too")
        wait_until(lambda: len(dispatched(home)) == 1, what="the route function's dispatch")
        assert ran(home, 0) == []


def test_a_run_that_cannot_be_stored_at_all_is_in_the_log_and_the_next_one_is_run(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(home, "fires", "def handler(ctx): return True")
    add_run, faults = automation_runs.add_run, iter([ValueError("a fault")] * 3)

    def seldom(*args: Any, **fields: Any) -> None:
        for fault in faults:
            raise fault
        add_run(*args, **fields)

    monkeypatch.setattr(automation_runs, "add_run", seldom)
    with broker_thread(home), connect(home) as client:
        for word in ("one", "two", "three"):
            client.request(EVENT, outside=outside(word, word))
            ran(home, 0)
    assert [(one["body"], one["error"]) for one in ran(home, 2)] == [
        ("two", "what it said cannot be stored: ValueError: a fault"),
        ("three", None),
    ]
    assert Path(home.broker_log).read_text().count("cannot be stored: ValueError") == 3
