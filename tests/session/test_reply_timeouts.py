"""``[await:…]``: questions, answers and time."""

from __future__ import annotations

from relay.directive.grammar import Match
from relay.session.builtin import await_seconds
from relay.session.reply_timeouts import WAITING_MAX, Awaiting


def test_a_question_without_an_answer_runs_out_once() -> None:
    waiting = Awaiting()
    waiting.ask("id1", "Bob", 30.0, now=100.0)
    waiting.ask("id1", "Bob", 30.0, now=101.0)
    assert waiting.deadline() == 130.0
    assert waiting.overdue(129.0) == []
    assert [question.to for question in waiting.overdue(130.0)] == ["Bob"]
    assert waiting.overdue(200.0) == [] and waiting.deadline() is None


def test_an_answer_settles_the_oldest_question_to_its_sender() -> None:
    waiting = Awaiting()
    waiting.ask("id1", "Bob", 10.0, now=0.0)
    waiting.ask("id2", "Bob", 10.0, now=1.0)
    waiting.ask("id3", "Ann,Carol", 10.0, now=2.0)
    waiting.heard_from("bob")
    waiting.heard_from("Carol")
    waiting.heard_from("Somebody")
    assert [question.id for question in waiting.overdue(100.0)] == ["id2"]


def test_questions_are_bounded() -> None:
    waiting = Awaiting()
    for number in range(WAITING_MAX + 5):
        waiting.ask(f"id{number}", "Bob", 1.0, now=0.0)
    assert len(waiting.overdue(10.0)) == WAITING_MAX


def test_durations() -> None:
    def seconds(text: str) -> float | None:
        return await_seconds(Match("relay", "Bob", "x", {"await": text}, False, ""))

    assert (seconds("30s"), seconds("2m"), seconds("1h"), seconds("45")) == (30, 120, 3600, 45)
    assert seconds("soon") is None and seconds("") is None
    assert seconds("99999h") == 24 * 3600
