"""The real programs and the scripted model, as fixtures."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.wrapped import ECHO, python, relay, wrapped
from tests.real_agents import install
from tests.real_agents.model import ScriptedModel

Binary = Callable[[str], Path]


@pytest.fixture(scope="session")
def binary_of() -> Binary:
    """The pinned program of a name; where it cannot be had the test is skipped, in CI it fails."""

    def found(name: str) -> Path:
        try:
            return install.binary(name)
        except install.CannotInstall as error:
            if os.environ.get("CI"):
                pytest.fail(f"CI must have the real agents: {error}")
            pytest.skip(str(error))

    return found


@pytest.fixture(scope="session")
def claude(binary_of: Binary) -> Path:
    return binary_of("claude")


@pytest.fixture(scope="session")
def codex(binary_of: Binary) -> Path:
    return binary_of("codex")


@pytest.fixture(scope="session")
def gemini(binary_of: Binary) -> Path:
    return binary_of("gemini")


@pytest.fixture(scope="session")
def qwen(binary_of: Binary) -> Path:
    return binary_of("qwen")


@pytest.fixture(scope="session")
def opencode(binary_of: Binary) -> Path:
    return binary_of("opencode")


@pytest.fixture(scope="session")
def aider(binary_of: Binary) -> Path:
    return binary_of("aider")


@pytest.fixture
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel() as scripted:
        yield scripted
    assert scripted.errors == []


@pytest.fixture
def stop_broker(isolated_home: Path) -> Iterator[None]:
    """What a module whose tests use a broker says it uses: it ends with the test."""
    yield
    relay("broker", "stop", status=None)


@pytest.fixture
def bob(stop_broker: None) -> Iterator[None]:
    """Somebody who is written to."""
    with wrapped(python(ECHO), name="Bob"):
        yield
