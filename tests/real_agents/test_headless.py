"""An agent that answers once and ends says, asks and costs under relay what it does without.

A memory is saved for its project and a message waits for its name. Neither may become a turn, a
line of its output, or a word in what its model reads.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.wrapped import relay, relay_json
from tests.real_agents.conftest import Binary
from tests.real_agents.model import Say, ScriptedModel
from tests.real_agents.recipe import Options, Recipe
from tests.real_agents.recipes import AGENTS
from tests.real_agents.terminal import Terminal

pytestmark = pytest.mark.usefixtures("stop_broker")

ASKED = "which colour is the sky?"
ONCE = {
    "claude": ["-p", ASKED],
    "codex": ["exec", "--skip-git-repo-check", ASKED],
    "gemini": ["-p", ASKED],
    "qwen": ["-p", ASKED],
    "opencode": ["run", ASKED],
    "aider": ["--message", ASKED],
}
#: Whose answer to a pipe is looked at too: what differs there is relay's, not the agent's.
PIPED = ("claude", "codex")
DEADLINE = 180.0  # seconds
#: What differs from one run to the next: ids, times, durations, a spinner's frames.
_CHANGING = re.compile(
    r"[0-9a-f]{8}-[0-9a-f-]{27}|ses_\w+|\d+(?:\.\d+)?|[\u2580-\u259f\u2800-\u28ff]"
)
#: What Gemini CLI says of its own start, with and without relay, on a machine that is busy.
_BUSY_START = re.compile(r"\[STARTUP\] [^\[]*?(?:Skipping\s*metrics\.|cleared\s*by\s*reset\)\.)")


def plain(shown: str) -> list[str]:
    """The lines of an output without what always differs."""
    lines = (_CHANGING.sub("_", line).strip() for line in _BUSY_START.sub("", shown).splitlines())
    return [line for line in lines if line]


def in_terminal(recipe: Recipe, argv: list[str], home: str) -> list[str]:
    started = recipe.start(argv, RELAY_HOME=home)
    with Terminal(cols=100, rows=60, **started) as terminal:
        terminal.wait_end(DEADLINE)
        return plain(terminal.text())


def piped(recipe: Recipe, argv: list[str], home: str) -> list[str]:
    started = recipe.start(argv, RELAY_HOME=home)
    done = subprocess.run(
        started["argv"],
        env=started["env"],
        cwd=started["cwd"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    )
    assert done.returncode == 0, done.stderr
    return plain(done.stdout)


@pytest.mark.parametrize("agent", sorted(ONCE))
def test_it_is_as_without_relay(
    agent: str,
    binary_of: Binary,
    tmp_path: Path,
    model: ScriptedModel,
    isolated_home: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = AGENTS[agent].recipe(binary_of(agent), tmp_path, model.url, Options(asks=False))
    monkeypatch.chdir(recipe.cwd)
    relay("memory", "save", "The sky is heron grey")
    relay("send", "--offline", "Ann", "a message that waits")
    model.when(ASKED, Say("The sky is blue."))
    wrap = [sys.executable, "-P", "-m", "relay", "wrap", "--name", "Ann", "--"]
    command = [recipe.argv[0], *recipe.argv[1:], *ONCE[agent]]
    if agent == "codex":
        command.remove("--no-daemon")  # of the conversation only
    found = []
    for run in (in_terminal, piped) if agent in PIPED else (in_terminal,):
        for argv in (command, [*wrap, *command]):
            before = len(model.all_requests)
            shown = run(recipe, argv, str(isolated_home))
            asked = model.all_requests[before:]
            read = [re.sub(r"\d", "0", str(request.last_text)) for request in asked]
            found.append((shown, len(asked), read))
        without, under = found[-2:]
        assert "The sky is blue." in "\n".join(without[0])
        assert under == without
    assert "heron" not in str([vars(request) for request in model.all_requests])
    [waiting] = relay_json("history")
    assert waiting["state"] in ("queued", "held", "waiting")  # the last once Ann has gone
