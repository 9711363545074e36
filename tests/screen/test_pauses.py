"""A model that pauses within a message: nothing is sent before the message is whole.

``pauses/NAME`` are recordings, at 80x24, of programs that relay knows by a profile alone. Each says
one message, and its model pauses for five seconds within a sentence of it.
"""

from __future__ import annotations

import re

import pytest

from relay.agents.profile import Profile, find_profile
from relay.core.source_events import SourceEvent
from relay.directive.grammar import Continued, Match
from relay.protocol import frames
from relay.screen.agent_styles import UNKNOWN, AgentStyle
from relay.screen.redraw import HELD, HELD_AGENT
from relay.screen.source import ScreenSource
from relay.session.detector import Detection, DirectiveDetector, ForAgent, Heard
from relay.session.sources import SourceSelector
from tests.screen.conversation import Found, finds
from tests.screen.screens import cast, until

WHOLE = Found(
    "Bob",
    "please look at the parser first, and write down what you find there, then at the tests of it,"
    " and say which of them are slow",
)


@pytest.mark.parametrize("profile", ["its own", "none"])
@pytest.mark.parametrize("name", ["pi", "cline", "grok", "gptme"])
def test_a_message_is_heard_whole_though_the_model_pauses_within_it(
    name: str, profile: str
) -> None:
    style = find_profile(name if profile == "its own" else "nobody's")[0].screen
    source = ScreenSource(80, 24, style=style)
    events: list[SourceEvent] = []
    for at, kind, data in cast(f"pauses/{name}"):
        events += until(source, at)
        if kind == "o":
            events += source.feed(data.encode(), at)
        else:
            events += source.activity(frames.ENTERED if data == "\r" else frames.TYPED, at)
    assert finds([*events, *until(source, at + 2), *source.finish(at + 2)]) == [WHOLE]


class Watched:
    """A program with these rows on its full screen, above an input line; what is heard of it."""

    def __init__(self, style: AgentStyle = UNKNOWN) -> None:
        detector = DirectiveDetector("run", 0, ["relay"])
        self.ears = SourceSelector(detector, ScreenSource(60, 24, style=style), None)
        self.found: list[object] = []
        self.told: list[str] = []
        self.now = 0.0
        self._take(self.ears.output(b"\x1b[?1049h", 0.0))

    def shows(self, *rows: str, seconds: float = 1.0) -> None:
        placed = "".join(f"\x1b[{y};1H\x1b[2K{row}" for y, row in enumerate([*rows, "", "> "], 1))
        self._take(self.ears.output(f"{placed}\x1b[J".encode(), self.now))
        self.rests(seconds)

    def works(self, *rows: str, seconds: float) -> None:
        """The same, above a spinner that turns."""
        for turn in range(int(seconds * 2)):
            self.shows(*rows, "", f"{chr(0x2801 + turn)} Thinking", seconds=0.5)

    def rests(self, seconds: float) -> None:
        self.now += seconds
        while (due := self.ears.next_deadline()) is not None and due <= self.now:
            self._take(self.ears.tick(due))

    def _take(self, heard: list[Heard]) -> None:
        for one in heard:
            if isinstance(one, Detection):
                found = one.found
                self.found.append(found.body if isinstance(found, Match) else found)
            elif isinstance(one, ForAgent):
                self.told.append(one.text)


def test_a_message_below_which_the_program_works_is_held_until_it_goes_on_or_rests() -> None:
    program = Watched()
    program.works("@relay:Bob one", seconds=20)
    assert program.found == []
    program.works("@relay:Bob one two", "", "Now to the next thing", seconds=2)
    assert program.found == ["one two"]
    program.works("@relay:Bob one two", "", "Now to the next thing", "", "@relay:Ann x", seconds=9)
    assert program.found == ["one two"]
    program.shows("@relay:Bob one two", "", "Now to the next thing", "", "@relay:Ann x y")
    assert program.found == ["one two", "x y"] and program.told == []


def test_after_a_minute_the_person_and_the_agent_are_told_once_that_it_is_held() -> None:
    program = Watched()
    program.works("@relay:Bob one", seconds=59)
    assert program.told == []
    program.works("@relay:Bob one", seconds=90)
    assert (program.found, program.told, program.ears.notes) == ([], [HELD_AGENT], [HELD])
    program.shows("@relay:Bob one two")
    assert program.found == ["one two"]


def test_nothing_is_told_of_other_words_that_stand_while_it_works() -> None:
    program = Watched()
    program.works("I write to bob@example.org now", seconds=90)
    assert (program.told, program.ears.notes) == ([], [])


