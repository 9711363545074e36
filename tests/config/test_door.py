"""Settings of a feature from outside, and of one that cannot be loaded."""

import sys
from pathlib import Path

import pytest

from relay.config.load import load, manifest_of
from relay.config.manifest import of_fields
from relay.config.settings import keys
from relay.config.trust import CONFIG_NAME, read_config
from relay.core.errors import ConfigError
from tests.core.packages import install

_LOUD = """
from relay.config.door import Setting
from relay.core.errors import ConfigError

def parse(value):
    if value == 13:
        raise ZeroDivisionError("a bug")
    if not isinstance(value, dict):
        raise ConfigError("loud must be a dictionary")
    return value

LOUD = Setting("loud", "how loud it is", parse, {}, at_top=True)
SETTINGS = (LOUD,)
"""


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration's path, where a good and a broken feature are installed."""
    monkeypatch.syspath_prepend(tmp_path)
    install(tmp_path, "loud_feature", "settings", _LOUD)
    install(tmp_path, "broken_settings", "settings", "raise OSError('no disk')\n")
    return tmp_path / CONFIG_NAME


@pytest.mark.parametrize("text", ["loud = {'volume': 11}", "config = {'loud': {'volume': 11}}"])
def test_a_feature_from_outside_has_settings(written: Path, text: str) -> None:
    written.write_text(text)
    loaded = load(read_config(str(written)))
    loud = sys.modules["loud_feature.settings"].LOUD
    assert loaded.settings.of(loud) == {"volume": 11} and loaded.settings.given == {"loud"}
    assert loaded.warnings == ()
    kept = manifest_of(loaded)
    assert kept.features == {"loud": {"volume": 11}}
    assert of_fields(kept.fields()).features == kept.features
    assert keys()["loud"] == "how loud it is" and "memory" in keys()


@pytest.mark.parametrize(
    ("text", "why", "hint"),
    [
        ("config = {'loud': 1}", "loud must be a dictionary", ""),
        ("config = {'loud': 13}", "loud could not be read: ZeroDivisionError: a bug", "doctor"),
        ("config = {'lout': {}}", "unknown key 'lout'", "broken_settings could not be loaded"),
    ],
)
def test_a_mistake_in_it_is_told_as_any_other(
    written: Path, text: str, why: str, hint: str
) -> None:
    written.write_text(text)
    with pytest.raises(ConfigError, match=why) as caught:
        load(read_config(str(written)))
    assert hint in (caught.value.hint or "")


def test_a_manifest_of_an_earlier_relay_has_features_beside_the_rest() -> None:
    kept = {"patterns": [], "hooks": [], "events": [], "merge": "apart", "caps": {"all": 3.0}}
    manifest = of_fields(kept)
    assert manifest.features == {"caps": {"all": 3.0}} and manifest.settings["merge"] == "apart"
