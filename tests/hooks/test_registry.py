from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from relay.hooks.events import HookEventName, RegistrationError
from relay.hooks.registry import BUILTIN, Registry, checked_builtin, split_pattern


def _handler(target: str) -> None: ...


def _order(registry: Registry, namespace: str, target: str) -> list[str]:
    return [entry.target for entry in registry.select(namespace, target)]


def test_the_most_specific_pattern_comes_first() -> None:
    registry = Registry()
    for target in ("*", "p*", "prod-*", "prod-eu", "prod-*-x", "staging", "prod-?u"):
        registry.add_pattern("deploy", target, _handler)
    assert _order(registry, "deploy", "prod-eu") == ["prod-eu", "prod-?u", "prod-*", "p*", "*"]
    assert _order(registry, "deploy", "staging") == ["staging", "*"]
    assert _order(registry, "other", "staging") == []


def test_targets_match_with_their_case() -> None:
    registry = Registry()
    registry.add_pattern("deploy", "Staging", _handler)
    assert _order(registry, "deploy", "staging") == []


def test_built_ins_run_before_the_users_then_registration_decides() -> None:
    registry = Registry()
    first = registry.add_pattern("relay", "*", _handler, source="a file")
    second = registry.add_pattern("relay", "*", _handler, source="a file")
    own = registry.add_pattern("relay", "*", _handler, source=BUILTIN)
    assert registry.select("relay", "Bob") == [own, first, second]


def test_an_override_removes_the_built_in_for_what_it_matches_only() -> None:
    registry = Registry()
    own = registry.add_pattern("relay", "*", _handler, source=BUILTIN)
    mine = registry.add_pattern("relay", "Bob", _handler, override=True, source="a file")
    assert registry.select("relay", "Bob") == [mine]
    assert registry.select("relay", "Eve") == [own]


def test_hooks_run_by_priority_then_registration() -> None:
    registry = Registry()
    first = registry.add_hook("on_idle", lambda ctx: None)
    second = registry.add_hook("idle", lambda ctx: None)
    urgent = registry.add_hook("onIdle", lambda ctx: None, priority=5)
    late = registry.add_hook("Idle", lambda ctx: None, priority=-1)
    registry.add_hook("output", lambda output: None)
    assert registry.hooks(HookEventName.IDLE) == (urgent, first, second, late)
    assert len(registry.all_hooks()) == 5


def test_a_handlers_name_says_where_it_comes_from() -> None:
    registry = Registry()
    entry = registry.add_pattern("deploy", "*", _handler, source="/some/relay.config.py")
    assert entry.callee.name == "@deploy:* _handler [relay.config.py]"
    assert "[test_registry.py]" in registry.add_pattern("deploy", "*", _handler).callee.name


@pytest.mark.parametrize("namespace", ["", "Deploy", "a b", "1st", "ä", "x" * 65, "a:b", None])
def test_a_bad_namespace_is_refused(namespace: Any) -> None:
    registry = Registry()
    with pytest.raises(RegistrationError, match="cannot be a namespace"):
        registry.add_pattern(namespace, "*", _handler)
    assert registry.patterns() == []


def test_a_namespace_in_capitals_suggests_small_letters() -> None:
    with pytest.raises(RegistrationError) as caught:
        Registry().add_pattern("Deploy", "*", _handler)
    assert caught.value.hint == "did you mean 'deploy'?"


def test_broadcast_is_refused_because_it_is_relay() -> None:
    with pytest.raises(RegistrationError) as caught:
        Registry().add_pattern("broadcast", "*", _handler)
    assert "relay:*" in caught.value.hint


@pytest.mark.parametrize("target", ["", "two words", "line\n", 3])
def test_a_bad_target_is_refused(target: Any) -> None:
    with pytest.raises(RegistrationError, match="cannot be the target"):
        Registry().add_pattern("deploy", target, _handler)


def _generator() -> Iterator[str]:
    yield "x"


async def _async_generator() -> AsyncIterator[str]:
    yield "x"


@pytest.mark.parametrize(
    ("handler", "what"),
    [
        ("text", "cannot be called"),
        (None, "cannot be called"),
        (lambda a, b, c, d: None, "requires 'd'"),
        (_generator, "generator"),
        (_async_generator, "generator"),
    ],
)
def test_a_handler_that_could_not_run_is_refused_at_registration(handler: Any, what: str) -> None:
    registry = Registry()
    with pytest.raises(RegistrationError, match=what) as caught:
        registry.add_pattern("deploy", "*", handler)
    assert "@deploy:*" in caught.value.message
    with pytest.raises(RegistrationError, match="on_message_received"):
        registry.add_hook("message_received", handler)
    assert registry.patterns() == []
    assert registry.all_hooks() == []


@pytest.mark.parametrize("timeout", [0, -1, "5", True, float("inf"), float("nan"), 86_401])
def test_a_bad_timeout_is_refused(timeout: Any) -> None:
    with pytest.raises(RegistrationError, match="seconds"):
        Registry().add_hook("idle", lambda ctx: None, timeout=timeout)


@pytest.mark.parametrize("priority", ["1", 1.5, None, True])
def test_a_bad_priority_is_refused(priority: Any) -> None:
    with pytest.raises(RegistrationError, match="whole number"):
        Registry().add_hook("idle", lambda ctx: None, priority=priority)


def test_only_what_exists_can_be_asked_for_as_built_in() -> None:
    assert checked_builtin("relay") == "relay"
    with pytest.raises(RegistrationError, match="no built-in handler for 'rely'") as caught:
        checked_builtin("rely")
    assert "'relay'" in caught.value.hint


def test_a_key_is_split_at_its_first_colon() -> None:
    assert split_pattern("deploy") == ("deploy", "*")
    assert split_pattern("@deploy:prod-*") == ("deploy", "prod-*")
    assert split_pattern("deploy:") == ("deploy", "")
    assert split_pattern("a:b:c") == ("a", "b:c")
