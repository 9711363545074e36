"""Programs share a memory, with an index in mem0's embedded store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.test_handlers import project
from tests.e2e.wrapped import (
    python,
    relay,
    relay_json,
    say,
    wait_registered,
    wrapped,
)
from tests.features.memory.e2e.test_memory import TALKS, heard, save
from tests.support import wait_until

CONFIG = 'config = {"memory": {"backend": "mem0"}}\n'
FACT = "The staging database is called heron"
SOON = 60.0  # seconds; mem0 alone takes two to begin


@pytest.fixture
def shop(tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project with an index in mem0; the command line works in it."""
    folder = project(tmp_path, CONFIG)
    monkeypatch.chdir(folder)
    yield folder
    relay("broker", "stop", status=None)


def test_one_saves_and_the_other_finds_it(shop: Path, tmp_path: Path) -> None:
    second = tmp_path / "second"
    with wrapped(python(TALKS), name="Ada", cwd=shop) as ada:
        wait_registered("Ada")
        saved = save(ada, FACT, timeout=SOON)
    options = ["--task", "look at the staging database"]
    with wrapped(
        python(TALKS), name="Bob", cwd=shop, env={"HEARD": str(second)}, options=options
    ) as bob:
        wait_registered("Bob")
        bob.type(say("@memory:search where do we keep data before it goes live?\n"))
        bob.wait_for(r"memory: 1 found for .*heron", SOON)
        wait_until(lambda: FACT in heard(second), what="the memory to be read")
        bob.type(say(f"@memory:forget {saved[:5]}\n\n@memory:list\n"))
        bob.wait_for("memory: nothing is saved here yet", SOON)
    stats = relay_json("memory", "stats")
    assert (stats["backend"], stats["count"]) == ("mem0", 0)
