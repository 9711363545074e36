"""What docs/agents.md tells of further programs is what ``relay agent check`` says of them.

CI runs the conversation with one of them; RELAY_CHECK_ALL=1 has all run (about a minute each).
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.real_agents import check
from tests.real_agents.conftest import Binary

KEPT = json.loads(check.KEPT.read_text())
IN_CI = ("llm",)


@pytest.mark.unit
def test_the_page_tells_what_was_found() -> None:
    """Else: python -m tests.real_agents.check --docs"""
    assert check.PAGE.read_text() == check.page()


@pytest.mark.parametrize("name", sorted(KEPT) if os.environ.get("RELAY_CHECK_ALL") else IN_CI)
def test_what_was_found_still_holds(name: str, binary_of: Binary, tmp_path: Path) -> None:
    found = check.check(name, binary_of(name), tmp_path)
    assert check.untrue(found) == []
    marks = {row["what"]: check.mark(row) for row in found["rows"]}
    assert marks == {what: said for what, (said, _) in KEPT[name].items()}
