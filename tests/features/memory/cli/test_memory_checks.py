"""What doctor and config say about memory, beside servers of the tests' own."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from relay.config import trust
from relay.core.paths import Home
from relay.features.memory import cli
from relay.features.memory.cli import memory_lines
from relay.features.memory.extraction import Extraction, ExtractionFolder, folder_of
from relay.features.memory.settings import MemorySettings, config_warnings, memory_settings
from tests.config.trusted import trusted


@pytest.fixture
def server() -> Iterator[str]:
    """Where somebody listens, as a URL."""
    with socket.create_server(("127.0.0.1", 0)) as found:
        yield f"http://127.0.0.1:{found.getsockname()[1]}"


@pytest.fixture
def nobody() -> Iterator[int]:
    """A port of which it is certain that nobody listens there."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(str(tmp_path / "home"))


def lines(home: Home, memory: object, **environ: str) -> list[cli.Line]:
    folder = Path(home.root).parent
    path = folder / "relay.config.py"
    path.write_text(f"config = {{'memory': {memory!r}}}\n")
    trusted(home, path)
    return list(memory_lines(home, str(folder), environ))


def test_the_default_needs_nothing(home: Home, tmp_path: Path) -> None:
    told = "local, found by words; by meaning too after: relay memory setup"
    assert list(memory_lines(home, str(tmp_path), {})) == [("ok", told, "")]
    assert not Path(home.root).exists()


def test_an_untrusted_file_says_nothing(home: Home, tmp_path: Path) -> None:
    (tmp_path / "relay.config.py").write_text("config = {'memory': {'backend': 'mem0'}}\n")
    [(level, text, _)] = memory_lines(home, str(tmp_path), {})
    assert level == "ok" and text.startswith("local")


def test_with_a_mistake_in_the_file_no_store_is_called_fine(home: Home) -> None:
    [(level, text, hint)] = lines(home, {"backend": "mem9"})
    assert level == "warn" and "relay memory does nothing while" in text
    assert hint == "relay config check"


def test_a_server_that_answers_is_fine(home: Home, server: str) -> None:
    embedder = {"provider": "ollama", "url": server, "model": "nomic-embed-text"}
    config = {"url": server, "apiKeyEnv": "Q", "embedder": embedder}
    memory = {"backend": "qdrant", "config": config}
    assert lines(home, memory, Q="key") == [
        ("ok", f"qdrant at {server}", ""),
        ("ok", f"embedder ollama at {server}", ""),
    ]
    [first, *_] = lines(home, memory)
    assert first[0] == "warn" and "variable Q is not set" in first[1]


def test_a_server_that_is_away_is_said(home: Home, nobody: int) -> None:
    url = f"http://127.0.0.1:{nobody}"
    away = "Connection refused"
    store = {"provider": "qdrant", "url": url}
    embedder = {"provider": "ollama", "url": url, "model": "m"}
    memory = {"backend": "mem0", "config": {"vectorStore": store, "embedder": embedder}}
    first, second = lines(home, memory)
    assert first == (
        "warn",
        f"mem0 on qdrant at {url}: {away}",
        "memories are found by their words until it answers; how to start one: docs/memory.md",
    )
    assert second[:2] == ("warn", f"embedder ollama at {url}: {away}")


def test_a_backend_of_vectors_without_an_embedder_is_told(home: Home) -> None:
    first, second = lines(home, {"backend": "mem0"})
    assert first == ("ok", "mem0 on qdrant within RELAY_HOME", "")
    assert second == (
        "warn",
        "mem0 needs an embedder, and none is set up",
        "relay memory setup",
    )


def test_what_has_no_manifest_is_not_run(home: Home, tmp_path: Path) -> None:
    path = tmp_path / "relay.config.py"
    path.write_text("open('ran', 'w')\nconfig = {'memory': {'backend': str('mem0')}}\n")
    trust.trust(home, str(path))
    [(level, text, hint)] = memory_lines(home, str(tmp_path), {})
    assert (level, hint) == ("ok", "what it is: relay memory stats") and str(path) in text
    assert not os.path.exists(tmp_path / "ran") and not os.path.exists("ran")


def test_mistakes_in_the_settings_that_are_allowed() -> None:
    assert config_warnings(MemorySettings(), {}) == []
    config = {
        "url": "http://q",
        "apiKeyEnv": "Q",
        "llm": {"provider": "groq", "model": "m", "apiKeyEnv": "G"},
    }
    settings = memory_settings({"backend": "qdrant", "config": config})
    assert config_warnings(settings, {"Q": "k"}) == [
        "memory: the environment variable G is not set here",
        "memory: the llm is not used, because auto_save is not on",
    ]


def test_doctor_tells_of_last_words_that_wait_or_came_to_nothing(home: Home) -> None:
    folder = ExtractionFolder(folder_of(home))
    folder.write(extraction("run-1"))
    where = folder_of(home)
    waits = ("ok", f"auto_save: last words that wait for the model: 1 ({where})", "")
    assert lines(home, {})[-1] == waits
    folder.write(extraction("run-2", failed="the model m at h: it answered 404"))
    *_, first, (level, text, hint) = lines(home, {})
    assert first == waits
    assert (level, "came to nothing: 1" in text, "answered 404" in text) == ("warn", True, True)
    assert "tried again" in hint


def extraction(run: str, failed: str | None = None) -> Extraction:
    return Extraction(run, "Ada", "words", 0, {}, False, failed=failed)
