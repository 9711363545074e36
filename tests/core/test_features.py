"""Which features are installed, and what becomes of one that cannot be loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from relay.core import features
from tests.core.packages import install


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed packages, and none of relay's own features."""
    monkeypatch.setattr(features, "_FOLDER", str(tmp_path / "own"))
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_a_package_from_outside_is_found_and_a_broken_one_harms_it_not(packages: Path) -> None:
    install(packages, "shout_feature", "broker", "LOUD = True\n")
    install(packages, "broken_feature", "broker", "raise OSError('no disk')\n")
    install(packages, "quiet_feature", "session", "")
    found = {module.feature.name: module for module in features.modules("broker")}
    assert set(found) == {"shout_feature", "broken_feature"}
    assert getattr(found["shout_feature"].module, "LOUD")  # noqa: B009
    assert found["broken_feature"].module is None
    assert "OSError: no disk" in found["broken_feature"].problem
    assert "Traceback" in found["broken_feature"].trace


def test_a_package_takes_no_name_of_a_feature_of_relays_own(
    packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (packages / "own" / "guard").mkdir(parents=True)
    (packages / "own" / "guard" / "__init__.py").write_text("")
    install(packages, "guard", "broker", "")
    assert [(one.name, one.is_own) for one in features.installed()] == [("guard", True)]


def test_without_the_folder_there_are_none(packages: Path) -> None:
    assert list(features.installed()) == []


def test_the_package_has_the_names_of_its_features_too() -> None:
    names: dict[str, object] = {}
    exec("from relay import *", names)
    public = [getattr(one.module, "PUBLIC", {}) for one in features.modules("")]
    assert {"Relay", "QueueMode"}.union(*public) <= names.keys()


def test_what_cannot_be_loaded_is_said_each_time(packages: Path) -> None:
    install(packages, "horn_feature", "horn", "raise OSError('no disk')\n")
    (packages / "horn_feature" / "__init__.py").write_text("PUBLIC = {'honk': ('horn', 'honk')}\n")
    for _ in range(2):
        with pytest.raises(OSError, match="no disk"):
            features.named("PUBLIC", "honk")
