"""Hints of errors."""

from relay.core.errors import did_you_mean, nearest


def test_the_nearest_word_is_found_whatever_its_case() -> None:
    assert nearest("Patern", ["pattern", "hook"]) == "pattern"
    assert nearest("zzz", ["pattern", "hook"]) is None


def test_a_hint_names_the_nearest_or_all() -> None:
    assert did_you_mean("hoks", ["hooks", "patterns"]) == "did you mean 'hooks'?"
    assert did_you_mean("zzz", ["b", "a"]) == "known: a, b"
    assert did_you_mean("zzz", []) == ""
    assert did_you_mean("zzz", [f"w{i:02}" for i in range(30)]).endswith("w19 …")
