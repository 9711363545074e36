"""Which handlers are switched off for the calls that they do not end."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from relay.hooks import hung as module
from relay.hooks.hook_model import Callee
from relay.hooks.hung import Hung
from relay.hooks.registry import Registry


def _callee() -> Callee:
    return Registry().add_pattern("deploy", "*", lambda: None).callee


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def _add(hung: Hung, callee: Callee, due: float) -> Future[None]:
    future: Future[None] = Future()
    hung.add(callee, future, due)
    return future


def test_calls_that_nobody_waits_for_hang_only_when_their_time_is_up() -> None:
    clock, callee = Clock(), _callee()
    hung = Hung(clock)
    for _ in range(module.HUNG_MAX + 1):
        _add(hung, callee, due=30.0)
    assert not hung.off
    assert hung.count() == module.HUNG_MAX + 1
    clock.now = 30.0
    _add(hung, callee, due=60.0)
    assert hung.off == {callee: f"switched off: {module.HUNG_MAX + 1} of its calls hang"}


def test_calls_that_have_ended_count_no_more() -> None:
    callee = _callee()
    hung = Hung(Clock())
    for _ in range(module.HUNG_PER_HANDLER):
        _add(hung, callee, due=0.0).set_result(None)
    assert (hung.off, hung.count()) == ({}, 0)


def test_nobody_is_switched_off_for_what_others_do() -> None:
    hung, innocent = Hung(Clock()), _callee()
    for _ in range(module.HUNG_MAX):
        _add(hung, _callee(), due=0.0)
    _add(hung, innocent, due=30.0)
    assert innocent not in hung.off
    assert len(hung.off) == 1


def test_calls_that_are_given_up_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "GIVEN_UP_MAX", 4)
    hung, callee = Hung(Clock()), _callee()
    for _ in range(4):
        assert not hung.off
        _add(hung, callee, due=30.0)
    assert hung.off == {callee: "switched off: 4 calls that were given up have not ended"}
