"""A message that interrupts: the key goes in while a turn runs, and nowhere else, whoever dies."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from relay.core.paths import Home
from tests.e2e import worker
from tests.e2e.wrapped import (
    Wrapped,
    kill_broker,
    kill_session,
    relay,
    relay_json,
    wait_registered,
    wrapped,
)
from tests.support import wait_until

PROFILE = """
input: {above: '─{8,}', prompt: '> ?', below: '─{8,}'}
dialog: ['Esc to cancel']
busy: ['esc to interrupt']
interrupt: "\\e"
interrupt_shown: ['esc to interrupt']
"""


class Log:
    """What the worker has noted."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def notes(self) -> list[dict[str, str]]:
        text = self._path.read_text() if self._path.exists() else ""
        return [json.loads(line) for line in text.splitlines()]

    @property
    def escapes(self) -> list[str]:
        return [note["esc"] for note in self.notes if "esc" in note]

    def got(self, words: str) -> int:
        """How often a prompt with these words came."""
        return sum(words in note.get("got", "") for note in self.notes)

    def wait_got(self, words: str) -> None:
        wait_until(lambda: self.got(words), 30, words)


@contextmanager
def working(tmp_path: Path) -> Iterator[tuple[Wrapped, Log]]:
    """A wrapped worker called Ann, with its profile."""
    profiles = Path(Home.from_env().profiles)
    profiles.mkdir(parents=True, mode=0o700)
    (profiles / "worker.yaml").write_text(PROFILE)
    log = tmp_path / "log"
    with wrapped([sys.executable, worker.__file__, str(log)], name="Ann") as ann:
        wait_registered("Ann")
        yield ann, Log(log)


def state(name: str) -> Any:
    return next(one["state"] for one in relay_json("agents") if one["name"] == name)


def is_seen(id_: str) -> bool:
    return bool(relay_json("show", id_)["deliveries"][0]["state"] == "seen")


def test_whatever_is_killed_it_stops_one_turn_and_comes_once(tmp_path: Path) -> None:
    with working(tmp_path) as (ann, log):
        for round_ in range(2):
            relay("send", "Ann", f"LONG{round_}")
            log.wait_got(f"LONG{round_}")
            wait_until(lambda: state("Ann") == "busy", 20)
            relay("send", "Ann", f"quick LATER{round_}")
            id_ = relay_json("send", "Ann", f"quick STOP{round_}", "--mode=interrupt")["id"]
            if round_:
                kill_broker()
            kill_session(ann)
            log.wait_got(f"quick LATER{round_}")
            wait_until(partial(is_seen, id_), 30)
        got = [note["got"].split("by relay: ")[1] for note in log.notes if "got" in note]
        assert [words.split(" (End")[0] for words in got] == [
            f"{what}{n}" for n in range(2) for what in ("LONG", "quick STOP", "quick LATER")
        ]
        assert log.escapes == ["working"] * 2


def test_it_waits_for_dialogs_and_drafts_and_goes_to_nobody_at_rest(tmp_path: Path) -> None:
    with working(tmp_path) as (ann, log):
        relay("send", "Ann", "quick START", "--mode=interrupt", "--wait")
        assert log.escapes == [] and log.got("quick START") == 1

        ann.type("LONG and ask\r")
        log.wait_got("LONG and ask")
        wait_until(lambda: state("Ann") == "blocked", 20)
        id_ = relay_json("send", "Ann", "quick STOP", "--mode=interrupt")["id"]

        def held(why: str) -> bool:
            [one] = relay_json("show", id_)["deliveries"]
            return one["state"] == "queued" and why in (one["reason"] or "")

        wait_until(lambda: held("a dialog waits"), 20, "the reason")
        ann.type("y")
        ann.type("my own words")
        wait_until(lambda: held("a draft stands"), 20, "the reason")
        assert log.escapes == []
        ann.type("\x15")
        log.wait_got("quick STOP")
        assert log.escapes == ["working"]
