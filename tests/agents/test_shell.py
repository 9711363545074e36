"""Which commands are shells that wait for a person, and what the registry makes of commands."""

from __future__ import annotations

import pytest

from relay.agents.known_agents import profile_named
from relay.agents.shell import is_interactive_shell
from tests.agents.profiles import profile_for


@pytest.mark.parametrize(
    "command", ["bash", "/bin/zsh -il", "bash --norc", "bash -o vi", "sh -s x", "fish", "dash -"]
)
def test_shells_at_a_prompt(command: str) -> None:
    assert is_interactive_shell(command.split())
    assert profile_for(command.split()).kind == "shell"


@pytest.mark.parametrize(
    "command",
    ["bash script.sh", "sh -c make", "bash -lc x", "bash -o vi f", "python3 x", "zsh -- f"],
)
def test_programs(command: str) -> None:
    assert not is_interactive_shell(command.split())
    assert profile_for(command.split()).style == "plain"


def test_the_registry() -> None:
    assert not is_interactive_shell([])
    assert profile_for(["/usr/bin/claude", "-p"]).structured
    assert not profile_for(["claude", "mcp", "list"]).structured
    assert profile_for(["/opt/x/aider"]).kind == "aider"
    assert profile_named("claude").kind == "claude"
    assert profile_named("").kind == "unknown"
