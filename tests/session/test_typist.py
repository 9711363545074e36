"""Typing into line programs and into programs that take pastes; and by an interface of an agent."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from relay.agents.base import AgentAdapter, AgentStart, Blocked, TypingRules
from relay.agents.profile import ComposerState, nobody_knows
from relay.agents.structured_source import SourceState, StructuredSource
from relay.core.message import AgentState, Message, QueueMode
from relay.core.source_events import StateChange
from relay.directive.envelope import marker_of
from relay.protocol import frames
from relay.screen.questions import DIALOG, QUESTION
from relay.session import paste_typing, typist
from relay.session.agent_questions import OpenQuestions
from relay.session.agent_terminal import AgentTerminal, InnerTerminal, write_id
from relay.session.paste_typing import FEW_ROWS, OUT_OF_SIGHT, STANDS, AgentRecords
from relay.session.typing_policy import DRAFT, KEY_REST, Guards
from relay.session.typist import COOKED_MAX, STARTING, AgentRoute, Typist
from tests.directive.envelope_reader import read
from tests.session.playbook import why
from tests.support import wait_until


def message(body: str, number: int = 1) -> Message:
    return Message(id=f"01K{number:023d}", sender="Ann", to="Ben", body=body, created_at=0)


class FakeTerminal:
    def __init__(self, cooked: bool) -> None:
        self.is_cooked = cooked
        self.left = 0
        self.has_read: int | None = None
        self.awaits: bool | None = True

    def cooked(self) -> bool:
        return self.is_cooked

    def secret(self) -> bool:
        return False

    def unread(self) -> int | None:
        return self.left

    def reads(self) -> int | None:
        return self.has_read

    def waits(self) -> bool | None:
        return self.awaits


class FakeScreen:
    def __init__(self, paste: bool) -> None:
        self.bracketed_paste = paste
        self.rows = [""]
        self.cursor = (0, 0)
        self.cursor_shown = True
        self.changed_at = 100.0
        self.title, self.columns = "", 80
        self.expected: list[str] = []

    def visible(self, *, styled: bool = False) -> list[str]:
        return self.rows

    def expect_echo(self, text: str, now: float) -> None:
        self.expected.append(text)


class FakeLink:
    """Writes at once, unless ``refuse`` says that the person typed."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.ids: list[int] = []
        self.pressed = 0  # the sequence of the person's last key
        self.refuse: Callable[[int], bool] = lambda count: False
        self.after: Callable[[bytes], None] = lambda data: None
        self.overtaken: Callable[[bytes], bool] = lambda data: False

    async def write(
        self, data: bytes, *, write_id: int, sequence: int, offset: int | None = None
    ) -> bool | None:
        if offset is not None and self.overtaken(data):
            return None
        if self.refuse(len(self.written)) or sequence < self.pressed:
            return False
        self.written.append(data)
        self.ids.append(write_id)
        self.after(data)
        return True


class FakeRecords(AgentRecords):
    """The records of an agent (of none where there is no ``adapter``), as far as a test says."""

    def __init__(
        self, seen: Callable[[str], Any] = lambda marker: None, adapter: AgentAdapter | None = None
    ) -> None:
        super().__init__(adapter)
        self.prove = seen

    def seen(self, marker: str) -> bool | None:
        proven: bool | None = self.prove(marker)
        return proven


class Desk:
    def __init__(
        self,
        *,
        cooked: bool | None = None,
        paste: bool = False,
        rules: TypingRules | None = None,
        composer: Callable[[list[str]], Any] = nobody_knows,
        records: FakeRecords | None = None,
        adapter: AgentAdapter | None = None,
        written: frozenset[int] = frozenset(),
    ) -> None:
        self.terminal = FakeTerminal(not paste if cooked is None else cooked)
        self.screen = FakeScreen(paste)
        self.link = FakeLink()
        self.now = 100.0
        drawn = (self.screen, self.terminal)
        self.questions = OpenQuestions(*drawn, rules or TypingRules(), known=composer)
        self.guards = Guards(self.questions)
        seen = (self.terminal, self.screen, self.guards, self.questions)
        at = AgentTerminal(self.link, *seen, lambda: self.now)
        self.records = records or FakeRecords(adapter=adapter)
        self.door = Typist(at, self.records, written=written)
        if paste:
            self.screen.rows, self.screen.cursor = ["> "], (2, 0)
            self.link.after = self.draw_paste

    def draw_paste(self, data: bytes) -> None:
        """Show a paste in an input line, and above it what Enter submits."""
        self.guards.output(self.now)
        if data.startswith(b"\x1b[200~"):
            rows = data[6:-6].decode().split("\n")
            self.screen.rows = ["> " + rows[0], *rows[1:]]
        elif data == b"\r":
            self.screen.rows = [*self.screen.rows, "", "> "]
        self.screen.cursor = (len(self.screen.rows[-1]), len(self.screen.rows) - 1)


@pytest.fixture(autouse=True)
def no_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paste_typing, "PASTE_REST", 0.0)
    monkeypatch.setattr(paste_typing, "ENTER_REST", 0.0)
    monkeypatch.setattr(typist, "PROOF_LOOK", 0.0)


