"""What a program asks its person now, by its screen, and how it was seen to ask and to read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from relay.agents.base import TypingRules
from relay.agents.profile import Composer, ComposerState
from relay.core.source_events import Screen, Terminal
from relay.core.state import from_json, to_json
from relay.protocol import frames
from relay.screen.questions import (
    DIALOG,
    LinePrompts,
    StandingQuestion,
    question_in_line,
    question_on_screen,
)


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
    ) -> None:
        self.rules = rules
        self._screen = screen
        self._terminal = terminal
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

    def composer(self, known: Composer) -> Composer:
        """The same for a program of which ``known`` tells how its input line is."""

        def state(rows: list[str]) -> ComposerState:
            found = known(rows)
            if found == "dialog":
                self._standing.known(rows)
            elif found != "unknown" and self._standing.stands(rows):
                return "dialog"
            return found

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
