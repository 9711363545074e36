"""What is said of wrapped programs whose tool calls cannot reach the configuration's hooks."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.test_handlers import project
from tests.e2e.wrapped import ECHO, python, relay_json, wait_registered, wrapped
from tests.support import wait_until

CONFIG = """
from relay import Relay
relay = Relay()
relay.on("before_tool", print)
"""


def notes() -> list[str]:
    [row] = relay_json("status")["agents"]
    found: list[str] = row["notes"]
    return found


def test_of_a_program_without_hooks_it_is_said_that_they_never_run(tmp_path: Path) -> None:
    more = "".join(f"relay.on({event!r}, print)\n" for event in ("before_agent", "notification"))
    with wrapped(python(ECHO), name="Bob", cwd=project(tmp_path, CONFIG + more)):
        wait_registered("Bob")
        wait_until(lambda: len(notes()) == 2)
        others, gate = sorted(notes())
        assert gate.startswith("tool calls do not reach on_before_tool, and nothing is blocked: ")
        assert gate.endswith("has no hooks of its own for them")
        assert others.startswith("these hooks never run here")
        assert others.endswith(": on_before_agent, on_notification")


def test_nothing_is_said_where_no_hook_is_for_tools(tmp_path: Path) -> None:
    text = CONFIG.replace("before_tool", "idle")
    with wrapped(python(ECHO), name="Bob", cwd=project(tmp_path, text)):
        wait_registered("Bob")
        wait_until(lambda: relay_json("status")["agents"][0]["source"] == "screen")
        assert notes() == []
