"""Qwen Code's own under ``relay wrap``; what all six do is in test_hearing and test_reaching."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.e2e.wrapped import (
    kill_session,
    relay,
    relay_json,
    session_pid,
)
from tests.real_agents.conversation import MANY
from tests.real_agents.model import Fail, Gate, Say, ScriptedModel, Shell
from tests.real_agents.people import (
    answered,
    bodies_from,
    marked,
    wait_about,
    wait_bodies,
    wait_held_up,
    wait_seen,
)
from tests.real_agents.recipes import Options
from tests.real_agents.wrapped import Wrapped, room
from tests.support import found, wait_until

pytestmark = pytest.mark.usefixtures("stop_broker")


def test_a_new_conversation_is_heard(
    qwen: Path, tmp_path: Path, model: ScriptedModel, bob: None
) -> None:
    model.when("MARK-FIRST", Say("@relay:Bob in the first conversation"))
    model.when("MARK-CLEAR", Say("@relay:Bob in a new conversation"))
    with room(tmp_path, model) as agents:
        one = agents.start("Qwen", "qwen", qwen, Options(asks=False))
        one.ask("MARK-FIRST")
        answered(one, model, "MARK-FIRST")
        wait_bodies("Qwen", ["in the first conversation"])
        one.ask("/clear")
        one.terminal.wait_for("Qwen Code (v")  # its head, as at the start
        one.ready()
        one.ask("MARK-CLEAR")
        answered(one, model, "MARK-CLEAR")
        wait_bodies("Qwen", ["in the first conversation", "in a new conversation"])


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
        assert marked(body) in model.seen("MARK-LONG 104")[0].last_text

        answered(one, model, "MARK-LONG 104")
        one.ask("MARK-STREAMING")
        one.terminal.wait_for("One line")
        relay("send", "Qwen", "MARK-MEANWHILE words")
        wait_held_up("MARK-MEANWHILE", "the agent is busy")
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
        wait_about("Qwen", "idle")
        assert one.terminal.matches(r"^> half a draft\s*$")
        one.terminal.type("\x15")
        one.ready()

        one.ask("MARK-DIALOG")
        one.dialog()
        wait_about("Qwen", "blocked", "asks to use run_shell_command")
        relay("send", "Qwen", "MARK-ASKED words")
        wait_held_up("MARK-ASKED", "a dialog waits for the person")
        assert not (one.recipe.cwd / "made").exists()
        assert relay("answer", "Qwen", "no") == "Qwen: No, suggest changes (esc)\n"
        wait_seen(model, "MARK-ASKED")
        assert not (one.recipe.cwd / "made").exists()
        answered(one, model, "MARK-ASKED")

        one.ask("MARK-TOOL")
        one.dialog()
        wait_until(lambda: relay_json("items"))
        relay("answer", "Qwen", "1")
        # Opening it for writing succeeds once the tool reads it.
        with open(one.recipe.cwd / "fifo", "w") as writer:
            relay("send", "Qwen", "MARK-BESIDE words")
            wait_held_up("MARK-BESIDE", "the agent is busy")
            writer.write("line\n")
        wait_seen(model, "MARK-BESIDE")
        answered(one, model, "MARK-BESIDE")
        one.quit()
        wait_about("Qwen", "gone")


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
        wait_bodies("Qwen", ["one", "two"])
        answered(one, model, "MARK-AFTER")
        stopped = found(lambda: session_pid(one.terminal))
        os.kill(stopped, signal.SIGSTOP)
        one.ask("MARK-MANY")
        wait_until(lambda: (one.recipe.cwd / "made").exists(), 30, "the tool after 200 lines")
        assert bodies_from("Qwen") == ["one", "two"]
        os.kill(stopped, signal.SIGCONT)
        wait_bodies("Qwen", ["one", "two", "in the middle", "after many lines"])
        answered(one, model, "MARK-MANY")
        one.quit()
        one.recipe.argv.append("--continue")
        with Wrapped(one.recipe, "Qwen") as again:
            again.ready()
            again.terminal.wait_for("after many lines")
            again.ask("MARK-RESUMED")
            answered(again, model, "MARK-RESUMED")
            wait_bodies(
                "Qwen", ["one", "two", "in the middle", "after many lines", "when it was resumed"]
            )


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
        wait_about("Qwen", "limited", "the API refuses the account")
        relay("send", "Qwen", "MARK-LATER words")
        wait_held_up("MARK-LATER", "the API refuses the account")
        one.ready()
        one.ask("MARK-OVER")
        answered(one, model, "MARK-OVER")
        answered(one, model, "MARK-LATER")
        assert json.dumps(model.requests[0].body).count("Your name here is Qwen") == 1
        one.quit()
        assert one.recipe.settings_file.read_bytes() == before
        assert sorted(p.name for p in one.recipe.cwd.iterdir()) == [".git", "README.md"]
        one.recipe.argv += arguments
        with Wrapped(one.recipe, "Qwen") as again:
            again.ready()
            again.ask("MARK-SCREEN")
            wait_until(lambda: model.seen("MARK-SCREEN"))
            wait_bodies("Qwen", ["read from the screen"])
            relay("send", "Qwen", "MARK-TYPED words", "--wait=60")
            wait_seen(model, "MARK-TYPED")
            assert "source screen" in (shown := relay("status"))
            assert "its events go to a file of yours" in shown
            told = json.dumps(model.requests[-1].body)
            assert "My own words." in told
            assert "Your name here is Qwen" in told
        assert '"session_start"' in (one.recipe.cwd / "mine.jsonl").read_text()
