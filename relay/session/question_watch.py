"""Knows the question that stands on the agent's screen, as an item for the person.

Looked for once the screen rests for a moment. A question has an id: of its words and of its turn
among the questions of this session. Whenever it may have been answered (a key was pressed, the
agent's state has changed, it was away at one look) what stands there has another id, be it in the
very same words: so nobody's answer reaches a question that they have not seen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from relay.core.message import AgentState
from relay.core.source_events import StateChange
from relay.screen.dialogs import Dialog, as_text, read_dialog
from relay.screen.styled_rows import styled_rows
from relay.screen.usage_limit import seconds_to_reset

#: Seconds without output after which the screen is looked at, and at the latest after its change.
REST, LATEST = 0.15, 1.0
#: What stands there within so many seconds of a key may be a menu that the person has opened.
OWN = 10.0
#: Rows at the end of the screen that may say when a usage limit ends.
LIMIT_ROWS = 20
#: An agent that is known to ask may take so many seconds to show it.
SHOWS = 2.0


class AskingScreen(Protocol):
    """What is seen of the agent."""

    @property
    def cursor(self) -> tuple[int, int]: ...

    @property
    def cursor_shown(self) -> bool: ...

    def visible(self, *, styled: bool = False) -> list[str]: ...


@dataclass(frozen=True, slots=True)
class ScreenQuestion:
    """What the agent asks its person."""

    id: str
    dialog: Dialog
    since_ms: int

    def fields(self) -> dict[str, object]:
        """As the broker is told of it."""
        return {
            "id": self.id,
            "what": self.dialog.text,
            "choices": [{"key": one.key, "label": one.label} for one in self.dialog.choices],
            "chosen": self.dialog.chosen,
            "since_ms": self.since_ms,
        }


class QuestionWatch:
    """Watches one agent's screen. ``asks`` says which of its rows ask something, the others blank;
    none where nothing is asked."""

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
        self._turn = now_ms()  # grows: a session after this one begins with another
        self._state = StateChange(AgentState.STARTING)
        self._changed_at = 0.0  # when the state changed
        self._key_at = float("-inf")
        self._drawn_at: float | None = None  # the first output that was not looked at
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
        """It was answered: what stands there now is another one."""
        self._turn += 1
        self.look(now)

    def reset(self, said: str) -> float | None:
        """Seconds until a usage limit ends, as the agent has ``said`` or its screen shows."""
        shown = " ".join(self._screen.visible()[-LIMIT_ROWS:])
        now_ms = self._now_ms()
        return seconds_to_reset(said, now_ms) or seconds_to_reset(shown, now_ms)

    def tick(self, now: float) -> None:
        """Look, if that is due."""
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
        return Dialog(self._state.reason)  # it is said to ask, and does not show it
