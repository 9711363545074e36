"""What is Codex's own: each fact of docs/agents/codex.md, driven once under ``relay wrap``.

That it is heard exactly and reached once stands in test_hearing.py and test_reaching.py.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from relay.agents.codex.launch import trusted_hash
from tests.e2e.wrapped import kill_session, relay, relay_json
from tests.real_agents import recipes
from tests.real_agents.conversation import AT
from tests.real_agents.model import Fail, Say, ScriptedModel
from tests.real_agents.people import (
    arrived_once,
    bodies_from,
    delivery,
    held_up,
    rest,
    send,
    source_of,
    wait_bodies,
    wait_state,
)
from tests.real_agents.recipes import Options
from tests.real_agents.running import wait_nothing_left
from tests.real_agents.wrapped import Wrapped, room
from tests.support import wait_until

pytestmark = pytest.mark.usefixtures("stop_broker")


def noted(name: str) -> tuple[str, list[str]]:
    """Why an agent is in its state, and what is noted of it."""
    [row] = [row for row in relay_json("status")["agents"] if row["name"] == name]
    return row["reason"] or "", row["notes"]


def test_what_is_the_user_s_own_stays_and_no_daemon_is_left(
    codex: Path, tmp_path: Path, model: ScriptedModel
) -> None:
    marks = tmp_path / "marks"
    marks.touch()
    command = f"echo hook >>{marks}"
    hook = f'{{type="command",command={json.dumps(command)},timeout=5}}'
    trusted = trusted_hash("Stop", {"type": "command", "command": command, "timeout": 5})
    trust = f'"/<session-flags>/config.toml:stop:0:0"={{trusted_hash="{trusted}"}}'
    own = [f"hooks.Stop=[{{hooks=[{hook}]}}]", f"hooks.state={{{trust}}}"]
    options = Options(asks=False, settings={"notify": ["sh", "-c", f"echo notify >>{marks}"]})
    options.arguments = [word for flag in own for word in ("-c", flag)]
    made = recipes.codex(codex, tmp_path / "Ann", model.url, options)
    file = made.settings_file
    prompted = {"type": "command", "command": f"echo file >>{marks}", "timeout": 5}
    table = "\n".join(f"{key} = {json.dumps(value)}" for key, value in prompted.items())
    trusted = trusted_hash("UserPromptSubmit", prompted)
    with file.open("a") as settings:
        settings.write(
            f"[[hooks.UserPromptSubmit]]\n[[hooks.UserPromptSubmit.hooks]]\n{table}\n"
            f'[hooks.state."{file}:user_prompt_submit:0:0"]\ntrusted_hash = "{trusted}"\n'
        )
    before = set_by_the_user(file)
    ann = Wrapped(made, "Ann")
    with ann:
        ann.ready()
        ann.ask("hello there")
        rest(ann, model)
        wait_until(lambda: set(marks.read_text().split()) == {"file", "hook", "notify"})
        assert source_of("Ann") == "structured" and noted("Ann") == ("", [])
        # A trust that was not enough would have asked before everything else.
        assert "Hooks need review" not in ann.terminal.text()
        asked = json.dumps(model.requests[0].body)
        assert asked.count("Your name here is Ann") == 1
        rest(ann, model)
        ann.quit()
        wait_nothing_left(ann.recipe)
    assert set_by_the_user(file) == before
    assert not list(file.parent.glob("*daemon*"))


def set_by_the_user(settings_file: Path) -> dict[str, Any]:
    """All settings but ``tui``, where Codex itself, wrapped or not, notes which tips it showed."""
    settings = tomllib.loads(settings_file.read_text())
    settings.pop("tui", None)
    return settings


def test_a_draft_stays_while_the_queue_brings_a_message(
    codex: Path, tmp_path: Path, model: ScriptedModel
) -> None:
    model.when("MARK-LONG", Say("I have read the long one."))
    model.when("MARK-", Say("I have read it."))
    model.when("be broken off", Say(f"{AT} no: cut off in the middle\n", gate="never", at=30))
    with room(tmp_path, model) as people:
        ann = people.start("Ann", "codex", codex, Options("inline", asks=False))
        # After a turn that was broken off the queue waits for the person's next one.
        ann.ask("please be broken off")
        ann.terminal.wait_for("cut off")
        wait_state("Ann", "busy")
        ann.terminal.type("\x1b")
        wait_state("Ann", "idle")
        ann.terminal.type("half a draft")
        ann.terminal.wait_for("half a draft")
        rested = send("Ann", "MARK-REST now.")
        wait_until(lambda: held_up(rested), 30)
        assert "draft" in delivery(rested)[1]
        ann.terminal.type("\x03")
        arrived_once(model, rested, "MARK-REST now.")
        assert bodies_from("Ann") == []
        rest(ann, model)

        ann.terminal.type("half a draft")
        ann.terminal.wait_for("half a draft")
        # Longer than an argument of a program may be.
        body = "MARK-LONG " + "x" * 200_000 + " its end."
        sent = json.loads(relay("send", "Ann", "-", "--json", stdin=body))["id"]
        wait_until(lambda: model.seen("MARK-LONG"), 60)
        arrived_once(model, sent, body)
        wait_state("Ann", "idle")
        assert "half a draft" in ann.terminal.text()
        # A session that is killed while it waits there does not send it again.
        held = send("Ann", "MARK-AGAIN beside it.")
        wait_until(lambda: delivery(held)[0] == "submitted", 30)
        kill_session(ann.terminal)
        arrived_once(model, held, "MARK-AGAIN beside it.")
        assert "half a draft" in ann.terminal.text()


def test_two_in_one_project_are_heard_apart(
    codex: Path, tmp_path: Path, model: ScriptedModel
) -> None:
    for name in ("Ann", "Ben"):
        model.when(f"{name} speaks", Say(f"{AT} from {name}"))
    with room(tmp_path, model) as people:
        ann = people.start("Ann", "codex", codex, Options(asks=False))
        # The same home and project as Ann's: only the process tells whose file is whose.
        ben = Wrapped(ann.recipe, "Ben")
        people._stack.enter_context(ben)
        ben.ready()
        ann.ask("Ann speaks")
        ben.ask("Ben speaks")
        wait_bodies("Ann", ["from Ann"])
        wait_bodies("Ben", ["from Ben"])
        rest(ann, model)
        assert (bodies_from("Ann"), bodies_from("Ben")) == (["from Ann"], ["from Ben"])


def test_messages_wait_while_the_api_refuses(
    codex: Path, tmp_path: Path, model: ScriptedModel
) -> None:
    model.when("MARK-", Say("I have read it."))
    model.when("too much", Fail(429))
    with room(tmp_path, model) as people:
        ann = people.start("Ann", "codex", codex, Options(asks=False))
        ann.ask("too much")
        wait_state("Ann", "limited")
        assert "rate limit" in noted("Ann")[0]
        sent = send("Ann", "MARK-LATER when it answers again.")
        wait_until(lambda: held_up(sent), 30)
        assert "rate limit" in delivery(sent)[1]
        # The person's own next turn shows that it does.
        ann.ask("MARK-PERSON try again")
        arrived_once(model, sent, "MARK-LATER when it answers again.")
        wait_state("Ann", "idle")
