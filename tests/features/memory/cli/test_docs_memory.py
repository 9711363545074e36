"""The examples of docs/memory.md, run in order."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.fixtures import Run
from tests.cli.test_docs_messages import run_examples


def test_the_examples(relay: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_examples("memory.md", relay, tmp_path, monkeypatch)
