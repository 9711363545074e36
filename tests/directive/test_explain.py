"""Every reason for which something that looks like a directive is none."""

from __future__ import annotations

import pytest

from relay.directive.explain import Misses

MISSES = Misses({"relay", "memory", "deploy"})


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


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("@relay: Bob run the tests", "space"),
        ("- @deploy: staging", "space"),
        ("@relay :Bob hello", "space"),
        ("@memory: save the port is 1", "space"),
        ("@Relay:Bob hello", "case"),
        ("@RELAY: Bob hello", "case"),
        ("● @Memory:save x", "case"),
        ("**@relay:Bob** hello", "marks"),
        ("**@relay:Bob hello**", "marks"),
        ("__@deploy:staging__", "marks"),
        ("@rely:Bob hello", "name"),
        ("@realy:Bob,Carol hello", "name"),
        ("@broadcst:all hello", "name"),
        ("@relay：Bob hello", "width"),
        ("＠relay:Bob hello", "width"),
    ],
)
def test_a_near_miss_is_one_slip_away_from_a_message(line: str, kind: str) -> None:
    assert MISSES.near(line)[0] == kind
    assert MISSES.near(line, "message")[0] == kind
    assert MISSES.near(line, "fence") == MISSES.near(line, "block") == ("", "")
    for quoted in (
        f"> {line}",
        f"    {line}",
        f"say {line}",
        f"`{line}`",
        f'"{line}"',
        f"\\{line}",
    ):
        assert MISSES.near(quoted) == ("", ""), quoted


@pytest.mark.parametrize(
    "line",
    [
        *("@relay:Bob hello", "@deploy:staging", "@broadcast: hello", "@relay", "@relay: ", ""),
        *("@app:route", "@app.route('/x')", "@types/node: 1.0", "@media:print { }", "@Override"),
        *("bob@relay:x", "git@github.com:o/n", "ann@example.org: hello", "@ann: can you look?"),
        *("@memory: 16 GB", "@delay:5s", "@retry:3 times", "@param name: the relay", "@see: Bob"),
        *("@layer:base x", "@really: no", "@repay:", "@rely:", "@deploy2:x", "@angular/core:17"),
        *(
            "@relay:<name> text",
            "@Relay:[NAME] text",
            "@relay: <name>",
            "@relay: $NAME",
            "@relay: …",
        ),
        *("@Test:void x", "@property: x", "@type: string", "@returns: a list", "@Input: value"),
        *(
            "memory:save x",
            "relay: Bob hello",
            "relay:Bob hello",
            "* *@* : x",
            "@: x",
            "@@relay: x",
        ),
    ],
)
def test_ordinary_text_is_no_near_miss(line: str) -> None:
    assert MISSES.near(line) == ("", "")
