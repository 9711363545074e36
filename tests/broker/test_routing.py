"""Who gets a message."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from relay.broker.routing import TARGETS_MAX, route
from relay.core.errors import NotFound, UsageError
from relay.core.message import State


@dataclass
class Known:
    name: str
    live: bool = True
    person: bool = False
    roles: tuple[str, ...] = ()
    channels: tuple[str, ...] = ()
    last_seen_ms: int = 0


PEERS = {
    peer.name.lower(): peer
    for peer in (
        Known("Al"),
        Known("Bob"),
        Known("Carol", live=False),
        Known("ann", live=False, person=True),
    )
}


def names(*targets: str, sender: str = "Al", strict: bool = False) -> list[tuple[str, str]]:
    routing = route(targets, sender, PEERS, strict=strict)
    return [(one.to, one.state.value) for one in routing.routes]


def test_a_name_in_any_case_gets_it_under_its_own_name() -> None:
    assert names("Bob") == names("bOB") == [("Bob", "queued")]


def test_one_that_is_not_running_has_an_inbox() -> None:
    assert names("Carol", strict=True) == [("Carol", "queued")]
    assert names("ann") == [("ann", "queued")]


def test_everyone_is_everyone_else_that_is_there() -> None:
    assert names("*") == [("Bob", "queued")]
    assert names("*", sender="ann") == [("Al", "queued"), ("Bob", "queued")]


def test_a_list_names_each_once() -> None:
    assert names("Bob", "BOB", "*", "Carol") == [("Bob", "queued"), ("Carol", "queued")]


def test_nobody_else_is_there() -> None:
    alone = {"al": Known("Al")}
    routing = route(["*"], "Al", alone, strict=False)
    assert routing.routes[0].state is State.FAILED
    assert routing.routes[0].reason == "nobody else is there"
    with pytest.raises(NotFound):
        route(["*"], "ann", {}, strict=True)


@pytest.mark.parametrize("targets", [["Al"], ["aL"], ["Bob", "al"]])
def test_not_to_oneself(targets: list[str]) -> None:
    with pytest.raises(UsageError, match="cannot send to yourself"):
        names(*targets)


def test_an_unknown_name_is_waited_for_and_explained_to_an_agent() -> None:
    routing = route(["Bobb"], "Al", PEERS, strict=False)
    assert routing.routes[0].state is State.WAITING
    assert routing.routes[0].reason == "nobody is called Bobb yet"
    assert routing.did_you_mean == ["Bob"]
    assert routing.present == ["Bob", "ann"]


def test_a_person_at_a_shell_is_refused() -> None:
    with pytest.raises(NotFound, match="nobody is called Bobb") as failure:
        names("Bobb", sender="ann", strict=True)
    assert "did you mean Bob?" in failure.value.hint
    assert failure.value.exit_status == 3


@pytest.mark.parametrize(
    "target", ["", "a b", "Zoë", "relay", "../x", pytest.param("a" * 65, id="too long"), "#", "-x"]
)
def test_what_can_never_be_a_name_is_refused_to_all(target: str) -> None:
    for strict in (False, True):
        with pytest.raises(UsageError):
            names(target, strict=strict)


def test_too_many_and_too_few() -> None:
    with pytest.raises(UsageError, match="more than"):
        names(*[f"n{i}" for i in range(TARGETS_MAX + 1)])
    with pytest.raises(UsageError, match="recipient"):
        names()
