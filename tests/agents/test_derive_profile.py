"""A profile derived from recordings of the six agents reads their input lines as relay's own do."""

from __future__ import annotations

import lzma
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from relay.agents.aider import screen as aider_screen
from relay.agents.derive_profile import Picture, derive
from relay.agents.profile import find_profile, parse_profile
from relay.app.learning import ANSWER, DRAFT, pictures_of
from relay.core.asciicast import CastEvent, Header, read

CASTS = Path(__file__).parents[1] / "casts"
RENDERERS = ("claude", "claude-classic", "codex", "codex-inline", "gemini", "opencode", "qwen")
BUSY = {"gemini": "esc to cancel", "opencode": "esc interrupt", "qwen": "esc to cancel"}


def recording(path: Path) -> tuple[Header, list[CastEvent]]:
    with lzma.open(path, "rt", encoding="utf-8", newline="\n") as file:
        header, events = read(file)
        return header, list(events)


def agreement(derived: str, own: Callable[[list[str]], str], pictures: Sequence[Picture]) -> None:
    """Both say the same wherever relay's own reader knows the input line."""
    profile = parse_profile(derived, "derived.yaml")
    states = []
    for one in pictures:
        known = own(list(one.rows))
        if known in ("empty", "draft"):
            states.append(known)
            assert profile.composer(one.rows) == known, "\n".join(one.rows)
    assert {"empty", "draft"} <= set(states)


@pytest.mark.parametrize("which", RENDERERS)
def test_a_minute_of_an_agent_tells_its_input_line(which: str) -> None:
    header, events = recording(CASTS / "hearing" / f"{which}-80x24.cast.xz")
    typed = [one for one in events if one.code == "i" and len(one.data) > 3]
    minute = [one for one in events if one.at < typed[1].at]
    derived = derive(which, pictures_of(header, minute), typed[0].data)
    agent = which.partition("-")[0]
    assert f"busy: ['{BUSY.get(agent, 'esc to interrupt')}']" in derived
    assert "# It takes pastes." in derived
    agreement(derived, find_profile(agent)[0].composer, pictures_of(header, events))


def test_a_program_that_prints_is_told_by_its_prompt() -> None:
    header, events = recording(CASTS / "learnt" / "aider-80x24.cast.xz")
    pictures = pictures_of(header, events)
    derived = derive("aider", pictures, DRAFT, ANSWER)
    assert "  person: '>(\\s|$)'" in derived and "# Its words: pineapple" in derived
    at_prompt = [one for one in pictures if one.pastes]
    agreement(derived, aider_screen.composer_state, at_prompt)


def test_what_cannot_be_told_is_left_out() -> None:
    empty, log = Picture(("", "", ""), lasted=5), Picture(("", f"you said {DRAFT}", ""), lasted=5)
    derived = derive("mine", [empty, log, empty], DRAFT)
    assert "could not be told" in derived and parse_profile(derived, "mine.yaml").input is None
    assert "was not seen" in derive("mine", [empty, empty], DRAFT)


def test_hostile_rows_make_no_other_profile() -> None:
    """What a program draws is quoted, wherever it goes."""
    mark = "x'] #\": {"
    rule = "─" * 20
    empty = Picture((rule, f"{mark} ask me: 'now' [a]\u2028enter: 'x'\x85#", rule, ""), lasted=1)
    draft = Picture((rule, f"{mark} {DRAFT}", rule, ""), lasted=1, typed=True)
    rest = Picture((f"> {DRAFT}", "", f"● {ANSWER}", rule, empty.rows[1], rule), lasted=1)
    derived = derive("mine", [empty, draft, rest], DRAFT, ANSWER)
    profile = parse_profile(derived, "mine.yaml")
    assert profile.composer([" ".join(row.splitlines()) for row in empty.rows]) == "empty"
    assert profile.composer(draft.rows) == "draft"
    assert profile.enter == "\r" and len(derived.splitlines()) == derived.count("\n")
    assert profile.screen.bullet.match("● words") and not profile.screen.bullet.match("x words")
