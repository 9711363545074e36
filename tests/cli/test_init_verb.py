"""``relay init``: a configuration to begin with, or with ``--governed`` a file of intents."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from relay.cli import init_verb
from relay.cli.init_verb import TEMPLATE
from relay.config.load import load
from relay.config.trust import CONFIG_NAME, read_config
from relay.core.errors import RelayError
from relay.features.governance.cli import INTENTS_TEMPLATE
from relay.features.governance.governed_paths import FOLDER
from relay.features.governance.intents import (
    INTENTS_FILE,
    MAP_FILE,
    TRACE_FILE,
    GovernanceSettings,
    parse,
)
from tests.cli.verbs import Verb, printed_json, verbs_of


@pytest.fixture
def relay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Verb:
    """Runs a verb in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return verbs_of(init_verb)


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
    with pytest.raises(RelayError, match="already exists") as caught:
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


def test_init_governed_makes_a_project_a_governed_one(
    relay: Verb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in (".git", "src"):
        (tmp_path / "shop" / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "shop" / "src")
    assert relay("init", "--governed") == 0
    done = capsys.readouterr()
    path = tmp_path / "shop" / FOLDER / INTENTS_FILE
    assert done.out == f"{path}\n" and "relay intent check" in done.err
    assert path.read_text() == INTENTS_TEMPLATE
    assert sorted(os.listdir(path.parent)) == [".gitignore", INTENTS_FILE]
    assert (path.parent / ".gitignore").read_text() == f"{TRACE_FILE}\n{MAP_FILE}\n"
    assert not parse(INTENTS_TEMPLATE).intents and "nothing is allowed" in done.err
    path.write_text("mine")
    with pytest.raises(RelayError, match="already exists"):
        relay("init", "--governed")
    with pytest.raises(RelayError, match="replaces nothing"):
        relay("init", "--governed", "--force")
    assert path.read_text() == "mine"
    path.unlink()
    relay("init", "--governed", "--json")
    assert printed_json(capsys)["root"] == str(tmp_path / "shop")


def test_init_governed_governs_no_home_folder_and_follows_no_link(
    relay: Verb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, shop, other = (tmp_path / name for name in ("home", "shop", "other"))
    for folder in (home, shop / ".git", other):
        folder.mkdir(parents=True)
    monkeypatch.chdir(home)
    monkeypatch.setenv("HOME", str(home))
    with pytest.raises(RelayError, match="your home folder"):
        relay("init", "--governed")
    assert os.listdir(home) == []
    (shop / FOLDER).symlink_to(other)
    monkeypatch.chdir(shop)
    with pytest.raises(RelayError, match="not a folder of yours"):
        relay("init", "--governed")
    assert os.listdir(other) == []


def test_the_example_of_the_template_is_an_intent_once_its_marks_are_gone() -> None:
    text, _ = INTENTS_TEMPLATE.split("# How strict", 1)
    made = re.sub("(?m)^# (?=  )", "", text.replace("active_intents: []", "active_intents:"))
    example = parse(made).intents["INT-001"]
    assert example.owned_scope[0] == "src/**" and example.constraints and example.name


def test_the_settings_of_the_template_are_the_defaults() -> None:
    section = INTENTS_TEMPLATE[INTENTS_TEMPLATE.index("# governance:") :]
    document = parse(re.sub("(?m)^# ", "", section))
    assert document.settings == GovernanceSettings()
    assert all(name in section for name in GovernanceSettings.__slots__)
