"""Which programs get messages as comments, and which get none."""

from __future__ import annotations

import pytest

from relay.agents.interpreters import at_prompt, comment_of, interpreter
from tests.agents.profiles import profile_for


@pytest.mark.parametrize(
    ("command", "kind", "comment"),
    [
        ("python3.13", "python-repl", "pass  # "),
        ("/usr/bin/python3 -q", "python-repl", "pass  # "),
        ("node", "node-repl", "// "),
        ("sqlite3 shop.db", "sqlite-repl", "-- "),
        ("psql -h db shop", "psql-repl", "-- "),
    ],
)
def test_an_interpreter_at_its_prompt_gets_comments(command: str, kind: str, comment: str) -> None:
    profile = profile_for(command.split())
    assert (profile.kind, profile.style, profile.comment) == (kind, "comment", comment)


@pytest.mark.parametrize(
    "command",
    ["python3 agent.py", "python -m agent", "python -c x", "node -e x", "node -", "lua x"],
)
def test_a_program_that_an_interpreter_runs_is_no_interpreter(command: str) -> None:
    assert interpreter(command.split()) == ""
    assert profile_for(command.split()).style == "plain"


def test_only_the_prompt_of_an_interpreter_makes_comments() -> None:
    assert comment_of("python") == "" and comment_of("vim-repl") == ""
    assert interpreter([]) == ""


@pytest.mark.parametrize("name", ["vim", "less", "top", "tcsh"])
def test_nothing_is_typed_into_a_program_that_reads_keys(name: str) -> None:
    assert name in profile_for([f"/usr/bin/{name}", "file"]).refusal


@pytest.mark.parametrize("command", ["ssh host", "docker exec -it x sh", "sudo -s", "env bash"])
def test_what_starts_an_unknown_program_is_written_to_as_a_shell(command: str) -> None:
    profile = profile_for(command.split())
    assert profile.style == "shell" and profile.kind != "shell"


@pytest.mark.parametrize(
    "line",
    [
        ">>> ",
        "> ",
        "sqlite> ",
        "shop=# ",
        "shop=> ",
        "shop=*# ",
        "In [12]: ",
        "irb(main):001> ",
        "(gdb) ",
        "mysql> ",
        "MariaDB [shop]> ",
        "julia> ",
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
