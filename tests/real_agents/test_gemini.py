"""Gemini CLI's own under ``relay wrap``; what all six do is in test_hearing and test_reaching."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from relay.agents.primer import primer
from tests.e2e.wrapped import ECHO, process_below, python, relay, relay_json, wrapped
from tests.real_agents.model import Fail, Gate, Say, ScriptedModel
from tests.real_agents.recipes import AGENTS, Options
from tests.real_agents.running import Running
from tests.real_agents.wrapped import Wrapped, room
from tests.support import found, wait_until


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


def answered(gem: Running, model: ScriptedModel, marker: str) -> None:
    """Until the turn that ``marker`` began is over."""
    wait_until(lambda: model.seen(marker), 30, f"{marker} to reach the model")
    wait_until(lambda: model.resting, 30)
    gem.ready()


def kill_session_of(agent: Wrapped) -> None:
    """SIGKILL to the session, and wait for the next one."""
    pump = agent.terminal.pid
    before = found(lambda: process_below(pump, "agent_session"))
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: process_below(pump, "agent_session") not in (None, before))


def test_two_in_one_project_are_not_mixed_up(
    gemini: Path, tmp_path: Path, model: ScriptedModel, bob: None
) -> None:
    model.when("MARK-ONE", Say("@relay:Bob from the one"))
    model.when("MARK-OTHER", Say("@relay:Bob from the other"))
    model.when("MARK-CLEARED", Say("@relay:Bob from a cleared one"))
    model.when("MARK-ANEW", Say("@relay:Bob from a new one"))
    model.when("MARK-RESUMED", Say("@relay:Bob from a resumed one"))
    made = AGENTS["gemini"].recipe(gemini, tmp_path, model.url, Options())
    with Wrapped(made, "One") as one, Wrapped(made, "Other") as other:
        for agent, mark in ((one, "MARK-ONE"), (other, "MARK-OTHER")):
            agent.ready()
            agent.ask(mark)
            answered(agent, model, mark)
        for cleared, mark in ((other, "MARK-CLEARED"), (one, "MARK-ANEW")):
            cleared.ask("/clear")
            wait_cleared(cleared)
            cleared.ask(mark)
            answered(cleared, model, mark)
        relay("send", "Other", "MARK-TYPED words", "--wait=60")
        one.quit()
        # Each is resumed once, the latest first. Resumed in the minute of its start a conversation
        # becomes the latest; in another minute the next Gemini CLI deletes it.
        session = session_with(made.home, "MARK-ONE")
        both = (("latest", "MARK-ANEW"), (session, "MARK-ONE"))
        for number, (resumed, prompt) in enumerate(both):
            before = list(made.argv)
            made.argv += ["--resume", resumed]
            with Wrapped(made, f"Again{number}", rows=50) as again:
                again.terminal.wait_for(f"> {prompt}")
                relay("send", f"Again{number}", f"MARK-FIRST {number} words", "--wait=60")
                again.ready()
                again.ask(f"MARK-RESUMED {resumed}")
                answered(again, model, f"MARK-RESUMED {resumed}")
                wait_sent(f"Again{number}", ["from a resumed one"])
            made.argv[:] = before
        assert sent_by("One") == ["from the one", "from a new one"]
        assert sent_by("Other") == ["from the other", "from a cleared one"]


def wait_cleared(agent: Running) -> None:
    """Until nothing of the conversation is shown any more, and it takes a prompt."""
    agent.terminal.wait_that(lambda: not agent.terminal.shows("MARK-"), what="an empty screen")
    agent.ready()


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
        kill_session_of(gem)
        model.open("kill")
        wait_seen(model, "MARK-AFTER")
        wait_sent("Gem", ["one", "two"])
        kill_session_of(gem)
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
        assert model.requests[0].last_text.count(primer("Gem")) == 1
        gem.ask("MARK-REFUSED")
        wait_state("Gem", "limited")
        assert about("Gem")[1] == "the API refuses: scripted refusal"
        relay("send", "Gem", "MARK-LATER words")
        wait_held("MARK-LATER", "the API refuses: scripted refusal")
        gem.ready()
        gem.ask("MARK-OVER")
        answered(gem, model, "MARK-OVER")
        wait_seen(model, "MARK-LATER")
        relay("send", "Gem", "MARK-WORDS @README.md @property", "--wait=60")
        assert "MARK-WORDS \\@README.md @property (" in model.seen("MARK-WORDS")[0].last_text
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
