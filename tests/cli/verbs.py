"""Runs command lines in this process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryFile
from types import ModuleType
from typing import Any

import pytest

from relay.__main__ import main
from relay.cli.parser import Parser

Verb = Callable[..., int]


def verbs_of(module: ModuleType) -> Verb:
    """``run("config", "show", "--json")`` of one module -> the exit status; errors come through."""
    parser = Parser("relay")
    module.add(parser.add_subparsers())

    def run(*words: str) -> int:
        options = parser.parse(list(words))
        status: int = options.run(options)
        return status

    return run


def run_here(
    words: list[str], stdin: str = "", *, merged: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run one command line of relay; ``merged`` has what is said on stderr in stdout."""
    before = sys.stdin, sys.stdout, sys.stderr
    with ExitStack() as stack:
        stdin_, stdout, stderr = files = [
            stack.enter_context(TemporaryFile("w+", encoding="utf-8", newline="")) for _ in before
        ]
        stdin_.write(stdin)
        stdin_.seek(0)
        sys.stdin, sys.stdout, sys.stderr = stdin_, stdout, stdout if merged else stderr
        try:
            status = main(words)
        finally:
            sys.stdin, sys.stdout, sys.stderr = before
        for file in files:
            file.seek(0)
        return subprocess.CompletedProcess(words, status, stdout.read(), stderr.read())


def printed_json(capsys: pytest.CaptureFixture[str]) -> Any:
    """What has been printed to stdout since the last look."""
    return json.loads(capsys.readouterr().out)


def program(folder: Path, name: str) -> Path:
    """An executable file that leaves a file ``ran`` beside it when it is run."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\necho ran >> {folder}/ran\n")
    path.chmod(0o755)
    return path
