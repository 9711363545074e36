"""Qwen Code under ``relay wrap``: it is heard once and whole, what it is sent arrives once."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.wrapped import (
    ECHO,
    kill_session,
    python,
    relay,
    relay_json,
    session_pid,
    wrapped,
)
from tests.real_agents.model import Fail, Gate, Say, ScriptedModel, Shell, Think
from tests.real_agents.recipes import Options
from tests.real_agents.running import Running
from tests.real_agents.wrapped import Wrapped, room
from tests.support import found, wait_until

LONG = "please check the tests in the source folder and report back, " * 5 + "for sure"
BLOCK = "first **paragraph**\n\n    indented `code`\n\n```\nfenced\n```\n\nlast \\@ one"
ALL = f"""\
I tell Bob now.

@relay:Bob {LONG}

@relay:Bob the first of two
@relay:Bob the second of two

- @relay:Bob from a list

@relay:Bob **bold** and `code` stay

@relay:Bob <<<
{BLOCK}
>>>

> @relay:Bob not from a quote

    @relay:Bob not from indented code

\\@relay:Bob not what is escaped

Not in a `@relay:Bob sentence`.

```
@relay:Bob not from a fence
```

@relay:Bob before the tool"""
HEARD = [
    LONG,
    "the first of two",
    "the second of two",
    "from a list",
    "**bold** and `code` stay",
    BLOCK,
    "before the tool",
    "at the very end",
]
MANY = "\n".join(
    [*(f"Line {n} of many." for n in range(100)), "", "@relay:Bob in the middle", ""]
    + [*(f"Line {n} of more." for n in range(100)), "", "@relay:Bob after many lines"]
)
COMMAND = "printf '@relay:Bob from a tool\\n\\n'"


@pytest.fixture(autouse=True)
def stop_broker(isolated_home: Path) -> Iterator[None]:
    yield
    relay("broker", "stop", status=None)


@pytest.fixture
def bob() -> Iterator[None]:
    """Somebody who is written to."""
    with wrapped(python(ECHO), name="Bob"):
        yield


def sent() -> list[str]:
    """The bodies of what Qwen Code sent, in order."""
    return [row["body"] for row in relay_json("history") if row["from"] == "Qwen"]


def wait_sent(bodies: list[str]) -> None:
    try:
        wait_until(lambda: sent() == bodies, 30)
    except AssertionError:
        raise AssertionError(f"{sent()}\n{relay('status')}") from None


def about() -> tuple[str, str]:
    """The state of Qwen Code, and why."""
    [row] = [row for row in relay_json("status")["agents"] if row["name"] == "Qwen"]
    return row["state"], row["reason"] or ""


def wait_state(state: str, reason: str = "") -> None:
    try:
        wait_until(lambda: about() == (state, reason), 40)
    except AssertionError:
        raise AssertionError(f"not {state} {reason} but {about()}\n{relay('status')}") from None


def delivery(marker: str) -> tuple[str, str]:
    [row] = [row for row in relay_json("history") if marker in row["body"]]
    return row["state"], row["reason"] or ""


def wait_held(marker: str, reason: str) -> None:
    wait_until(lambda: delivery(marker) == ("held", reason), 30, f"{marker} to be held")


def wait_seen(model: ScriptedModel, marker: str) -> None:
    """Until a message arrived: exactly one request brought it as its newest part."""
    try:
        wait_until(lambda: delivery(marker)[0] == "seen", 60)
    except AssertionError:
        raise AssertionError(f"{marker}: {delivery(marker)}\n{relay('status')}") from None
    wait_until(lambda: model.seen(marker))
    assert len(model.seen(marker)) == 1


def answered(qwen: Running, model: ScriptedModel, marker: str) -> None:
    """Until the turn that ``marker`` began is over."""
    wait_until(lambda: model.seen(marker), 30, f"{marker} to reach the model")
    wait_until(lambda: model.resting, 30)
    qwen.ready()
    wait_state("idle")


def scripted(model: ScriptedModel) -> None:
    model.when("MARK-ALL", Think("Hm.\n\n@relay:Bob only thought\n\nSo."), Say(ALL), Shell(COMMAND))
    model.when_tool(Say("Done.\n\n@relay:Bob at the very end"))
    model.when("MARK-MANY", Say(MANY, chunk=200))
    model.when("MARK-AGAIN", Say("@relay:Bob the same words"))
    model.when("MARK-SIZE", Say("@relay:Bob begun in one size,\n"), Gate("size"), Say("ended so"))
    model.when("MARK-STOP", Say("@relay:Bob whole\n\n@relay:Bob never"), Gate("stop"))
    model.when("MARK-ERROR", Fail(400, "scripted @relay:Bob failure"), times=1)
    model.when("MARK-CLEAR", Say("@relay:Bob in a new conversation"))


@pytest.mark.parametrize(("cols", "rows"), [(80, 24), (120, 40)])
def test_what_it_says_is_heard_once_and_whole(
    qwen: Path, tmp_path: Path, model: ScriptedModel, bob: None, cols: int, rows: int
) -> None:
    scripted(model)
    with room(tmp_path, model) as agents:
        one = agents.start("Qwen", "qwen", qwen, Options(asks=False), cols=cols, rows=rows)
        one.ask("MARK-ALL @relay:Bob typed by the person")
        answered(one, model, "MARK-ALL")
        wait_sent(expected := list(HEARD))
        one.ask("MARK-MANY")
        answered(one, model, "MARK-MANY")
        wait_sent(expected := [*expected, "in the middle", "after many lines"])
        relay("send", "Qwen", "MARK-QUOTE:\n@relay:Bob only quoted", "--wait=60")
        answered(one, model, "MARK-QUOTE")
        for word in ("once", "twice"):
            one.ask(f"MARK-AGAIN {word}")
            answered(one, model, f"MARK-AGAIN {word}")
        wait_sent(expected := [*expected, "the same words", "the same words"])
        one.ask("MARK-SIZE")
        one.terminal.wait_for("begun in")
        one.terminal.resize(cols + 20, rows + 6)
        model.open("size")
        answered(one, model, "MARK-SIZE")
        wait_sent(expected := [*expected, "begun in one size,\nended so"])
        one.ask("MARK-STOP")
        one.terminal.wait_for("never")
        wait_state("busy")
        one.terminal.type("\x1b")
        one.terminal.wait_for("Request cancelled")
        wait_state("idle")
        one.terminal.type("\x15")  # it puts the question back into the input line
        one.ready()
        one.ask("MARK-ERROR")
        one.terminal.wait_for("API Error")
        wait_state("idle")
        one.ready()
        one.ask("/compress")
        one.terminal.wait_match(r"(?i)compress(?:ed|ion)")
        one.ready()
        one.ask("/clear")
        one.terminal.wait_for("Qwen Code (v")  # its head, as at the start
        one.ready()
        one.ask("MARK-CLEAR")
        answered(one, model, "MARK-CLEAR")
        wait_sent([*expected, "whole", "in a new conversation"])
        assert "source structured" in relay("status")


def test_what_it_is_sent_arrives_once(qwen: Path, tmp_path: Path, model: ScriptedModel) -> None:
    model.when("MARK-STREAMING", Say("One line.\n\nTwo"), Gate("busy"))
    model.when("MARK-TOOL", Say("I wait."), Shell("read -r line <fifo"))
    model.when("MARK-DIALOG", Shell("touch made"))
    body = "\n".join(f"MARK-LONG {n} '\"`$(x) \\ {'y' * 80}" for n in range(105))
    relay("send", "Qwen", "MARK-START words", "--offline")
    with room(tmp_path, model) as agents:
        one = agents.start("Qwen", "qwen", qwen)
        os.mkfifo(one.recipe.cwd / "fifo")
        wait_seen(model, "MARK-START")
        answered(one, model, "MARK-START")
        relay("send", "Qwen", body, "--wait=60")
        wait_seen(model, "MARK-LONG 104")
        assert body in model.seen("MARK-LONG 104")[0].last_text

        answered(one, model, "MARK-LONG 104")
        one.ask("MARK-STREAMING")
        one.terminal.wait_for("One line")
        relay("send", "Qwen", "MARK-MEANWHILE words")
        wait_held("MARK-MEANWHILE", "the agent is busy")
        model.open("busy")
        wait_seen(model, "MARK-MEANWHILE")

        answered(one, model, "MARK-MEANWHILE")
        one.terminal.type("half a draft")
        one.terminal.wait_for("half a draft")
        relay("send", "Qwen", "MARK-DRAFT see @README.md, @nothing and me@example.org")
        wait_seen(model, "MARK-DRAFT")
        text = model.seen("MARK-DRAFT")[0].last_text
        assert "see \\@README.md, \\@nothing and me@example.org" in text
        assert "# A project" not in text
        wait_state("idle")
        assert one.terminal.shows(r"^> half a draft\s*$")
        one.terminal.type("\x15")
        one.ready()

        one.ask("MARK-DIALOG")
        one.dialog()
        wait_state("blocked", "asks to use run_shell_command")
        relay("send", "Qwen", "MARK-ASKED words")
        wait_held("MARK-ASKED", "a dialog waits for the person")
        assert not (one.recipe.cwd / "made").exists()
        one.refuse()
        wait_seen(model, "MARK-ASKED")
        assert not (one.recipe.cwd / "made").exists()
        answered(one, model, "MARK-ASKED")

        one.ask("MARK-TOOL")
        one.dialog()
        one.terminal.type("\r")
        # Opening it for writing succeeds once the tool reads it.
        with open(one.recipe.cwd / "fifo", "w") as writer:
            relay("send", "Qwen", "MARK-BESIDE words")
            wait_held("MARK-BESIDE", "the agent is busy")
            writer.write("line\n")
        wait_seen(model, "MARK-BESIDE")
        answered(one, model, "MARK-BESIDE")
        one.quit()
        wait_state("gone")


def test_a_session_that_is_stopped_or_killed_costs_the_agent_and_the_messages_nothing(
    qwen: Path, tmp_path: Path, model: ScriptedModel, bob: None
) -> None:
    model.when("MARK-KILL", Say("@relay:Bob one\n\n"), Gate("kill"), Say("@relay:Bob two\n"))
    model.when("MARK-MANY", Say(MANY, chunk=4), Shell("touch made"))
    model.when("MARK-RESUMED", Say("@relay:Bob when it was resumed"))
    with room(tmp_path, model) as agents:
        one = agents.start("Qwen", "qwen", qwen, Options(asks=False))
        one.ask("MARK-KILL")
        one.terminal.wait_for("one")
        relay("send", "Qwen", "MARK-AFTER words")
        kill_session(one.terminal)
        model.open("kill")
        wait_seen(model, "MARK-AFTER")
        wait_sent(["one", "two"])
        answered(one, model, "MARK-AFTER")
        stopped = found(lambda: session_pid(one.terminal))
        os.kill(stopped, signal.SIGSTOP)
        one.ask("MARK-MANY")
        wait_until(lambda: (one.recipe.cwd / "made").exists(), 30, "the tool after 200 lines")
        assert sent() == ["one", "two"]
        os.kill(stopped, signal.SIGCONT)
        wait_sent(["one", "two", "in the middle", "after many lines"])
        answered(one, model, "MARK-MANY")
        one.quit()
        one.recipe.argv.append("--continue")
        with Wrapped(one.recipe, "Qwen") as again:
            again.ready()
            again.terminal.wait_for("after many lines")
            again.ask("MARK-RESUMED")
            answered(again, model, "MARK-RESUMED")
            wait_sent(["one", "two", "in the middle", "after many lines", "when it was resumed"])


def test_what_is_the_persons_stays_and_the_model_is_told(
    qwen: Path, tmp_path: Path, model: ScriptedModel, bob: None
) -> None:
    model.when("MARK-REFUSED", Fail(401, "bad key"), times=1)
    model.when("MARK-SCREEN", Say("Now.\n\n@relay:Bob read from the screen\n\nDone."))
    arguments = ["--append-system-prompt", "My own words.", "--json-file", "mine.jsonl"]
    with room(tmp_path, model) as agents:
        one = agents.start("Qwen", "qwen", qwen)
        before = one.recipe.settings_file.read_bytes()
        one.ask("MARK-REFUSED")
        wait_state("limited", "the API refuses the account")
        relay("send", "Qwen", "MARK-LATER words")
        wait_held("MARK-LATER", "the API refuses the account")
        one.ready()
        one.ask("MARK-OVER")
        answered(one, model, "MARK-OVER")
        wait_seen(model, "MARK-LATER")
        assert json.dumps(model.requests[0].body).count("Your name here is Qwen") == 1
        one.quit()
        assert one.recipe.settings_file.read_bytes() == before
        assert sorted(p.name for p in one.recipe.cwd.iterdir()) == [".git", "README.md"]
        one.recipe.argv += arguments
        with Wrapped(one.recipe, "Qwen") as again:
            again.ready()
            again.ask("MARK-SCREEN")
            wait_until(lambda: model.seen("MARK-SCREEN"))
            wait_sent(["read from the screen"])
            relay("send", "Qwen", "MARK-TYPED words", "--wait=60")
            wait_seen(model, "MARK-TYPED")
            assert "source screen" in (shown := relay("status"))
            assert "its events go to a file of yours" in shown
            told = json.dumps(model.requests[-1].body)
            assert "My own words." in told
            assert "Your name here is Qwen" in told
        assert '"session_start"' in (one.recipe.cwd / "mine.jsonl").read_text()