def test_nothing_is_typed_before_the_program_reads_however_long_that_takes() -> None:
    desk = Desk()
    desk.screen.rows = ["Loading"]
    desk.terminal.awaits = False
    desk.now += 3600.0
    assert desk.door.typing_hold(desk.now) == Blocked(STARTING, 0.1)
    desk.terminal.awaits = True
    assert desk.door.typing_hold(desk.now) is None
    desk.terminal.awaits = False  # it works
    assert desk.door.typing_hold(desk.now) is None


def test_where_nobody_tells_who_reads_a_program_has_shown_something_first() -> None:
    desk = Desk()
    desk.terminal.awaits = None
    assert desk.door.typing_hold(desk.now) == Blocked(STARTING, 0.1)
    desk.screen.rows = ["name: "]
    assert desk.door.typing_hold(desk.now) != Blocked(STARTING, 0.1)


def test_a_line_program_gets_whole_lines_and_no_escape_sequence() -> None:
    desk = Desk()
    submitted = asyncio.run(desk.door.submit([message("hello\x1b[201~ there")]))
    assert (submitted.count, submitted.hold) == (1, None)
    (typed,) = desk.link.written
    assert typed.endswith(b"\n") and b"\x1b" not in typed and b"hello" in typed
    assert desk.screen.expected


def test_several_small_messages_go_together_and_a_refusal_splits_them() -> None:
    desk = Desk()
    waiting = [message(f"m{n}", n) for n in range(4)]
    assert desk.door.batch(waiting) == waiting
    desk.link.refuse = lambda count: count >= 2
    submitted = asyncio.run(desk.door.submit(waiting))
    assert submitted.count == 2
    assert submitted.hold is not None and "typing" in submitted.hold.reason


def test_a_batch_leaves_room_in_the_terminals_queue() -> None:
    desk = Desk()
    waiting = [message("x" * 600, n) for n in range(10)]
    batch = desk.door.batch(waiting)
    assert 1 <= len(batch) < 4


def test_a_long_message_arrives_whole_in_pieces_that_the_terminal_can_hold() -> None:
    desk = Desk()
    body = "\n".join(f"line {n} " + "äöü€" * 40 for n in range(100))
    assert asyncio.run(desk.door.submit([message(body)])).count == 1
    assert len(desk.link.written) > 5
    assert all(len(piece) <= COOKED_MAX for piece in desk.link.written)
    assert len(set(desk.link.ids)) == len(desk.link.ids)
    lines = b"".join(desk.link.written).decode().splitlines()
    assert [one.body for one in read("\n".join(lines))] == [body]


def test_after_a_crash_only_the_missing_pieces_are_typed() -> None:
    body = "\n".join(f"line {n} " + "x" * 80 for n in range(100))
    whole = Desk()
    asyncio.run(whole.door.submit([message(body)]))
    before = frozenset(whole.link.ids[:3])
    again = Desk(written=before)
    assert not again.door.landed(message(body))
    asyncio.run(again.door.submit([message(body)]))
    assert again.link.written == whole.link.written[3:]
    assert Desk(written=frozenset(whole.link.ids)).door.landed(message(body))


def test_a_program_that_takes_pastes_gets_one_and_enter() -> None:
    desk = Desk(paste=True)
    assert asyncio.run(desk.door.submit([message("one\ntwo")])).count == 1
    paste, enter = desk.link.written
    assert paste.startswith(b"\x1b[200~") and paste.endswith(b"\x1b[201~")
    assert b"| one\n| two\n" in paste
    assert enter == b"\r"


@pytest.mark.parametrize("draws", [True, False], ids=["draws", "stands-still"])
def test_enter_is_pressed_again_where_the_text_surely_stands_there_still(draws: bool) -> None:
    desk = Desk(paste=True)

    def shown(data: bytes) -> None:
        enters = desk.link.written.count(b"\r")
        text = desk.screen.expected[-1]
        line = "> " + text.splitlines()[-1]
        desk.screen.rows = ["history", line] if enters < 2 else [line, "> "]
        desk.screen.cursor = (len(desk.screen.rows[1]), 1)
        if draws:
            desk.guards.output(desk.now)

    desk.link.after = shown
    asyncio.run(desk.door.submit([message("hello")]))
    assert desk.link.written.count(b"\r") == (2 if draws else 1)
    reading = asyncio.run(desk.door.read([message("hello")]))
    assert reading.proof == ("screen" if draws else None)
    assert draws or "Enter there" in reading.why


@pytest.mark.parametrize("paste", [True, False], ids=["pastes", "lines"])
@pytest.mark.parametrize("row", ["Execute? [Y/n/c/e/a/?] ", "Press any key to continue"])
def test_nothing_is_typed_at_a_question(paste: bool, row: str) -> None:
    desk = Desk(cooked=not paste, paste=paste)
    desk.screen.rows, desk.screen.cursor = ["hello", row], (len(row), 1)
    assert why(desk.door.typing_hold(desk.now)) == QUESTION
    desk.screen.rows[1], desk.screen.cursor = "> ", (2, 1)
    assert desk.door.typing_hold(desk.now) is None


