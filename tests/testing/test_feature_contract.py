"""What every feature of relay's own promises: see relay.testing."""

from __future__ import annotations

import pytest

from relay.core.features import installed
from relay.testing.feature_contract import check_feature

OWN = [feature.package for feature in installed() if feature.is_own]


@pytest.mark.parametrize("package", OWN)
def test_a_feature_keeps_to_the_doors(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_feature(package)
