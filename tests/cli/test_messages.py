"""send, inbox, sent, show, history as a user or a script meets them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from typing import Any

import pytest

from relay.broker.client import BrokerClient
from relay.core.agent_names import owner_name
from relay.core.paths import Home
from relay.protocol.agent_ops import AGENT_STATE
from relay.protocol.message_ops import SEND, STATE, TURN
from tests.broker.support import register, stop_broker
from tests.cli.fixtures import Run
from tests.support import unchecked, wait_until

OWNER = owner_name()
FIELDS = ["id", "from", "to", "body", "state", "reason", "mode", "thread", "created_at"]
ISO = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def listed(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    value = json.loads(done.stdout)
    assert isinstance(value, list)
    return value


def deliver(session: BrokerClient) -> dict[str, Any]:
    push = session.next_push(20)
    assert push is not None
    return push


def test_the_id_is_the_only_data(relay: Run) -> None:
    done = relay("send", "Bob", "hello", "--offline")
    assert done.returncode == 0
    assert re.fullmatch(r"[0-9A-Z]{26}\n", done.stdout)
    assert "waiting (nobody is called Bob yet)" in done.stderr


def test_shapes_that_scripts_rely_on(relay: Run) -> None:
    relay("send", "Bob", "hello\nyou", "--offline", "--thread", "t", "--mode", "steer")
    for verb in (("sent",), ("history",), ("inbox", OWNER, "--all")):
        rows = listed(relay(*verb, "--json"))
        if verb[0] == "inbox":
            assert rows == []
            continue
        row = rows[0]
        assert list(row) == [*FIELDS, "updated_at"]
        assert ISO.fullmatch(row["created_at"]) and ISO.fullmatch(row["updated_at"])
        assert (row["from"], row["to"], row["body"]) == (OWNER, "Bob", "hello\nyou")
        assert (row["state"], row["thread"], row["mode"]) == ("waiting", "t", "steer")


def test_wait_says_how_it_ended(relay: Run, broker_home: Home) -> None:
    with register(broker_home, "Bob") as bob:
        for state, reason, status in (("seen", None, 0), ("failed", "no", 4), (None, None, 5)):
            wait = "--wait=0.2" if state is None else "--wait"
            command = [sys.executable, "-m", "relay", "send", "Bob", wait, "x", "--json"]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
                id_ = deliver(bob)["id"]
                if state is not None:
                    bob.request(STATE, id=id_, state=state, reason=reason)
                out, _ = process.communicate(timeout=60)
            assert process.returncode == status
            shown = json.loads(out)
            assert shown["deliveries"][0]["state"] == (state or "queued")
            assert shown["done"] is (state is not None)


def test_answer_prints_what_was_answered(relay: Run, broker_home: Home) -> None:
    turn: dict[str, Any] = {"text": "It is 42.\n\x1b[2JReally.", "started_ms": 1}
    ends: tuple[tuple[dict[str, Any] | None, int, str], ...] = (
        ({"state": "completed", **turn}, 0, "It is 42.\n"),
        ({"state": "failed", "reason": "a limit", "started_ms": 1}, 4, ""),
        (None, 5, ""),
    )
    with register(broker_home, "Bob") as bob:
        for ended, status, text in ends:
            answer = "--answer" if ended else "--answer=0.2"
            command = [sys.executable, "-m", "relay", "send", "Bob", answer, "what?"]
            pipe = subprocess.PIPE
            with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
                id_ = deliver(bob)["id"]
                bob.request(STATE, id=id_, state="seen")
                if ended:
                    bob.request(TURN, ids=[id_], **ended)
                out, err = process.communicate(timeout=60)
            assert process.returncode == status, err
            assert out.startswith(text) and "\x1b" not in out and id_ in err
            assert ("a limit" in err) == (status == 4) and ("not answered" in err) == (status == 5)


def test_who_waits_for_an_answer_is_told_what_keeps_the_agent_from_it(
    relay: Run, broker_home: Home
) -> None:
    with register(broker_home, "Bob") as bob:
        bob.request(AGENT_STATE, state="blocked", reason="asks to use Bash")
        said = relay("ask", "Bob", "what?", "--timeout=0.1").stderr
    how = "relay items shows what it asks; relay answer Bob CHOICE answers it"
    assert f"Bob: blocked (asks to use Bash)\n  {how}\n" in said


def test_text_from_stdin(relay: Run) -> None:
    assert relay("send", "Bob", "-", "--offline", stdin="one\ntwo\n").returncode == 0
    assert relay("send", "Bob", "--offline", stdin="three").returncode == 0
    bodies = [row["body"] for row in listed(relay("history", "--json"))]
    assert bodies == ["one\ntwo", "three"]


@pytest.mark.parametrize(
    ("words", "stdin", "status", "says"),
    [
        (["send", "Bob", "hi"], "", 3, "nobody is called Bob"),
        (["send", "*", "hi"], "", 3, "no agent is running"),
        (["send", OWNER, "hi"], "", 2, "cannot send to yourself"),
        (["send", "Bob", "", "--offline"], "", 2, "empty"),
        (["send", "Bob", "-", "--offline"], "x" * (1 << 20 | 1), 2, "the limit is|more than"),
        (["send", "Bob", "-", "--offline"], "x" * (2 << 20), 2, "more than"),
        (["send", "a b", "hi"], "", 2, "cannot be a name"),
        (["send", "Bob", "hi", "--from", "relay"], "", 2, "cannot be a name"),
        (["send", "Bob", "two", "words"], "", 2, "unexpected argument 'words'"),
        (["send", "Bob", "hi", "--wait=soon"], "", 2, "not a duration"),
        (["send"], "", 2, "TO is missing"),
        (["wait", "Bob"], "", 2, r"WHAT \(idle, blocked.* is missing"),
        (["inbox", "Zed"], "", 3, "nobody is called Zed"),
        (["show", "ZZZZZZ"], "", 3, "there is no message"),
        (["show", "ab"], "", 2, "at least 4"),
        (["history", "--since", "yesterday"], "", 2, "is not a time"),
        (["history", "--limit", "0"], "", 2, "1 to 10000"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_errors_say_what_and_what_next(
    relay: Run, words: list[str], stdin: str, status: int, says: str
) -> None:
    done = relay(*words, stdin=stdin)
    assert done.returncode == status
    first, *rest = done.stderr.splitlines()
    assert first.startswith("relay: ") and re.search(says, first)
    assert rest and rest[0].startswith("  ")
    assert done.stdout == ""
    as_json = relay(*words, "--json", stdin=stdin)
    assert as_json.returncode == status and as_json.stderr == ""
    error = json.loads(as_json.stdout)["error"]
    assert error["code"] and re.search(says, error["message"]) and error["hint"]


def test_a_name_is_written_without_its_pattern(relay: Run) -> None:
    for name in ("@relay:Dan", "@Dan"):
        assert relay("send", name, "hi").stderr.splitlines()[1:] == ["  write Dan"]


def test_a_pipe_gets_all_of_a_text(relay: Run) -> None:
    long = "word " * 50 + "[hi]  there"
    relay("send", "Bob", f"{long}\nend", "--offline")
    for words in (("history", "Bob"), ("history", "--grep", "[hi]"), ("sent",)):
        assert relay(*words).stdout.splitlines()[1].endswith(f"  {long} ⏎ end")


def test_the_inbox_is_seen_once_printed(relay: Run, broker_home: Home) -> None:
    with register(broker_home, "Bob") as bob:
        id_ = bob.request(SEND, to=OWNER, body="done \x1b[2J\x07é")["id"]
        peeked = relay("inbox", "--peek")
        assert "done ^[[2J^Gé" in peeked.stdout and id_ in peeked.stdout
        rows = listed(relay("inbox", "--json"))
        assert [row["body"] for row in rows] == ["done \x1b[2J\x07é"]
        push = deliver(bob)
        assert (push["push"], push["id"], push["state"]) == ("receipt", id_, "seen")
        assert relay("inbox").stderr == f"nothing new for {OWNER}\n"
        for words in (("send", "Bbo", "x"), ("history", "Bbo")):
            unknown = relay(*words)
            assert unknown.returncode == 3 and "did you mean Bob" in unknown.stderr
        assert len(listed(relay("inbox", "--all", "--json"))) == 1


def test_the_inbox_says_in_a_line_what_waits_until_who_asks_has_ended(
    relay: Run, broker_home: Home
) -> None:
    question = {"id": "01J" + "0" * 23, "what": "Go on?", "chosen": 0, "since_ms": 1}
    choices = [{"key": "1", "label": "Yes"}, {"key": "2", "label": "No"}]
    with register(broker_home, "Bob") as bob:
        for state, waits in (("blocked", "1 question waits: relay items\n"), ("gone", "")):
            # What its screen showed last is reported with its end, too.
            unchecked(bob).request(
                AGENT_STATE, state=state, question={**question, "choices": choices}
            )
            assert relay("inbox").stdout == waits
    with register(broker_home, "Bob", "run-2") as bob:
        unchecked(bob).request(
            AGENT_STATE, state="blocked", question={**question, "choices": choices}
        )
        assert "Go on?" in relay("items").stdout
    # It was killed, and its session with it.
    wait_until(lambda: not listed(relay("items", "--json")), what="its question to go")


def test_inside_an_agent_it_speaks_as_the_agent_and_marks_nothing(
    relay: Run, broker_home: Home
) -> None:
    env = {"RELAY_RUN": "run-b", "RELAY_TOKEN": "t"}
    with register(broker_home, "Bob", "run-b", "t") as bob, register(broker_home, "Al") as al:
        assert relay("send", "Al", "from the tool", env=env).returncode == 0
        assert deliver(al)["from"] == "Bob"
        al.request(SEND, to="Bob", body="for Bob")
        deliver(bob)
        rows = listed(relay("inbox", "--json", env=env))
        assert [(row["to"], row["state"]) for row in rows] == [("Bob", "queued")]
        al.request(SEND, to=OWNER, body="for the person")
        assert "only read messages from or to itself" in relay("inbox", OWNER, env=env).stderr
        assert len(listed(relay("inbox", "--json"))) == 1
        assert relay("send", "Al", "x", "--from", "Ann", env=env).returncode == 2
        forged = {**env, "RELAY_TOKEN": "guessed"}
        assert relay("send", "Al", "x", env=forged).returncode == 1


def test_following_prints_what_comes_and_ends_like_any_program(broker_home: Home) -> None:
    command = [sys.executable, "-m", "relay", "inbox", "--follow", "--json"]
    with register(broker_home, "Bob") as bob:
        bob.request(SEND, to=OWNER, body="0")
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for number in range(4):
                assert json.loads(process.stdout.readline())["body"] == f"{number}"
                if number < 3:
                    bob.request(SEND, to=OWNER, body=f"{number + 1}")
                push = deliver(bob)
                assert push["state"] == "seen"
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=30) == -signal.SIGINT
            assert process.stdout.read() == ""


def test_show_has_the_whole_text_and_each_delivery(relay: Run) -> None:
    id_ = relay("send", "Bob,Carol", "line 1\nline 2", "--offline").stdout.strip()
    shown = relay("show", id_[-8:])
    assert shown.stdout.endswith("\nline 1\nline 2\n")
    assert shown.stdout.count("waiting (nobody is called") == 2
    value = json.loads(relay("show", id_, "--json").stdout)
    assert value["to"] == ["Bob", "Carol"] and value["body"] == "line 1\nline 2"


def test_a_closed_pipe_is_no_error(relay: Run, broker_home: Home) -> None:
    for _ in range(3):
        relay("send", "Bob", "x" * 100_000, "--offline")
    with subprocess.Popen(
        [sys.executable, "-m", "relay", "history", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        # Unbuffered, Python itself does not notice that only a part was written.
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        assert process.wait(timeout=30) == 128 + signal.SIGPIPE
        assert process.stderr.read() == b""


def test_a_person_who_follows_survives_the_brokers_death(broker_home: Home) -> None:
    command = [sys.executable, "-m", "relay", "inbox", "--follow", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        with register(broker_home, "Bob") as bob:
            bob.request(SEND, to=OWNER, body="before")
            assert json.loads(process.stdout.readline())["body"] == "before"
        stop_broker(broker_home)
        with register(broker_home, "Bob") as bob:
            bob.request(SEND, to=OWNER, body="after")
            assert json.loads(process.stdout.readline())["body"] == "after"
        process.terminate()
        process.wait(timeout=30)
