"""What a program asks its person, as all parts of a session know it."""

from __future__ import annotations

import pytest

from relay.agents.base import TypingRules
from relay.agents.profile import ComposerState, find_profile
from relay.protocol import frames
from relay.screen.questions import DIALOG
from relay.screen.source import ScreenSource
from relay.session.agent_questions import TAKES, OpenQuestions, QuestionWatch
from tests.screen.screens import cast, until
from tests.session.test_typist import FakeScreen, FakeTerminal

MENU = ["Which one?", "1. keep all files", "2. delete all files", "> "]


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
def test_what_stays_of_a_dialog_in_a_conversation_is_none(size: tuple[int, int]) -> None:
    profile, _ = find_profile("cn")
    source = ScreenSource(*size, style=profile.screen)

    def known(rows: list[str]) -> ComposerState:
        return profile.composer_at_rest(rows, source.title, source.cursor[1])

    questions = OpenQuestions(source, FakeTerminal(cooked=False), TypingRules(), known=known)

    states: list[tuple[ComposerState, ComposerState]] = []
    for at, kind, data in cast("profiled/cn-{}x{}".format(*size)):
        for _ in until(source, at):
            pass
        if kind == "o":
            source.feed(data.encode(), at)
            rows = source.visible()
            states.append((known(rows), questions.composer(rows)))
    assert ("dialog", "dialog") in states
    assert states[-1] == ("empty", "empty")


def test_a_key_of_before_a_restart_answers_nothing() -> None:
    terminal, screen = FakeTerminal(cooked=True), FakeScreen(paste=False)
    screen.rows, screen.cursor = ["hi", "> go"], (4, 1)
    before = OpenQuestions(screen, terminal, TypingRules())
    before.pressed(4, frames.ENTERED)
    screen.rows, screen.cursor = MENU, (2, 3)
    assert before.asks() == DIALOG
    after = OpenQuestions(screen, terminal, TypingRules(), before.state())
    after.pressed(4, frames.ENTERED)  # the pump tells each session of the last key
    assert after.asks() == DIALOG


def test_a_prompt_that_came_back_is_none_though_it_reads_like_a_question() -> None:
    terminal, screen = FakeTerminal(cooked=True), FakeScreen(paste=False)
    screen.rows, screen.cursor = ["Enter text: "], (12, 0)
    watch = OpenQuestions(screen, terminal, TypingRules())
    assert watch.asks()
    watch.enters()
    watch.enters()
    assert not watch.asks()
    assert not OpenQuestions(screen, terminal, TypingRules(), watch.state()).asks()


def test_an_answered_dialog_is_gone_only_when_it_stands_there_no_more() -> None:
    screen = FakeScreen(paste=False)
    screen.rows, screen.cursor = MENU, (2, 3)
    watch = QuestionWatch(screen, lambda rows: rows if rows == MENU else [], lambda: 0)
    standing = watch.look(0.0)
    assert standing is not None
    watch.answered(standing.dialog, 1.0)
    assert not watch.gone(standing.dialog, 1.5)
    assert not watch.gone(standing.dialog, 1.0 + TAKES)
    screen.rows = ["all files are kept"]
    assert watch.gone(standing.dialog, 1.1 + TAKES)