def test_what_looks_like_work_and_never_changes_holds_nothing_for_long() -> None:
    program = Watched()
    program.shows("@relay:Bob one", "", "Thinking (esc to interrupt)", seconds=9)
    assert program.found == []
    program.rests(2)
    assert program.found == ["one"]


def test_what_a_profile_knows_for_work_holds_a_message_though_it_never_changes() -> None:
    program = Watched(Profile(busy=(re.compile("Generating"),)).screen)
    program.shows("", "", "Generating")
    program.shows("@relay:Bob one", "", "Generating", seconds=30)
    assert program.found == []
    program.shows("@relay:Bob one two")
    assert program.found == ["one two"]


def test_words_that_were_still_written_and_are_gone_when_it_goes_on_are_no_message() -> None:
    program = Watched(Profile(busy=(re.compile("Generating"),)).screen)
    program.shows("", "", "Generating")
    program.shows("@relay:Bob look at `pars", "", "Generating", seconds=9)
    program.shows(*(f"What follows, line {n}" for n in range(18)), "", "Generating")
    assert program.found == []


ROW = "@relay:Bob please look at the parser first and at the tests"


@pytest.mark.parametrize(
    ("first", "then", "found"),
    [
        ([ROW], [ROW, "of it"], [Continued("relay", "Bob", "of it")]),
        ([ROW, "of i"], [ROW, "of it, then"], [Continued("relay", "Bob", "of it, then")]),
        (["@relay:Bob o"], ["@relay:Bob one"], [Continued("relay", "Bob", "@relay:Bob one", True)]),
        (["@relay:Bob one"], ["@relay:Bob one", "", "Done."], []),
        (["@relay:Bob one"], ["@relay:Bob one", "@relay:Ann two"], []),
        (["Look:", "here"], ["Look:", "here and there"], []),
    ],
    ids=["a row", "a row that grows", "the first row", "a paragraph", "a message", "no message"],
)
def test_what_goes_on_with_a_message_that_was_sent_is_told(
    first: list[str], then: list[str], found: list[Continued]
) -> None:
    """A program that shows no work."""
    program = Watched()
    program.shows(*first, seconds=5)
    assert program.found == [] or len(program.found) == 1
    program.shows(*then, seconds=5)
    assert [one for one in program.found if isinstance(one, Continued)] == found


def lines_of(name: str, *pieces: tuple[float, str]) -> tuple[list[object], float]:
    """What is heard of a program that appends, and when the last of it was complete."""
    style = find_profile(name)[0].screen
    ears = SourceSelector(
        DirectiveDetector("run", 0, ["relay"]), ScreenSource(60, 24, style=style), None
    )
    found: list[object] = []
    last = 0.0
    for at, text in [*pieces, (pieces[-1][0] + 9, "")]:
        heard: list[tuple[float, Heard]] = []
        while (due := ears.next_deadline()) is not None and due <= at:
            heard += [(due, one) for one in ears.tick(due)]
        heard += [(at, one) for one in ears.output(text.encode(), at)]
        for when, one in heard:
            if isinstance(one, Detection):
                last = when
                found.append(one.found.body if isinstance(one.found, Match) else one.found)
    return found, last


def test_a_line_of_a_message_waits_for_the_next_and_no_longer_than_until_the_prompt() -> None:
    lines = [(0.0, "@relay:Bob please:\r\n"), (1.5, "- one\r\n")]
    assert lines_of("llm", *lines, (3.0, "- two\r\n"), (4.0, "> "))[0] == ["please:\n- one\n- two"]
    found, last = lines_of("llm", *lines, (1.6, "> "))
    assert found == ["please:\n- one"] and last < 1.7
    assert lines_of("nobody's", (0.0, "@relay:Bob please:\r\n"), (0.2, "- one\r\n"))[0] == [
        "please:\n- one"
    ]


def test_a_line_that_comes_too_late_for_its_message_is_told() -> None:
    found, _ = lines_of("llm", (0.0, "@relay:Bob please:\r\n"), (4.0, "- one\r\n"))
    assert found == ["please:", Continued("relay", "Bob", "- one")]


@pytest.mark.parametrize(("name", "seconds"), [("gptme", 5.0), ("nobody's", 1.5)])
def test_words_behind_which_the_cursor_stands_are_still_being_written(
    name: str, seconds: float
) -> None:
    source = ScreenSource(60, 24, style=find_profile(name)[0].screen)
    events = source.activity(frames.ENTERED, 0.0)
    events += source.feed(b"\x1b[?25l\x1b[HSo:\r\n\r\n@relay:Bob one", 0.1) + until(source, seconds)
    assert finds(events) == []
    events += source.feed(b" two\r\n\r\n> ", seconds) + until(source, seconds + 20)
    assert finds(events) == [Found("Bob", "one two")]
