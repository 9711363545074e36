"""``relay memory`` asks the store that the trusted configuration of the folder names."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from relay.cli.memory_client import applying
from relay.config.memory_settings import MemorySettings
from relay.config.memory_spec import StoreSpec
from relay.config.trust import trust
from relay.core.errors import ConfigError
from relay.core.paths import Home
from tests.cli.conftest import Run
from tests.config.trusted import trusted

CONFIG = """\
from relay.memory.local.local_store import LocalStore

config = {{
    "memory": {{
        "backend": "custom",
        "config": {{"object": lambda: LocalStore({folder!r})}},
        "secrets": "refuse",
    }}
}}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose configuration has a store of its own, in ``tmp_path``/own."""
    folder = tmp_path / "shop"
    (folder / ".git").mkdir(parents=True)
    (folder / "relay.config.py").write_text(CONFIG.format(folder=str(tmp_path / "own")))
    monkeypatch.chdir(folder)
    return folder


def test_a_store_is_asked_only_when_its_file_is_trusted(
    relay: Run, project: Path, tmp_path: Path
) -> None:
    done = relay("memory", "save", "in the local store")
    assert done.returncode == 0 and "is not trusted, so it does not choose" in done.stderr
    assert "relay trust" in done.stderr and not (tmp_path / "own").exists()
    assert relay("trust").returncode == 0
    done = relay("memory", "save", "in the store of its own")
    assert done.returncode == 0 and "not trusted" not in done.stderr
    assert (tmp_path / "own").exists()
    rows = json.loads(relay("memory", "list", "--json").stdout)
    assert [row["text"] for row in rows] == ["in the store of its own"]
    (project / "src").mkdir()
    os.chdir(project / "src")
    assert len(json.loads(relay("memory", "list", "--json").stdout)) == 1


def test_stats_say_nothing_that_they_cannot_know(relay: Run, project: Path) -> None:
    relay("trust")
    assert "embedder:   none\n" in relay("memory", "stats").stdout  # its own matter
    config = {"url": "http://127.0.0.1:9", "embedder": {"provider": "ollama", "dims": 3}}
    file = project / "relay.config.py"
    file.write_text(f"memory = {{'backend': 'qdrant', 'config': {config!r}}}\n")
    relay("trust")
    out = relay("memory", "stats").stdout
    assert "memories:   unknown\n" in out and "problem:    " in out


def test_memories_move_between_two_stores(relay: Run, project: Path, tmp_path: Path) -> None:
    relay("trust")
    plain = tmp_path / "plain.py"
    plain.write_text("config = {'memory': {}}\n")
    relay("trust", str(plain))
    relay("memory", "save", "one")
    relay("memory", "save", "two", "--scope", "user")
    done = relay("memory", "export", "all.jsonl")
    assert "2 memories are in all.jsonl" in done.stderr
    done = relay("memory", "import", "all.jsonl", "--config", str(plain))
    assert "2 new, 0 that were there" in done.stderr
    own, other = (
        [json.loads(line) for line in relay("memory", "export", *words).stdout.splitlines()]
        for words in ((), ("--config", str(plain)))
    )
    assert sorted(own, key=str) == sorted(other, key=str) and len(own) == 2


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
