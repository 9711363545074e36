"""Events out: pauses, echoes, floods."""

from __future__ import annotations

from relay.core.source_events import Line, Pause, Proof
from relay.screen.line_events import FLOOD_BURST, PAUSE_SOON, EchoMask, LineEmitter
from tests.screen.screens import texts


def test_a_pause_comes_once_after_the_last_line() -> None:
    out = LineEmitter(0.0)
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


def test_an_echo_is_proof() -> None:
    out = LineEmitter(0.0)
    out.echo.expect("Message [id1]", 0.0)
    out.line("> Message [id1]", 0.0, plain=True)
    assert out.take() == [Proof("> Message [id1]", "screen"), Line("screen", ">")]


def test_a_flood_is_thinned_but_messages_stay_whole() -> None:
    out = LineEmitter(0.0)
    for _ in range(int(FLOOD_BURST) // 1000 + 1):
        out.lines(["noise"] * 1000, 0.0)
    assert out.flooded(0.0)
    out.take()
    out.lines(
        ["noise", "@relay:Bob one", "two", "", "noise", "@relay:Ann <<<", "", "x", ">>>"], 0.0
    )
    assert [text for text in texts(out.take()) if text] == [
        "@relay:Bob one", "two", "@relay:Ann <<<", "x", ">>>",
    ]  # fmt: skip
    assert not out.flooded(60.0)


def test_the_state_goes_on_elsewhere_and_at_another_time() -> None:
    out = LineEmitter(0.0)
    out.echo.expect("typed text", 10.0)
    out.line("@relay:Bob <<<", 10.0, plain=True)
    again = LineEmitter(500.0)
    again.load(out.state(10.005), 500.0)
    assert again.deadline is not None and 500.0 < again.deadline < 500.0 + PAUSE_SOON
    again.line("typed text", 500.0, plain=True)
    assert texts(again.take()) == []
