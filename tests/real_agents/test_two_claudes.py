"""The main job on real agents: two Claude Codes under ``relay wrap`` talk to each other.

Their model is scripted and runs here; what it was asked is what really reached them.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.wrapped import relay, relay_json, wait_registered
from tests.real_agents import recipes
from tests.real_agents.conversation import WIDE
from tests.real_agents.model import Fail, Say, ScriptedModel
from tests.real_agents.recipes import RENDERERS, ClaudeOptions, Recipe
from tests.real_agents.terminal import Terminal
from tests.support import wait_until

pytestmark = pytest.mark.usefixtures("stop_broker")

TASK = "\n".join(
    [
        "I tell Bob now.",
        "",
        f"@relay:Bob {WIDE}",
        "",
        "How such a line looks:",
        "",
        "```",
        "@relay:Fake inside a fence",
        "```",
        "",
        "\\@relay:Nobody escaped, so it is text.",
        "",
        "@relay:Bob the first of two",
        "@relay:Bob the second of two",
        "",
        "That is all.",
    ]
)


class Agents:
    """Real Claude Codes, each wrapped, in a terminal and with a home of its own."""

    def __init__(self, claude: Path, base: Path, model: ScriptedModel, stack: ExitStack) -> None:
        self._claude, self._base, self._model, self._stack = claude, base, model, stack
        self.terminals: dict[str, Terminal] = {}
        self.made: dict[str, Recipe] = {}

    def start(
        self,
        name: str,
        *,
        renderer: str = "fullscreen",
        arguments: list[str] | None = None,
        **more_env: str,
    ) -> Terminal:
        options = ClaudeOptions(renderer, {}, arguments or [])
        made = recipes.claude(self._claude, self._base / name, self._model.url, options)
        env = {**made.env, **more_env, "RELAY_HOME": os.environ["RELAY_HOME"]}
        wrap = [sys.executable, "-P", "-m", "relay", "wrap", "--name", name, "--"]
        terminal = Terminal(argv=[*wrap, *made.argv], env=env, cwd=made.cwd)
        self._stack.enter_context(terminal)
        self.terminals[name], self.made[name] = terminal, made
        terminal.wait_for("? for shortcuts")
        wait_registered(name)
        return terminal


@contextmanager
def agents(claude: Path, base: Path, model: ScriptedModel) -> Iterator[Agents]:
    with ExitStack() as stack:
        yield Agents(claude, base, model, stack)


def ask(terminal: Terminal, text: str) -> None:
    """Type a prompt and submit it."""
    terminal.type(text)
    terminal.wait_for(text)
    terminal.type("\r")


def messages() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = relay_json("history")
    return rows


def all_seen(count: int) -> None:
    def done() -> bool:
        found = messages()
        return len(found) == count and {row["state"] for row in found} == {"seen"}

    try:
        wait_until(done, 60, f"{count} receipts")
    except AssertionError as error:
        raise AssertionError(f"{error}\n{messages()}\n{relay('status')}") from None


@pytest.mark.parametrize("renderer", RENDERERS)
def test_two_claudes_talk(
    claude: Path, tmp_path: Path, model: ScriptedModel, renderer: str
) -> None:
    model.when("tell Bob what to do", Say(TASK))
    model.when(r"Relay message \[\w+\] from agent Bob", Say("Thank you, Bob."))
    model.when("the second of two", Say("Done.\n\n@relay:Alice all tests pass\n"), times=1)
    model.when(r"Relay message \[\w+\] from agent Alice", Say("I see."))
    with agents(claude, tmp_path, model) as both:
        both.start("Bob", renderer=renderer)
        alice = both.start("Alice", renderer=renderer)
        ask(alice, "tell Bob what to do")
        all_seen(4)
        bodies = [(row["from"], row["to"], row["body"]) for row in messages()]
        assert bodies == [
            ("Alice", "Bob", WIDE),
            ("Alice", "Bob", "the first of two"),
            ("Alice", "Bob", "the second of two"),
            ("Bob", "Alice", "all tests pass"),
        ]
        texts = (WIDE, "the first of two", "the second of two", "all tests pass")
        wait_until(lambda: all(model.seen(text) for text in texts))
        heard = "\n".join(request.last_text for request in model.requests)
        received = re.findall(r"Relay message \[\w+\] from agent (\w+)", heard)
        assert set(received) == {"Alice", "Bob"}
        for request in model.requests:
            if "Relay message" in request.last_text:
                assert "inside a fence" not in request.last_text
                assert "escaped" not in request.last_text
        # What each has taken of the model is counted: 20 tokens for each answer.
        said = 20 * len(model.requests)
        wait_until(lambda: sum(one["output"] for one in relay_json("cost")) == said)
        assert {one["agent"] for one in relay_json("cost")} == {"Alice", "Bob"}


def test_messages_wait_for_a_model_that_does_not_answer(
    claude: Path, tmp_path: Path, model: ScriptedModel
) -> None:
    model.when("hello after all", Say("Hello."))
    # What had no answer is said again with the next prompt: two turns fail.
    model.when("break now", Fail(401, "invalid x-api-key"), times=2)
    model.when("once more", Say("Well again."))
    with agents(claude, tmp_path, model) as both:
        bob = both.start("Bob", CLAUDE_CODE_MAX_RETRIES="0")
        ask(bob, "break now")
        wait_until(lambda: relay_json("agents")[0]["state"] == "limited", 60)
        relay("send", "Bob", "hello after all")
        wait_until(lambda: messages()[0]["reason"], 30)
        assert "not signed in" in messages()[0]["reason"]
        assert not model.seen("hello after all")
        ask(bob, "try again")
        wait_until(lambda: model.seen("try again"), 30)
        wait_until(lambda: relay_json("agents")[0]["state"] == "limited", 30)
        assert not model.seen("hello after all")  # that turn had no answer either
        ask(bob, "once more")
        all_seen(1)
        wait_until(lambda: model.seen("hello after all"))
        bob.wait_for("Hello.")
