"""``[await:30s]``: the agent is told when nobody has answered in time. Pure; time comes in."""

from __future__ import annotations

from dataclasses import dataclass

#: Questions that are waited for at a time; a further one replaces the oldest.
WAITING_MAX = 100


@dataclass(frozen=True, slots=True)
class Question:
    """What was asked of whom, and until when an answer is waited for."""

    id: str
    to: str
    seconds: float
    due: float


class Awaiting:
    """The questions of one agent that have had no answer yet."""

    def __init__(self) -> None:
        self._questions: list[Question] = []

    def ask(self, message_id: str, to: str, seconds: float, now: float) -> None:
        """An answer to this message is expected within ``seconds``."""
        if any(question.id == message_id for question in self._questions):
            return
        self._questions.append(Question(message_id, to, seconds, now + seconds))
        del self._questions[:-WAITING_MAX]

    def heard_from(self, sender: str) -> None:
        """Somebody has written: the oldest question to them is answered."""
        for question in self._questions:
            names = {name.lower() for name in question.to.split(",")}
            if sender.lower() in names or "*" in names:
                self._questions.remove(question)
                return

    def deadline(self) -> float | None:
        """When the next question runs out."""
        return min((question.due for question in self._questions), default=None)

    def overdue(self, now: float) -> list[Question]:
        """The questions whose time is up, taken out."""
        late = [question for question in self._questions if question.due <= now]
        self._questions = [question for question in self._questions if question.due > now]
        return late
