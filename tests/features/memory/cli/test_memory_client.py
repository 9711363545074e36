"""``relay memory`` asks the store that the trusted configuration of the folder names."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from relay.config import trust
from relay.core.errors import ConfigError
from relay.core.paths import Home
from relay.features.memory import memory_checks
from relay.features.memory.extraction import Extraction, ExtractionFolder, folder_of
from relay.features.memory.memory_checks import memory_lines
from relay.features.memory.memory_client import applying
from relay.features.memory.settings import MemorySettings, config_warnings, memory_settings
from relay.features.memory.spec import StoreSpec
from tests.cli.fixtures import Run
from tests.config.trusted import trusted

CONFIG = """\
def search(query, limit, scope):
    open({file!r}, "a").write(query)
    return []

memory = {{"searcher": search, "secrets": "refuse"}}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose configuration has a searcher, which writes down what it is asked."""
    folder = tmp_path / "shop"
    (folder / ".git").mkdir(parents=True)
    (folder / "relay.config.py").write_text(CONFIG.format(file=str(tmp_path / "asked")))
    monkeypatch.chdir(folder)
    return folder


def test_a_searcher_is_asked_only_when_its_file_is_trusted(
    relay: Run, project: Path, tmp_path: Path
) -> None:
    done = relay("memory", "save", "a fact")
    assert done.returncode == 0 and "is not trusted, so it does not choose" in done.stderr
    relay("memory", "search", "fact")
    assert "relay trust" in done.stderr and not (tmp_path / "asked").exists()
    assert relay("trust").returncode == 0
    done = relay("memory", "search", "a fact", "--json")
    assert done.returncode == 0 and "not trusted" not in done.stderr
    assert (tmp_path / "asked").read_text() == "a fact"
    assert [row["text"] for row in json.loads(done.stdout)] == ["a fact"]
    (project / "src").mkdir()
    os.chdir(project / "src")
    assert len(json.loads(relay("memory", "list", "--json").stdout)) == 1


def test_stats_say_how_far_an_index_is(relay: Run, project: Path) -> None:
    relay("trust")
    relay("memory", "save", "a fact")
    assert f"index:      the searcher of {project}" in relay("memory", "stats").stdout
    config = {"url": "http://127.0.0.1:9", "embedder": {"provider": "ollama", "dims": 3}}
    file = project / "relay.config.py"
    file.write_text(f"memory = {{'backend': 'qdrant', 'config': {config!r}}}\n")
    relay("trust")
    assert relay("memory", "search", "fact").returncode == 0
    relay("memory", "save", "another")
    out = relay("memory", "stats").stdout
    assert "index:      qdrant at http://127.0.0.1:9: 0 of 2\n" in out
    assert "problem:    qdrant at http://127.0.0.1:9: " in out and "memories:   2\n" in out


def test_what_the_configuration_says_of_secrets_goes_here_too(relay: Run, project: Path) -> None:
    relay("trust")
    secret = "the token is ghp_" + "a1B2" * 9
    done = relay("memory", "save", secret)
    assert done.returncode == 2 and "holds a secret" in done.stderr
    assert relay("memory", "save", secret, "--keep-secrets").returncode == 0


def test_a_file_that_is_named_must_be_trusted(relay: Run, project: Path) -> None:
    done = relay("memory", "list", "--config", "relay.config.py", "--json")
    assert done.returncode == 2 and "is not trusted" in json.loads(done.stdout)["error"]["message"]


def test_a_mistake_in_the_file_saves_nothing_elsewhere(relay: Run, project: Path) -> None:
    (project / "relay.config.py").write_text("config = {'memory': {'backend': 'mem1'}}\n")
    trusted(Home.from_env(), project / "relay.config.py")  # by a relay that knew this backend
    done = relay("memory", "save", "x")
    assert done.returncode == 2 and "no backend 'mem1'" in done.stderr


def test_an_untrusted_file_that_says_nothing_of_memories_is_not_mentioned(
    project: Path, isolated_home: Path
) -> None:
    home = Home(str(isolated_home))
    assert applying(home).untrusted == str(project / "relay.config.py")
    (project / "relay.config.py").write_text("hooks = {}\n")
    assert applying(home).untrusted is None


def test_in_the_tools_of_an_agent_it_is_the_file_that_the_agent_was_started_with(
    project: Path, isolated_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(str(isolated_home))
    named = tmp_path / "named.py"
    named.write_text("config = {'memory': {'backend': 'qdrant'}}\n")
    monkeypatch.setenv("RELAY_CONFIG", str(named))
    monkeypatch.setenv("RELAY_RUN", "run-1")
    assert applying(home).untrusted == str(named)
    trust.trust(home, str(named))
    assert applying(home).settings.backend == "qdrant"
    monkeypatch.delenv("RELAY_RUN")
    assert applying(home).untrusted == str(project / "relay.config.py")


def test_where_the_folder_is_gone_the_user_s_own_configuration_applies(
    project: Path, isolated_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(str(isolated_home))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "user"))
    own = tmp_path / "user" / "relay" / "relay.config.py"
    own.parent.mkdir(parents=True)
    own.write_text("config = {'memory': {'backend': 'qdrant'}}\n")
    trust.trust(home, str(own))
    shutil.rmtree(project)
    assert applying(home).settings.backend == "qdrant"
    own.unlink()
    assert applying(home).settings == MemorySettings(StoreSpec())
    with pytest.raises(ConfigError, match="no configuration file"):
        applying(home, "/not/there.py")


# -- What doctor and config say about memory, beside servers of the tests' own.


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


def lines(home: Home, memory: object, **environ: str) -> list[memory_checks.Line]:
    folder = Path(home.root).parent
    path = folder / "relay.config.py"
    path.write_text(f"config = {{'memory': {memory!r}}}\n")
    trusted(home, path)
    return list(memory_lines(home, str(folder), environ))


def test_the_default_needs_nothing(home: Home, tmp_path: Path) -> None:
    told = "local, searched by words (by meaning, too, after relay memory setup)"
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
    assert second == ("warn", "mem0 needs an embedder, and none is set up", "relay memory setup")


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