def test_a_key_that_answers_a_dialog_is_no_draft() -> None:
    desk = Desk(paste=True)
    desk.screen.rows = ["Approve it?", "[y] Approve   [n] Deny"]
    desk.screen.cursor = (22, 1)
    desk.guards.activity(1, frames.TYPED, desk.now)
    desk.now += KEY_REST
    assert why(desk.door.typing_hold(desk.now)) == QUESTION
    desk.screen.rows = ["done", "> "]
    desk.screen.cursor = (2, 1)
    assert desk.door.typing_hold(desk.now) is None
    desk.guards.activity(2, frames.TYPED, desk.now)
    desk.now += KEY_REST
    assert why(desk.door.typing_hold(desk.now)) == DRAFT


def test_a_draft_is_not_forgotten_when_a_question_stood_above_it() -> None:
    desk = Desk(paste=True)
    desk.guards.activity(1, frames.TYPED, desk.now)
    desk.screen.rows = ["Approve it?", "[y] Approve   [n] Deny"]
    desk.screen.cursor = (22, 1)
    desk.guards.activity(2, frames.TYPED, desk.now)
    desk.now += KEY_REST
    desk.screen.rows = ["done", "> "]
    assert why(desk.door.typing_hold(desk.now)) == DRAFT


def after_enter(rows: list[str], cursor: tuple[int, int], shown: bool = True) -> str | None:
    """What proves a message after whose Enter this stands on the screen; ``@`` is its text."""
    desk = Desk(paste=True)
    header = "Relay message [00000001] from agent Ann: hello (End of"

    def draw(data: bytes) -> None:
        desk.draw_paste(data)
        if data == b"\r":
            before = desk.screen.rows[:1]
            desk.screen.rows = [row.replace("@", header) for row in rows] or before
            desk.screen.cursor, desk.screen.cursor_shown = cursor, shown

    desk.link.after = draw
    assert asyncio.run(desk.door.submit([message("hello")])).count == 1
    return asyncio.run(desk.door.read([message("hello")])).proof


@pytest.mark.parametrize(
    "rows, cursor",
    [(["> @", "thinking", "> "], (2, 2)), (["* @", "", "────────", "> ", "────────"], (2, 3))],
    ids=["above-the-prompt", "above-a-box"],
)
def test_what_the_screen_shows_outside_of_the_input_line_is_seen(
    rows: list[str], cursor: tuple[int, int]
) -> None:
    assert after_enter(rows, cursor) == "screen"


@pytest.mark.parametrize(
    "rows, cursor, shown",
    [
        (["hello", "> "], (2, 1), True),
        ([""], (0, 0), True),
        ([], (20, 0), False),
        (["────────", "> @", "────────"], (0, 0), False),
        (["│ > @     │", "╰────────╯"], (0, 1), False),
        (["> @", "Trust it?", "❯ Yes", "  No"], (0, 3), True),
    ],
    ids=["nowhere", "blank", "same-row", "box", "frame", "dialog"],
)
def test_what_is_not_shown_or_stands_in_a_box_or_beside_a_dialog_is_not_seen(
    rows: list[str], cursor: tuple[int, int], shown: bool
) -> None:
    assert after_enter(rows, cursor, shown) is None


@pytest.mark.parametrize(
    "rows, column, proof",
    [
        (["> [Pasted 70 characters]", "", "> "], 2, "screen"),
        (["> [Pasted 69 characters]", "", "> "], 2, None),
        (["working", "> [Pasted 70 characters]"], 24, None),
        (["────────", "> [Pasted 70 characters]", "────────", ""], 0, None),
        (["> [Pasted 70 characters]", "Trust it?", "❯ Yes", "  No"], 0, None),
    ],
    ids=["said", "another", "input", "box", "dialog"],
)
def test_a_message_that_a_placeholder_stands_for_is_seen_where_that_is_said(
    rows: list[str], column: int, proof: str | None
) -> None:
    desk = Desk(paste=True)

    def draw(data: bytes) -> None:
        desk.draw_paste(data)
        desk.screen.rows = ["────────", "> [Pasted 70 characters]", "────────"]
        desk.screen.cursor = (24, 1)
        if data == b"\r":
            desk.screen.rows, desk.screen.cursor = rows, (column, len(rows) - 1)

    desk.link.after = draw
    assert asyncio.run(desk.door.submit([message("hello")])).count == 1
    assert asyncio.run(desk.door.read([message("hello")])).proof == proof


def test_nothing_is_typed_while_a_program_that_takes_pastes_lets_the_kernel_edit_lines() -> None:
    desk = Desk(paste=True)
    desk.guards.output(desk.now)
    desk.terminal.is_cooked, desk.screen.bracketed_paste = True, False
    desk.now += 60
    assert "busy" in why(desk.door.typing_hold(desk.now))


def test_nothing_is_typed_before_a_full_screen_program_has_shown_anything() -> None:
    desk = Desk(paste=True)
    desk.screen.rows = ["", ""]
    assert "shown nothing" in why(desk.door.typing_hold(desk.now))


