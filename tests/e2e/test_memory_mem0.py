"""Programs share a memory that mem0 keeps in its embedded store."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e.test_handlers import project
from tests.e2e.test_memory import TALKS, heard, save
from tests.e2e.wrapped import (
    RELAY,
    python,
    relay,
    relay_json,
    say,
    wait_registered,
    wrapped,
)
from tests.support import wait_until

CONFIG = 'config = {"memory": {"backend": "mem0"}}\n'
FACT = "The staging database is called heron"
SOON = 60.0  # seconds; mem0 alone takes two to begin


@pytest.fixture
def shop(tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project that keeps its memories with mem0; the command line works in it."""
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


def test_two_agents_and_the_command_line_at_once(shop: Path) -> None:
    def by_hand(number: int) -> str:
        relay("memory", "search", "fact", status=None)  # 3 while there is nothing yet
        text = f"fact of the person number {number}"
        return str(relay_json("memory", "save", text)["outcome"])

    with (
        wrapped(python(TALKS), name="Ada", cwd=shop) as ada,
        wrapped(python(TALKS), name="Bob", cwd=shop) as bob,
        ThreadPoolExecutor(2) as people,
    ):
        wait_registered("Ada")
        wait_registered("Bob")
        for name, program in (("Ada", ada), ("Bob", bob)):
            facts = "\n\n".join(f"@memory:save fact of {name} number {n}" for n in range(8))
            program.type(say(facts + "\n\n@memory:search fact\n"))
        assert set(people.map(by_hand, range(6))) == {"new"}
        for program in (ada, bob):
            program.wait_for(r"memory: \d+ found for", SOON)
    texts = sorted(row["text"] for row in relay_json("memory", "list", "--limit", "100"))
    assert texts == sorted(
        [f"fact of {name} number {n}" for name in ("Ada", "Bob") for n in range(8)]
        + [f"fact of the person number {n}" for n in range(6)]
    )
    everything = "\n".join(program.output for program in (ada, bob))
    assert not re.search("already accessed|locked|not done", everything)


def test_what_was_confirmed_is_there_after_kills(shop: Path) -> None:
    chance = random.Random(7)
    confirmed: list[str] = []
    for number in range(12):
        text = f"the number of fact {number} is {number}"
        with subprocess.Popen(
            [*RELAY, "memory", "save", "--json", text],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
        ) as saving:
            if number % 3 == 1:
                broker = relay_json("broker", "status")["pid"]
                if broker:
                    try:
                        saving.wait(chance.uniform(0.0, 0.25))
                    except subprocess.TimeoutExpired:
                        os.kill(broker, signal.SIGKILL)
            said, _ = saving.communicate(timeout=SOON)
            if b'"outcome": "new"' in said:
                confirmed.append(text)
    texts = {row["text"] for row in relay_json("memory", "list", "--limit", "100")}
    assert set(confirmed) <= texts and len(confirmed) >= 8
