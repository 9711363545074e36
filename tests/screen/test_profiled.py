"""Recordings of programs that relay knows by a profile alone: what is heard, what the box says.

Each holds one standard conversation with a scripted model, and a question or a modal opened in it.
"""

from __future__ import annotations

from itertools import pairwise

import pytest

from relay.agents.profile import Profile, find_profile
from relay.core.source_events import SourceEvent
from relay.protocol import frames
from relay.screen.source import ScreenSource
from tests.screen.conversation import Found, finds
from tests.screen.screens import cast, until

SIZES = {"80x24": (80, 24), "120x40": (120, 40)}
LONG = "please check the tests in the source folder and report back, " * 5 + "for sure"
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
        Found("Bob", LONG),
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
