"""What a program asks its person, by its screen.

``OpenQuestions`` decides whether anything is asked, so that no typed text answers it.
``QuestionWatch`` reads the question, which becomes an item for the person.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from relay.agents.base import TypingRules
from relay.agents.profile import Composer, ComposerState, nobody_knows
from relay.core.message import AgentState
from relay.core.source_events import Screen, StateChange, Terminal
from relay.core.state import from_json, to_json
from relay.protocol import frames
from relay.protocol.agent_ops import ShownQuestion
from relay.screen.dialogs import Dialog, as_text, read_dialog
from relay.screen.questions import (
    DIALOG,
    LinePrompts,
    StandingQuestion,
    question_in_line,
    question_on_screen,
)
from relay.screen.styled_rows import styled_rows
from relay.screen.usage_limit import seconds_to_reset


@dataclass(slots=True)
class _State:
    """What a checkpoint keeps."""

    #: Whether the program was seen to edit its lines itself without pastes, and to take pastes.
    edits: bool = False
    pastes: bool = False
    #: The person's last key, and the prompts at which lines were taken (see LinePrompts).
    pressed: int = 0
    lines: dict[str, int] = field(default_factory=dict)


class OpenQuestions:
    """Watches one program. Whoever wants to type into it, or to tell of its questions, asks here:
    what one of them knew to be a dialog is one for all, until nothing of it is left."""

    def __init__(
        self,
        screen: Screen,
        terminal: Terminal,
        rules: TypingRules,
        state: Mapping[str, Any] = MappingProxyType({}),  # of a session before this one
        known: Composer = nobody_knows,
    ) -> None:
        """``known`` tells how the program's input line is, if it is a program that relay knows."""
        self.rules = rules
        self._screen = screen
        self._terminal = terminal
        self._known = known
        self._saved = from_json(_State, state)
        self._standing = StandingQuestion()
        self._prompts = LinePrompts(self._saved.lines)
        #: The rows and the cursor when the person began a line.
        self._line: tuple[list[str], tuple[int, int]] | None = None

    def asks(self) -> str:
        """The question that a program asks of which nothing but general rules is known."""
        rows, cursor = self._screen.visible(), self._screen.cursor
        if self._terminal.cooked():
            return self._in_line(rows, cursor)  # nothing lies over the rows of such a program
        shown = self._screen.cursor_shown
        found = question_on_screen(rows, cursor, shown=shown)
        if not found and shown and self._reads_lines():
            found = self._in_line(rows, cursor)
        if found:
            self._standing.known(rows)
            return found
        return DIALOG if self._standing.stands(rows) else ""

    def unanswered(self, rows: list[str]) -> list[str]:
        """The rows with those blank that the last line has answered, in a program of lines."""
        if not self._terminal.cooked():
            return rows
        count = self._prompts.answered(rows[: self._screen.cursor[1]])
        return [*[""] * count, *rows[count:]]

    def composer(self, rows: list[str]) -> ComposerState:
        """How the program's input line is, by the screen's rows."""
        state = self._known(rows)
        if state == "dialog":
            self._standing.known(rows)
        elif state != "unknown" and self._standing.stands(rows):
            return "dialog"
        return state

    @property
    def edits(self) -> bool:
        """Whether the program was seen to edit its lines itself, without pastes."""
        return self._saved.edits

    @property
    def pastes(self) -> bool:
        """Whether the program takes pastes, or was seen to."""
        return self._saved.pastes or self._screen.bracketed_paste

    def output(self) -> None:
        """The program wrote something."""
        self._saved.pastes |= self._screen.bracketed_paste

    def state(self) -> dict[str, Any]:
        """Return a JSON-able checkpoint."""
        made: dict[str, Any] = to_json(self._saved)
        return made

    def pressed(self, sequence: int, kind: bytes, *, paged: bool = False) -> None:
        """The person pressed keys, for a pager if ``paged``; the screen is as it was before."""
        if paged:
            self._saved.pressed = max(self._saved.pressed, sequence)
            return
        if kind == frames.TYPED:
            raw = not self._terminal.cooked() and not self._screen.bracketed_paste
            self._saved.edits = self._saved.edits or raw
        if sequence <= self._saved.pressed:
            return  # the pump repeats it after a restart, and the screen is another
        self._saved.pressed = sequence
        if self._line is None:
            self._line = self._screen.visible(), self._screen.cursor
        if kind == frames.ENTERED:
            self._prompts.entered(*self._line)
        if kind != frames.TYPED:
            self._line = None

    def enters(self, rows: list[str] | None = None, cursor: tuple[int, int] = (0, 0)) -> None:
        """relay enters a line, before which these rows were shown, or what is shown now."""
        if rows is None:
            rows, cursor = self._screen.visible(), self._screen.cursor
        self._prompts.entered(rows, cursor)

    def _in_line(self, rows: list[str], cursor: tuple[int, int]) -> str:
        return question_in_line(rows, cursor, self._prompts, vouched=self.rules.vouched)

    def _reads_lines(self) -> bool:
        takes = self.rules.takes or ("paste" if self._screen.bracketed_paste else "line")
        return takes == "line"


#: Seconds without output after which the screen is read, and the longest delay after a change.
REST, LATEST = 0.15, 1.0
#: A dialog that appears within so many seconds of a key may be a menu that the person has opened.
OWN = 10.0
#: Rows at the end of the screen that may say when a usage limit ends.
LIMIT_ROWS = 20
#: An agent that is known to ask may take so many seconds to show it.
SHOWS = 2.0
#: An agent may take so many seconds to take an answer away from its screen with its question.
TAKES = 2.0


