"""Real sessions of real agents, recorded: every utterance is heard once."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from relay.agents.profile import find_profile
from relay.core.source_events import SourceEvent
from relay.screen.source import ScreenSource
from tests.screen.conversation import Found, expected, finds
from tests.screen.screens import CASTS, cast, cut, proofs, texts, until

LONG = (
    "@relay:Bob Please check the tests in src/app.py and report back because this is a long "
    "message that will wrap at the terminal edge for sure"
)
#: What the model said, as any screen shows it. The first three of the second group cannot be told
#: from live ones there: the fence and the backslashes have vanished (docs/screen.md).
SAID = [
    LONG,
    "@memory:save User prefers dark mode",
    "@relay:Fake inside code",
    "@relay:Nobody at line start",
    "@relay:Ann first line",
    "@relay:Ben second line",
    "@relay:Bullet in a list item",
    "@relay:Number in a numbered item",
    "@relay:Bold bold text and @relay:Code inline code",
    "@relay:Dana <<<",
    '@relay:* broadcast to everyone with under_scores and stars and <tags> & "quotes"',
    "@relay:Middle line thirty is a relay line",
    "@relay:Last final words",
]
_DIRECTIVE = re.compile(r" {0,3}(?:(?:[-*+•]|\d+[.)]) )?(@\w+:.*)")
NAMES = ["claude-classic-80x24", "claude-80x24", "codex-80x24", "codex-inline-80x24"]

#: Every agent, renderer and size.
HEARD = sorted(path.name.removesuffix(".cast.xz") for path in CASTS.glob("hearing/*.cast.xz"))
SIZES = ("80x24", "100x30", "120x40")
SMALL = [name for name in HEARD if name.endswith("-80x24")]


def directives(events: list[SourceEvent]) -> list[str]:
    """The lines that start with a directive, without list markers."""
    found = (_DIRECTIVE.fullmatch(text) for text in texts(events))
    return [match[1] for match in found if match]


def replay(
    name: str,
    sizes: list[int] | None = None,
    sizes_of_screen: dict[float, tuple[int, int]] | None = None,
    restart_every: int = 0,
    agent: str = "",
) -> list[SourceEvent]:
    """Hear a recording. ``sizes``: cut the output so; ``restart_every`` chunks restore anew."""
    style = find_profile(agent)[0].screen
    size = re.search(r"(\d+)x(\d+)$", name)
    cols, rows = map(int, size.groups()) if size else (80, 24)
    source = ScreenSource(cols, rows, style=style)
    events: list[SourceEvent] = []
    cuts = itertools.cycle(sizes or [1 << 20])
    resizes = sorted((sizes_of_screen or {}).items())
    fed = 0
    for at, kind, data in cast(name):
        while resizes and resizes[0][0] <= at:
            moment, (cols, rows) = resizes.pop(0)
            events += until(source, moment)
            events += source.resize(cols, rows, moment)
        events += until(source, at)
        if kind == "i" and data.startswith("\x1b[200~"):
            source.expect_echo(data[6:-6], at)
        if kind == "r":
            cols, rows = map(int, data.split("x"))
            events += source.resize(cols, rows, at)
        for piece in cut(data.encode(), cuts) if kind == "o" else ():
            events += source.feed(piece, at)
            fed += 1
            if restart_every and fed % restart_every == 0:
                source = ScreenSource.restore(source.checkpoint(), cols, rows, at, style=style)
    events += until(source, at + 2)
    return events + source.finish(at + 2)


@pytest.mark.parametrize("name", NAMES)
def test_what_it_said_and_only_that_is_heard_once_and_in_order(name: str) -> None:
    """Nothing that the person typed, that was typed for them or that a tool printed is speech."""
    events = replay(name)
    assert directives(events) == SAID
    heard = "\n".join(texts(events))
    assert "TypedByUser" not in heard
    assert "Echoed" not in heard
    assert "a1b2c3" in "\n".join(proofs(events))
    assert "Got your message." in heard


@pytest.mark.parametrize("name", NAMES)
def test_a_restored_source_hears_the_rest(name: str) -> None:
    assert replay(name, [997], restart_every=3) == replay(name, [997])


@pytest.mark.parametrize("cols", [60, 100])
def test_a_reflow_without_a_redraw_fires_nothing_twice(cols: int) -> None:
    heard = directives(replay(NAMES[0], sizes_of_screen={8.5: (cols, 24), 8.7: (80, 24)}))
    assert heard == SAID


@pytest.mark.parametrize(
    "name", ["claude-classic-resize", "claude-resize", "codex-resize", "codex-inline-resize"]
)
def test_resizes_redraws_and_scrolling_back_fire_nothing_twice(name: str) -> None:
    """The recordings hold five resizes, one while the model speaks, and Page Up and Down."""
    assert directives(replay(name)) == SAID[:-2]


def heard(name: str, **how: Any) -> list[Found]:
    """What is heard of one of the conversations (see tests.screen.conversation)."""
    return finds(replay(f"hearing/{name}", agent=name.partition("-")[0], **how))


def test_every_agent_and_size_is_there() -> None:
    agents = {name.rpartition("-")[0] for name in HEARD}
    assert agents == {
        *("claude", "claude-classic", "codex", "codex-inline"),
        *("gemini", "opencode", "qwen"),
    }
    assert set(HEARD) == {f"{agent}-{size}" for agent in agents for size in SIZES}


@pytest.mark.parametrize("name", HEARD)
def test_every_message_is_heard_once_whole_and_in_order(name: str) -> None:
    assert heard(name) == expected(name.partition("-")[0])


@pytest.mark.parametrize("name", ["claude", "codex-inline"])
def test_what_was_said_before_a_session_was_resumed_is_not_heard_again(name: str) -> None:
    events = replay(f"resumed/{name}", agent=name.partition("-")[0])
    assert finds(events) == [Found("Bob", "ping")]


@pytest.mark.parametrize("name", SMALL)
@settings(
    max_examples=2,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.generate],  # each example takes too long to make it smaller
)
@given(st.lists(st.integers(40, 4000), min_size=1, max_size=12))
def test_a_conversation_may_be_cut_anywhere(name: str, sizes: list[int]) -> None:
    assert heard(name, sizes=sizes) == expected(name.partition("-")[0])


@pytest.mark.parametrize("name", SMALL)
def test_a_restored_source_hears_the_rest_of_a_conversation(name: str) -> None:
    assert heard(name, restart_every=97) == expected(name.partition("-")[0])