def test_a_paste_that_is_lost_again_and_again_waits_for_the_person() -> None:
    desk = Desk(paste=True)
    desk.screen.rows += [""] * FEW_ROWS
    desk.link.after = lambda data: None
    for _ in range(3):
        assert desk.door.typing_hold(desk.now) is None
        submitted = asyncio.run(desk.door.submit([message("hello")]))
        assert submitted.hold is not None and "did not reach" in submitted.hold.reason
    assert "3 times" in why(desk.door.typing_hold(desk.now))
    desk.guards.activity(1, frames.ENTERED, desk.now)
    desk.now += KEY_REST
    assert desk.door.typing_hold(desk.now) is None
    assert b"\r" not in desk.link.written


def test_in_a_small_terminal_a_paste_out_of_sight_is_entered_once_it_is_seen() -> None:
    desk = Desk(paste=True)
    desk.link.after = lambda data: None
    assert "did not reach" in why(asyncio.run(desk.door.submit([message("hello")])).hold)
    desk.now += 5
    assert why(desk.door.typing_hold(desk.now)) == OUT_OF_SIGHT
    desk.draw_paste(desk.link.written[0])  # the person has made it larger
    desk.screen.rows += [""] * FEW_ROWS
    desk.link.after = desk.draw_paste
    desk.now += 5
    assert desk.door.typing_hold(desk.now) is None
    assert asyncio.run(desk.door.submit([message("hello")])).count == 1
    assert desk.link.written[1:] == [b"\r"]


@pytest.mark.parametrize("reads", [1, 2], ids=["flushed", "read"])
def test_what_a_line_program_threw_away_was_not_read(reads: int) -> None:
    desk = Desk()
    desk.terminal.has_read = 1
    asyncio.run(desk.door.submit([message("hello")]))
    desk.terminal.has_read = reads
    reading = asyncio.run(desk.door.read([message("hello")]))
    assert reading.proof == ("read" if reads == 2 else None)
    assert (reads == 2) != ("thrown it away" in reading.why)


def test_what_opens_between_the_look_and_enter_is_not_answered() -> None:
    desk = Desk(paste=True)
    opened: list[list[str]] = []

    def overtaken(data: bytes) -> bool:
        """A dialog opens while Enter is on its way, and closes a moment later."""
        if data != b"\r" or len(opened) == 3:
            return False
        opened.append(desk.screen.rows)
        return True

    desk.link.overtaken = overtaken
    assert asyncio.run(desk.door.submit([message("hello")])).count == 1
    assert desk.link.written[-1] == b"\r" and len(desk.link.written) == 2


async def test_enter_is_never_pressed_into_a_dialog() -> None:
    desk = Desk(paste=True)

    def dialog_opens(data: bytes) -> None:
        desk.screen.rows = ["Do you want to proceed?", "❯ 1. Yes", "  2. No"]

    desk.link.after = dialog_opens
    task = asyncio.ensure_future(desk.door.submit([message("hello")]))
    for _ in range(50):
        await asyncio.sleep(0)
    assert b"\r" not in desk.link.written
    assert desk.door.asked(message("hello")) == "a dialog waits for the person"
    desk.screen.rows, desk.screen.cursor = ["> "], (2, 0)
    submitted = await task
    assert submitted.count == 0 and desk.door.asked(message("hello")) == ""
    assert submitted.hold is not None and "did not reach" in submitted.hold.reason
    assert b"\r" not in desk.link.written


def test_no_enter_follows_a_paste_that_the_input_line_does_not_show() -> None:
    shown = {"state": "empty"}
    rules = TypingRules(shows_paste=True)
    lost = frozenset({write_id(message("hello"), "paste")})
    desk = Desk(paste=True, composer=lambda rows: shown["state"], rules=rules, written=lost)
    desk.door.offered(message("hello"))
    submitted = asyncio.run(desk.door.submit([message("hello")]))
    assert submitted.count == 0 and submitted.hold is not None
    assert desk.link.written == []  # the session before this one has typed it, in vain

    def draw(data: bytes) -> None:
        shown["state"] = "empty" if data == b"\r" else "draft"

    desk.link.after = draw
    assert asyncio.run(desk.door.submit([message("hello")])).count == 1
    paste, enter = desk.link.written
    assert b"hello" in paste and enter == b"\r"


def test_enter_is_pressed_again_when_the_input_line_was_away_meanwhile() -> None:
    shown = {"state": "empty", "seen": False}
    desk = Desk(
        paste=True,
        composer=lambda rows: shown["state"],
        rules=TypingRules(shows_paste=True),
        records=FakeRecords(lambda marker: shown["seen"]),
    )

    def draw(data: bytes) -> None:
        enters = desk.link.written.count(b"\r")
        shown["state"] = ("draft", "dialog", "empty")[enters]
        shown["seen"] = enters == 2

    desk.link.after = draw

    async def scenario() -> int:
        task = asyncio.ensure_future(desk.door.submit([message("hello")]))
        for _ in range(50):
            await asyncio.sleep(0)
        assert not task.done() and desk.link.written.count(b"\r") == 1
        shown["state"] = "draft"  # the conversation is loaded, and the text stands there still
        return (await task).count

    assert asyncio.run(asyncio.wait_for(scenario(), 10)) == 1
    assert desk.link.written.count(b"\r") == 2


