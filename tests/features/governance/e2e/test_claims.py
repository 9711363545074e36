"""Two agents in one folder without intents, by the real program."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.hooked import hooked_agent
from tests.e2e.test_handlers import project
from tests.e2e.wrapped import relay_json, wait_registered, wrapped
from tests.features.governance.e2e.test_governance import Agent, reason
from tests.support import wait_until


def row_of(name: str) -> dict[str, object]:
    return next(row for row in relay_json("agents") if row["name"] == name)


def test_what_one_agent_changes_another_is_refused_until_the_turn_is_over(tmp_path: Path) -> None:
    folder = project(tmp_path, 'config = {"claims": "refuse"}\n')
    program = [hooked_agent(tmp_path)]
    with (
        wrapped(program, name="Ann", cwd=folder, size=(24, 2000)) as one,
        wrapped(program, name="Bob", cwd=folder, size=(24, 2000)) as other,
    ):
        ann, bob = Agent(one), Agent(other)
        for name in ("Ann", "Bob"):
            wait_registered(name)
        ann.does(say="hello")
        written = {"file_path": str(folder / "a.py"), "content": "x = 1\n"}
        ann.begins(tool="Write", input=written, until=str(tmp_path / "over"))
        ann.runs()
        wait_until(lambda: row_of("Ann")["reason"] == "holds a.py")
        assert reason(bob.writes(folder / "a.py", "y = 2\n")) == "FILE_LEASED"
        assert bob.writes(folder / "b.py") == "written"
        (tmp_path / "over").touch()
        assert ann.ends() == "written"
        wait_until(lambda: row_of("Ann")["reason"] is None)
        wait_until(lambda: any("Nobody else is changing" in one["body"] for one in told("Bob")))
        assert reason(bob.writes(folder / "a.py", "y = 2\n")) == "STALE_FILE"
        bob.does(tool="Read", input={"file_path": str(folder / "a.py")})
        written = {"file_path": str(folder / "a.py"), "content": "y = 2\n"}
        bob.begins(tool="Write", input=written)
        assert bob.ends() == "written"


def told(name: str) -> list[dict[str, str]]:
    """What relay has told an agent."""
    return [row for row in relay_json("history") if row["to"] == name]
