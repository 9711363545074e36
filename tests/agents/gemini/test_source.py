"""What is heard of Gemini CLI, from a session file that the real 0.61.0 wrote."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from relay.agents.base import AgentStart
from relay.agents.gemini.adapter import SHOW_ITSELF, GeminiAdapter
from relay.agents.gemini.source import GeminiSource
from relay.agents.profile import find_profile
from relay.agents.structured_source import limited
from relay.core.message import AgentState
from relay.core.source_events import (
    Degraded,
    End,
    LimitCause,
    Line,
    Proof,
    SourceEvent,
    StateChange,
)
from relay.screen.source import ScreenSource
from relay.session.detector import DirectiveDetector
from relay.session.driver import AdapterFeed
from relay.session.session_events import EventQueue
from relay.session.sources import SourceSelector

FOLDER = Path(__file__).parent
RECORDED = (FOLDER / "recorded" / "session.jsonl").read_text().splitlines()
IDLE, BUSY, DIALOG = "◇  Ready (project)", "✦  Working… (project)", "✋  Action Required (project)"
FIRST = [
    "I start now.",
    "",
    "---",
    "",
    "1. first",
    "2. second",
    "",
    "@relay:Bob hello there",
    "",
    "```",
    "@relay:Fake in a fence",
    "```",
    "",
    "\\@relay:Nobody escaped",
    "",
    "Now a command.",
]
QUOTA = "a usage limit is reached: You have exhausted your daily quota on this model."


def rows(situation: str) -> list[str]:
    return (FOLDER / "screens" / f"{situation}-bands-80x24.txt").read_text().split("\n")[1:]


def record(kind: str, content: Any, id_: str = "r1", at: str = "2026-11-22T07:00:00.000Z") -> str:
    return json.dumps({"id": id_, "timestamp": at, "type": kind, "content": content})


def spoken(events: list[SourceEvent]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for event in events:
        if isinstance(event, Line):
            found.setdefault(event.stream, []).append(event.text)
    return found


def read(source: GeminiSource, lines: list[str]) -> list[SourceEvent]:
    return [event for line in lines for event in source.transcript(line, 0.0)]


@pytest.fixture
def source() -> GeminiSource:
    return GeminiSource(0.0, asyncio.Event(), find_profile("gemini")[0])


def test_the_models_words_are_heard_once_and_nothing_else(source: GeminiSource) -> None:
    events = read(source, RECORDED)
    assert list(spoken(events).values()) == [
        FIRST,
        ["The command is done.", "", "@relay:Bob last words"],
        ["OK."],
    ]
    assert sum(isinstance(event, End) for event in events) == 3
    assert spoken(read(source, RECORDED)) == {}  # the file was replaced, and read from its start


def test_streams_have_the_names_of_the_agents_own_records(source: GeminiSource) -> None:
    assert list(spoken(read(source, RECORDED))) == [
        json.loads(line)["id"]
        for number, line in enumerate(RECORDED)
        if '"type":"gemini","content":"' in line and '"toolCalls"' not in line
        if number
        if not line.startswith('{"$set"')
    ]


def test_what_was_said_before_this_run_is_history() -> None:
    resumed = GeminiSource(
        datetime.fromisoformat("2026-11-22T06:38:26Z").timestamp(), asyncio.Event()
    )
    assert list(spoken(read(resumed, RECORDED)).values()) == [["OK."]]


def test_what_went_to_the_model_is_proven(source: GeminiSource) -> None:
    text = (
        "Relay message [AB12CD34] from agent Ann: one\n\nRelay message [EF56GH78] from agent Ben: x"
    )
    assert not source.seen("[AB12CD34]")
    assert source.transcript(record("user", [{"text": text}]), 0.0) == [Proof(text, "transcript")]
    assert source.seen("[AB12CD34]") and source.accepted("[EF56GH78]")
    quoted = record("gemini", "I got Relay message [ZZ99ZZ99] from agent Ann", "r2")
    source.transcript(quoted, 0.0)
    assert not source.seen("[ZZ99ZZ99]")


@pytest.mark.parametrize(
    "line",
    [
        record("user", [{"functionResponse": {"response": {"output": "@relay:Bob tool"}}}]),
        record("gemini", [{"text": "@relay:Bob a summary", "thought": True}]),
        record("gemini", ""),
        record("info", "@relay:Bob the program's words"),
        json.dumps({"$set": {"messages": [json.loads(record("gemini", "@relay:Bob old"))]}}),
        json.dumps({"$rewindTo": "r1"}),
        '{"id": "cut',
        "[" * 100_000,
        "null",
    ],
)
def test_what_is_not_the_models_own_is_not_heard(source: GeminiSource, line: str) -> None:
    assert source.transcript(line, 0.0) == []


def test_states_come_from_title_and_screen(source: GeminiSource) -> None:
    assert source.agent_state is AgentState.STARTING
    steps = [
        ([""] * 24, "", []),
        (rows("empty"), IDLE, [StateChange(AgentState.IDLE)]),
        (rows("busy"), BUSY, [StateChange(AgentState.BUSY)]),
        (rows("busy"), BUSY, []),
        (rows("dialog-shell"), DIALOG, [StateChange(AgentState.BLOCKED, "asks to use Shell")]),
        (rows("busy"), BUSY, [StateChange(AgentState.BUSY)]),
        (rows("idle"), IDLE, [StateChange(AgentState.IDLE)]),
        (["an editor"], IDLE, [StateChange(AgentState.BLOCKED, "a dialog waits for the person")]),
    ]
    for screen, title, expected in steps:
        assert source.look(screen, title, 1.0) == expected
    assert source.finish(2.0) == [StateChange(AgentState.GONE)]


def test_a_model_that_does_not_answer_is_a_state_until_it_does(source: GeminiSource) -> None:
    source.look(rows("busy"), BUSY, 1.0)
    limits = [e for e in read(source, RECORDED) if isinstance(e, StateChange)]
    assert limits == [limited(LimitCause.USAGE, QUOTA)]
    assert source.look(rows("busy"), BUSY, 1.1) == []  # drawn before the error was
    assert source.look(rows("after-limit"), IDLE, 1.2) == []
    assert source.look(rows("busy"), BUSY, 2.0) == [StateChange(AgentState.BUSY)]
    again = source.transcript(record("error", "[API Error: fetch failed]", "e2"), 3.0)
    reason = "the API answers with an error: fetch failed"
    assert again == [limited(LimitCause.ERROR, reason)]
    source.look(rows("idle"), IDLE, 3.1)
    # A turn so short that nobody has seen it.
    source.transcript(record("user", [{"text": "again"}], "u3"), 4.0)
    assert source.transcript(record("gemini", "Fine.", "g3"), 4.0)[0] == StateChange(
        AgentState.IDLE
    )


def test_an_error_of_one_request_says_nothing_of_the_next(source: GeminiSource) -> None:
    bad = '[API Error: {"error":{"code":400,"message":"bad","status":"INVALID_ARGUMENT"}}]'
    assert source.transcript(record("error", bad), 0.0) == []
    assert source.transcript(record("error", "Unknown command: /x", "r2"), 0.0) == []


def test_a_session_file_that_is_no_longer_written_is_given_up(source: GeminiSource) -> None:
    source.saved.path = "/srv/demo/session.jsonl"
    found: list[SourceEvent] = []
    for turn in range(3):
        found += source.look(rows("busy"), BUSY, turn)
        if turn == 0:
            source.transcript(record("info", "Request cancelled."), turn)
        found += source.look(rows("idle"), IDLE, turn + 0.5)
    assert [e for e in found if isinstance(e, Degraded)] and not source.trusted
    # Without a turn there is nothing to miss.
    quiet = GeminiSource(0.0, asyncio.Event(), find_profile("gemini")[0])
    for now in range(9):
        quiet.look(rows("idle"), IDLE, now)
    assert quiet.trusted


def test_another_session_goes_on_where_the_first_was(source: GeminiSource) -> None:
    source.saved.path = "/srv/demo/session.jsonl"
    read(source, RECORDED[:6])
    source.look(rows("busy"), BUSY, 1.0)
    other = GeminiSource(0.0, asyncio.Event(), find_profile("gemini")[0])
    other.restore(json.loads(json.dumps(source.state())))
    assert (other.saved.path, other.agent_state) == (source.saved.path, AgentState.BUSY)
    assert list(spoken(read(other, RECORDED)).values())[0] == [
        "The command is done.",
        "",
        "@relay:Bob last words",
    ]


INPUT_LINE = ["─" * 60, " Shift+Tab to accept edits", " >   Type your message or @path/to/file"]


class Desk:
    def __init__(self, folder: Path) -> None:
        self.now = 100.0
        self.gemini = GeminiAdapter(
            AgentStart(
                started_ms=0,
                pid=1,
                cwd=str(folder),
                folder=str(folder / "run"),
                launch={"heard": True, "session": "7c0af7f8-8a85-43de-b88f-3c9c0e06732e"},
                env={"HOME": str(folder)},
                checkpoint={},
                clock=lambda: self.now,
                profile=find_profile("gemini")[0],
            )
        )
        self.ears = SourceSelector(
            DirectiveDetector("run", 0, {"relay"}),
            ScreenSource(80, 24, now=self.now),
            self.gemini.source,
        )

    def look(self, after: float) -> str:
        """Which source is believed after so many seconds."""
        self.now += after

        async def once() -> None:
            feed = AdapterFeed(self.ears, EventQueue())
            self.gemini.wake = asyncio.Event()  # of this loop
            watching = asyncio.ensure_future(self.gemini.watch(feed))
            await asyncio.sleep(0)
            watching.cancel()
            await asyncio.wait([watching])

        asyncio.run(once())
        return self.ears.source


def test_who_signs_in_at_its_start_is_given_the_time(tmp_path: Path) -> None:
    desk = Desk(tmp_path)
    desk.gemini.entered(desk.now)
    assert desk.look(10 * SHOW_ITSELF) == "structured"
    desk.gemini.source.look(INPUT_LINE, "◇  Ready (demo)", desk.now)
    desk.gemini.entered(desk.now)
    assert desk.look(SHOW_ITSELF - 1) == "structured"
    assert desk.look(2) == "screen"
