"""Hints of errors."""

import pytest

from relay.core.errors import did_you_mean, nearest


def test_the_nearest_word_is_found_whatever_its_case() -> None:
    assert nearest("Patern", ["pattern", "hook"]) == "pattern"
    assert nearest("zzz", ["pattern", "hook"]) is None


@pytest.mark.parametrize(
    ("typed", "known", "meant"),
    [
        ("sned", ("end", "send", "sent"), "send"),
        ("csh", ("bash", "zsh", "fish"), "zsh"),
        ("mem", ("memory", "items"), "memory"),
        ("steering", ("steer", "collect"), "steer"),
        ("--form", ("--for", "--from"), "--for"),
        ("--agents", ("--all", "--agent"), "--agent"),
        ("--to", ("--wait", "--from"), None),
        ("team", ("items", "reload"), None),
        ("nothing", ("notify", "doctor"), None),
        ("restart", ("status", "trust"), None),
        ("x" * 100_000, ("y" * 99, "z"), None),
    ],
)
def test_only_what_a_slip_of_a_finger_explains_is_near(
    typed: str, known: tuple[str, ...], meant: str | None
) -> None:
    assert nearest(typed, known) == meant


def test_a_hint_names_the_nearest_or_all() -> None:
    assert did_you_mean("hoks", ["hooks", "patterns"]) == "did you mean 'hooks'?"
    assert did_you_mean("zzz", ["b", "a"]) == "known: a, b"
    assert did_you_mean("zzz", []) == ""
    assert did_you_mean("zzz", [f"w{i:02}" for i in range(30)]).endswith("w19 …")
