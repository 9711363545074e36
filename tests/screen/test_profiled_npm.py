"""Recorded conversations with programs from npm that relay knows by a profile alone.

Each of ``profiled/NAME-SIZE``: one with the bare program and a scripted model, in which it says a
long message, a fence, an escaped pattern, the same message twice and once more, and a block; the
person types a pattern, a message with a pattern comes, and a tool prints one behind a dialog.
"""

from __future__ import annotations

import itertools

import pytest

from relay.agents.profile import ComposerState, find_profile
from relay.core.source_events import SourceEvent
from relay.screen.emulator import Emulator
from relay.screen.source import ScreenSource
from tests.screen.conversation import LONG, SECOND, Found, finds
from tests.screen.screens import cast, cut, until

KINDS = ("pi", "cline", "cn", "copilot", "grok")
SMALL = [f"{kind}-80x24" for kind in KINDS]
NAMES = [*SMALL, *(f"{kind}-120x40" for kind in KINDS)]

ITEM = {"grok": "*"}
#: What of the code and the escaped looks like any other line there, see docs/agents.md.
LOOKS_LIVE = {"cline": "Fenced", "copilot": "Escaped", "grok": "Escaped", "pi": "Escaped"}
INERT = {"Fenced": "inside code", "Escaped": "at a line start"}


def expected(kind: str) -> list[Found]:
    item = ITEM.get(kind, "-")
    block = f"First paragraph of the block.\n\n{SECOND}\n\n{item} a list item\n\nLast paragraph."
    live = [Found(target, INERT[target]) for target in (LOOKS_LIVE.get(kind),) if target]
    return [
        Found("Bob", LONG),
        *live,
        *[Found("Bob", "ping")] * 3,
        Found("Dana", block),
        Found("Erin", "after the block"),
        Found("Alice", "thank you"),
        Found("Last", "final words"),
    ]


def heard(name: str, sizes: tuple[int, ...] = (1 << 20,)) -> list[Found]:
    """What is sent, with the output cut into pieces of these sizes."""
    kind, cols, rows = parts(name)
    source = ScreenSource(cols, rows, style=find_profile(kind)[0].screen)
    events: list[SourceEvent] = []
    at, cuts = 0.0, itertools.cycle(sizes)
    for at, code, data in cast(f"profiled/{name}"):
        events += until(source, at)
        if code == "i" and "Relay message" in data:
            source.expect_echo(data.removeprefix("\x1b[200~").removesuffix("\x1b[201~"), at)
        for piece in cut(data.encode(), cuts) if code == "o" else ():
            events += source.feed(piece, at)
    return finds([*events, *until(source, at + 2), *source.finish(at + 2)])


def parts(name: str) -> tuple[str, int, int]:
    kind, _, size = name.rpartition("-")
    cols, rows = map(int, size.split("x"))
    return kind, cols, rows


@pytest.mark.parametrize("name", NAMES)
def test_every_message_is_heard_once_whole_and_in_order(name: str) -> None:
    assert heard(name) == expected(parts(name)[0])


@pytest.mark.parametrize("name", SMALL)
def test_where_the_stream_is_cut_does_not_matter(name: str) -> None:
    assert heard(name, (997, 40, 3001)) == expected(parts(name)[0])


@pytest.mark.parametrize("name", NAMES)
def test_its_input_line_its_turns_and_its_dialog_are_known(name: str) -> None:
    kind, cols, rows = parts(name)
    profile, emulator = find_profile(kind)[0], Emulator(cols, rows)
    told: list[tuple[str, ComposerState]] = []
    while_it_works: set[ComposerState] = set()
    for _, code, data in cast(f"profiled/{name}"):
        if code == "o":
            emulator.feed(data.encode())
        state = profile.composer_at_rest(emulator.visible(), "")
        if code == "i":
            told.append((data, state))
        elif told and told[-1][0] == "\r":
            while_it_works.add(state)
    asked, entered = told[0:12:2], told[1:12:2]
    assert {state for _, state in asked} == {"empty"}
    late = {"empty"} if kind == "copilot" else set()
    # Copilot draws keys that came at once only with the next one, mostly.
    assert {state for _, state in entered} - late == {"draft"}
    assert kind == "pi" or told[12][1] == "dialog"
    assert "busy" in while_it_works
