"""Personas in a configuration, and the plain route functions of one event."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from relay.agents.tool_uses import UNASKED
from relay.core.dispatch import Event
from relay.core.errors import ConfigError
from relay.features.personas.headless_turns import RUNS_MAX
from relay.features.personas.settings import PERSONA_KEYS, parse_persona, parse_personas
from relay.features.personas.turn_engine import DEADLINE
from relay.features.personas.worker_main import PlainCalls, Said
from relay.hooks.registry import Registry
from tests.test_docs import ROOT


def test_a_persona_survives_its_manifest() -> None:
    given = {
        "command": "claude --allowedTools 'Web Search'",
        "mode": "headless",
        "model": "sonnet",
        "cwd": "~/work",
        "deadline": 5,
        "env": {"A": "1", "HTTPS_PROXY": None},
        "credentials": {"github": "GITHUB_TOKEN", "other": {"X": "file:~/.x"}},
        "headless": {"args": ["-p", "{resume}"], "resume": ["--resume", "{id}"]},
    }
    made = parse_persona("atlas", given)
    assert made.command == ("claude", "--allowedTools", "Web Search")
    assert made.credentials["github"] == {"GITHUB_TOKEN": "env:GITHUB_TOKEN"}
    assert parse_persona("atlas", made.to_json()) == made


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"bad name": "claude"}, "cannot be a persona's name"),
        ({"relay": "claude"}, "cannot be a persona's name"),
        ({"a": "claude", "A": "codex"}, "twice"),
        ({"a": {"command": ""}}, "the command must be a string"),
        ({"a": {"command": "claude", "mode": "later"}}, "the mode is 'later'"),
        ({"a": {"command": "claude", "comand": 1}}, "unknown key 'comand'"),
        ({"a": {"command": "claude", "deadline": True}}, "deadline must be a number of seconds"),
        ({"a": {"command": "claude", "env": {"RELAY_HOME": "/x"}}}, "env must be"),
        ({"a": {"command": "claude", "credentials": {"g": {"T": "secret"}}}}, "needs variables"),
        ({"a": {"command": "x", "headless": {"prompt": "("}}}, "not a regular expression"),
        ({"a": {"command": "x", "headless": {"output": "yaml"}}}, "output cannot be"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_personas(given)
    assert said in refused.value.message


def test_every_key_of_a_persona_is_documented() -> None:
    page = (ROOT / "docs" / "broker.md").read_text()
    assert [key for key in PERSONA_KEYS if f"| `{key}` |" not in page] == []


def test_the_table_of_wrapped_and_headless_turns_has_the_limits_of_the_code() -> None:
    page = (ROOT / "docs" / "broker.md").read_text()
    table = page.split("### Wrapped or headless\n")[1].split("\n## ")[0]
    assert f"{RUNS_MAX} in all" in table and f"{DEADLINE:g} s if no persona" in table
    assert list(UNASKED) == ["codex"]
    assert " and ".join(f"`{one}`" for one in UNASKED["codex"]) in table


# -- The plain route functions of one event: in one thread while they are quick, else side by
# side.

PLAIN_EVENT = Event("01", "mail", "message", "mom@x", "hi", 1)


def asked(*functions: Callable[[Event], object]) -> list[Said]:
    """What each said."""
    registry = Registry()
    for number, function in enumerate(functions):
        registry.add_route(f"f{number}", function)

    async def ask() -> list[Said]:
        return await PlainCalls(lambda value: value, 20.0).call(PLAIN_EVENT, registry.routes())

    return asyncio.run(ask())


def test_slow_ones_run_side_by_side() -> None:
    together = threading.Barrier(20)

    def slow(event: Event) -> object:
        together.wait(15)  # BrokenBarrierError unless all of them are here
        return True

    assert [one[1:] for one in asked(*[slow] * 20)] == [(True, None)] * 20
