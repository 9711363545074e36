"""The examples of docs/messages.md, run in order; ``…`` stands for anything."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.fixtures import Run

DOCS = Path(__file__).parents[2] / "docs"


def examples(page: str) -> list[tuple[str, str]]:
    """(command, expected output) of every ``$`` line."""
    out: list[tuple[str, str]] = []
    for block in re.findall(
        r"```console\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL
    ):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, expected = part.partition("\n")
            out.append((command, expected))
    return out


def test_the_examples(relay: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_examples("messages.md", relay, tmp_path, monkeypatch)


def run_examples(page: str, relay: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a page's examples in a repository, and compare what they print."""
    (tmp_path / "repository" / ".git").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "repository")
    found = examples(page)
    assert len(found) >= 10
    status = 0
    for command, expected in found:
        if command == "echo $?":
            assert f"{status}\n" == expected
            continue
        words = shlex.split(command)
        plain = words[0] == "relay" and not set(command) & set("|<>;$")
        done = relay(*words[1:], merged=True) if plain else in_shell(command)
        status = done.returncode
        pattern = re.escape(expected).replace("…", ".*")
        # A table's columns are as wide as their contents.
        pattern = re.sub(r"(\\ ){2,}", " +", pattern)
        assert re.fullmatch(pattern, done.stdout, re.DOTALL), (command, done.stdout)


def in_shell(command: str) -> subprocess.CompletedProcess[str]:
    script = f'relay() {{ {shlex.quote(sys.executable)} -m relay "$@"; }}\n'
    return subprocess.run(
        ["/bin/sh", "-c", script + command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=60,
        env=os.environ,
    )
