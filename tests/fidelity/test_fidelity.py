"""Every behaviour, directly and under ``relay wrap``: the same must be seen."""

from __future__ import annotations

import os

import pytest

from tests.fidelity.behaviours import ANY, Behaviour, observe, registered
from tests.fidelity.wrappers import DIRECT, RELAY

ALL = registered()


@pytest.mark.parametrize("one", ALL, ids=lambda one: f"{one.group}-{one.name}".replace(" ", "_"))
def test_the_same_is_seen_as_without_relay(one: Behaviour, fidelity_home: str) -> None:
    if one.proc and not os.path.exists("/proc/self/status"):
        pytest.skip("this behaviour is observed in /proc, which only Linux has")
    direct = observe(one, DIRECT, fidelity_home)
    if one.expect is not ANY:
        assert direct == one.expect, "the bare program itself behaves differently here"
    assert observe(one, RELAY, fidelity_home) == direct, one.sentence