def test_a_dialog_that_a_message_has_led_to_is_not_waited_for() -> None:
    shown = {"state": "empty"}
    desk = Desk(
        paste=True,
        composer=lambda rows: shown["state"],
        rules=TypingRules(shows_paste=True),
        records=FakeRecords(lambda marker: True),
    )

    def draw(data: bytes) -> None:
        shown["state"] = "dialog" if data == b"\r" else "draft"

    desk.link.after = draw
    submitted = asyncio.run(asyncio.wait_for(desk.door.submit([message("hello")]), 10))
    assert submitted.count == 1 and desk.link.written.count(b"\r") == 1


@pytest.mark.parametrize("known", [True, False])
def test_a_notice_over_a_dialog_lets_nothing_in_and_proves_nothing(known: bool) -> None:
    dialog = ["Which name shall it be?", "❯ 1. Yes, that one", "  2. No, another one"]
    covered = [dialog[0], "❯ 1. Yes▌ saved", "  2. No,▌ saved"]
    state = {"composer": "empty"}
    composer = (lambda rows: state["composer"]) if known else nobody_knows
    desk = Desk(paste=True, composer=composer)
    draw = desk.link.after

    def ask(data: bytes) -> None:
        draw(data)
        if data == b"\r":
            desk.screen.rows = [*desk.screen.rows, *dialog]
        state["composer"] = "dialog" if data == b"\r" else "draft"

    desk.link.after = ask
    assert asyncio.run(desk.door.submit([message("hello")])).count == 1
    desk.screen.rows[-3:] = covered
    state["composer"] = "empty"
    desk.now += 5
    assert why(desk.door.typing_hold(desk.now)) == DIALOG
    assert not desk.door.shown(message("hello"))
    desk.screen.rows[-3:] = ["said", "", "> "]
    assert desk.door.typing_hold(desk.now) is None


class Refusing(Desk):
    """It refuses the first Enter with a row of its own, and keeps the text: cline, at a turn's end.
    Whatever is pasted shows only once it is ``awake``."""

    def __init__(self, *, known: bool, awake: bool = True) -> None:
        self.state = "empty"
        composer = (lambda rows: self.state) if known else nobody_knows
        super().__init__(paste=True, composer=composer)
        self.awake, self.line, self.took = awake, "", 0
        self.link.after = self.key
        self.draw()

    def key(self, data: bytes) -> None:
        if data.startswith(b"\x1b[200~"):
            self.line = data[6:-6].decode()
        elif data == b"\r" and self.link.written.count(b"\r") > 1:
            self.line, self.took = "", self.took + 1
        if self.awake:
            self.draw("! not now: it is still at work" if data == b"\r" and self.line else "")

    def draw(self, row: str = "") -> None:
        self.guards.output(self.now)
        self.screen.rows = ["hello", row, *f"> {self.line}".split("\n")]
        self.screen.cursor = (len(self.screen.rows[-1]), len(self.screen.rows) - 1)
        self.state = "draft" if self.line else "empty"


@pytest.mark.parametrize("known", [True, False])
def test_a_text_that_was_left_in_the_input_line_is_sent_when_the_way_is_free(
    known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paste_typing, "ENTER_TRIES", 1)
    desk = Refusing(known=known)
    desk.guards.changed(StateChange(AgentState.BUSY), desk.now)
    assert asyncio.run(desk.door.submit([message("hello")])).count == 1
    reading = asyncio.run(desk.door.read([message("hello")]))
    assert reading.proof is None and "Enter there" in reading.why
    desk.now += 5
    assert why(desk.door.typing_hold(desk.now)) == STANDS  # no draft of the person's
    assert asyncio.run(desk.door.finish()) and desk.took == 0  # its turn runs
    desk.guards.changed(StateChange(AgentState.IDLE), desk.now)
    desk.screen.rows.append("Do you want to proceed? [y/N]")
    desk.screen.cursor, shown = (30, len(desk.screen.rows) - 1), desk.screen.cursor
    desk.state = "dialog"
    asyncio.run(desk.door.finish())
    assert desk.took == 0
    desk.screen.rows.pop()
    desk.screen.cursor, desk.state = shown, "draft"
    assert asyncio.run(desk.door.finish()) and desk.took == 1
    asyncio.run(desk.door.finish())
    assert desk.door.typing_hold(desk.now + 1) is None
    assert desk.link.written.count(b"\r") == 2


def test_a_text_that_the_person_has_touched_is_theirs() -> None:
    desk = Refusing(known=True)
    desk.guards.changed(StateChange(AgentState.BUSY), desk.now)
    desk.link.refuse = lambda count: count == 1
    asyncio.run(desk.door.submit([message("hello")]))
    types(desk)
    desk.link.refuse = lambda count: False
    desk.guards.changed(StateChange(AgentState.IDLE), desk.now)
    desk.now += 5
    assert why(desk.door.typing_hold(desk.now)) == DRAFT
    assert not asyncio.run(desk.door.finish()) and b"\r" not in desk.link.written


