"""A real agent whose tool calls pass the hooks of a trusted relay.config.py.

    with gated("claude", binary, tmp_path, model) as ann:
        ann.call("observe")          # the model calls the shell with command("observe")
        ann.log("before")            # what the hooks were given

What the hooks say depends on the words of the command: each of ``CASES`` stands for one answer.
The person's own hook of the agent's runs beside them, where the agent can have one (``OWN``).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from relay.agents.codex.launch import trusted_hash
from relay.core.paths import Home
from tests.agents.installs import documented_hooks
from tests.config.trusted import trusted
from tests.real_agents.model import Say, ScriptedModel, Shell
from tests.real_agents.people import wait_state
from tests.real_agents.recipe import Options, Recipe
from tests.real_agents.recipes import AGENTS
from tests.real_agents.request import Request
from tests.real_agents.wrapped import Wrapped
from tests.support import wait_until

REASON = "MARK-REASON the rules of this house forbid it"
CONTEXT = "MARK-CONTEXT mind the cat while you work"
AFTERWARDS = "MARK-AFTERWARDS the cat was minded"
#: What a model is told where a hook cannot change a tool's input.
AGAIN = "again with exactly this input"
REPLACED = "MARK-REPLACED nothing to be seen here"

CONFIG = f"""
import json
import os
import time
from relay import Relay

relay = Relay()


def shell(input):
    return next((key, input[key]) for key in ("command", "cmd") if key in input)


def note(event):
    with open(event["cwd"] + "/hooks.jsonl", "a") as log:
        log.write(json.dumps(event) + "\\n")


@relay.on("before_tool")
def before(input, event):
    note(event)
    key, command = shell(input)
    if "case-block" in command:
        return {{"block": True, "reason": {REASON!r}}}
    if "case-ask" in command:
        return {{"ask": True, "reason": {REASON!r}}}
    if "case-rewrite" in command:
        return {{"input": {{key: command.replace("case-rewrite", "case-rewritten")}}}}
    if "case-context" in command:
        return {{"context": {CONTEXT!r}}}
    if "case-held" in command:
        while not os.path.exists(event["cwd"] + "/let-go"):
            time.sleep(0.05)
    if "case-fail" in command:
        raise ValueError("the hook is broken")


@relay.on("before_agent")
@relay.on("after_agent")
@relay.on("notification")
@relay.on("pre_compress")
def turn(event):
    note(event)


@relay.on("after_tool")
def after(input, event):
    note(event)
    key, command = shell(input)
    if "case-context" in command:
        return {{"context": {AFTERWARDS!r}}}
    if "case-replace" in command:
        return {{"response": {REPLACED!r}}}
"""


def command(case: str) -> str:
    """A command that leaves a file ``case-CASE``, and says so."""
    return f"echo ran-case-{case} | tee case-{case}"


class GatedAgent:
    """One agent, its hooks' log and the files that its commands make."""

    def __init__(self, wrapped: Wrapped, model: ScriptedModel, cases: Sequence[str] = ()) -> None:
        self.wrapped = wrapped
        self.recipe = wrapped.recipe
        self.model = model
        self._cases = cases

    def ran(self, case: str) -> bool:
        """Whether the command of this case has run."""
        return (self.recipe.cwd / f"case-{case}").exists()

    def ask(self, case: str) -> None:
        """Have the model call the shell once, with the command of this case."""
        self.model.when(f"please {case}$", Shell(command(case)), times=1)
        self.wrapped.ask(f"please {case}")

    def call(self, case: str) -> str:
        """The same, to the end of the turn; what the model was told after the tool."""
        before = len(self.model.requests)
        self.ask(case)
        wait_until(lambda: len(self.model.requests) >= before + 2, 90, "the tool's result")
        self.rest()
        told = json.dumps(self.model.requests[-1].body, ensure_ascii=False)
        return told.rpartition(f"please {case}")[2]

    def call_each(self) -> dict[str, str]:
        """The first turn: one call for each of ``gated``'s cases; what the model was told after
        each of them."""
        first, *_ = self._cases
        self.ask(first)
        wait_until(lambda: len(self._results()) >= len(self._cases), 120, "the tools' results")
        self.rest()
        return dict(zip(self._cases, self._results(), strict=True))

    def _results(self) -> list[str]:
        """What was new to the model after each of its calls, but that it should change one."""
        told = []
        for before, request in pairwise(self.model.requests):
            new = json.dumps(_said(request)[len(_said(before)) :], ensure_ascii=False)
            if request.after_tool and AGAIN not in new:
                told.append(new)
        return told

    def rest(self) -> None:
        """Until the turn is over."""
        wait_until(lambda: self.model.resting, 60)
        self.wrapped.ready()
        wait_state(self.wrapped.name, "idle")

    def log(self, case: str) -> list[dict[str, Any]]:
        """What the hooks were given for this case, in order."""
        return [event for event in self._events() if f"case-{case}" in str(event)]

    def turns(self) -> list[tuple[str, str]]:
        """What the hooks were told of prompts and answers, in order: the event and its text."""
        words = {"BeforeAgent": "prompt", "AfterAgent": "prompt_response"}
        return [
            (name, event[words[name]])
            for event in self._events()
            if (name := event["hook_event_name"]) in words
        ]

    def told(self, name: str, kind: str = "") -> list[dict[str, Any]]:
        """The events of this name that the hooks were given: of this kind, or all."""
        return [
            event
            for event in self._events()
            if event["hook_event_name"] == name
            and kind in ("", event.get("notification_type"), event.get("trigger"))
        ]

    def _events(self) -> list[dict[str, Any]]:
        path = self.recipe.cwd / "hooks.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [json.loads(line) for line in lines]

    def own(self) -> int:
        """How often the person's own hook has run."""
        path = self.recipe.cwd / "own"
        return len(path.read_text().split()) if path.exists() else 0

    def calls(self) -> int:
        """How many calls of a tool have ended, one way or another."""
        return sum(request.after_tool for request in self.model.requests)