@dataclass(frozen=True, slots=True)
class ScreenQuestion:
    """A question of the agent to its person."""

    id: str
    dialog: Dialog
    since_ms: int

    def fields(self) -> ShownQuestion:
        """Its fields for the broker."""
        return {
            "id": self.id,
            "what": self.dialog.text,
            "choices": [{"key": one.key, "label": one.label} for one in self.dialog.choices],
            "chosen": self.dialog.chosen,
            "since_ms": self.since_ms,
        }


class QuestionWatch:
    """Watches for a question on the agent's screen, once the screen rests for a moment.

    ``asks`` returns the rows that ask something, with all others blank; none if nothing is asked.

    A question's id is made of its words and its number among the questions of this session.
    Whenever it may have been answered (a key was pressed, the agent's state has changed, it was
    absent at one look), the question on the screen gets another id, even if its words are the same.
    So no answer reaches a question that its sender has not seen. A question that relay has just
    answered counts as gone as soon as the answer is typed; if it is still there after ``TAKES``
    seconds, it is asked again.
    """

    def __init__(
        self,
        screen: Screen,
        asks: Callable[[list[str]], list[str]],
        now_ms: Callable[[], int],
        inset: int = 0,
    ) -> None:
        """``inset``: see read_dialog."""
        self._screen = screen
        self._asks = asks
        self._now_ms = now_ms
        self._inset = inset
        self._turn = now_ms()  # grows, so that a later session begins with another number
        self._state = StateChange(AgentState.STARTING)
        self._expected = 0.0  # since when the screen may lag behind the agent's state
        self._key_at = float("-inf")
        self._drawn_at: float | None = None  # the time of the first output since the last look
        self._look_at: float | None = None
        self._answered: tuple[Dialog, float] | None = None  # … by relay, and until when it may stay
        self.question: ScreenQuestion | None = None

    @property
    def deadline(self) -> float | None:
        """When ``tick`` is due."""
        return self._look_at

    def drawn(self, now: float) -> None:
        """The agent wrote something."""
        self._drawn_at = now if self._drawn_at is None else self._drawn_at
        self._look_at = min(now + REST, self._drawn_at + LATEST)

    def keyed(self, now: float) -> None:
        """The person pressed a key."""
        self._key_at = now
        self._turn += 1
        self._look_at = now + REST

    def changed(self, change: StateChange, now: float) -> None:
        """The agent does something else now."""
        if AgentState.BLOCKED in (change.state, self._state.state):
            self._turn += 1
            self._look_at, self._expected = now, now
        self._state = change

    def answered(self, dialog: Dialog, now: float) -> None:
        """relay has typed the answer to this dialog."""
        self._turn += 1
        self._answered = dialog, now + TAKES
        self._expected = now
        self.look(now)

    def gone(self, dialog: Dialog, now: float) -> bool:
        """Whether this dialog, which was answered, has left the screen."""
        standing = self.look(now)
        stays = standing is not None and _is_same(dialog, standing.dialog)
        return self._answered is None and not stays

    def reset(self, said: str) -> float | None:
        """Seconds until a usage limit ends, as the agent has ``said`` or its screen shows."""
        shown = " ".join(self._screen.visible()[-LIMIT_ROWS:])
        now_ms = self._now_ms()
        return seconds_to_reset(said, now_ms) or seconds_to_reset(shown, now_ms)

    def tick(self, now: float) -> None:
        """Look at the screen, if that is due."""
        if self._look_at is not None and now >= self._look_at:
            self.look(now)

    def look(self, now: float) -> ScreenQuestion | None:
        """Look at the screen now."""
        self._drawn_at = self._look_at = None
        dialog = self._read(now)
        if dialog is not None and self._answered is not None:
            answered, until = self._answered
            if now < until and _is_same(answered, dialog):
                self._look_at = min(now + REST, until)
                self.question = None
                return None
        self._answered = None
        if dialog is None:
            self._turn += self.question is not None
            self.question = None
            return None
        words = "\n".join([dialog.text, *(one.label for one in dialog.choices)])
        seed = f"{self._turn}\n{' '.join(words.split())}"
        id_ = hashlib.sha256(seed.encode("utf-8", "replace")).hexdigest()[:16].upper()
        same = self.question is not None and self.question.dialog.text == dialog.text
        since = self.question.since_ms if same and self.question else self._now_ms()
        self.question = ScreenQuestion(id_, dialog, since)
        return self.question

    def _read(self, now: float) -> Dialog | None:
        rows = self._screen.visible()
        blocked = self._state.state is AgentState.BLOCKED
        asks = self._asks(rows)
        if not asks and not blocked:
            return None
        if not blocked and self.question is None and now < self._key_at + OWN:
            self._look_at = self._key_at + OWN
            return None
        if asks:
            cursor = self._screen.cursor if self._screen.cursor_shown else None
            spans = styled_rows(self._screen.visible(styled=True))
            return read_dialog(asks, spans, cursor, inset=self._inset) or as_text(asks)
        if now < self._expected + SHOWS:
            self._look_at = now + REST
            return None
        return Dialog(self._state.reason)  # its state says that it asks, but no question is visible


def _is_same(answered: Dialog, dialog: Dialog) -> bool:
    """Whether it is the same dialog, though more or fewer of the rows above it may be read as its
    words while the program takes the answer."""
    texts = answered.text, dialog.text
    labels = [[choice.label for choice in one.choices] for one in (answered, dialog)]
    return labels[0] == labels[1] and max(texts, key=len).endswith(min(texts, key=len))
