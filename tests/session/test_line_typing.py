"""One line typed into a program that edits its lines itself: each step is looked at."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from relay.agents.base import TypingRules
from relay.core.message import Message
from relay.protocol import frames
from relay.session import line_typing
from relay.session.agent_terminal import write_id
from tests.session.test_typist import Desk, message

PROMPT = "you> "


@pytest.fixture(autouse=True)
def no_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_typing, "ECHO_PAUSE", 0.0)


class Editor(Desk):
    """A line editor that shows what it is given: ``shows`` changes that."""

    def __init__(self, *, shown: bool = True, **options: Any) -> None:
        super().__init__(cooked=False, **options)
        self.screen.cursor_shown = shown
        self.line = ""
        self.took: list[str] = []
        self.link.after = self.key
        self.draw()

    def shows(self, line: str) -> str:
        return line

    def key(self, data: bytes) -> None:
        for char in data.decode():
            if char == "\r":
                self.took.append(self.line)
            self.line = "" if char == "\r" else self.line + char
        self.draw()

    def draw(self) -> None:
        text = PROMPT + self.shows(self.line)
        rows = [row[at : at + 40] for row in text.split("\n") for at in range(0, len(row), 40)]
        self.screen.rows = [f"* {line}" for line in self.took] + rows
        self.screen.cursor = (len(rows[-1]), len(self.screen.rows) - 1)
        if not self.screen.cursor_shown:
            self.screen.cursor = (0, 20)

    def send(self, said: Message) -> str:
        """Why it was not submitted; empty when it was."""
        held = self.door.typing_hold(self.now)
        held = held or asyncio.run(self.door.submit([said])).hold
        return held.reason if held else ""

    def person(self, kind: bytes) -> None:
        self.link.pressed += 1
        self.guards.activity(self.link.pressed, kind, self.now)
        self.now += 10


class Masked(Editor):
    def shows(self, line: str) -> str:
        return "*" * len(line)


class Short(Editor):
    def shows(self, line: str) -> str:
        return line[:30]


class Marked(Editor):
    """It puts a mark before the second row of a line."""

    def shows(self, line: str) -> str:
        return "\n... ".join(part for part in (line[:35], line[35:]) if part)


class Keyed(Editor):
    """It takes a question mark for a key."""

    def key(self, data: bytes) -> None:
        super().key(data.replace(b"?", b""))


@pytest.mark.parametrize(
    ("kind", "shown"),
    [(Editor, True), (Editor, False), (Marked, True)],
    ids=["cursor", "hidden", "marks"],
)
def test_a_line_is_typed_and_submitted_once(kind: type[Editor], shown: bool) -> None:
    desk = kind(shown=shown)
    assert desk.send(message("one\ntwo")) == ""
    assert [line.count("one ⏎ two") for line in desk.took] == [1]
    assert [len(data) for data in desk.link.written[::2]] == [1, 1]  # the first key, and Enter


@pytest.mark.parametrize(
    ("kind", "shown", "typed"),
    [(Masked, True, b"R"), (Short, True, None), (Keyed, True, None), (Keyed, False, None)],
    ids=["masked", "cut-off", "a-key", "a-key-hidden"],
)
def test_nothing_is_submitted_that_is_not_shown(
    kind: type[Editor], shown: bool, typed: bytes | None
) -> None:
    desk = kind(shown=shown)
    for _ in range(3):  # however often it is tried
        assert "does not show" in desk.send(message("hello? and so on"))
    written = b"".join(desk.link.written)
    assert b"\r" not in written and written.count(b"R") == 1
    assert typed is None or written == typed


def test_what_the_person_clears_is_typed_anew_and_what_they_submit_is_not() -> None:
    desk = Editor()
    desk.link.refuse = lambda count: count == 2  # they press a key before Enter
    assert "typing" in desk.send(message("hello"))
    desk.person(frames.TYPED)
    assert "draft" in desk.send(message("hello"))
    desk.line = ""
    desk.draw()
    desk.person(frames.CLEARED)
    desk.link.refuse = lambda count: count == 4
    assert "typing" in desk.send(message("hello"))
    desk.key(b"\r")
    desk.person(frames.ENTERED)
    assert desk.send(message("hello")) == ""
    assert len(desk.took) == 1


@pytest.mark.parametrize("steps", [["probe"], ["probe", "rest"]], ids=["a-key", "all"])
def test_a_session_that_follows_types_only_what_is_missing(steps: list[str]) -> None:
    said = message("hello")
    desk = Editor(written=frozenset(write_id(said, step) for step in steps))
    whole = Editor()
    whole.send(said)
    desk.key(b"".join(whole.link.written[: len(steps)]))
    desk.door.offered(said)
    assert desk.send(said) == ""
    assert desk.took == whole.took
    assert len(desk.link.written) == 3 - len(steps)


def test_an_enter_that_is_not_taken_is_pressed_again_where_the_line_still_stands() -> None:
    desk = Editor()
    take, lost = desk.link.after, [True]

    def lose(data: bytes) -> None:
        if data == b"\r" and lost:
            lost.clear()
        else:
            take(data)

    desk.link.after = lose
    assert "Enter was not taken" in desk.send(message("hello"))
    assert desk.send(message("hello")) == ""
    assert len(desk.took) == 1 and desk.link.written.count(b"\r") == 2


def test_a_person_who_vouches_for_a_program_needs_no_prompt_and_no_echo() -> None:
    desk = Masked(rules=TypingRules(takes="line", vouched=True))
    desk.screen.rows, desk.screen.cursor = ["nothing"], (7, 0)
    assert desk.send(message("hello")) == ""
    assert len(desk.took) == 1


class Bound(Editor):
    """It goes back by one at a backslash, unless Ctrl-V is pressed before."""

    def key(self, data: bytes) -> None:
        text = data.decode()
        assert text.count("\\") == text.count("\x16\\")
        super().key(text.replace("\x16", "").encode())


def test_a_key_that_means_something_to_a_program_goes_in_as_text() -> None:
    desk = Bound(rules=TypingRules(literal=b"\x16"))
    assert desk.send(message("a \\@ b and c:\\d")) == ""
    assert ["a \\@ b and c:\\d" in line for line in desk.took] == [True]


class Slow(Editor):
    """It hands its line over, gives the terminal back, and says nothing for a long while."""

    def key(self, data: bytes) -> None:
        if data != b"\r":
            super().key(data)
            return
        self.took.append(self.line)
        self.terminal.is_cooked = True
        self.screen.rows.append("")
        self.screen.cursor = (0, len(self.screen.rows) - 1)


def test_a_line_that_was_handed_over_is_submitted_before_an_answer_shows() -> None:
    desk = Slow()
    assert desk.send(message("hello")) == ""
    assert len(desk.took) == 1


class Silent(Slow):
    def key(self, data: bytes) -> None:
        super().key(data)
        self.terminal.is_cooked = False


def test_a_line_is_entered_once_where_the_answer_shows_late() -> None:
    desk = Silent()
    assert "Enter was not taken" in desk.send(message("hello"))
    desk.screen.rows[-1:] = ["an answer", PROMPT]
    desk.screen.cursor = (len(PROMPT), len(desk.screen.rows) - 1)
    assert desk.send(message("hello")) == ""
    assert desk.link.written.count(b"\r") == 1


def test_a_line_that_stands_is_no_draft_of_the_persons() -> None:
    desk = Short(composer=lambda rows: "draft" if "Relay" in "".join(rows) else "empty")
    assert "does not show" in desk.send(message("hello"))
    desk.shows = lambda line: line  # type: ignore[method-assign]
    desk.draw()
    assert desk.send(message("hello")) == ""
    assert len(desk.took) == 1


class Edged(Editor):
    """Its cursor stays on the last character of a row that is full, as terminals' do."""

    def draw(self) -> None:
        super().draw()
        column, row = self.screen.cursor
        self.screen.cursor = (min(column, 39), row)


def test_a_line_that_ends_at_the_right_edge_is_submitted() -> None:
    for size in range(1, 41):
        desk = Edged()
        assert desk.send(message("x" * size)) == "", size
        assert len(desk.took) == 1
