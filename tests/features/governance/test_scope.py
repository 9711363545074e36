"""Scopes of intents: which paths their globs allow."""

from __future__ import annotations

import re
import time
from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.features.governance.scope import IntentScope, glob_mistake


@pytest.mark.parametrize(
    ("globs", "inside", "outside"),
    [
        pytest.param("src/**", "src src/a src/a/b/.c", "srca a/src src.py .", id="all-below"),
        pytest.param("src", "src src/a src/a/b", "lib/src source", id="a-folder-by-name"),
        pytest.param("docs/", "docs/a", "docs2/a", id="a-folder-with-a-slash"),
        pytest.param("./a.py", "a.py ./a.py", "b/a.py", id="a-file"),
        pytest.param("src/*", "src/a src/.a", "src/a/b src", id="one-level"),
        pytest.param("**/*.py", "a.py x/a.py x/y/a.py", "a.pyc a.py/b", id="any-depth"),
        pytest.param("a/**/b", "a/b a/x/b a/x/y/b/c", "a/x", id="between"),
        pytest.param("a/**/**/**/b.*", "a/b.c a/x/y/b.c", "a/x/b.c/d", id="stars-in-a-row"),
        pytest.param("src/?[a-c][!x].py", "src/1ay.py", "src/1dy.py src/1ax.py", id="characters"),
        pytest.param("** !secret", "a b/c", "secret secret/a", id="excluded-folder"),
        pytest.param("!src/gen* src/**", "src/a", "src/gen src/gen_1/x", id="excluded-below"),
        pytest.param("** !**/.env*", "a", ".env x/.env.local/y", id="excluded-anywhere"),
        pytest.param("!a", "", "a b", id="only-excluded"),
        pytest.param("", "", "a", id="nothing"),
        pytest.param("src/**", "src/a", "src/../b ..", id="dots-lead-nowhere"),
        pytest.param("caf\u00e9/**", "cafe\u0301/a", "cafe/a", id="composed-letters"),
    ],
)
def test_a_scope_allows(globs: str, inside: str, outside: str) -> None:
    scope = IntentScope(globs.split())
    assert [path for path in inside.split() if not scope.allows(path)] == []
    assert [path for path in outside.split() if scope.allows(path)] == []


def test_case_counts_unless_the_file_system_ignores_it() -> None:
    globs = ("Src/**", "!src/KEYS")
    assert not IntentScope(globs).allows("src/a")
    scope = IntentScope(globs, ignore_case=True)
    assert scope.allows("SRC/a")
    assert not scope.allows("Src/keys")


@pytest.mark.parametrize(
    ("globs", "inside", "outside"),
    [
        pytest.param("src/**", "src src/a", "lib .", id="all-below"),
        pytest.param("src/*", "", "src src/a", id="one-level"),
        pytest.param("src/**/*.py", "", "src src/a", id="some-files"),
        pytest.param("src/** !src/keys", "src/a", "src src/keys src/keys/x", id="excluded-inside"),
        pytest.param("src/** !**/*.pem", "", "src src/a", id="excluded-anywhere"),
    ],
)
def test_a_scope_allows_a_whole_folder(globs: str, inside: str, outside: str) -> None:
    scope = IntentScope(globs.split())
    assert [path for path in inside.split() if not scope.allows_tree(path)] == []
    assert [path for path in outside.split() if scope.allows_tree(path)] == []


_NAMES = st.sampled_from(["a", "b", "ab", "a.b", ".a"])
_PARTS = st.sampled_from(["a", "b", "*", "**", "?", "a*", "[ab]", "*.b"])


@given(
    st.lists(st.lists(_PARTS, min_size=1, max_size=4).map("/".join), max_size=3),
    st.lists(_PARTS, min_size=1, max_size=3).map("/".join),
    st.lists(_NAMES, min_size=1, max_size=4).map("/".join),
    st.lists(_NAMES, max_size=2),
)
def test_a_scope_holds_what_it_promises(
    allowed: list[str], excluded: str, path: str, below: list[str]
) -> None:
    scope = IntentScope([*allowed, f"!{excluded}"])
    parts = path.split("/")
    above = [parts[:n] for n in range(1, len(parts) + 1)]
    globs = [glob.split("/") for glob in allowed]
    within = any(
        _means(glob, one)
        for glob in globs
        for one in ([parts] if re.search(r"[*?[]", glob[-1]) else above)
    )
    out = any(_means(excluded.split("/"), one) for one in above)
    assert scope.allows(path) == (within and not out)
    if scope.allows_tree(path):
        assert scope.allows("/".join([path, *below]))


def _means(glob: list[str], path: list[str]) -> bool:
    if not glob:
        return not path
    if glob[0] == "**":
        return _means(glob[1:], path) or bool(path) and _means(glob, path[1:])
    return bool(path) and fnmatchcase(path[0], glob[0]) and _means(glob[1:], path[1:])


@pytest.mark.parametrize(
    ("glob", "said"),
    [
        pytest.param("", "empty", id="empty"),
        pytest.param("!./", "empty", id="only-a-dot"),
        pytest.param("/etc/**", "relative", id="absolute"),
        pytest.param("~/x", "relative", id="home"),
        pytest.param("src/../x", "'..'", id="parents"),
        pytest.param("src\\x", "'/'", id="backslash"),
        pytest.param("src/**.py", "stands alone", id="stars-in-a-name"),
        pytest.param("src/*.{ts,tsx}", "one glob for each", id="braces"),
        pytest.param("src/\x1b[31m", "control", id="control"),
        pytest.param("a" * 501, "500", id="long"),
    ],
)
def test_a_glob_that_would_not_mean_what_it_says_is_a_mistake(glob: str, said: str) -> None:
    assert said in glob_mistake(glob)
    assert glob_mistake("!src/{{x}}/**/[a-z]*.py") == ""


def test_no_glob_of_a_hostile_repository_costs_more_than_its_length() -> None:
    slow = ["/".join(["**", "a*a*a*a*a*a*a*b"] * 15), "*a" * 200 + "c", "**/" * 150 + "x"]
    scope = IntentScope(slow)
    path = "/".join(["a" * 200] * 20)
    began = time.process_time()
    assert not scope.allows(path)
    assert time.process_time() - began < 1
