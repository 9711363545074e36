"""What a program asks its person now, by its screen, and what was learnt of how it asks.

A file of its own: no shell and no interpreter has to do with it, as with their prompts.
"""

from __future__ import annotations

from relay.agents.base import TypingRules
from relay.agents.input_line import Composer, ComposerState
from relay.core.source_events import Screen, Terminal
from relay.protocol import frames
from relay.screen.questions import (
    DIALOG,
    LinePrompts,
    StandingQuestion,
    question_in_line,
    question_on_screen,
)


class OpenQuestions:
    """Watches one program. Whoever wants to type into it, or to tell of its questions, asks here:
    what one of them knew to be a dialog is one for all, until nothing of it is left."""

    def __init__(
        self, screen: Screen, terminal: Terminal, rules: TypingRules, lines: dict[str, int]
    ) -> None:
        """``lines``: see LinePrompts; what is learnt is written there."""
        self._screen = screen
        self._terminal = terminal
        self._rules = rules
        self._standing = StandingQuestion()
        self._prompts = LinePrompts(lines)
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

    def pressed(self, kind: bytes) -> None:
        """The person pressed keys; the screen is as it was before."""
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
        return question_in_line(rows, cursor, self._prompts, vouched=self._rules.vouched)

    def _reads_lines(self) -> bool:
        takes = self._rules.takes or ("paste" if self._screen.bracketed_paste else "line")
        return takes == "line"