def test_a_draft_of_before_a_restart_is_not_entered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paste_typing, "ENTER_TRIES", 1)
    first = Refusing(known=True)
    first.guards.changed(StateChange(AgentState.BUSY), first.now)
    asyncio.run(first.door.submit([message("hello")]))
    desk = Desk(paste=True, composer=lambda rows: "draft", written=frozenset(first.link.ids))
    desk.screen.rows = [*first.line.split("\n"), "> PLEASE DELETE EVERYT"]
    desk.screen.cursor = (22, len(desk.screen.rows) - 1)
    desk.guards.activity(7, frames.TYPED, desk.now)  # the pump tells each session of the last key
    again = replace(message("hello"), attempt=1)
    desk.door.offered(again)
    assert desk.door.landed(again)
    for _ in range(4):
        desk.now += 5
        desk.guards.output(desk.now - 2)
        desk.screen.changed_at = desk.now - 2
        asyncio.run(desk.door.finish())
    assert b"\r" not in desk.link.written


@pytest.mark.parametrize("known", [True, False])
def test_a_paste_that_shows_late_is_entered_and_not_pasted_beside_itself(known: bool) -> None:
    desk = Refusing(known=known, awake=False)
    desk.link.written.append(b"\r")  # it refuses none
    assert "did not reach" in why(asyncio.run(desk.door.submit([message("hello")])).hold)
    desk.now += 5
    desk.awake = True
    desk.draw()
    desk.now += 5
    assert desk.door.typing_hold(desk.now) is None
    assert asyncio.run(desk.door.submit([message("hello")])).count == 1
    assert desk.took == 1 and sum(b"hello" in data for data in desk.link.written) == 1


def test_a_key_between_paste_and_enter_leaves_the_enter_to_the_person() -> None:
    desk = Desk(paste=True)
    desk.link.refuse = lambda count: count == 1
    assert asyncio.run(desk.door.submit([message("hello")])).count == 1
    assert b"\r" not in desk.link.written


def types(desk: Desk) -> None:
    """The person types a character, and the session knows it."""
    desk.link.pressed += 1
    desk.guards.activity(desk.link.pressed, frames.TYPED, desk.now)


def test_a_key_that_the_session_knows_of_keeps_it_from_pressing_enter_too() -> None:
    desk = Desk(paste=True)

    def draw(data: bytes) -> None:
        desk.draw_paste(data)
        types(desk)

    desk.link.after = draw
    assert asyncio.run(desk.door.submit([message("hello")])).count == 1
    assert b"\r" not in desk.link.written


def test_a_draft_that_is_begun_behind_a_message_is_not_submitted() -> None:
    desk = Desk(paste=True, composer=lambda rows: "draft", records=FakeRecords(lambda marker: True))

    def taken(data: bytes) -> None:
        if data == b"\r":
            types(desk)

    desk.link.after = taken

    async def scenario() -> str | None:
        await desk.door.submit([message("hello")])
        return (await desk.door.read([message("hello")])).proof

    assert asyncio.run(asyncio.wait_for(scenario(), 10)) == "transcript"
    assert desk.link.written.count(b"\r") == 1


def test_what_a_session_had_pasted_when_it_died_is_submitted_not_taken_for_a_draft() -> None:
    pasted = frozenset({write_id(message("hello"), "paste")})
    state = {"composer": "draft"}
    desk = Desk(paste=True, composer=lambda rows: state["composer"], written=pasted)
    assert desk.door.typing_hold(desk.now) is not None  # nobody knows whose it is yet
    desk.door.offered(message("hello"))
    assert desk.door.typing_hold(desk.now) is None

    def draw(data: bytes) -> None:
        state["composer"] = "empty"

    desk.link.after = draw
    assert asyncio.run(desk.door.submit([message("hello")])).count == 1
    assert desk.link.written == [b"\r"]
    state["composer"] = "draft"
    assert desk.door.typing_hold(desk.now) is not None


def test_what_a_session_had_pasted_and_the_person_writes_on_is_left_to_them() -> None:
    seen = {"it": False}
    desk = Desk(
        paste=True,
        composer=lambda rows: "draft",
        written=frozenset({write_id(message("hello"), "paste")}),
        records=FakeRecords(lambda marker: seen["it"]),
    )
    desk.door.offered(message("hello"))
    types(desk)
    held = desk.door.typing_hold(desk.now + 10)
    assert held is not None and held.reason != DRAFT  # nor does it go by another door
    assert not desk.door.landed(message("hello")) and desk.door.landing_takes(message("hello")) > 0
    seen["it"] = True
    assert desk.door.landed(message("hello"))


def test_a_raw_program_that_shows_no_prompt_is_left_alone() -> None:
    held = Desk(cooked=False).door.typing_hold(100.0)
    assert held is not None and "no prompt" in held.reason and "--type line" in held.reason


