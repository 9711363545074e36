"""relay's own texts beside an agent's next prompt: each once, whenever the agent's hook comes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from relay.agents.context_door import TEXTS_MAX, ContextDoor, door_of
from relay.agents.hook_install import giver


def hook(file: Path) -> str:
    """What the agent's hook prints."""
    done = subprocess.run(["sh", "-c", giver(str(file))], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def told(printed: str) -> str:
    output = json.loads(printed)["hookSpecificOutput"]
    assert output["hookEventName"] == "UserPromptSubmit"
    return str(output["additionalContext"])


def test_what_waits_is_told_with_the_next_prompt_and_once(tmp_path: Path) -> None:
    file = tmp_path / "the run's" / "context.json"
    door = ContextDoor(str(file), "UserPromptSubmit")
    assert hook(file) == ""
    assert door.give("first") and door.give("second") and door.give("first")
    assert told(hook(file)) == "first\n\nsecond"
    assert hook(file) == ""
    assert door.give("third")
    assert file.stat().st_mode & 0o777 == 0o600
    assert told(hook(file)) == "third"


def test_of_more_than_there_is_room_for_the_newest_is_told(tmp_path: Path) -> None:
    file = tmp_path / "context.json"
    door = ContextDoor(str(file), "UserPromptSubmit")
    assert door.give("x" * TEXTS_MAX) and door.give("new")
    assert told(hook(file)) == "new"


def test_a_file_that_an_agent_reads_keeps_what_is_in_it(tmp_path: Path) -> None:
    file = tmp_path / "relay.md"
    door = ContextDoor(str(file))
    assert not door.give("no file, no door")
    file.write_text("How to talk.\n")
    assert door.give("memory: x") and not door.tells_once
    assert file.read_text() == "How to talk.\n\nmemory: x\n"
    door.give("y" * TEXTS_MAX)
    assert file.read_text() == "How to talk.\n\nmemory: x\n"


def test_a_plan_that_names_none_has_none() -> None:
    assert door_of({"hooks": True}) is None
