"""Runs one program that asks at the worst moment, with a message on its way to it."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.wrapped import relay, relay_json, wrapped
from tests.support import wait_until

HOSTILE = str(Path(__file__).with_name("hostile.py"))


@dataclass(frozen=True)
class Outcome:
    """What became of one message."""

    seed: int
    state: str
    reason: str
    #: What the program took as input, and what came while it asked.
    submitted: list[str]
    reached: list[str]

    @property
    def false(self) -> bool:
        """Whether it counts as seen though the program never took it."""
        return self.state == "seen" and not self.submitted

    @property
    def twice(self) -> bool:
        """Whether the program has it more than once."""
        return "".join(self.submitted).count("Relay message [") > 1

    @property
    def fault(self) -> bool:
        """Whether anything happened that must not."""
        return bool(self.reached) or self.false or self.twice


def run_one(seed: int, folder: Path) -> Outcome:
    """Wrap the program of this number, send it a message, and wait for its end."""
    log = folder / f"{seed}.log"
    log.write_text("")
    name, body = f"P{seed}", f"message {seed} " + "and more " * (seed % 20)
    argv = [sys.executable, HOSTILE, str(seed), str(log)]
    with wrapped(argv, name=name, size=(40, 100)) as program:
        relay("send", name, body, "--offline")
        program.wait(60)

    def ended() -> bool:
        agents = {agent["name"]: agent["state"] for agent in relay_json("agents")}
        return bool(agents.get(name, "gone") == "gone")

    wait_until(ended, 30, "the end of its session")
    (row,) = [row for row in relay_json("history") if row["to"] == name]
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    submitted = [text for what, text in lines if what == "submitted"]
    reached = [text for what, text in lines if what == "reached"]
    return Outcome(seed, row["state"], row["reason"] or "", submitted, reached)