def test_a_line_program_that_edits_its_lines_is_busy_while_the_kernel_does() -> None:
    desk = Desk(cooked=False)
    desk.screen.rows, desk.screen.cursor = ["you> "], (5, 0)
    assert desk.door.typing_hold(100.0) is None
    desk.terminal.is_cooked = True
    desk.screen.rows, desk.screen.cursor = ["thinking"], (0, 1)
    assert "busy" in why(desk.door.typing_hold(101.0))
    desk.screen.rows, desk.screen.cursor = ["User: "], (6, 0)
    assert desk.door.typing_hold(102.0) is None


def test_unread_input_is_waited_for() -> None:
    desk = Desk()
    desk.terminal.left = 10
    assert "not read" in why(desk.door.typing_hold(100.0))


def test_what_was_read_before_the_end_is_told_apart_from_what_was_not() -> None:
    desk = Desk()
    first, second = message("first", 1), message("second", 2)
    asyncio.run(desk.door.submit([first, second]))
    size = len(desk.link.written[1])
    assert desk.door.left_unread(0) == []
    assert desk.door.left_unread(size) == [second]
    assert desk.door.left_unread(size + 1) == [second, first]


def test_the_end_of_the_terminal_proves_no_reading() -> None:
    master, slave = os.openpty()
    terminal = InnerTerminal(os.ttyname(slave))
    desk = Desk()
    desk.terminal.unread = terminal.unread  # type: ignore[method-assign]
    try:
        asyncio.run(desk.door.submit([message("hello")]))
        os.write(master, desk.link.written[0])
        wait_until(lambda: terminal.unread() == len(desk.link.written[0]))
        os.close(master)
        assert terminal.unread() is None
        assert asyncio.run(desk.door.read([message("hello")])).proof is None
        assert desk.door.typing_hold(desk.now) is not None
        assert desk.door.left_unread(1) == [message("hello")]
    finally:
        os.close(slave)
        terminal.close()


def test_a_paste_that_was_not_read_is_known_as_unread() -> None:
    desk = Desk(paste=True)
    asyncio.run(desk.door.submit([message("hello")]))
    assert desk.door.left_unread(1) == [message("hello")]
    # It may have been drained by a program that does nothing with it.
    assert desk.door.left_unread(0) == [message("hello")]


def test_a_refused_line_is_not_taken_for_the_unread_one() -> None:
    desk = Desk()
    waiting = [message(f"m{n}", n) for n in range(3)]
    desk.link.refuse = lambda count: count >= 2
    asyncio.run(desk.door.submit(waiting))
    assert desk.door.left_unread(1) == [waiting[1]]


@pytest.mark.parametrize("before, after", [(False, True), (True, False)])
def test_what_landed_is_known_though_the_program_changed_its_mode(
    before: bool, after: bool
) -> None:
    first = Desk(cooked=before, paste=not before)
    asyncio.run(first.door.submit([message("hello")]))
    again = Desk(cooked=after, paste=not after, written=frozenset(first.link.ids))
    assert again.door.landed(message("hello"))
    assert again.door.left_unread(1) == [message("hello")]


def test_a_program_that_reads_keys_gets_nothing() -> None:
    desk = Desk(rules=TypingRules(refusal="vim reads keys"))
    assert why(desk.door.typing_hold(0.0)) == "vim reads keys"


def test_what_ctrl_c_throws_away_is_known_whole_or_in_part() -> None:
    desk = Desk()
    first, second = message("first", 1), message("second", 2)
    asyncio.run(desk.door.submit([first, second]))
    size = len(desk.link.written[1])
    assert desk.door.throw_away(size + 3) == [(second, True), (first, False)]
    assert desk.door.throw_away(100) == []


# -- by an interface of the agent itself


class FakeInterface(AgentAdapter):
    """An agent with a message interface, which fails with ``error`` once it has taken ``room``."""

    typed_first = False

    def __init__(self, error: Exception | None = None, room: int = 9) -> None:
        super().__init__(AgentStart(0, 1, "/", "/", {}, {}, {}, lambda: 0.0))
        self.source = StructuredSource(SourceState())
        self.channel = self
        self.available = True
        self.texts: list[str] = []
        self.error, self.room = error or TimeoutError("no answer"), room

    async def submit(self, text: str, marker: str) -> None:
        if len(self.texts) >= self.room:
            self.texts.append(text)
            raise self.error
        self.texts.append(text)

    def accepted(self, marker: str) -> bool:
        return isinstance(self.error, TimeoutError) and any(marker in t for t in self.texts)


HELLO = message("hello")


def test_a_channel_hands_over_one_message_and_says_when_it_is_closed() -> None:
    agent = FakeInterface(ConnectionRefusedError("refused"), room=1)
    agent.typed_first = True
    desk = Desk(paste=True, composer=lambda rows: "draft", adapter=agent)
    assert desk.door.hold(HELLO, desk.now) is None
    assert asyncio.run(desk.door.submit([HELLO])).count == 1
    refused = asyncio.run(desk.door.submit([HELLO]))
    assert refused.count == 0 and refused.hold is not None
    agent.available = False
    assert desk.door.hold(HELLO, desk.now) is not None


