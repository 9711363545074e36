"""A program that draws the end of its answer again and again, and what is told by its style."""

from __future__ import annotations

import pytest

from relay.screen.agent_styles import dialect_of
from relay.screen.source import ScreenSource
from tests.screen.conversation import Found, finds
from tests.screen.screens import hear, texts, until

PROMPT = "─" * 80 + "\r\n\x1b[?2004h> "
ENTERED = "ask\r\n\x1b[?2004l\r\n"


def aider() -> ScreenSource:
    return ScreenSource(80, 24, dialect=dialect_of("aider"))


def test_what_is_drawn_again_is_heard_once_and_only_when_it_is_certain() -> None:
    source = aider()
    events = source.feed((PROMPT + ENTERED + "@relay:Bob one\r\n\r\nhal").encode(), 0.0)
    events += until(source, 1.0)
    assert finds(events) == []
    up = "\r\x1b[2K" + "\x1b[1A\x1b[2K" * 2
    events += source.feed((up + "@relay:Bob one\r\n\r\nhalf of it\r\n\r\n").encode(), 1.0)
    events += source.feed(PROMPT.encode(), 1.1)
    events += until(source, 3.0)
    assert finds(events) == [Found("Bob", "one")]


def test_thoughts_are_not_heard() -> None:
    answer = "► THINKING\r\n\r\n@relay:Ann no\r\n\r\n► ANSWER\r\n\r\n@relay:Bob yes\r\n\r\n"
    assert hear(aider(), (PROMPT + ENTERED + answer + PROMPT).encode()).count("@relay:Bob yes") == 1
    assert "@relay:Ann no" not in hear(aider(), (PROMPT + ENTERED + answer + PROMPT).encode())


def test_what_was_broken_off_is_heard_as_it_is_drawn_in_the_end() -> None:
    answer = "@relay:Bo^C\r\n\r\n^C again to exit\r\n@relay:Bob whole\r\n\r\n"
    heard = hear(aider(), (PROMPT + ENTERED + answer + PROMPT).encode())
    assert [line for line in heard if line.startswith("@")] == ["@relay:Bob whole"]


@pytest.mark.parametrize("agent", ["claude", "codex", "gemini", "qwen", "opencode"])
@pytest.mark.parametrize(
    ("drawn", "heard"),
    [
        ("@relay:Bob plain", True),
        ("\x1b[32m@relay:Bob all in one colour\x1b[39m", True),
        ("\x1b[1m@relay:Bob\x1b[22m in bold", False),
        ("\x1b[35m@relay:Bob\x1b[39m as code", False),
        ("\x1b[48;5;240m@relay:Bob\x1b[49m on a ground", False),
    ],
)
def test_code_and_bold_are_told_by_their_style(agent: str, drawn: str, heard: bool) -> None:
    source = ScreenSource(80, 24, dialect=dialect_of(agent))
    source.expect_echo("anything", 0.0)
    shown = f"\x1b[?2026h\x1b[H\x1b[5B\x1b[6G{drawn}\x1b[2B\x1b[6GDone.\x1b[?2026l"
    events = source.feed(shown.encode(), 0.0)
    events += until(source, 9.0)
    assert bool(finds(events)) == heard, texts(events)
