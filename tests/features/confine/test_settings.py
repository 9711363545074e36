"""The setting ``confine``."""

from __future__ import annotations

import pytest

from relay.core.errors import ConfigError
from relay.features.confine.settings import CONFINE, parse_confine


@pytest.mark.parametrize(
    ("written", "agents", "writable"),
    [
        (True, ["*"], []),
        (None, [], []),
        ({"agents": ["a*"]}, ["a*"], []),
        ({"writable": ["~/x", "${A:-/b}/c"]}, [], ["~/x", "${A:-/b}/c"]),
    ],
)
def test_what_may_be_written(written: object, agents: list[str], writable: list[str]) -> None:
    value = parse_confine(written)
    assert value == {"agents": agents, "writable": writable}
    assert CONFINE.kept(value) == value
    assert bool(CONFINE.summary(value)) == bool(agents or writable) == bool(CONFINE.shown(value))


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("*", "must be True or a dictionary"),
        ({"agent": []}, "unknown key 'agent'"),
        ({"agents": "claude"}, "agents must be a list"),
        ({"writable": [1]}, "writable must be a list"),
        ({"writable": ["src"]}, "'src' has to begin with /"),
    ],
)
def test_what_may_not(written: object, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_confine(written)
