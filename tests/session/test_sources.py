"""Which source is believed, and what is made of what it yields."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from relay.agents.structured_source import SourceState, StructuredSource
from relay.core.message import AgentState
from relay.core.source_events import Line, Pause, Proof, SourceEvent, StateChange
from relay.directive.grammar import Match, Scanner, Unclosed
from relay.protocol import frames
from relay.protocol.nested_wrap import NestedOutput, begins, ends
from relay.screen.source import ScreenSource
from relay.session.detector import AgentSaid, Detection, DirectiveDetector, ForAgent, Heard
from relay.session.sources import (
    LAST_WORDS,
    LINE_PATIENCE,
    UNCLOSED_PATIENCE,
    OthersInFront,
    SourceSelector,
)
from relay.session.typing_policy import PagerWatch


@pytest.mark.parametrize("state", [AgentState.STARTING, AgentState.IDLE, AgentState.BUSY])
def test_an_agent_that_asks_is_blocked_also_while_it_starts(state: AgentState) -> None:
    asked = SimpleNamespace(dialog=SimpleNamespace(text="A new folder\nTrust it?\nSee the guide"))
    shown = SourceSelector.shown(cast(Any, SimpleNamespace(question=asked)), StateChange(state))
    assert shown == StateChange(AgentState.BLOCKED, "asks: Trust it?")


class FakeScreen:
    """Takes UTF-8 lines for bytes."""

    changed_at = 0.0

    def feed(self, data: bytes, now: float) -> list[SourceEvent]:
        self.changed_at = now
        lines = [Line("screen", text) for text in data.decode().splitlines()]
        return [*lines, Pause("screen")]

    def tick(self, now: float) -> list[SourceEvent]:
        return []

    def next_deadline(self) -> float | None:
        return None

    def resize(self, cols: int, rows: int, now: float) -> list[SourceEvent]:
        return []

    def activity(self, kind: bytes, now: float) -> list[SourceEvent]:
        return []

    def finish(self, now: float) -> list[SourceEvent]:
        return [Pause("screen")]

    def checkpoint(self) -> bytes:
        return b'{"kind":"fake"}'

    def visible(self, *, styled: bool = False) -> list[str]:
        return ["row"]

    def expect_echo(self, text: str, now: float) -> None:
        pass

    cursor, cursor_shown, columns = (0, 0), True, 80

    bracketed_paste = True
    title = ""


class FakeStructured(StructuredSource):
    """Yields what its hooks carry."""

    def __init__(self) -> None:
        super().__init__(SourceState())
        self.rows: list[str] = []

    def hook(self, event: dict[str, Any], now: float) -> list[SourceEvent]:
        return list(event["events"])

    def transcript(self, line: str, now: float) -> list[SourceEvent]:
        return [Proof(line, "transcript")]

    def finish(self, now: float) -> list[SourceEvent]:
        return []

    def state(self) -> dict[str, Any]:
        return {"some": "state"}

    def look(self, rows: list[str], title: str, now: float) -> list[SourceEvent]:
        self.rows = rows
        return []

    def change(self, state: AgentState) -> None:
        self._change(state)


class Desk:
    def __init__(
        self,
        structured: FakeStructured | None = None,
        pager: PagerWatch | None = None,
        *,
        deaf: bool = False,
    ) -> None:
        self.heard: list[Detection] = []
        self.text: list[str] = []
        self.states: list[StateChange] = []
        self.misses: list[str] = []
        self.proofs: list[Proof] = []
        self.ears = SourceSelector(
            DirectiveDetector("01K0000000000000000000RUN1", 0, {"relay"}),
            FakeScreen(),
            structured,
            None if pager is None else OthersInFront(pager),
            deaf=deaf,
        )

    def hear(self, heard: list[Heard]) -> None:
        for one in heard:
            if isinstance(one, Detection):
                self.heard.append(one)
            elif isinstance(one, AgentSaid):
                self.text += one.texts
            elif isinstance(one, StateChange):
                self.states.append(one)
            elif isinstance(one, ForAgent):
                self.misses.append(one.text)
            else:
                self.proofs.append(one)

    @property
    def bodies(self) -> list[str]:
        return [h.found.body for h in self.heard if isinstance(h.found, Match)]


def test_while_a_structured_source_is_believed_the_screen_is_not() -> None:
    structured = FakeStructured()
    desk = Desk(structured)
    desk.hear(desk.ears.output(b"@relay:Bob from the screen\n", 1.0))
    desk.hear(
        desk.ears.hook({"events": [Line("m1", "@relay:Bob from the hook"), Pause("m1")]}, 2.0)
    )
    assert desk.bodies == ["from the hook"]
    assert desk.ears.source == "structured"


def test_a_source_that_fails_hands_over_to_the_screen_visibly() -> None:
    desk = Desk(FakeStructured())
    desk.hear(desk.ears.give_up("no hooks"))
    desk.hear(desk.ears.output(b"@relay:Bob from the screen\n", 1.0))
    assert desk.bodies == ["from the screen"]
    assert desk.ears.notes == ["no hooks"] and desk.ears.source == "screen"


def test_half_a_message_of_a_source_that_fails_is_not_sent() -> None:
    desk = Desk(FakeStructured())
    desk.hear(desk.ears.hook({"events": [Line("m1", "@relay:Bob half of a")]}, 1.0))
    desk.hear(desk.ears.give_up("no hooks"))
    desk.hear(desk.ears.output(b"@relay:Bob half of a message\n", 2.0))
    desk.hear(desk.ears.finish(3.0))
    assert desk.bodies == ["half of a message"]


def test_a_blocked_agent_is_shown_its_screen() -> None:
    structured = FakeStructured()
    desk = Desk(structured)
    desk.hear(desk.ears.tick(1.0))
    assert structured.rows == []
    structured.change(AgentState.BLOCKED)
    desk.hear(desk.ears.tick(2.0))
    assert structured.rows == ["row"]


@pytest.mark.parametrize(
    ("drawn", "patience"),
    [("\x1b[{}m \x1b[m", UNCLOSED_PATIENCE), ("{} seconds", LINE_PATIENCE)],
    ids=["cursor", "clock"],
)
def test_what_goes_on_being_drawn_keeps_no_block_open_for_ever(drawn: str, patience: float) -> None:
    ears = SourceSelector(DirectiveDetector("run", 0, ["relay"]), ScreenSource(40, 10), None)
    heard = ears.output(b"\x1b[?1049h\x1b[?25l\x1b[H@relay:Bob <<<\r\n\r\nsome text", 10.0)
    at = 10.0
    while not heard and at < 100.0:
        at += 0.5
        ears.output(f"\x1b[9;3H{drawn.format(int(at * 2) % 9)}".encode(), at)
        heard = [one for one in ears.tick(at + 0.1) if isinstance(one, Detection)]
    assert [type(one.found) for one in heard if isinstance(one, Detection)] == [Unclosed]
    assert patience <= at - 10.0 <= patience + 2.0


def test_what_a_wrap_inside_hears_is_not_heard_again() -> None:
    run, front = "01K0000000000000000000RUN1", {7: True}
    nested = NestedOutput(run)
    detector = DirectiveDetector(run, 0, {"relay"})
    desk = Desk()
    desk.ears = SourceSelector(
        detector, FakeScreen(), None, OthersInFront(nested=nested, in_front=front.get)
    )
    said = b"@relay:Bob %d\n"
    desk.hear(desk.ears.output(said % 1 + b"\n" + begins(run, 7) + b"\n" + said % 2, 1.0))
    desk.hear(desk.ears.output(said % 3 + ends(run, 7) + b"\n" + said % 4, 2.0))
    assert desk.bodies == ["1", "4"] and "@relay:Bob 2" not in desk.text
    # Killed or stopped: its last words are waited for, then the agent is heard again.
    desk.hear(desk.ears.output(begins(run, 7) + b"\n", 3.0))
    front.clear()
    desk.hear(desk.ears.output(said % 5, 4.0))
    desk.hear(desk.ears.output(said % 6, 4.0 + LAST_WORDS))
    front[7] = True
    desk.hear(desk.ears.output(said % 7, 6.0))
    assert desk.bodies == ["1", "4", "6"]


def test_a_near_miss_of_the_agents_own_words_is_told_once_for_each_kind() -> None:
    desk = Desk(FakeStructured())
    words = "@relay: Bob one\n```\n@Relay:Bob code\n```\n> **@relay:Bob** quoted\n@relay: Cy two"
    events = [Line("m1", text) for text in words.split("\n")]
    desk.hear(desk.ears.hook({"events": events}, 1.0))
    (told,) = desk.misses
    assert (
        told.startswith('the line "@relay: Bob one" is not a message') and "a space stands" in told
    )
    assert not Scanner(("relay",)).line(told)
    # What the agent says to that in the same words is not told again, nor by a next session.
    saved = json.loads(desk.ears.checkpoint({}))["hearing"]
    desk.hear(desk.ears.hook({"events": [Line("m2", told), Line("m2", "@relay: Bob three")]}, 2.0))
    again = DirectiveDetector("01K0000000000000000000RUN1", 0, {"relay"})
    again.restore(saved)
    assert len(desk.misses) == 1 and not list(again.lines("m3", ["@relay: Bob four"], True))
    desk.hear(desk.ears.hook({"events": [Line("m2", "@Relay:Bob five")]}, 3.0))
    assert len(desk.misses) == 2 and "lower case" in desk.misses[1]


@pytest.mark.parametrize(
    ("words", "at", "found"),
    [
        ("Relay message one", 1.0, [None, "closed"]),
        ("and now?", 1.0, [None, "closed"]),
        ("Relay message two", 0.5, ["open"]),
        ("", 1.0, ["open"]),
    ],
    ids=["relay", "person", "while-it-goes-on", "nothing"],
)
def test_the_next_words_that_are_shown_end_an_open_block(
    words: str, at: float, found: list[str | None]
) -> None:
    screen = ScreenSource(80, 24)
    ears = SourceSelector(DirectiveDetector("run", 0, ["relay"]), screen, None)
    heard = ears.output(b"@relay:Bob <<<\r\nopen\r\n", 0.0)
    if words.startswith("Relay"):
        screen.expect_echo(words, at)
    else:
        heard += ears.activity(frames.ENTERED, at)
    heard += ears.output(f"{words}\r\n".encode(), at)
    if found[0] is None:
        heard += ears.output(b"@relay:Bob <<<\r\nclosed\r\n", 1.0)
    heard += ears.output(b">>>\r\n", 1.0)
    finds = [one.found for one in heard if isinstance(one, Detection)]
    assert [one.body.strip() if isinstance(one, Match) else None for one in finds] == found


def test_nothing_is_said_by_what_is_not_heard() -> None:
    desk = Desk(deaf=True)
    desk.hear(desk.ears.output(b"@relay:Bob hi\n@relay:Bob <<<\nopen\n", 1.0))
    desk.hear(desk.ears.activity(frames.ENTERED, 2.0))
    desk.hear(desk.ears.finish(3.0))
    assert not (desk.bodies or desk.text or desk.misses)


def test_what_a_pager_shows_is_nobodys_words_and_what_came_before_and_after_is() -> None:
    in_front = [False]
    desk = Desk(pager=PagerWatch(lambda pid: in_front[0]))
    desk.hear(desk.ears.output(b"@relay:Bob before\n", 1.0))
    in_front[0] = True
    desk.hear(desk.ears.output(b"@relay:Bob on a page\n", 2.0))
    desk.hear(desk.ears.output(b"@relay:Bob <<<\nnever closed\n", 3.0))
    in_front[0] = False
    desk.hear(desk.ears.output(b"@relay:Bob on the last page\n", 4.0))
    desk.hear(desk.ears.output(b"@relay:Bob after\n", 5.0))
    assert desk.bodies == ["before", "after"] and desk.text == [
        "@relay:Bob before",
        "@relay:Bob after",
    ]
    assert not desk.misses


def test_a_pager_that_ends_in_silence_is_noticed() -> None:
    in_front = [True]
    desk = Desk(pager=PagerWatch(lambda pid: in_front[0]))
    desk.hear(desk.ears.output(b"@relay:Bob on a page\n", 1.0))
    in_front[0] = False
    due = desk.ears.next_deadline()
    assert due is not None and due < 2.0
    desk.hear(desk.ears.tick(due))
    assert desk.ears.next_deadline() is None  # nobody is woken for nothing
    desk.hear(desk.ears.output(b"@relay:Bob after\n", 5.0))
    assert desk.bodies == ["after"]


def test_states_and_proofs_are_passed_on() -> None:
    desk = Desk(FakeStructured())
    desk.hear(desk.ears.hook({"events": [StateChange(AgentState.BUSY)]}, 1.0))
    desk.hear(desk.ears.reported([Proof("words", "transcript")]))
    assert desk.states == [StateChange(AgentState.BUSY)]
    assert desk.proofs == [Proof("words", "transcript")]
