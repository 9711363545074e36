"""Runs one verb of a module, as the command line would."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from relay.cli.parser import Parser

Verb = Callable[..., int]


def verbs_of(module: ModuleType) -> Verb:
    """``run("config", "show", "--json")`` -> the exit status; errors come through."""
    parser = Parser("relay")
    module.add(parser.add_subparsers(metavar="VERB"))

    def run(*words: str) -> int:
        options = parser.parse(list(words))
        status: int = options.run(options)
        return status

    return run


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
