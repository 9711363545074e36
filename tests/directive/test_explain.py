"""Every reason for which something that looks like a directive is none."""

from __future__ import annotations

import pytest

from relay.directive.explain import Misses

MISSES = Misses({"relay", "deploy"})


@pytest.mark.parametrize(
    ("line", "inside", "says"),
    [
        ("please tell @relay:Bob to stop", "", "does not begin the line"),
        ("    @relay:Bob hello", "", "indented"),
        ("  \\@relay:Bob hello", "", "backslash"),
        ("> @relay:Bob hello", "", "quotation"),
        ("use `@relay:Bob hello`", "", "inline code"),
        ("@Relay:Bob hello", "", "lower case"),
        ("@relay: Bob hello", "", "no target"),
        ("@relay:Bob hello", "fence", "code fence"),
        ("@relay:Bob hello", "block", "<<<"),
        ("and @deploy:staging", "block", "<<<"),
        ("@relya:Bob hello", "", "did you mean @relay:?"),
        ("- @deplyo:staging", "", "did you mean @deploy:?"),
    ],
)
def test_why_not(line: str, inside: str, says: str) -> None:
    assert says in MISSES.why_not(line, inside)


@pytest.mark.parametrize(
    ("line", "inside"),
    [
        ("@relay:Bob hello", ""),
        ("@relay:Bob hello", "message"),
        ("- @deploy:staging", ""),
        ("@broadcast: hello", ""),
        ("git@github.com:owner/name and user@host:path", ""),
        ("@media:print { }", ""),
        ("@media:print { }", "fence"),
        ("an ordinary line", ""),
    ],
)
def test_what_fires_or_means_nothing_is_no_miss(line: str, inside: str) -> None:
    assert MISSES.why_not(line, inside) == ""


def test_looks() -> None:
    assert MISSES.looks("❯ tell @RELAY:Bob")
    assert MISSES.looks("@broadcast: x")
    assert not MISSES.looks("git@github.com:x @media:print")
