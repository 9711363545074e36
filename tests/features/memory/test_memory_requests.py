"""Where memories of a folder belong, and whose an agent may see and change."""

from __future__ import annotations

from pathlib import Path

import pytest

from relay.core.errors import RelayError, UsageError
from relay.features.memory.records import ORIGIN, Memory, Place, Scope
from relay.features.memory.requests import MemoryRequest, applying


def test_the_most_specific_place_comes_first(tmp_path: Path) -> None:
    project = Place(Scope.PROJECT, str(tmp_path.resolve()))
    user = Place(Scope.USER)
    assert applying("Ada", project.owner) == [Place(Scope.AGENT, "ada"), project, user]
    assert applying(None, None) == [user]


def test_a_scope_that_does_not_exist_is_named_with_what_was_meant() -> None:
    with pytest.raises(UsageError, match="there is no scope 'usr'") as caught:
        MemoryRequest({"scope": "usr"}, "Ada", "run-1", 0).place()
    assert caught.value.hint == "did you mean 'user'?"


def asked(
    agent: str | None = "Ada", project: str | None = "/src/shop", **fields: object
) -> MemoryRequest:
    return MemoryRequest(dict(fields), agent, "run-1", 0, project)


def memory(scope: Scope, owner: str = "", agent: str | None = "Ada", where: str = "") -> Memory:
    meta = {ORIGIN: where} if where else {}
    return Memory("k23fb0fc", "x", Place(scope, owner), agent, None, 0, 0, None, meta)


def test_an_agent_is_where_its_run_was_registered_whatever_it_says() -> None:
    assert asked(cwd="/src/other").place() == Place(Scope.PROJECT, "/src/shop")
    assert Place(Scope.PROJECT, "/src/other") not in asked(cwd="/src/other").places()
    with pytest.raises(UsageError, match="there is no project here"):
        asked(project=None, cwd="/src/other").place()


@pytest.mark.parametrize(
    "place",
    [Place(Scope.PROJECT, "/src/other"), Place(Scope.AGENT, "bob")],
    ids=["project", "agent"],
)
def test_what_is_of_others_is_none_of_an_agents(place: Place) -> None:
    assert not asked().may_read(place)
    assert asked(agent=None).may_read(place)


@pytest.mark.parametrize(
    ("found", "may"),
    [
        (memory(Scope.USER, where="/src/shop"), True),
        (memory(Scope.USER, where="/src/other"), False),
        (memory(Scope.USER, agent="Bob", where="/src/shop"), False),
        (memory(Scope.USER, agent=None), False),
        (memory(Scope.PROJECT, "/src/shop", agent=None), True),
        (memory(Scope.AGENT, "ada"), True),
    ],
    ids=["own", "own-elsewhere", "another-agents", "the-persons", "project", "agent"],
)
def test_an_agent_changes_of_what_is_for_everybody_only_its_own(found: Memory, may: bool) -> None:
    if may:
        asked().check_change(found)
    else:
        with pytest.raises(RelayError):
            asked().check_change(found)
    asked(agent=None).check_change(found)


def test_where_something_comes_from_is_written_by_relay_alone() -> None:
    forged = {ORIGIN: "", "auto": True}
    assert asked(meta=forged).meta() == {"auto": True, ORIGIN: "/src/shop"}
    assert asked(agent=None, meta=forged).meta() == {"auto": True}
    long = "/" + "x" * 5000
    kept = (asked(project=long).meta() or {})[ORIGIN]
    assert len(kept) == 200 and long.endswith(kept[1:])


def test_another_agents_own_are_not_named_in_a_request() -> None:
    with pytest.raises(RelayError, match="Ada cannot see or change what is Bob's own"):
        MemoryRequest({"scope": "agent", "agent": "Bob"}, "Ada", "run-1", 0).places()
