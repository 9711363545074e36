"""Recordings of programs that relay knows by a profile alone: what is heard, what the box says.

Each holds one standard conversation with a scripted model, and a question or a modal opened in it.
"""

from __future__ import annotations

import itertools
from itertools import pairwise

import pytest

from relay.agents.profile import ComposerState, Profile, find_profile
from relay.core.source_events import SourceEvent
from relay.protocol import frames
from relay.screen.emulator import Emulator
from relay.screen.source import ScreenSource
from tests.screen.conversation import LONG, SECOND, Found, finds
from tests.screen.screens import cast, cut, until

SIZES = {"80x24": (80, 24), "120x40": (120, 40)}
ASKED = "please check the tests in the source folder and report back, " * 5 + "for sure"
FENCED, ESCAPED = Found("Bob", "no: in a fence"), Found("Bob", "no: escaped")
PLAIN = "first **paragraph**, with `code` and under_scores\n\n- a list\n- of two\n\nlast one"
#: What of the code looks live, and the block; Rich draws its ``>>>`` as nothing.
HEARD = {
    "gptme": ([], PLAIN),
    "llm": ([], PLAIN),
    "interpreter": ([FENCED, ESCAPED], None),
    "elia": ([FENCED, ESCAPED], None),
}
BOTH = [pytest.param(name, size, id=f"{name}-{size}") for name in HEARD for size in SIZES]
ENTER = {"\r", "\n"}
#: Keys that are pressed while a question or a modal stands.
ANSWERS = {"n\r", "\x1b"}
#: Those that open one, or end the program.
SHORTCUTS = {"\x1bOQ", "\x12", "\x1bOP", "\x03", "\x04"}


def replay(name: str, size: str) -> tuple[list[SourceEvent], list[tuple[str, str]]]:
    """The events, and before each key the state of the input line."""
    profile = find_profile(name)[0]
    source = ScreenSource(*SIZES[size], style=profile.screen)
    events: list[SourceEvent] = []
    states: list[tuple[str, str]] = []
    for at, kind, data in cast(f"profiled/{name}-{size}"):
        events += until(source, at)
        if kind == "o":
            events += source.feed(data.encode(), at)
        elif data.startswith("\x1b[200~"):
            source.expect_echo(data[6:-6], at)
        else:
            states.append((data, state(profile, source)))
            events += source.activity(frames.ENTERED if data in ENTER else frames.TYPED, at)
    return events + source.finish(at + 2), states


def state(profile: Profile, source: ScreenSource) -> str:
    return profile.composer_at_rest(source.visible(), source.title, source.cursor[1])


@pytest.mark.parametrize(("name", "size"), BOTH)
def test_a_conversation_is_heard_whole_and_once(name: str, size: str) -> None:
    live, block = HEARD[name]
    twice = Found("Bob", "the same twice")
    events, _ = replay(name, size)
    assert finds(events) == [
        Found("Bob", ASKED),
        *live,
        *[twice] * 3,
        Found("Bob", "I have got it: thank you"),
        Found("Bob", block),
        Found("Bob", "behind the block"),
        Found("Bob", "only paragraph of it\n\nsecond paragraph"),
        Found("Bob", "behind the other block"),
        Found("Bob", "at its end"),
    ]


@pytest.mark.parametrize(("name", "size"), BOTH)
def test_a_question_an_empty_line_and_a_draft_are_told_apart(name: str, size: str) -> None:
    states = replay(name, size)[1]
    asked = [found for key, found in states if key in ANSWERS]
    # gptme asks which conversation to go on with, too, and answers come at an Enter.
    asked += [found for key, found in states[: name == "gptme"]]
    assert asked == ["dialog"] * {"gptme": 2, "interpreter": 1, "elia": 3, "llm": 0}[name]
    first = [found for key, found in states if key in SHORTCUTS]
    for (before, _), (key, found) in pairwise(states):
        if before in ENTER and key not in ENTER | ANSWERS:
            first.append(found)
    assert first and set(first) == {"empty"}
    entered = [found for key, found in states[1:] if key in ENTER]
    assert entered and set(entered) <= {"draft", "busy"}


def test_elia_says_that_it_is_at_work_and_its_words_may_take_their_time() -> None:
    profile = find_profile("elia")[0]
    source = ScreenSource(60, 9, style=profile.screen)
    events = source.activity(frames.ENTERED, 0.0)
    for at, words in enumerate(
        ["@relay:Bob hel", "@relay:Bob hello and mo", "@relay:Bob hello and more"]
    ):
        doing = "Agent" if words.endswith("more") else "Agent is responding"
        rows = [f"{'A talk ' + doing:>59}", "", f" ╭─ {doing} {'─' * (54 - len(doing))}╮"]
        rows += [f" │  {words:<53} │", f" ╰{'─' * 56}╯"]
        drawn = "".join(f"\x1b[{y};1H\x1b[2K{row}" for y, row in enumerate(rows, 1))
        events += until(source, at * 4.0) + source.feed(f"\x1b[?1049h{drawn}".encode(), at * 4.0)
    assert finds(events + until(source, 9.0)) == [Found("Bob", "hello and more")]


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
