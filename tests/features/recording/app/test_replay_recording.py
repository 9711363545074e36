"""Recordings of real agents and small ones made up: what would fire, when, and why not."""

from __future__ import annotations

import json

import pytest

from relay.config.settings import Settings
from relay.core.asciicast import CastEvent, Header, read
from relay.features.recording.replay import Finding, Replay
from relay.hooks.registry import Registry
from relay.screen.source import ScreenSource
from relay.session.door import SessionFacts
from relay.session.feature_parts import SessionModules
from relay.session.handler_lanes import register
from tests.screen.screens import CASTS
from tests.screen.test_recordings import SAID

#: The recorded agents cannot write ``>>>`` so that it shows (docs/screen.md): from Dana on
#: everything stands in a block that is never closed.
HEARD = [line for line in SAID if line != "@relay:Dana <<<"]


def registry() -> Registry:
    handlers = Registry()
    register(handlers)
    SessionModules().register(handlers, SessionFacts("", {}, {}, Settings()))
    return handlers


def replay(
    events: list[CastEvent],
    *,
    handlers: Registry | None = None,
    relay: bool = True,
) -> list[Finding]:
    header = Header(2, 80, 24, "T", "", None, {"agent": "T"} if relay else {})
    player = Replay(ScreenSource(80, 24), handlers or registry(), header, misses=True)
    player.run(events)
    return player.found


def said(text: str, at: float = 0.0) -> CastEvent:
    return CastEvent(at, "o", text.replace("\n", "\r\n"))


@pytest.mark.parametrize("name", ["claude-80x24", "codex-80x24"])
def test_the_recordings_fire_what_they_always_did(name: str) -> None:
    with (CASTS / f"{name}.cast").open(encoding="utf-8") as lines:
        header, events = read(lines)
        player = Replay(ScreenSource(80, 24), registry(), header, misses=True)
        player.run(events)
    fired = [found for found in player.found if found.fires]
    assert [f"{found.directive} {found.body}".split("\n")[0] for found in fired] == HEARD
    handlers = {found.handlers for found in fired}
    assert handlers == {("relay (built-in)",), ("memory (built-in)",)}
    assert [found.at for found in player.found] == sorted(found.at for found in player.found)
    refused = [found for found in player.found if not found.fires and not found.missed]
    assert [found.directive for found in refused] == ["@relay:Dana"]
    assert "never closed" in refused[0].why
    missed = {found.directive: found.why for found in player.found if found.missed}
    assert "@relay:Last final words" not in missed  # the block ended with the next words typed
    assert any("TypedByUser" in line and "typed" in why for line, why in missed.items())


def test_time_is_the_recordings() -> None:
    found = replay([said("@relay:Bob one\n", 100.0), said("@relay:Bob two\n", 200.0)])
    assert [one.body for one in found] == ["one", "two"]
    # A message is complete once the screen rests, not when the next thing happens.
    assert [int(one.at) for one in found] == [100, 200]


def test_what_is_heard_when_the_recording_ends_counts() -> None:
    assert [one.body for one in replay([said("@relay:Bob no newline")])] == ["no newline"]


def test_who_handles_it() -> None:
    handlers = registry()

    def deploy(target: str) -> None:
        raise AssertionError("nothing runs")

    handlers.add_pattern("deploy", "staging", deploy, source="/x/relay.config.py")
    found = replay(
        [said("@deploy:staging now [x]\n\n@deploy:stagign now\n\n@relay:Bob [mode:steer] hi\n")],
        handlers=handlers,
    )
    assert [one.handlers for one in found] == [
        ("deploy [relay.config.py]",),
        (),
        ("relay (built-in)",),
    ]
    assert "did you mean 'staging'?" in found[1].why and not found[1].missed
    assert found[2].attributes == {"mode": "steer"}


def test_why_lines_did_not_fire() -> None:
    text = "tell @relay:Bob\n```\n@relay:In fence\n```\n@relya:Bob x\n"
    whys = [(one.directive, one.why) for one in replay([said(text)])]
    assert [line for line, _ in whys] == ["tell @relay:Bob", "@relay:In fence", "@relya:Bob x"]
    assert ["begin" in whys[0][1], "fence" in whys[1][1], "did you mean" in whys[2][1]] == [
        True
    ] * 3


def test_a_person_who_types_is_not_the_agent() -> None:
    echo = said("@relay:Bob typed\n", 1.1)
    keys = [CastEvent(1.0, "k", "typed"), CastEvent(1.05, "k", "entered")]
    assert [one.fires for one in replay([echo])] == [True]
    assert not any(one.fires for one in replay([*keys, echo]))
    # A recording of another program's making knows the keys themselves.
    typed = CastEvent(1.0, "i", "@relay:Bob typed\r")
    assert not any(one.fires for one in replay([typed, echo], relay=False))
    # In relay's own the reports count, as they do live.
    assert [one.fires for one in replay([typed, echo])] == [True]


def test_what_relay_typed_is_not_the_agent() -> None:
    words = CastEvent(1.0, "w", "\x1b[200~@relay:Bob echoed\x1b[201~")
    assert not any(one.fires for one in replay([words, said("@relay:Bob echoed\n", 1.1)]))


def test_a_resize_is_one_for_the_screen() -> None:
    long = "@relay:Bob " + "word " * 30
    narrow = [CastEvent(0.0, "r", "40x10"), said(long + "\n", 0.1)]
    assert [one.body for one in replay(narrow)] == [long[11:].strip()]
    assert replay([CastEvent(0.0, "r", "nonsense"), said("x\n")]) == []


def test_findings_are_plain_data() -> None:
    assert json.dumps(replay([said("@relay:Bob hi\n")])[0].attributes) == "{}"
