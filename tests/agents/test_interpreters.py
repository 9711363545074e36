"""Shells, interpreters, editors and launchers: how they are known, and that nothing is typed."""

from __future__ import annotations

import pytest

from relay.agents.base import TypingRules
from relay.agents.interpreters import interpreter, is_interactive_shell, shows_anything
from relay.agents.known_agents import LAUNCHED, rules_of
from relay.agents.launch import plan
from relay.agents.profile import find_profile
from tests.agents.installs import run_of


def kind_of(command: list[str]) -> str:
    return plan(command, {}, run_of("R", token="t", port=None)).profile


def rules_for(command: list[str], takes: str | None = None) -> TypingRules:
    """How the program that ``command`` starts is typed into."""
    return rules_of(find_profile(kind_of(command))[0], {"takes": takes}, None)


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ("python3.13", "python-repl"),
        ("/usr/bin/python3 -q", "python-repl"),
        ("python3 -q -i agent.py", "python-repl"),
        ("node --interactive -e x", "node-repl"),
        ("node", "node-repl"),
        ("sqlite3 shop.db", "sqlite-repl"),
        ("psql -h db shop", "psql-repl"),
        ("lua", "lua-repl"),
        ("gdb a.out", "gdb-repl"),
        ("julia -q", "julia-repl"),
    ],
)
@pytest.mark.parametrize("takes", [None, "line", "paste"])
def test_nothing_is_typed_at_the_prompt_of_an_interpreter(
    command: str, kind: str, takes: str | None
) -> None:
    assert interpreter(command.split()) == kind and shows_anything(kind)
    assert "nothing into the prompt of" in rules_for(command.split(), takes).refusal


@pytest.mark.parametrize(
    "command",
    [
        "python3 agent.py",
        "python -m agent",
        "python -c x",
        "python -c x -i",
        "node -e x",
        "node -",
        "lua x",
    ],
)
def test_a_program_that_an_interpreter_runs_is_no_interpreter(command: str) -> None:
    assert interpreter(command.split()) == ""
    assert not rules_for(command.split()).refusal


@pytest.mark.parametrize("name", ["vim", "less", "top"])
def test_nothing_is_typed_into_a_program_that_reads_keys(name: str) -> None:
    assert name in rules_for([f"/usr/bin/{name}", "file"]).refusal


@pytest.mark.parametrize("command", ["ssh host", "docker exec -it x sh", "sudo -s", "env bash"])
def test_nothing_is_typed_into_what_starts_an_unknown_program_unless_the_person_says_how(
    command: str,
) -> None:
    assert rules_for(command.split()).refusal == LAUNCHED
    assert rules_for(command.split(), "line").refusal == ""


@pytest.mark.parametrize(
    "command", ["bash", "/bin/zsh -il", "bash --norc", "bash -o vi", "sh -s x", "tcsh", "dash -"]
)
@pytest.mark.parametrize("takes", [None, "line", "paste"])
def test_nothing_is_typed_into_a_shell(command: str, takes: str | None) -> None:
    assert is_interactive_shell(command.split()) and shows_anything(kind_of(command.split()))
    assert "nothing into a shell" in rules_for(command.split(), takes).refusal


@pytest.mark.parametrize(
    "command",
    ["bash script.sh", "sh -c make", "bash -lc x", "bash -o vi f", "python3 x", "zsh -- f"],
)
def test_programs(command: str) -> None:
    assert not is_interactive_shell(command.split())
    assert not shows_anything(kind_of(command.split()))


def test_no_command_is_neither() -> None:
    assert not is_interactive_shell([]) and interpreter([]) == ""
