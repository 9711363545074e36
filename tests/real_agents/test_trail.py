"""Trajectories with the real ``trail``."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from relay.integrations.trail import Trail, TrailError
from tests.e2e.wrapped import SAY, Wrapped, python, relay, say, wait_registered
from tests.real_agents.conftest import Binary
from tests.real_agents.install import node_folder
from tests.support import wait_until

CONFIG = """
from relay import Relay
from relay.integrations import trail

relay = Relay(task="mend the tests")
trail.use(relay, program={program!r}, patience=3)
"""


@pytest.fixture
def program(binary_of: Binary, monkeypatch: pytest.MonkeyPatch) -> str:
    found = str(binary_of("trail"))
    monkeypatch.setenv("PATH", str(node_folder()), prepend=":")
    return found


@pytest.fixture
def stopped_broker(isolated_home: Path) -> Iterator[None]:
    yield
    relay("broker", "stop", status=None)


def trajectory(folder: Path) -> dict[str, object]:
    """The one that lies in the project, active or not; empty while trail moves it."""
    for file in folder.glob(".agentworkforce/trajectories/**/trajectory.json"):
        with contextlib.suppress(FileNotFoundError, ValueError):
            found: dict[str, object] = json.loads(file.read_text())
            return found
    return {}


def test_what_one_writes_all_find(program: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        ann, bob = (Trail(str(tmp_path), name, program) for name in ("Ann", "Bob"))
        assert await ann.current() is None
        with pytest.raises(TrailError, match="No active trajectory"):
            await ann.run("decision", "too early")
        assert (await ann.start("--mend the tests; $(x)")).startswith("traj_")
        found = await bob.current()
        assert found and found[1] == "--mend the tests; $(x)"
        with pytest.raises(TrailError, match="already active"):
            await bob.start("another")
        # At once: trail rewrites its whole file, so each has to wait for the others.
        await asyncio.gather(
            *(who.run("decision", f"choice {n}") for n in range(4) for who in (ann, bob))
        )
        await bob.run("reflect", "half way")
        await ann.complete("all is well")
        assert await bob.current() is None

    asyncio.run(scenario())
    written = json.dumps(trajectory(tmp_path))
    assert all(written.count(f'"choice {n}"') >= 2 for n in range(4))
    assert "half way" in written and "all is well" in written


def test_a_program_that_is_not_there_is_explained(tmp_path: Path) -> None:
    with pytest.raises(TrailError, match="cannot be run") as caught:
        asyncio.run(Trail(str(tmp_path), "Ann", "/no/trail").current())
    assert "npm install -g agent-trajectories" in caught.value.hint


@pytest.mark.parametrize("how", ["by the agent", "by relay", "exit"])
def test_a_task_begins_one_and_the_end_completes_it(
    program: str, tmp_path: Path, stopped_broker: None, how: str
) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / ".git").mkdir()
    (folder / "relay.config.py").write_text(CONFIG.format(program=program))
    relay("trust", str(folder / "relay.config.py"))
    # An agent that completes its trajectory when it is told to, or one that does not listen.
    source = SAY.replace("eval(line)", "eval(line) if line[0] in '\\'\"' else 'read'")
    if how == "by the agent":
        source += "    if 'ends now' in line: print('@trail:complete I did it\\n', flush=True)\n"
    ann = Wrapped(python(source), name="Ann", cwd=folder)
    try:
        wait_registered("Ann")
        wait_until(lambda: list(folder.glob(".agentworkforce/**/active/*/trajectory.json")))
        ann.type(say("@trail:decision Use a queue\n"))
        ann.wait_for("read")
        wait_until(lambda: "Use a queue" in json.dumps(trajectory(folder)))
        if how == "exit":
            ann.type("\x04")
    finally:
        ann.close()
    wait_until(lambda: trajectory(folder).get("status") == "completed", 40)
    told = json.dumps(trajectory(folder))
    assert "mend the tests" in told
    assert ("I did it" in told) == (how == "by the agent")
    assert ("Ann's session ended" in told) == (how != "by the agent")
