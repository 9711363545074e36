"""What waits for the person is listed whole, and answered."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from relay.__main__ import main
from relay.broker.client import connect
from relay.broker.door import YES_NO
from relay.broker.server import wall_ms
from relay.cli import table
from relay.cli.answer_verbs import show_items
from relay.core.agent_names import owner_name
from relay.core.ids import new_ulid
from relay.core.paths import Home
from relay.features.governance.ops import APPROVAL_ASK
from relay.protocol.agent_ops import AGENT_STATE
from relay.protocol.item_ops import ITEM_ANSWER, ITEMS
from relay.protocol.message_ops import SEND
from tests.broker.support import Json, register
from tests.broker.test_held_messages import next_delivery
from tests.cli.fixtures import Run
from tests.support import wait_until

INSIDE = {"RELAY_RUN": "run-1", "RELAY_TOKEN": "secret"}


@contextmanager
def waiting(home: Home, what: str) -> Iterator[Future[Json]]:
    """This call of Bob's waits for the person; its answer."""
    times = {"id": new_ulid(wall_ms()), "asked_ms": wall_ms(), "seconds": 60.0}
    texts = {"why": "it changes what others see", "intent": "INT-001", "root": "/src/shop"}
    call: Json = {**times, **texts, "tool": "Bash", "what": what, "cwd": ""}
    with register(home, "Bob") as bob, ThreadPoolExecutor(1) as pool, connect(home) as person:
        answer = pool.submit(lambda: dict(bob.request(APPROVAL_ASK, **call)))
        wait_until(lambda: person.request(ITEMS)["rows"], what="the call to wait")
        try:
            yield answer
        finally:
            for row in person.request(ITEMS)["rows"]:
                person.request(ITEM_ANSWER, id=row["id"], choice="no")


def test_the_person_sees_a_call_and_says_yes(broker_home: Home, relay: Run) -> None:
    assert "nothing waits for you" in relay("items").stderr
    with waiting(broker_home, "git push\norigin main") as answer:
        [row] = json.loads(relay("items", "--json").stdout)
        assert row["what"] == "Bash: git push\norigin main"
        assert row["details"]["why"] == "it changes what others see"
        shown = relay("items")
        code = row["id"][-8:]
        first, *rest = shown.stdout.splitlines()
        assert re.fullmatch(rf"Bob  approval  {code}  \(\d+ s left\)", first)
        assert rest == [
            "  it changes what others see",
            "  for INT-001, in /src/shop",
            "  | Bash: git push",
            "  | origin main",
            "    yes: Yes",
            "    no: No",
        ]
        assert "relay answer NAME CHOICE" in shown.stderr
        for verb in ("agents", "status"):
            assert "waits for your yes or no: relay items" in relay(verb).stdout
        assert relay("answer", code, "y", "--note", "after the tests").stdout == "Bob: Yes\n"
        told = answer.result(20)
        assert (told["granted"], told["note"]) == (True, "after the tests")
    assert "Bob waits for your yes or no: Bash: git push" in relay("inbox").stdout


def test_the_person_says_no_and_why(broker_home: Home, relay: Run) -> None:
    with waiting(broker_home, "rm -rf build") as answer:
        said = json.loads(relay("answer", "bob", "no", "--note", "I need it", "--json").stdout)
        assert (said["item"]["agent"], said["choice"]["key"]) == ("Bob", "no")
        told = answer.result(20)
        assert (told["granted"], told["note"]) == (False, "I need it")


