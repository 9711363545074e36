"""Events out: pauses and echoes."""

from __future__ import annotations

import pytest

from relay.core.source_events import End, Line, Pause, Proof
from relay.screen.line_events import PAUSE_SOON, EchoMask, LineEmitter


def test_a_pause_comes_once_after_the_last_line() -> None:
    out = LineEmitter()
    out.line("one", 0.0, plain=True)
    out.line("two", 0.01, plain=True)
    out.tick(0.02)
    assert [type(event) for event in out.take()] == [Line, Line]
    assert out.deadline == 0.01 + PAUSE_SOON
    out.tick(out.deadline)
    out.tick(5.0)
    assert [type(event) for event in out.take()] == [Pause]


def test_an_echo_is_matched_once_in_order_and_expires() -> None:
    echo = EchoMask()
    echo.expect("first line\n\nsecond  line", 0.0)
    assert echo.match("other", 0.0) is None
    assert echo.match("$ first line", 0.0) == "$"
    assert echo.match("second line", 0.0) == ""
    assert echo.match("second line", 0.0) is None
    echo.expect("late", 0.0)
    assert echo.match("late", 1000.0) is None


def test_the_end_of_a_line_proves_little_when_it_is_short() -> None:
    echo = EchoMask()
    echo.expect("yes", 0.0)
    assert echo.match("I say yes", 0.0) is None
    assert echo.match("^[[200~yes^[[201~", 0.0) == ""


def test_an_echo_is_proof_and_its_first_line_ends_what_was_said() -> None:
    out = LineEmitter()
    out.echo.expect("Message [id1]\nand more", 1.0)
    out.line("> Message [id1]", 1.0, plain=True)
    assert out.take() == [End("screen"), Proof("> Message [id1]", "screen"), Line("screen", ">")]
    out.line("and more", 1.0, plain=True)
    assert out.take() == [Proof("and more", "screen")]


@pytest.mark.parametrize(
    ("prompts", "keyed", "line"),
    [
        pytest.param(["ask: ", "ask: "], False, "  @relay:Bob hi", id="twice"),
        pytest.param(["ask: "], False, "ask:   @relay:Bob hi", id="once"),
        pytest.param(["ask: ", "put: "], False, "ask:   @relay:Bob hi", id="another"),
        pytest.param(["ask: ", "ask: "], True, "ask:   @relay:Bob hi", id="the-person-typed"),
        pytest.param(["ask ", "ask "], False, "ask   @relay:Bob hi", id="words"),
        pytest.param(["@relay:Ann a:"] * 2, False, "@relay:Ann a: @relay:Bob hi", id="a-message"),
    ],
)
def test_behind_a_prompt_where_relay_alone_typed_the_agent_speaks(
    prompts: list[str], keyed: bool, line: str
) -> None:
    out = LineEmitter()
    for prompt in prompts:
        out.echo.expect("Message [id1]", 1.0, prompt)
    if keyed:
        out.echo.keyed()
    shown = line if line.startswith(prompts[0]) else prompts[0] + line
    out.line(shown, 100.0, plain=True)
    assert [e for e in out.take() if not isinstance(e, Proof)] == (
        [Line("screen", line)] if shown == line else [End("screen"), Line("screen", line)]
    )
