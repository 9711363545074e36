"""Gemini CLI under ``relay wrap``: it is heard once and whole, what it is sent arrives once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.wrapped import ECHO, kill_session, python, relay, relay_json, wrapped
from tests.real_agents.model import Fail, Gate, Say, ScriptedModel, Shell, Think
from tests.real_agents.recipes import AGENTS, Options
from tests.real_agents.wrapped import Room, Wrapped, room
from tests.support import wait_until

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
YOLO = Options(asks=False)


@pytest.fixture(autouse=True)
def stop_broker(isolated_home: Path) -> Iterator[None]:
    yield
    relay("broker", "stop", status=None)


@pytest.fixture
def bob() -> Iterator[None]:
    """Somebody who is written to."""
    with wrapped(python(ECHO), name="Bob"):
        yield


def sent_by(name: str) -> list[str]:
    """The bodies of what this agent sent, in order."""
    return [row["body"] for row in relay_json("history") if row["from"] == name]


def wait_sent(name: str, bodies: list[str]) -> None:
    try:
        wait_until(lambda: sent_by(name) == bodies, 30)
    except AssertionError:
        raise AssertionError(f"{sent_by(name)}\n{relay('status')}") from None


def about(name: str) -> tuple[str, str]:
    """The state of an agent, and why."""
    [row] = [row for row in relay_json("status")["agents"] if row["name"] == name]
    return row["state"], row["reason"] or ""


def wait_state(name: str, state: str) -> None:
    wait_until(lambda: about(name)[0] == state, 40, f"{name} to be {state}")


def delivery(marker: str) -> tuple[str, str]:
    [row] = [row for row in relay_json("history") if marker in row["body"]]
    return row["state"], row["reason"] or ""


def wait_held(marker: str, reason: str) -> None:
    wait_until(lambda: delivery(marker) == ("held", reason), 30, f"{marker} to be held")


def wait_seen(model: ScriptedModel, marker: str) -> None:
    """Until a message arrived: exactly one request brought it as its newest part."""
    wait_until(lambda: delivery(marker)[0] == "seen", 60, f"{marker} to be seen")
    wait_until(lambda: model.seen(marker))
    assert len(model.seen(marker)) == 1


def answered(gem: Wrapped, model: ScriptedModel, marker: str) -> None:
    """Until the turn that ``marker`` began is over."""
    wait_until(lambda: model.seen(marker), 30, f"{marker} to reach the model")
    wait_until(lambda: model.resting, 30)
    gem.ready()
    wait_state(gem.name, "idle")


def scripted(model: ScriptedModel) -> None:
    model.when("MARK-ALL", Think("Hm.\n\n@relay:Bob only thought\n\nSo."), Say(ALL), Shell(COMMAND))
    model.when_tool(Say("Done.\n\n@relay:Bob at the very end"))
    model.when("MARK-MANY", Say(MANY, chunk=200))
    model.when("MARK-AGAIN", Say("@relay:Bob the same words"))
    model.when("MARK-SIZE", Say("@relay:Bob begun in one size,\n"), Gate("size"), Say("ended so"))
    model.when("MARK-STOP", Say("@relay:Bob whole\n\n@relay:Bob never"), Gate("stop"))
    model.when("MARK-ERROR", Fail(400))
    model.when("MARK-CLEAR", Say("@relay:Bob in a new conversation"))


@pytest.mark.parametrize(("cols", "rows"), [(80, 24), (120, 40)])
def test_what_it_says_is_heard_once_and_whole(
    gemini: Path, tmp_path: Path, model: ScriptedModel, bob: None, cols: int, rows: int
) -> None:
    scripted(model)
    with room(tmp_path, model) as agents:
        gem = agents.start("Gem", "gemini", gemini, YOLO, cols=cols, rows=rows)
        gem.ask("MARK-ALL @relay:Bob typed by the person")
        answered(gem, model, "MARK-ALL")
        wait_sent("Gem", expected := list(HEARD))
        gem.ask("MARK-MANY")
        answered(gem, model, "MARK-MANY")
        wait_sent("Gem", expected := [*expected, "in the middle", "after many lines"])
        relay("send", "Gem", "MARK-QUOTE:\n@relay:Bob only quoted", "--wait=60")
        answered(gem, model, "MARK-QUOTE")
        for word in ("once", "twice"):
            gem.ask(f"MARK-AGAIN {word}")
            answered(gem, model, f"MARK-AGAIN {word}")
        wait_sent("Gem", expected := [*expected, "the same words", "the same words"])
        gem.ask("MARK-SIZE")
        gem.terminal.wait_for("begun in")
        gem.terminal.resize(cols + 20, rows + 6)
        model.open("size")
        answered(gem, model, "MARK-SIZE")
        wait_sent("Gem", expected := [*expected, "begun in one size,\nended so"])
        gem.ask("MARK-STOP")
        gem.terminal.wait_for("never")
        wait_state("Gem", "busy")
        gem.terminal.type("\x1b")
        gem.terminal.wait_for("Request cancelled")
        wait_state("Gem", "idle")
        gem.ask("MARK-ERROR")
        gem.terminal.wait_for("API Error")
        wait_state("Gem", "idle")
        gem.ask("/clear")
        gem.terminal.wait_that(lambda: "API Error" not in gem.terminal.text())
        gem.ask("MARK-CLEAR")
        answered(gem, model, "MARK-CLEAR")
        wait_sent("Gem", [*expected, "in a new conversation"])
        assert "source structured" in relay("status")


def test_what_it_is_sent_arrives_once(gemini: Path, tmp_path: Path, model: ScriptedModel) -> None:
    model.when("MARK-STREAMING", Say("One line.\n\nTwo"), Gate("busy"))
    model.when("MARK-TOOL", Say("I wait."), Shell("read -r line <fifo"))
    model.when("MARK-DIALOG", Shell("touch made"))
    body = "\n".join(f"MARK-LONG {n} '\"`$(x) \\ {'y' * 80}" for n in range(105))
    with room(tmp_path, model) as agents:
        gem = begun(agents, gemini)
        wait_seen(model, "MARK-START")
        answered(gem, model, "MARK-START")
        relay("send", "Gem", body, "--wait=60")
        wait_seen(model, "MARK-LONG 104")
        assert body in model.seen("MARK-LONG 104")[0].last_text

        answered(gem, model, "MARK-LONG 104")
        gem.ask("MARK-STREAMING")
        gem.terminal.wait_for("One line")
        relay("send", "Gem", "MARK-MEANWHILE words")
        wait_held("MARK-MEANWHILE", "the agent is busy")
        model.open("busy")
        wait_seen(model, "MARK-MEANWHILE")

        answered(gem, model, "MARK-MEANWHILE")
        gem.terminal.type("half a draft")
        gem.terminal.wait_for("half a draft")
        relay("send", "Gem", "MARK-DRAFT words")
        wait_held("MARK-DRAFT", "a draft stands in the input line")
        assert gem.terminal.shows(" > half a draft$")
        gem.submit()
        wait_seen(model, "MARK-DRAFT")
        assert len(model.seen("half a draft")) == 1

        answered(gem, model, "MARK-DRAFT")
        gem.ask("MARK-DIALOG")
        gem.dialog()
        wait_until(lambda: about("Gem") == ("blocked", "asks to use Shell"))
        relay("send", "Gem", "MARK-ASKED words")
        wait_held("MARK-ASKED", "a dialog waits for the person")
        gem.refuse()
        wait_seen(model, "MARK-ASKED")
        assert not (gem.recipe.cwd / "made").exists()
        answered(gem, model, "MARK-ASKED")
        gem.quit()
        wait_state("Gem", "gone")


def begun(agents: Room, gemini: Path) -> Wrapped:
    """A Gemini CLI that was sent a message before it had drawn anything."""
    relay("send", "Gem", "MARK-START words", "--offline")
    return agents.start("Gem", "gemini", gemini)


def test_two_in_one_project_are_not_mixed_up(
    gemini: Path, tmp_path: Path, model: ScriptedModel, bob: None
) -> None:
    model.when("MARK-ONE", Say("@relay:Bob from the one"))
    model.when("MARK-OTHER", Say("@relay:Bob from the other"))
    model.when("MARK-RESUMED", Say("@relay:Bob from the one again"))
    made = AGENTS["gemini"].recipe(gemini, tmp_path, model.url, Options())
    with Wrapped(made, "One") as one, Wrapped(made, "Other") as other:
        for agent, mark in ((one, "MARK-ONE"), (other, "MARK-OTHER")):
            agent.ready()
            agent.ask(mark)
            answered(agent, model, mark)
        other.ask("/clear")
        wait_sent("One", ["from the one"])
        wait_sent("Other", ["from the other"])
        one.quit()
        session = session_with(made.home, "MARK-ONE")
        made.argv += ["--resume", session]
        with Wrapped(made, "Again") as again:
            again.ready()
            again.ask("MARK-RESUMED")
            answered(again, model, "MARK-RESUMED")
            wait_sent("Again", ["from the one again"])
        assert (sent_by("One"), sent_by("Other")) == (["from the one"], ["from the other"])


def session_with(home: Path, prompt: str) -> str:
    """The id of the conversation in which this was asked."""
    [path] = [p for p in (home / ".gemini").rglob("session-*.jsonl") if prompt in p.read_text()]
    return str(json.loads(path.read_text().split("\n")[0])["sessionId"])


def test_a_killed_session_loses_and_doubles_nothing(
    gemini: Path, tmp_path: Path, model: ScriptedModel, bob: None
) -> None:
    model.when("MARK-KILL", Say("@relay:Bob one\n\n"), Gate("kill"), Say("@relay:Bob two\n"))
    with room(tmp_path, model) as agents:
        gem = agents.start("Gem", "gemini", gemini)
        gem.ask("MARK-KILL")
        gem.terminal.wait_for("one")
        relay("send", "Gem", "MARK-AFTER words")
        kill_session(gem.terminal)
        model.open("kill")
        wait_seen(model, "MARK-AFTER")
        wait_sent("Gem", ["one", "two"])
        kill_session(gem.terminal)
        gem.ask("MARK-LAST")
        answered(gem, model, "MARK-LAST")
        assert sent_by("Gem") == ["one", "two"]


def test_what_is_the_persons_stays_and_the_model_is_told(
    gemini: Path, tmp_path: Path, model: ScriptedModel
) -> None:
    model.when("MARK-REFUSED", Fail(403, "scripted refusal"))
    own = {"ui": {"hideWindowTitle": True}, "context": {"fileName": "NOTES.md"}}
    with room(tmp_path, model) as agents:
        gem = agents.start("Gem", "gemini", gemini, Options(settings=own))
        before = gem.recipe.settings_file.read_bytes()
        gem.ask("MARK-TOLD")
        answered(gem, model, "MARK-TOLD")
        assert json.dumps(model.requests[0].body).count("Your name here is Gem") == 1
        gem.ask("MARK-REFUSED")
        wait_state("Gem", "limited")
        assert about("Gem")[1] == "the API refuses: scripted refusal"
        relay("send", "Gem", "MARK-LATER words")
        wait_held("MARK-LATER", "the API refuses: scripted refusal")
        gem.ready()
        gem.ask("MARK-OVER")
        answered(gem, model, "MARK-OVER")
        wait_seen(model, "MARK-LATER")
        gem.quit()
        assert gem.recipe.settings_file.read_bytes() == before
        assert sorted(p.name for p in gem.recipe.cwd.iterdir()) == [".git", "README.md"]


def test_one_of_an_unknown_version_is_heard_by_its_screen(
    gemini: Path, tmp_path: Path, model: ScriptedModel, bob: None
) -> None:
    model.when("MARK-SCREEN", Say("Now.\n\n@relay:Bob read from the screen\n\nDone."))
    (tmp_path / "gemini").write_text(f'#!/bin/sh\nexec "{gemini}" "$@"\n')
    (tmp_path / "gemini").chmod(0o755)
    with room(tmp_path, model) as agents:
        gem = agents.start("Gem", "gemini", tmp_path / "gemini", options=["--no-primer"])
        gem.ask("MARK-SCREEN")
        answered(gem, model, "MARK-SCREEN")
        wait_sent("Gem", ["read from the screen"])
        relay("send", "Gem", "MARK-TYPED words", "--wait=60")
        wait_seen(model, "MARK-TYPED")
        assert "source screen" in (shown := relay("status"))
        assert "this version: cannot be told" in shown
        assert "Your name here" not in json.dumps(model.requests[0].body)
