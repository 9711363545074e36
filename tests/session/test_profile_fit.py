"""A profile counts as far as it fits what its program draws."""

from __future__ import annotations

import pytest

from relay.agents.base import AgentStart
from relay.agents.known_agents import ADAPTERS, ScreenStates, make_adapter
from relay.agents.profile import Profile, find_profile, parse_profile
from relay.session.profile_fit import REST, RESTLESS, ProfileFit
from tests.session.test_typist import FakeScreen, FakeTerminal

PROFILE = """\
input: {above: '─{8,}', prompt: '> ?', below: '─{8,}'}
dialog: ['\\[y/n\\]']
busy: ['esc to interrupt']
"""
RULE = "─" * 20
FITS, OTHER, HIDDEN = [RULE, "> ", RULE], ["┏━━━┓", "┃   ┃", "┗━━━┛"], ["a list of settings"]


class Desk:
    def __init__(self, profile: Profile | None = None, *, seen: bool = False) -> None:
        self.screen, self.terminal = FakeScreen(paste=True), FakeTerminal(cooked=False)
        self.profile = profile or parse_profile(PROFILE, "some.yaml")
        self.source = ScreenStates(self.profile)
        parts = (self.profile, None, self.source, self.screen, self.terminal)
        self.fit = ProfileFit(*parts, seen=seen)

    def shows(self, rows: list[str], rest: float = REST) -> str:
        """How the input line is with these rows on the screen, which have rested for so long."""
        self.screen.rows = rows
        self.fit.look(self.screen.changed_at + rest)
        return self.fit.composer(rows)


def test_an_input_line_that_is_not_seen_is_left_out_after_some_seconds_of_rest() -> None:
    desk = Desk()
    assert desk.shows(OTHER, REST - 1) == "busy"
    assert desk.shows(OTHER) == "unknown" and desk.source.profile.input is None
    assert desk.shows([*OTHER, "Sure? [y/n]"], 0.0) == "dialog"
    assert desk.shows([*OTHER, "esc to interrupt"], 0.0) == "busy"


def test_a_clock_on_the_screen_keeps_no_profile_alive() -> None:
    desk = Desk()
    assert desk.shows(OTHER, 0.0) == "busy"
    desk.screen.changed_at += RESTLESS
    assert desk.shows(OTHER, 0.0) == "unknown"


def test_it_counts_again_once_it_is_seen_and_from_then_on() -> None:
    desk = Desk()
    assert desk.shows(OTHER) == "unknown"
    assert desk.shows(FITS, 0.0) == "empty" and desk.source.profile is desk.profile
    assert desk.shows(HIDDEN, 1e6) == "busy"
    after = Desk(seen=desk.fit.state()["seen"])
    assert after.shows(HIDDEN, 1e6) == "busy"


@pytest.mark.parametrize("rows", [[""], ["Sure? [y/n]"], ["esc to interrupt"]])
def test_what_shows_nothing_or_asks_or_works_is_not_judged(rows: list[str]) -> None:
    desk = Desk()
    desk.shows(rows, 1e6)
    assert desk.source.profile is desk.profile


@pytest.mark.parametrize("cooked", [True, False])
def test_a_program_that_only_starts_is_not_judged(cooked: bool) -> None:
    desk = Desk()
    desk.terminal.is_cooked, desk.terminal.awaits = cooked, cooked
    assert desk.shows(OTHER, 1e6) == "busy"


@pytest.mark.parametrize("kind", sorted(ADAPTERS.keys() - {"aider"}))
def test_no_agent_with_interfaces_of_its_own_is_shut_by_its_profile(
    kind: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    desk = Desk()
    folder = str(tmp_path_factory.mktemp(kind))
    start = AgentStart(
        started_ms=0,
        pid=1,
        cwd=folder,
        folder=folder,
        launch={},
        env={},
        checkpoint={},
        clock=lambda: 0.0,
        profile=find_profile(kind)[0],
    )
    adapter = make_adapter(kind, start)
    assert adapter is not None
    fit = ProfileFit(start.profile, adapter, adapter.source, desk.screen, desk.terminal, seen=False)
    desk.screen.rows = OTHER
    assert fit.look(desk.screen.changed_at + REST)
    assert fit.composer(OTHER) == "unknown"
