"""What a program asks its person now, by its screen, and what was learnt of how it asks."""

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

    def __init__(self, screen: Screen, terminal: Terminal, rules: TypingRules) -> None:
        self._screen = screen
        self._terminal = terminal
        self._rules = rules
        self._standing = StandingQuestion()
        self._prompts = LinePrompts()
        self._line: str | None = None  # before the cursor, when a line was begun

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

    def composer(self, known: Composer | None) -> Composer | None:
        """The same for a program of which ``known`` tells how its input line is."""
        if known is None:
            return None

        def state(rows: list[str]) -> ComposerState:
            found = known(rows)
            if found == "dialog":
                self._standing.known(rows)
            elif self._standing.stands(rows):
                return "dialog"
            return found

        return state

    def pressed(self, kind: bytes) -> None:
        """The person pressed keys; the screen is as it was before."""
        if self._line is None:
            self._line = self._before_cursor()
        if kind == frames.ENTERED:
            self._prompts.entered(self._line)
        if kind != frames.TYPED:
            self._line = None

    def entered(self, prompt: str | None = None) -> None:
        """relay enters a line at ``prompt``, or else at the one that stands there now."""
        self._prompts.entered(self._before_cursor() if prompt is None else prompt)

    def _in_line(self, rows: list[str], cursor: tuple[int, int]) -> str:
        return question_in_line(rows, cursor, self._prompts, vouched=self._rules.vouched)

    def _reads_lines(self) -> bool:
        takes = self._rules.takes or ("paste" if self._screen.bracketed_paste else "line")
        return takes == "line"

    def _before_cursor(self) -> str:
        rows = self._screen.visible()
        column, row = self._screen.cursor
        return (rows[row] if row < len(rows) else "")[:column]
