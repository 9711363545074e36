from __future__ import annotations

import pytest

from relay.hooks.events import HookEventName
from relay.hooks.hook_types import Command, Dialect
from relay.hooks.runner import hook_environment


def _environment(
    base: dict[str, str], dialect: Dialect = Dialect.RELAY, **own: str
) -> dict[str, str]:
    return hook_environment(
        base,
        Command(shell="true", env=tuple(own.items())),
        event=HookEventName.BEFORE_TOOL,
        dialect=dialect,
        project="/project",
        cwd="/project/below",
    )


def test_it_is_the_agents_and_says_which_event_it_is() -> None:
    base = {"PATH": "/bin", "HOME": "/home/alice", "PWD": "/elsewhere"}
    assert _environment(base) == {
        "PATH": "/bin",
        "HOME": "/home/alice",
        "PWD": "/project/below",
        "RELAY_HOOK_EVENT": "BeforeTool",
    }
    assert base["PWD"] == "/elsewhere"


@pytest.mark.parametrize("name", ["TOKEN", "RUN", "PORT", "SOCKET", "SESSION_FDS", "SOME_NEW_ONE"])
def test_what_is_for_relay_only_stays_behind(name: str) -> None:
    assert f"RELAY_{name}" not in _environment({f"RELAY_{name}": "secret"})


def test_a_hook_finds_the_broker_of_its_agent() -> None:
    base = {"RELAY_HOME": "/state", "RELAY_AGENT": "Alice"}
    assert _environment(base).items() >= base.items()


@pytest.mark.parametrize(
    ("dialect", "names"),
    [
        (Dialect.RELAY, set()),
        (Dialect.CLAUDE, {"CLAUDE_PROJECT_DIR"}),
        (Dialect.GEMINI, {"CLAUDE_PROJECT_DIR", "GEMINI_PROJECT_DIR"}),
    ],
)
def test_a_dialects_hooks_find_the_project_as_ever(dialect: Dialect, names: set[str]) -> None:
    env = _environment({}, dialect)
    assert {name: env[name] for name in names} == dict.fromkeys(names, "/project")
    assert len([name for name in env if name.endswith("_PROJECT_DIR")]) == len(names)


def test_what_the_hook_itself_sets_wins() -> None:
    env = _environment({"A": "1", "B": "2"}, A="own", PWD="/own")
    assert (env["A"], env["B"], env["PWD"]) == ("own", "2", "/own")
