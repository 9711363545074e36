"""The state of the prompt, read from screens of the real aider 0.86.2 in two sizes."""

from __future__ import annotations

from pathlib import Path

import pytest

from relay.agents.aider.source import (
    answered,
    broken_off,
    composer_state,
    error,
    multiline,
    question,
)

FOLDER = Path(__file__).parent / "screens"
SCREENS = sorted(FOLDER.glob("*.txt"))
EXPECTED = {
    "start": "empty",
    "prompt": "empty",
    "prompt-after-ctrl-c": "empty",
    "prompt-after-error": "empty",
    "prompt-after-interrupt": "empty",
    "prompt-ask": "empty",
    "prompt-files": "empty",
    "prompt-multi": "empty",
    "draft": "draft",
    "draft-lines": "draft",
    "draft-long": "draft",
    "draft-menu": "draft",
    "question": "dialog",
    "busy": "busy",
    "run": "draft",
}
SIZES = ("80x24", "120x40")


def rows(situation: str, size: str = "80x24") -> list[str]:
    return (FOLDER / f"{situation}-{size}.txt").read_text().split("\n")


def test_every_situation_was_captured_at_both_sizes() -> None:
    assert len(SCREENS) == len(SIZES) * len(EXPECTED)


@pytest.mark.parametrize("screen", SCREENS, ids=lambda path: path.stem)
def test_captured_screens(screen: Path) -> None:
    situation, _, size = screen.stem.rpartition("-")
    assert composer_state(rows(situation, size)) == EXPECTED[situation]


@pytest.mark.parametrize("size", SIZES)
def test_a_question_is_told_and_where_enter_is_no_enter(size: str) -> None:
    assert question(rows("question", size)) == "Create new file?"
    assert question(rows("prompt", size)) == ""
    assert multiline(rows("prompt-multi", size))
    assert not multiline(rows("prompt", size))


@pytest.mark.parametrize("size", SIZES)
def test_a_turn_that_was_broken_off(size: str) -> None:
    assert broken_off(rows("prompt-after-interrupt", size), prompting=True)
    assert broken_off(rows("prompt-after-error", size), prompting=True)
    assert error(rows("prompt-after-error", size), prompting=True) == "BadRequestError"
    assert not broken_off(rows("prompt", size), prompting=True)
    assert not broken_off(rows("busy", size), prompting=False)
    # It belongs to the turn before the one that asks now.
    assert not broken_off(rows("question", size), prompting=False)
    assert answered(rows("prompt", size))
    assert not answered(rows("start", size))


@pytest.mark.parametrize("size", SIZES)
def test_the_turn_is_found_while_the_prompt_is_drawn(size: str) -> None:
    shown = rows("prompt-after-interrupt", size)
    last = max(at for at, row in enumerate(shown) if row.startswith("───"))
    for end in (last, last + 1):
        assert broken_off(shown[:end], prompting=False)
    assert broken_off([*shown[: last + 1], "Readonly: a.md"], prompting=False)
    assert not broken_off([*shown[: last + 1], "> again", "", "Words."], prompting=False)


def test_a_question_that_a_narrow_screen_divides() -> None:
    shown = [
        "─" * 40,
        "> see https://example.org/a",
        "",
        "https://example.org/a",
        "Add URL to the chat? (Y)es/(N)o/(A)ll/(S",
        ")kip all/(D)on't ask again [Yes]: n",
        "",
    ]
    assert composer_state(shown) == "dialog"
    assert question(shown) == "Add URL to the chat?"


@pytest.mark.parametrize(
    ("last", "state"),
    [
        ("> ", "empty"),
        ("architect multi> ", "empty"),
        ("diff-fenced>", "empty"),
        (">>> ", "busy"),
        ("sqlite> ", "busy"),
        ("> words", "draft"),
        ("words > ", "busy"),
    ],
)
def test_what_is_a_prompt(last: str, state: str) -> None:
    assert composer_state(["Words before.", "", last, "", ""]) == state
    assert composer_state(["─" * 20, last, ""]) == state


def test_errors_behind_what_is_left_of_the_spinner() -> None:
    shown = [
        "─" * 20,
        "> hello",
        "      ░litellm.RateLimitError: RateLimitError: words",
        "Retrying",
    ]
    assert error(shown, prompting=False) == "RateLimitError"
    assert not error(["─" * 20, "> x", "    litellm.completion(model)"], prompting=False)
