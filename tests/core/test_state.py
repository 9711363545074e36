"""Checkpoints as dataclasses with one JSON form."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field

from relay.core.bounded import BoundedDict, RecentSet
from relay.core.message import AgentState
from relay.core.state import from_json, to_json


@dataclass
class Part:
    text: str = ""
    pieces: dict[int, str] = field(default_factory=dict)


@dataclass
class Whole:
    state: AgentState = AgentState.STARTING
    due: float | None = None
    pair: tuple[str, ...] = ()
    parts: BoundedDict[str, Part] = field(default_factory=lambda: BoundedDict(2))
    waiting: list[Part] = field(default_factory=list)
    last: deque[str] = field(default_factory=lambda: deque(maxlen=2))
    heard: RecentSet[str] = field(default_factory=lambda: RecentSet(2))
    counts: dict[str, list[int]] = field(default_factory=dict)


def filled() -> Whole:
    whole = Whole(AgentState.BUSY, 1.5, ("a", "b"), counts={"p": [1, 2]})
    whole.parts["one"] = Part("x", {3: "later"})
    whole.waiting.append(Part("y"))
    whole.last.append("z")
    whole.heard.add("w")
    return whole


def test_a_state_comes_back_from_json_with_the_types_that_it_had() -> None:
    read = from_json(Whole, json.loads(json.dumps(to_json(filled()))))
    assert to_json(read) == to_json(filled())
    assert read.state is AgentState.BUSY
    assert read.pair == ("a", "b")
    assert read.parts["one"].pieces == {3: "later"}


def test_containers_keep_their_limits() -> None:
    read = from_json(Whole, to_json(filled()))
    for name in "mno":
        read.parts[name] = Part()
        read.last.append(name)
        read.heard.add(name)
    for kept in (read.parts, read.last, read.heard):
        assert list(kept) == ["n", "o"]


def test_what_is_changed_later_does_not_change_a_checkpoint() -> None:
    whole = filled()
    taken = to_json(whole)
    whole.last.append("more")
    whole.counts["p"].append(3)
    assert taken == to_json(filled())


def test_an_older_checkpoint_lacks_fields_and_has_others() -> None:
    read = from_json(Whole, {"due": None, "forgotten": 1})
    assert to_json(read) == to_json(Whole())
