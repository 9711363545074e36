"""``relay memory`` asks the store that the trusted configuration of the folder names."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from relay.config.trust import trust
from relay.core.errors import ConfigError
from relay.core.paths import Home
from relay.features.memory.memory_client import applying
from relay.features.memory.settings import MemorySettings
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
    trust(home, str(named))
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
    trust(home, str(own))
    shutil.rmtree(project)
    assert applying(home).settings.backend == "qdrant"
    own.unlink()
    assert applying(home).settings == MemorySettings(StoreSpec())
    with pytest.raises(ConfigError, match="no configuration file"):
        applying(home, "/not/there.py")