def test_a_try_that_only_seemed_to_fail_is_not_repeated() -> None:
    agent = FakeInterface(room=0)
    desk = Desk(adapter=agent)
    assert asyncio.run(desk.door.submit([HELLO])).count == 0
    assert asyncio.run(desk.door.submit([HELLO])).count == 1
    assert len(agent.texts) == 1 and desk.link.written == []


class Both(Desk):
    """An agent that is typed into first, with an input line that holds ``composer``."""

    def __init__(self, composer: ComposerState = "empty", *, cooked: bool = False) -> None:
        self.composer: ComposerState = composer
        self.agent = FakeInterface()
        self.agent.typed_first = True
        self.asked: list[str] = []
        self.proof: bool | None = False
        self.proofs: Iterator[bool | None] = iter(())  # what is answered first
        super().__init__(
            cooked=cooked, paste=not cooked, composer=lambda rows: self.composer, adapter=self.agent
        )
        self.records.prove = self.prove

    def prove(self, marker: str) -> bool | None:
        self.asked.append(marker)
        return next(self.proofs, self.proof)

    def pass_on(self) -> str | None:
        """Hand one message over; returns the proof."""
        assert self.door.hold(HELLO, self.now) is None
        batch = self.door.batch([HELLO])

        async def hand_over() -> str | None:
            assert (await self.door.submit(batch)).count == 1
            return (await self.door.read(batch)).proof

        return asyncio.run(hand_over())


def test_it_types_where_it_can() -> None:
    both = Both(cooked=True)
    both.proof = True
    assert both.pass_on() == "transcript"
    assert len(both.link.written) == 1 and both.agent.texts == []
    assert both.asked[-1] == marker_of(HELLO)


def test_beside_a_draft_the_channel_is_used_if_it_is_open() -> None:
    both = Both("draft")
    both.pass_on()
    assert len(both.agent.texts) == 1 and both.link.written == []
    both.agent.available = False
    assert why(both.door.hold(HELLO, both.now)) == DRAFT


@pytest.mark.parametrize("composer", ["dialog", "busy"])
def test_nothing_goes_past_a_dialog_or_into_a_turn(composer: ComposerState) -> None:
    both = Both(composer)
    assert both.door.hold(HELLO, both.now) == both.door.typing_hold(both.now) is not None


def test_the_next_one_waits_until_what_was_typed_has_begun_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both = Both(cooked=True)
    both.terminal.left = 10  # nobody has read it, for all that can be seen
    both.link.refuse = lambda count: False
    assert both.door.hold(HELLO, both.now) is not None
    both.terminal.left = 0
    both.proof, both.proofs = True, iter([False, False, False, True])
    assert both.pass_on() == "transcript"
    monkeypatch.setattr(typist, "RECORDS_PATIENCE", 0.01)
    both = Both(cooked=True)
    assert both.pass_on() is None  # the records do not show it


def test_collected_messages_go_as_one_text_where_there_is_a_proof_for_each() -> None:
    collected = [replace(message(f"m{n}", n), mode=QueueMode.COLLECT) for n in range(3)]
    by_paste = Desk(paste=True)
    by_paste.records.prove = lambda marker: False
    assert by_paste.door.batch(collected) == collected
    assert Desk(paste=True).door.batch(collected) == collected[:1]
    assert Desk(adapter=FakeInterface()).door.batch(collected) == collected


def test_the_persons_word_is_typed_where_the_channel_would_frame_it_as_a_peers() -> None:
    agent = FakeInterface()
    own, steered = replace(HELLO, proven=True), replace(HELLO, proven=True, mode=QueueMode.STEER)
    desk = Desk(paste=True, composer=lambda rows: "empty", adapter=agent)
    desk.guards.output(desk.now)  # it works: nothing is typed but what steers
    assert desk.door.route(own) is desk.door.route(HELLO) is AgentRoute.CHANNEL
    assert not desk.door.proves_reading
    agent.frames_peers = True
    assert desk.door.route(HELLO) is AgentRoute.CHANNEL and desk.door.hold(HELLO, desk.now) is None
    assert desk.door.route(own) is AgentRoute.TYPED and desk.door.proves_reading
    assert desk.door.batch([HELLO, own]) == [HELLO]
    assert desk.door.hold(own, desk.now) is not None  # what others send goes meanwhile
    assert desk.door.hold(steered, desk.now) is None
    agent.available = False  # then all are typed, when the agent rests
    assert desk.door.route(HELLO) is AgentRoute.TYPED
    assert desk.door.hold(steered, desk.now) is not None


@pytest.mark.parametrize("way", ["typed", "channel"])
def test_an_earlier_try_may_have_gone_either_way(way: str) -> None:
    typed = write_id(HELLO, "line0") if way == "typed" else 0
    agent = FakeInterface()
    agent.typed_first = True
    desk = Desk(adapter=agent, written=frozenset({typed}))
    if way == "channel":
        assert not desk.door.landed(HELLO)
        agent.texts.append(marker_of(HELLO))
    assert desk.door.landed(HELLO)
    assert desk.door.landing_takes(HELLO) == typist.CHANNEL_LANDING
