"""The real programs and the scripted model, as fixtures."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.real_agents.install import CannotInstall, claude_binary
from tests.real_agents.model import ScriptedModel


@pytest.fixture(scope="session")
def claude() -> Path:
    """The pinned Claude Code; where it cannot be had the test is skipped, in CI it fails."""
    try:
        return claude_binary()
    except CannotInstall as error:
        if os.environ.get("CI"):
            pytest.fail(f"CI must have the real agents: {error}")
        pytest.skip(str(error))


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel() as scripted:
        yield scripted
