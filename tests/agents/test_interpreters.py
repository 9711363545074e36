"""Shells, interpreters, editors and launchers: what is typed into them, and where nothing is."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ptyprocess import PtyProcess

from relay.agents.base import TypingRules
from relay.agents.interpreters import (
    at_prompt,
    comment_of,
    interpreter,
    is_interactive_shell,
    shell_in_front,
)
from relay.agents.known_agents import typing_rules
from relay.agents.launch import Run, plan
from tests.support import wait_until


def rules_for(command: list[str]) -> TypingRules:
    """How the program that ``command`` starts is typed into."""
    run = Run(name="R", run_id="1", token="t", port=None)
    return typing_rules(plan(command, {}, run).profile, os.getpid())


@pytest.mark.parametrize(
    ("command", "kind", "comment"),
    [
        ("python3.13", "python-repl", "pass  # "),
        ("/usr/bin/python3 -q", "python-repl", "pass  # "),
        ("python3 -q -i agent.py", "python-repl", "pass  # "),
        ("node --interactive -e x", "node-repl", "// "),
        ("node", "node-repl", "// "),
        ("sqlite3 shop.db", "sqlite-repl", "-- "),
        ("psql -h db shop", "psql-repl", "-- "),
    ],
)
def test_an_interpreter_at_its_prompt_gets_comments(command: str, kind: str, comment: str) -> None:
    rules = rules_for(command.split())
    assert interpreter(command.split()) == kind
    assert (rules.style, rules.comment) == ("comment", comment)


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
    assert rules_for(command.split()).style is None


def test_only_the_prompt_of_an_interpreter_makes_comments() -> None:
    assert comment_of("python") == "" and comment_of("vim-repl") == ""
    assert interpreter([]) == ""


@pytest.mark.parametrize("command", ["lua", "irb shop", "gdb a.out", "mysql shop", "julia -q"])
def test_nothing_is_typed_at_the_prompt_of_other_interpreters(command: str) -> None:
    rules = rules_for(command.split())
    assert "no words that are safe at the prompt" in rules.refusal
    assert rules.style is None and not rules.comment


@pytest.mark.parametrize("name", ["vim", "less", "top", "tcsh"])
def test_nothing_is_typed_into_a_program_that_reads_keys(name: str) -> None:
    assert name in rules_for([f"/usr/bin/{name}", "file"]).refusal


@pytest.mark.parametrize("command", ["ssh host", "docker exec -it x sh", "sudo -s", "env bash"])
def test_what_starts_an_unknown_program_is_written_to_as_a_shell(command: str) -> None:
    rules = rules_for(command.split())
    assert rules.style == "shell" and not rules.is_shell


@pytest.mark.parametrize(
    "line",
    [
        ">>> ",
        "> ",
        "sqlite> ",
        "shop=# ",
        "shop=> ",
        "shop=*# ",
    ],
)
def test_prompts(line: str) -> None:
    assert at_prompt(line)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "... ",
        "   ...> ",
        "shop-# ",
        "shop'# ",
        "    -> ",
        "    '> ",
        ">>> half a line",
        "Name: ",
        "Password: ",
    ],
)
def test_lines_that_are_no_prompts(line: str) -> None:
    assert not at_prompt(line)


@pytest.mark.parametrize(
    "command", ["bash", "/bin/zsh -il", "bash --norc", "bash -o vi", "sh -s x", "fish", "dash -"]
)
def test_shells_at_a_prompt(command: str) -> None:
    assert is_interactive_shell(command.split())
    assert rules_for(command.split()).is_shell


@pytest.mark.parametrize(
    "command",
    ["bash script.sh", "sh -c make", "bash -lc x", "bash -o vi f", "python3 x", "zsh -- f"],
)
def test_programs(command: str) -> None:
    assert not is_interactive_shell(command.split())
    assert rules_for(command.split()).style is None


def test_no_command_is_no_shell() -> None:
    assert not is_interactive_shell([])


@contextmanager
def shell(cwd: Path) -> Iterator[PtyProcess]:
    program = PtyProcess.spawn(["bash", "--norc", "-i"], cwd=str(cwd))
    try:
        yield program
    finally:
        program.close(force=True)


def test_a_command_takes_the_shells_place_for_its_time(tmp_path: Path) -> None:
    with shell(tmp_path) as program:
        wait_until(lambda: shell_in_front(program.pid) is True, 20, "the prompt")
        os.write(program.fd, b"cat > out\n")
        wait_until(lambda: shell_in_front(program.pid) is False, 20, "cat in front")
        os.write(program.fd, b"\x04")
        wait_until(lambda: shell_in_front(program.pid) is True, 20, "the prompt again")


def test_what_replaces_a_shell_is_no_shell(tmp_path: Path) -> None:
    with shell(tmp_path) as program:
        wait_until(lambda: shell_in_front(program.pid) is True, 20, "the prompt")
        os.write(program.fd, b"exec cat\n")
        wait_until(lambda: shell_in_front(program.pid) is None, 20, "cat in the shell's place")


def test_nobody_knows_of_a_process_that_is_gone() -> None:
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
    assert shell_in_front(pid) is None