def _said(request: Request) -> list[Any]:
    """The conversation as it was sent, by whichever API."""
    [said] = [request.body[key] for key in ("messages", "input", "contents") if key in request.body]
    return list(said)


OwnHook = Callable[[Recipe, str], None]


def _claude_own(recipe: Recipe, command: str) -> None:
    settings = json.loads(recipe.settings_file.read_text())
    hook = {"type": "command", "command": command}
    settings["hooks"] = {"PreToolUse": [{"matcher": "*", "hooks": [hook]}]}
    recipe.settings_file.write_text(json.dumps(settings))


def _codex_own(recipe: Recipe, command: str) -> None:
    hook = {"type": "command", "command": command, "timeout": 5}
    file = recipe.settings_file
    table = "\n".join(f"{key} = {json.dumps(value)}" for key, value in hook.items())
    with file.open("a") as settings:
        settings.write(
            f"[[hooks.PreToolUse]]\n[[hooks.PreToolUse.hooks]]\n{table}\n"
            f'[hooks.state."{file}:pre_tool_use:0:0"]\n'
            f'trusted_hash = "{trusted_hash("PreToolUse", hook)}"\n'
        )


def _qwen_own(recipe: Recipe, command: str) -> None:
    group = {"matcher": "*", "hooks": [{"type": "command", "command": command}]}
    _into_settings(recipe, {"hooks": {"PreToolUse": [group]}})


def _gemini_own(recipe: Recipe, command: str) -> None:
    theirs = documented_hooks()
    group = {"matcher": "*", "hooks": [{"type": "command", "command": command}]}
    theirs["hooks"]["BeforeTool"].append(group)
    _into_settings(recipe, theirs)


def _opencode_own(recipe: Recipe, command: str) -> None:
    plugin = recipe.home / "own.js"
    plugin.write_text(
        'import { execSync } from "node:child_process"\n'
        "export const Own = async () => ({\n"
        f'  "tool.execute.before": async () => {{ execSync({json.dumps(command)}) }},\n'
        "})\n"
    )
    _into_settings(recipe, {"plugin": [f"file://{plugin}"]})


def _into_settings(recipe: Recipe, more: dict[str, Any]) -> None:
    settings = json.loads(recipe.settings_file.read_text())
    recipe.settings_file.write_text(json.dumps({**settings, **more}))


#: How the person has a hook of their own that runs a command before each tool.
OWN: dict[str, OwnHook] = {
    "claude": _claude_own,
    "codex": _codex_own,
    "qwen": _qwen_own,
    "gemini": _gemini_own,
    "opencode": _opencode_own,
}


@contextmanager
def gated(
    agent: str,
    binary: Path,
    base: Path,
    model: ScriptedModel,
    options: Options | None = None,
    *,
    own: bool = True,
    cases: Sequence[str] = (),
) -> Iterator[GatedAgent]:
    """``agent`` under ``relay wrap`` with the hooks of CONFIG, at its prompt.

    Without ``own`` the person has nothing in their settings. ``cases`` are those of its first turn
    (``call_each``).
    """
    made = options or Options(asks=False)
    recipe = AGENTS[agent].recipe(binary, base / "Ann", model.url_for("Ann"), made)
    config = recipe.cwd / "relay.config.py"
    config.write_text(CONFIG)
    trusted(Home(os.environ["RELAY_HOME"]), config)
    if own and agent in OWN:
        OWN[agent](recipe, f"echo own >>'{recipe.cwd}/own'")
    # Where a hook cannot change a tool's input, the model is told to, and does.
    again = Shell(command("rewritten"))
    model.when_tool(again, pattern=AGAIN, times=1)
    for case in cases[1:]:
        model.when_tool(Shell(command(case)), times=1)
    model.when_tool(Say("Done."))
    wrapped = Wrapped(recipe, "Ann", cols=100, rows=30)
    with wrapped:
        wrapped.ready()
        yield GatedAgent(wrapped, model, cases)
