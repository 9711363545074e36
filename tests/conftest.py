"""Every test runs with a RELAY_HOME, a HOME and a configuration folder of its own."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import sqlite3
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Run in the background or under nohup, the tests and all that they start would ignore these.
signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
    signal.signal(number, signal.SIG_DFL)
# The tests start relay's processes thousands of times: they are compiled once, even on a machine
# that asks Python to keep nothing compiled (most container images do).
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# How long an example takes says what else the machine does, so there is no deadline. Who changes
# what random examples are for runs with ``--hypothesis-profile=thorough``.
for profile, examples in (("quick", 25), ("thorough", 60)):
    settings.register_profile(
        profile,
        max_examples=examples,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile("quick")

#: Fixtures of a broker and of the command line, for the tests of features too.
pytest_plugins = ["tests.broker.fixtures", "tests.cli.fixtures"]

#: What kind of test a folder holds; a test may say otherwise with a mark of its own.
KINDS = {
    "broker": "process",
    "cli": "process",
    "demo": "process",
    "e2e": "process",
    "fidelity": "alone",
    "integrations": "process",
    "memory/embedding": "stores",
    "memory/indexes": "stores",
    "pump": "process",
    "real_agents": "agents",
    "ui": "process",
}
# The readline module writes the size of the runner's terminal into the environment: a program under
# test would believe it rather than its own terminal.
for name in ("COLUMNS", "LINES"):
    os.environ.pop(name, None)


class _Connection(sqlite3.Connection):
    """Warns when it is dropped open, as of Python 3.13 every connection does."""

    is_open = False

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self.is_open = True

    def close(self) -> None:
        super().close()
        self.is_open = False

    def __del__(self) -> None:
        if self.is_open:
            warnings.warn(f"unclosed database in {self!r}", ResourceWarning, 1, source=self)


if sys.version_info < (3, 13):
    sqlite3.connect = partial(sqlite3.connect, factory=_Connection)  # type: ignore[assignment]


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name a long parameter by its length: an id goes into the environment and each report."""
    if isinstance(val, str | bytes) and len(ascii(val)) > 60:
        return f"{len(val)} {'bytes' if isinstance(val, bytes) else 'characters'}"
    return None  # as pytest does


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in an event loop of its own, which hangs for 300 s at most."""
    if not inspect.iscoroutinefunction(pyfuncitem.function):
        return None
    names = inspect.signature(pyfuncitem.function).parameters
    test = pyfuncitem.function(**{name: pyfuncitem.funcargs[name] for name in names})
    asyncio.run(asyncio.wait_for(test, 300))
    return True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with its kind: its own mark, else its fixtures', else its folder's.

    Real agents come with the slowest first.
    """
    kinds = {"unit", *KINDS.values()}
    root = Path(__file__).parent
    for item in items:
        if any(mark.name in kinds for mark in item.iter_markers()):
            continue
        parts = item.path.parent.relative_to(root).parts
        # tests/features/memory/cli holds what tests/memory and tests/cli would.
        folder = Path(*parts[1:] if parts[:1] == ("features",) else parts)
        named = {folder.as_posix(), folder.name, *(one.as_posix() for one in folder.parents)}
        kind = next((KINDS[name] for name in sorted(named, reverse=True) if name in KINDS), "unit")
        if {"weights", "models"} & set(getattr(item, "fixturenames", ())):
            kind = "stores"
        item.add_marker(kind)
    # The slowest first, so that no processor is idle while another has one of them left.
    items.sort(key=lambda item: bool(item.get_closest_marker("agents")) and not _is_slow(item.name))


def _is_slow(name: str) -> bool:
    """Whether a test is of an agent that needs many seconds to start, or waits for a long time."""
    return any(part in name for part in ("opencode", "qwen", "llm", "small_chat"))


@pytest.fixture(autouse=True)
def isolated_home(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A fresh state directory; nothing of the machine's own configuration is read."""
    base = tmp_path_factory.mktemp("home")
    home = base / "relay"
    monkeypatch.setenv("HOME", str(base))
    monkeypatch.setenv("RELAY_HOME", str(home))
    monkeypatch.setenv("TERM", "xterm-256color")  # a line editor in a dumb terminal draws otherwise
    # A broker that a test leaves behind goes away by itself.
    monkeypatch.setenv("RELAY_BROKER_IDLE", "10")
    monkeypatch.setenv("RELAY_RATE_MAX", "0")  # a test's burst is no loop
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "RELAY_AGENT", "RELAY_RUN", "RELAY_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return home


@pytest.fixture(scope="session")
def weights() -> str:
    """The folder of MiniLM's real weights; where they cannot be had the test is skipped, in CI it
    fails.

    Parallel workers share the folder: one fetches, the others wait for it.
    """
    from relay.core.errors import RelayError
    from tests.features.memory.embedding import models

    try:
        return models.minilm()
    except RelayError as error:
        if os.environ.get("CI"):
            pytest.fail(f"CI must have the weights of MiniLM: {error}")
        pytest.skip(f"{error} ({error.hint})")


@pytest.fixture
def models(isolated_home: Path, weights: str) -> Path:
    """RELAY_HOME's own ``models``, as ``relay memory setup`` leaves it."""
    isolated_home.mkdir(mode=0o700, exist_ok=True)
    folder = isolated_home / "models"
    folder.symlink_to(Path(weights).parent)
    return folder