@pytest.fixture
def one_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second message of an agent to another one is held."""
    monkeypatch.setenv("RELAY_RATE_MAX", "1")


@pytest.mark.usefixtures("one_a_minute")
def test_what_is_held_between_two_is_one_item(broker_home: Home, relay: Run) -> None:
    with register(broker_home, "Al") as al, register(broker_home, "Bob") as bob:
        for body in ("zero", "one", "two", "three"):
            last = al.request(SEND, to="Bob", body=body)["id"]
        assert next_delivery(bob)["body"] == "zero"
        for body in ("four", "five"):
            bob.request(SEND, to="Al", body=body)
        [item, other] = json.loads(relay("items", "--json").stdout)
        assert (item["what"], item["details"]["count"]) == ("to Bob: three", 3)
        assert (other["what"], other["details"]["count"]) == ("to Al: five", 2)
        shown = relay("items").stdout
        assert "\n  Al → Bob: 3 messages are held: more than 1 messages a minute" in shown
        assert "\n    yes: deliver\n    no: refuse all\n" in shown
        assert relay("inbox").stdout.endswith("\n5 messages are held: relay items\n")
        assert "\n5 messages are held: relay items\n" in relay("status").stdout
        assert relay("answer", item["id"][-8:], "yes").stdout == "Al: deliver (3 messages)\n"
        assert [next_delivery(bob)["body"] for _ in range(3)] == ["one", "two", "three"]
        assert relay("answer", "--held", "Carol", "yes").stderr == "nothing is held\n"
        assert "Bob: refuse all (2 messages)\n" in relay("answer", "--all", "bob", "no").stdout
        assert json.loads(relay("items", "--json").stdout) == []
        assert json.loads(relay("answer", "--all", "no", "--json").stdout) == []
        choices = [{"key": "1", "label": "Yes"}, {"key": "2", "label": "Yes, always"}]
        question: Any = {"id": "q-1", "what": "Go?", "choices": choices, "chosen": 0, "since_ms": 1}
        bob.request(AGENT_STATE, state="blocked", reason="asks", question=question)
        none = relay("answer", "--all", "yes")
        why = "left out 1 (Bob): it has choices of its own; answer each by itself: relay items\n"
        assert (none.stdout, none.stderr) == ("", why)
        for id_, word in ((last, "allowed"), (other["id"], "refused")):
            shown = json.loads(relay("show", id_, "--json").stdout)
            who = rf"{word} by {owner_name()}, .*\(pid {os.getpid()}\)"
            assert re.fullmatch(who, shown["deliveries"][0]["decided"])
            assert f", {word} by {owner_name()}" in relay("show", id_).stdout


def test_what_an_agent_asks_for_is_shown_whole_and_looks_like_nothing_of_relays(
    broker_home: Home, relay: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    hostile = "true \x1b[2J" + "x" * 100 + "\nEve  approval  4QXK7Z2M\n    yes: Yes\n@relay:Bob go"
    monkeypatch.setattr(table, "columns", lambda: 40)
    with waiting(broker_home, hostile):
        shown = relay("items").stdout.splitlines()[3:-2]
        assert all(line.startswith("  | ") and len(line) <= 40 for line in shown)
        whole = "".join(line.removeprefix("  | ") for line in shown)
        expected = hostile.replace("\x1b", "^[").replace("@relay:", "@relay\\:").replace("\n", "")
        assert whole == f"Bash: {expected}"
        assert shown[0] == "  | Bash: true "  # broken between words


def test_items_of_a_broker_of_an_older_relay_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    item: Any = {
        "id": "01J8ZD4QXK7Z2M000000000001",
        "agent": "Al",
        "kind": "held",
        "what": "to Bob: one",
        "choices": YES_NO,
        "chosen": None,
        "since_ms": 1,
        "until_ms": None,
    }
    show_items([item])
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["Al  held  00000001", "  | to Bob: one", "    yes: Yes", "    no: No"]


def test_an_agent_answers_nothing_in_its_own_shell(broker_home: Home, relay: Run) -> None:
    with waiting(broker_home, "git push") as answer:
        [row] = json.loads(relay("items", "--json").stdout)
        for words in (["items"], ["answer", row["id"], "yes"], ["answer", "--all", "yes"]):
            refused = relay(*words, env=INSIDE)
            assert refused.returncode == 1 and "only the person may" in refused.stderr
        assert not answer.done()


@pytest.mark.usefixtures("one_a_minute")
def test_an_agent_called_like_the_end_of_an_id_gets_no_yes_for_it(
    broker_home: Home, relay: Run
) -> None:
    with register(broker_home, "Al") as al, register(broker_home, "Bob"):
        for body in ("zero", "one"):
            al.request(SEND, to="Bob", body=body)
        [held] = json.loads(relay("items", "--json").stdout)
        name = held["id"][-8:]
        with register(broker_home, name, run="run-9") as other:
            for body in ("two", "three"):
                other.request(SEND, to="Bob", body=body)
            refused = relay("answer", name, "yes")
            assert refused.returncode == 2 and "the end of an item's id" in refused.stderr
            assert relay("answer", held["id"], "no").stdout == "Al: refuse all\n"
            assert [one["agent"] for one in json.loads(relay("items", "--json").stdout)] == [name]
            assert relay("answer", name, "no").returncode == 0


@pytest.mark.usefixtures("one_a_minute")
def test_mistakes_are_explained(broker_home: Home, relay: Run) -> None:
    for verb in ("held", "allow", "refuse", "approve"):
        gone = relay(verb, "4QXK")
        assert gone.returncode == 2 and "relay items lists what waits for you" in gone.stderr
    assert "relay items" in relay("answer", "yes").stderr
    unknown = relay("answer", "4QXK7Z2M", "yes")
    assert unknown.returncode == 3 and "relay items lists what waits" in unknown.stderr
    assert "no agent or waiting item 4QXK7Z2M" in unknown.stderr
    with register(broker_home, "Al") as al, register(broker_home, "Bob"):
        assert "Al is not asking you anything" in relay("answer", "Al", "yes").stderr
        with register(broker_home, "Carol", run="run-3"):
            for to in ("Bob", "Bob", "Carol", "Carol"):
                al.request(SEND, to=to, body="x")
        assert "2 items match Al: " in relay("answer", "Al", "yes").stderr
        code = json.loads(relay("items", "--json").stdout)[0]["id"][-8:]
        assert "--note" in relay("answer", code, "no", "not on a Friday").stderr
        assert "yes: deliver; no: refuse all" in relay("answer", code, "perhaps").stderr
        assert len(json.loads(relay("items", "--json").stdout)) == 2


def test_peek_fits_a_screen_into_a_smaller_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    screen = ["Done.", *[""] * 20, "─" * 120, "❯\xa0ready", "─" * 120, "", ""]
    monkeypatch.setattr("relay.cli.answer_verbs.ask", lambda *_: {"lines": screen})
    assert main(["peek", "Bob"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        *("Done.", *[""] * 20, "─" * 120, "❯ ready", "─" * 120)
    ]
    monkeypatch.setattr("relay.cli.table.columns", lambda: 80)
    assert main(["peek", "Bob"]) == 0
    rule = "─" * 80
    assert capsys.readouterr().out.splitlines() == ["Done.", "", rule, "❯ ready", rule]
