"""Real agents in one governed folder, and what their models read of a refusal.

with governed(tmp_path, model) as project:
    ann = project.start("Ann", "claude", binary)
    told = ann.does(Write(f"{project.root}/README.md", "mine"))
    assert told.reason == "INTENT_REQUIRED"
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, chdir, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from tests.e2e.wrapped import relay, relay_json
from tests.real_agents.install import node_folder
from tests.real_agents.model import Gate, Say, ScriptedModel, Step
from tests.real_agents.people import PATIENCE, wait_state
from tests.real_agents.recipe import Options
from tests.real_agents.request import Request
from tests.real_agents.wrapped import Room, Wrapped
from tests.support import wait_until

INTENTS = """\
# What we work on. This comment stays.
active_intents:
  - id: INT-001
    name: Greet people
    status: PENDING # nobody has begun
    owned_scope:
      - src/**
      - "!src/secret.py"
    constraints:
      - No <b>markup</b> & no emojis
    acceptance_criteria:
      - greet() says hello
  - id: INT-002
    name: Translate greetings
    status: IN_PROGRESS
    owned_scope: [src/greet.py, docs]
"""
GREET = "def greet():\n    return 'hello'\n"


@dataclass(frozen=True)
class Told:
    """What the model was told after its call."""

    text: str

    @property
    def refusal(self) -> dict[str, Any]:
        """The refusal in it: one whole JSON object; {} where it was not refused."""
        return next(_refusals(self.text), {})

    @property
    def reason(self) -> str:
        """Why the call was refused; "" where it was not."""
        found = self.refusal
        if found:
            assert set(found) == {"error", "type", "tool", "reason", "recovery"}, found
            assert found["error"] and found["recovery"], found
        return str(found.get("reason", ""))


def _refusals(text: str) -> Iterator[dict[str, Any]]:
    """JSON objects of a refusal's type, also in a text that JSON holds (Gemini CLI's results)."""
    start = text.find("{")
    while start >= 0:
        try:
            value, end = json.JSONDecoder().raw_decode(text, start)
        except ValueError:
            start = text.find("{", start + 1)
            continue
        if value.get("type") == "HOOK_BLOCKED":
            yield value
        else:
            for inner in value.values():
                yield from _refusals(inner) if isinstance(inner, str) else ()
        start = text.find("{", end)


class GovernedAgent:
    """One of them, whose model does what the test says, one call for one prompt."""

    def __init__(self, wrapped: Wrapped, model: ScriptedModel, root: Path) -> None:
        self.wrapped = wrapped
        self.name = wrapped.name
        self._model = model
        self._root = root
        self._tasks = count(1)

    def begins(self, *steps: Step, hold: str = "") -> int:
        """Have its model answer a prompt with ``steps``; ``hold``: a gate before the turn's end.

        Returns how many requests it had made before.
        """
        words = f"please do task {next(self._tasks)} of {self.name}"
        before = len(self._requests())
        self._model.when(words, *steps, times=1, by=self.name)
        last = (Gate(hold), Say("Done.")) if hold else (Say("Done."),)
        self._model.when_tool(*last, times=1, by=self.name)
        self.wrapped.ask(words)
        return before

    def does(self, *steps: Step, hold: str = "") -> Told:
        """The same, until its model was told; without ``hold`` until the turn is over, too."""
        before = self.begins(*steps, hold=hold)
        told = self.told(before)
        if not hold:
            self.rest()
        return told

    def does_each(self, *steps: Step) -> list[Told]:
        """Have its model do these one after the other in one turn; what it was told after each."""
        words = f"please do task {next(self._tasks)} of {self.name}"
        before = len(self._requests())
        self._model.when(words, steps[0], times=1, by=self.name)
        for step in (*steps[1:], Say("Done.")):
            self._model.when_tool(step, times=1, by=self.name)
        self.wrapped.ask(words)

        def results() -> list[Request]:
            return [one for one in self._requests()[before:] if one.after_tool]

        wait_until(lambda: len(results()) == len(steps), PATIENCE, "the tools' results")
        self.rest()
        return [Told(one.last_text) for one in results()]

    def told(self, before: int) -> Told:
        """What the model was told after the call of a turn that ``begins`` began."""

        def results() -> list[Request]:
            return [one for one in self._requests()[before:] if one.after_tool]

        wait_until(results, PATIENCE, "the tool's result")
        return Told(results()[0].last_text)

    def says(self, text: str) -> None:
        """Have its model say this, and no more."""
        words = f"please do task {next(self._tasks)} of {self.name}"
        before = len(self._requests())
        self._model.when(words, Say(text), times=1, by=self.name)
        self.wrapped.ask(words)
        wait_until(lambda: len(self._requests()) > before, PATIENCE, "the prompt")
        self.rest()

    def rest(self) -> None:
        """Until the turn is over."""
        wait_until(lambda: all(one.done or one.aborted for one in self._requests()), PATIENCE)
        self.wrapped.ready()
        wait_state(self.name, "idle")

    def heard(self, words: str) -> bool:
        """Whether these words ever reached its model as something new."""
        return any(words in one.last_text or words in one.system for one in self._requests())

    def _requests(self) -> list[Request]:
        return [one for one in self._model.requests if one.by == self.name]


class GovernedProject:
    """A repository with intents, in which agents are started."""

    def __init__(self, base: Path, room: Room, model: ScriptedModel) -> None:
        self._base, self._room, self._model = base, room, model
        self.root = (base / "project").resolve()
        #: Where an agent's shell finds relay.
        self._path = f"{Path(sys.executable).parent}:{node_folder()}:/usr/local/bin:/usr/bin:/bin"

    def start(
        self,
        name: str,
        agent: str,
        binary: Path,
        options: Options | None = None,
        *,
        wrap: list[str] | None = None,
    ) -> GovernedAgent:
        """``agent`` under ``relay wrap`` in the project, with a home of its own, at its prompt;
        ``wrap``: more options of that."""
        made = self.finds_relay(options)
        self.folder(name)
        wrapped = self._room.start(name, agent, binary, made, cols=100, rows=30, options=wrap)
        return GovernedAgent(wrapped, self._model, self.root)

    def folder(self, name: str) -> Path:
        """A folder for an agent's home and other things, in which the project is its project."""
        folder = self._base / name
        (folder / "home").mkdir(parents=True)
        (folder / "project").symlink_to(self.root)
        # Also a login shell, which begins with a path of the system's.
        (folder / "home" / ".profile").write_text(f"export PATH='{self._path}'\n")
        return folder

    def finds_relay(self, options: Options | None = None) -> Options:
        """How to start an agent whose shell finds relay."""
        made = options or Options(asks=False)
        made.env["PATH"] = self._path
        return made

    def file(self, path: str) -> str:
        """What stands in a file of the project; "" where there is none."""
        found = self.root / path
        return found.read_text() if found.exists() else ""

    def go_on(self, gate: str) -> None:
        """Let a turn end that was held at ``gate``."""
        self._model.open(gate)

    def log(self, kind: str = "") -> list[dict[str, Any]]:
        """The trace as ``relay intent log`` has it, oldest first."""
        rows: list[dict[str, Any]] = relay_json("intent", "log", "--limit", "100")
        return [row for row in rows if kind in ("", row["kind"])]


@contextmanager
def governed(base: Path, model: ScriptedModel) -> Iterator[GovernedProject]:
    """A project with INTENTS and src/greet.py, to work in; its agents end with the block."""
    root = base / "project"
    (root / "src").mkdir(parents=True)
    with ExitStack() as stack, chdir(root):
        project = GovernedProject(base, Room(base, model, stack), model)
        relay("init", "--governed")
        (root / ".orchestration" / "active_intents.yaml").write_text(INTENTS)
        (root / "src" / "greet.py").write_text(GREET)
        yield project
