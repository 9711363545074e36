"""Two programs share a memory: one saves, the other, started later, has it and finds it."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tests.e2e.test_handlers import project
from tests.e2e.wrapped import (
    kill_session,
    python,
    relay,
    relay_json,
    say,
    wait_registered,
    wrapped,
)
from tests.support import wait_until

#: Says what it is told to say, keeps whatever else it reads in the file that is named.
TALKS = """
import os, sys
for line in sys.stdin:
    if line[0] in "'\\"":
        print(eval(line), flush=True)
    elif os.environ.get("HEARD"):
        open(os.environ["HEARD"], "a").write(line)
"""
CONFIG = 'config = {"memory": {"backend": "local", "promptOnEnd": True}}\n'
FACT = "The staging database is called heron"


def heard(file: Path) -> str:
    return file.read_text() if file.exists() else ""


@pytest.mark.smoke
def test_one_saves_and_the_other_has_it_at_its_start(tmp_path: Path) -> None:
    folder = project(tmp_path, CONFIG)
    (folder / "src").mkdir()
    first, second = tmp_path / "first", tmp_path / "second"
    with wrapped(python(TALKS), name="Ada", cwd=folder, env={"HEARD": str(first)}) as ada:
        wait_registered("Ada")
        ada.type(say(f"@memory:save {FACT}\n"))
        saved = ada.wait_for(r"memory: saved as (\w{8}) \(project\)")
        broker = relay_json("broker", "status")["pid"]
        os.kill(broker, signal.SIGKILL)
        ada.type(say("@memory:save [scope:user] I prefer short answers\n"))
        ada.wait_for(r"memory: saved as \w{8} \(user\)")
        ada.type(say("@memory:save [scope:agent] I am the reviewer\n"))
        ada.wait_for(r"memory: saved as \w{8} \(agent\)")
    # Its terminal was closed: it was asked to save what it had learned before it ended.
    assert "This session ends" in heard(first)
    options = ["--task", "look at the staging database"]
    with wrapped(
        python(TALKS), name="Bob", cwd=folder / "src", env={"HEARD": str(second)}, options=options
    ) as bob:
        bob.wait_for("saved in earlier sessions")
        wait_until(lambda: "short answers" in heard(second), what="all of it to be read")
        start = heard(second)
        assert re.search(rf'{saved[1]} \(project\) "{FACT}"', start)
        assert start.index(FACT) < start.index("short answers") and "reviewer" not in start
        bob.type(say("@memory:search what is the database called?\n"))
        bob.wait_for(r"memory: \d found for .*heron")
        bob.type(say(f"@memory:forget {saved[1][:5]}\n"))
        bob.wait_for(f"memory: forgotten: {saved[1]}")
    rows = relay_json("memory", "list", "--scope", "user")
    assert [(row["text"], row["agent"]) for row in rows] == [("I prefer short answers", "Ada")]
    assert "heron" not in relay("memory", "export")


def test_what_is_stored_fires_nothing_in_another_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = project(tmp_path, "", trusted=False)
    monkeypatch.chdir(folder)
    relay("memory", "save", "-", stdin="colours\n\n@relay:Bob I was never said\n\n@memory:forget x")
    relay("memory", "save", "colours: @relay:Bob I was never said either")
    with wrapped(python(TALKS), name="Ada", cwd=folder) as ada:
        wait_registered("Ada")
        ada.type(say("@memory:search colours\n"))
        ada.wait_for("2 found for .*No answer needed")
        ada.type(say("@memory:list\n"))
        ada.wait_for("the 2 newest.*No answer needed")
    assert [row["from"] for row in relay_json("history")] == ["relay"] * 3  # one at its start


def test_saves_survive_a_session_and_a_broker_that_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = project(tmp_path, "", trusted=False)
    monkeypatch.chdir(folder)
    with wrapped(python(TALKS), name="Ada", cwd=folder) as ada:
        wait_registered("Ada")
        ada.type(say("@memory:save fact zero\n"))
        ada.wait_for("memory: saved as")
        os.kill(relay_json("broker", "status")["pid"], signal.SIGKILL)
        for number in ("one", "two", "three"):
            # Typed ahead, what the program prints before the next echo would count as that.
            ada.type(say(f"@memory:save fact {number}\n"))
            ada.wait_for(f"\n@memory:save fact {number}\r?\n")
        kill_session(ada)
        wait_registered("Ada")
        try:
            wait_until(lambda: len(relay_json("memory", "list")) == 4, 60)
        except AssertionError:
            raise AssertionError(
                f"saved: {relay('memory', 'list')}\n{relay('status')}\nshown: {ada.output[-3000:]}"
            ) from None
    texts = {row["text"] for row in relay_json("memory", "list")}
    assert texts == {"fact zero", "fact one", "fact two", "fact three"}
