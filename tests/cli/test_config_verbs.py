from __future__ import annotations

import os
from pathlib import Path

import pytest

from relay.cli import config_verbs
from relay.cli.config_template import TEMPLATE
from relay.config.load import load
from relay.config.trust import CONFIG_NAME, read_config
from relay.core.errors import RelayError
from tests.cli.verbs import Verb, printed_json, verbs_of


@pytest.fixture
def relay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Verb:
    """Runs a verb in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return verbs_of(config_verbs)


def test_init_writes_a_file_that_loads(relay: Verb, capsys: pytest.CaptureFixture[str]) -> None:
    assert relay("init") == 0
    captured = capsys.readouterr()
    assert captured.out == f"{Path(CONFIG_NAME).absolute()}\n"
    assert "relay trust" in captured.err
    loaded = load(read_config(CONFIG_NAME))
    assert loaded.registry.namespaces() == {"hello"}
    assert loaded.warnings == ()


def test_init_never_overwrites_unasked(relay: Verb, tmp_path: Path) -> None:
    path = Path(CONFIG_NAME)
    path.write_text("mine")
    with pytest.raises(RelayError, match="already there") as caught:
        relay("init")
    assert "--force" in caught.value.hint
    assert path.read_text() == "mine"
    assert relay("init", "--force") == 0
    assert path.read_text() == TEMPLATE
    assert os.listdir(tmp_path) == [CONFIG_NAME]


def test_init_does_not_follow_a_link(relay: Verb, tmp_path: Path) -> None:
    target = tmp_path / "target"
    Path(CONFIG_NAME).symlink_to(target)
    with pytest.raises(RelayError):
        relay("init")
    assert not target.exists()
    relay("init", "--force")
    assert not target.exists()
    assert not Path(CONFIG_NAME).is_symlink()


def test_init_as_json(relay: Verb, capsys: pytest.CaptureFixture[str]) -> None:
    relay("init", "--json")
    assert printed_json(capsys)["next"][0] == "relay trust"
