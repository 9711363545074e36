"""Watches for a question on the agent's screen, which is an item for the person.

The screen is read once it rests for a moment. A question's id is made of its words and its number
among the questions of this session. Whenever it may have been answered (a key was pressed, the
agent's state has changed, it was absent at one look), the question on the screen gets another id,
even if its words are the same. So no answer reaches a question that its sender has not seen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from relay.core.message import AgentState
from relay.core.source_events import StateChange
from relay.protocol.agents import Question
from relay.screen.dialogs import Dialog, as_text, read_dialog
from relay.screen.styled_rows import styled_rows
from relay.screen.usage_limit import seconds_to_reset

#: Seconds without output after which the screen is read, and the longest delay after a change.
REST, LATEST = 0.15, 1.0
#: A dialog that appears within so many seconds of a key may be a menu that the person has opened.
OWN = 10.0
#: Rows at the end of the screen that may say when a usage limit ends.
LIMIT_ROWS = 20
#: An agent that is known to ask may take so many seconds to show it.
SHOWS = 2.0


class AskingScreen(Protocol):
    """The agent's screen."""

    @property
    def cursor(self) -> tuple[int, int]: ...

    @property
    def cursor_shown(self) -> bool: ...

    def visible(self, *, styled: bool = False) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class ScreenQuestion:
    """A question of the agent to its person."""

    id: str
    dialog: Dialog
    since_ms: int

    def fields(self) -> Question:
        """Its fields for the broker."""
        return {
            "id": self.id,
            "what": self.dialog.text,
            "choices": [{"key": one.key, "label": one.label} for one in self.dialog.choices],
            "chosen": self.dialog.chosen,
            "since_ms": self.since_ms,
        }


class QuestionWatch:
    """Watches one agent's screen. ``asks`` returns the rows that ask something, with all others
    blank; none if nothing is asked."""

    def __init__(
        self,
        screen: AskingScreen,
        asks: Callable[[list[str]], list[str]],
        now_ms: Callable[[], int],
        inset: bool = False,
    ) -> None:
        """``inset``: see read_dialog."""
        self._screen = screen
        self._asks = asks
        self._now_ms = now_ms
        self._inset = inset
        self._turn = now_ms()  # grows, so that a later session begins with another number
        self._state = StateChange(AgentState.STARTING)
        self._changed_at = 0.0  # when the state changed
        self._key_at = float("-inf")
        self._drawn_at: float | None = None  # the time of the first output since the last look
        self._look_at: float | None = None
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
            self._look_at, self._changed_at = now, now
        self._state = change

    def answered(self, now: float) -> None:
        """It was answered: a question on the screen is another one from now on."""
        self._turn += 1
        self.look(now)

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
        if now < self._changed_at + SHOWS:
            self._look_at = now + REST
            return None
        return Dialog(self._state.reason)  # its state says that it asks, but no question is visible
