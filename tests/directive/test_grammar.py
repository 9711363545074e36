"""From lines to messages: each rule, and what holds for every text."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.directive.grammar import UNCLOSED_MAX, Found, Match, Scanner, TooLong, Unclosed
from tests.directive.whole_text import scan

NAMESPACES = ("relay", "memory", "deploy")


def said(text: str) -> list[tuple[str, str]]:
    """Target and body of every message; the text must hold nothing else."""
    out = []
    for found in scan(text, NAMESPACES):
        assert isinstance(found, Match), found
        out.append((found.target, found.body))
    return out


def test_a_match_says_all_there_is_to_know() -> None:
    assert scan(" @deploy:staging [thread:t1] v1.2 \n", NAMESPACES) == [
        Match(
            namespace="deploy",
            target="staging",
            body="v1.2",
            attributes={"thread": "t1"},
            block=False,
            raw=" @deploy:staging [thread:t1] v1.2 ",
        )
    ]


@pytest.mark.parametrize(
    "after",
    ["\n\nmore", "\n   \nmore", "\n```\nmore\n```", "\n~~~\nmore", "\n> more", "\n  > more", ""],
)
def test_a_message_runs_to_a_blank_line_a_fence_a_quote_or_the_end(after: str) -> None:
    assert said(f"@relay:Bob one\ntwo{after}") == [("Bob", "one\ntwo")]


def test_the_next_head_ends_a_message() -> None:
    assert said("@relay:Bob one\n@relay:Ann two\n") == [("Bob", "one"), ("Ann", "two")]


def test_a_body_may_begin_on_the_second_line() -> None:
    assert said("@relay:Bob\nplease check\n") == [("Bob", "please check")]


def test_an_empty_body_is_left_to_the_handler() -> None:
    assert said("@memory:list\n\n@relay:Bob") == [("list", ""), ("Bob", "")]


def test_a_fence_behind_the_head_is_no_part_of_the_message_and_hides_what_is_in_it() -> None:
    assert said("@relay:Bob ```py\n@relay:Ann x\n```\n@relay:Dan y") == [("Bob", ""), ("Dan", "y")]


def test_a_list_in_a_message_belongs_to_it() -> None:
    assert said("@relay:Bob do\n- one\n- two\n") == [("Bob", "do\n- one\n- two")]


@pytest.mark.parametrize("marker", ["-", "*", "+", "1.", "1)", "●"])
def test_the_next_item_ends_a_message_that_stood_in_an_item(marker: str) -> None:
    assert said(f"{marker} @relay:Bob one\n{marker} two\n") == [("Bob", "one")]


def test_a_glyph_ends_a_message_and_a_list_under_a_glyph_does_not() -> None:
    assert said("- @relay:Bob one\n● Done.") == [("Bob", "one")]
    assert said("● @relay:Bob do\n- one\n  - two\n● Done.") == [("Bob", "do\n- one\n  - two")]


def test_a_deeper_item_does_not_end_it_but_an_outer_one_does() -> None:
    text = "  - @relay:Bob one\n    - deeper\n- outer"
    assert said(text) == [("Bob", "one\n- deeper")]


def test_continuation_lines_lose_the_indentation_of_their_item() -> None:
    assert said("1. @relay:Bob one\n   two\n     three  \n") == [("Bob", "one\ntwo\n  three")]
    assert said("- @relay:Bob\n    two\n     three") == [("Bob", "  two\n   three")]
    assert said("1. @relay:Bob one\n   two\n three") == [("Bob", "one\n  two\nthree")]


def test_code_quotes_and_sentences_are_not_messages() -> None:
    text = (
        "```\n@relay:A x\n```\n"
        "~~~text\n```\n@relay:A x\n~~~\n"
        "    @relay:A x\n"
        "> @relay:A x\n"
        "`@relay:A x`\n"
        "Tell them @relay:A x\n"
        "- ```\n  @relay:A x\n  ```\n"
    )
    assert said(text) == []


def test_indented_text_under_a_message_belongs_to_it() -> None:
    assert said("@relay:Bob one\n    @relay:Ann two") == [("Bob", "one\n    @relay:Ann two")]


def test_a_longer_fence_holds_shorter_ones() -> None:
    assert said("````\n```\n@relay:A x\n```\n````\n@relay:B y") == [("B", "y")]


def test_escapes() -> None:
    assert said("\\@relay:A x\n") == []
    assert said("@relay:Bob write \\@relay:A x\n\\@relay:B y\n\\\\@relay:C z \\@media:x") == [
        ("Bob", "write @relay:A x\n@relay:B y\n\\@relay:C z \\@media:x")
    ]


def test_a_block_is_verbatim() -> None:
    body = "  one  \n\n```\n@relay:Ann x\n```\n> q\n\\@relay:Ann \\x"
    text = f"- @relay:Bob <<<\n{body}\n >>> \nafter"
    assert scan(text, NAMESPACES) == [Match("relay", "Bob", body, {}, True, "- @relay:Bob <<<")]


def test_text_before_the_block_is_its_first_line() -> None:
    assert said("@relay:Bob look: <<<\nx\n>>>") == [("Bob", "look:\nx")]


def test_an_escaped_end_stands_in_the_block() -> None:
    assert said("@relay:Bob <<<\n>>> 1 + 1\n  \\>>>\n>>>") == [("Bob", ">>> 1 + 1\n  >>>")]


def test_a_block_in_a_block_needs_its_own_end() -> None:
    inner = "@relay:Ann <<<\nx\n\\>>>\n>>>"
    assert said(f"@relay:Bob <<<\n{inner}\nlast\n>>>\n@relay:Dan y") == [
        ("Bob", f"{inner}\nlast"),
        ("Dan", "y"),
    ]


def test_an_unclosed_block_sends_nothing_and_swallows_nothing() -> None:
    text = "@relay:Bob a <<<\nb\n@relay:Ann <<<\nc\n>>>\n  @relay:Dan d\n@relay:Eve <<<\ne\n"
    first, second, third, last = scan(text, NAMESPACES)
    assert (first, last) == (Unclosed("relay", "Bob"), Unclosed("relay", "Eve"))
    assert [one.body for one in (second, third) if isinstance(one, Match)] == ["c", "d"]


def test_of_unclosed_blocks_a_bounded_number_is_looked_into() -> None:
    found = scan("@relay:Bob <<<\n" * 1000 + "@relay:Ann hi\n", NAMESPACES)
    assert found == [Unclosed("relay", "Bob")] * UNCLOSED_MAX


@pytest.mark.parametrize(
    ("text", "bodies"),
    [
        ("@relay:Bob <<< one\ntwo\n>>>\n", ["one\ntwo"]),
        ("@relay:Bob [thread:t] <<< one two >>>\n@relay:Ann x", ["one two", "x"]),
        ("@relay:Bob <<< >>>\n", [""]),
        ("@relay:Bob run cat <<< word\n", ["run cat <<< word"]),
        ("@relay:Bob <<<<<<< HEAD\n", ["<<<<<<< HEAD"]),
        ("@relay:Bob <<<\n@relay:Ann <<< x >>>\n>>>\n", ["@relay:Ann <<< x >>>"]),
    ],
    ids=["first line", "one line", "empty", "in the middle", "conflict", "inside"],
)
def test_text_right_behind_the_opening_is_the_blocks_first_line(
    text: str, bodies: list[str]
) -> None:
    assert [body for _, body in said(text)] == bodies


def test_a_pause_completes_a_message_but_no_block_and_no_fence() -> None:
    scanner = Scanner(NAMESPACES)
    assert scanner.line("@relay:Bob one") == []
    assert scanner.open
    assert [type(x) for x in scanner.pause()] == [Match]
    assert not scanner.open
    assert scanner.pause() == []

    scanner.line("@relay:Bob <<<")
    assert scanner.pause() == []
    assert scanner.open
    assert [type(x) for x in scanner.line(">>>")] == [Match]

    scanner.line("```")
    assert not scanner.open
    assert scanner.pause() == []
    assert scanner.line("@relay:Bob one") == []
    assert scanner.pause() == []


def test_the_end_forgets_fences_and_blocks() -> None:
    scanner = Scanner(NAMESPACES)
    scanner.line("```")
    assert scanner.end() == []
    scanner.line("@relay:Bob <<<")
    assert [type(x) for x in scanner.end()] == [Unclosed]
    scanner.line("@relay:Bob one")
    assert [type(x) for x in scanner.end()] == [Match]
    assert scanner.end() == []


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("@relay:Bob 12345\n678901", 12),
        ("@relay:Bob ééééé\né", 13),
        ("@relay:Bob <<<\n12345\n678901\n\n>>>", 13),
        (f"@relay:Bob {'x' * 999}\ny", 1001),
    ],
)
def test_a_body_beyond_the_limit_is_not_sent(text: str, size: int) -> None:
    assert scan(text, NAMESPACES, body_max=11) == [TooLong("relay", "Bob", size)]
    (whole,) = scan(text, NAMESPACES, body_max=size)
    assert isinstance(whole, Match)
    assert len(whole.body.encode()) == size


def test_a_message_after_one_that_was_too_long_is_heard() -> None:
    text = "@relay:Bob <<<\n" + "x\n" * 50 + ">>>\n@relay:Ann ok"
    assert [type(x) for x in scan(text, NAMESPACES, body_max=20)] == [TooLong, Match]


@pytest.mark.parametrize(
    "state", [{}, {"fence": None}, {"fence": 1, "message": None}, {"fence": None, "message": {}}]
)
def test_a_broken_state_is_refused(state: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="not the state"):
        Scanner(NAMESPACES).restore(state)


def test_only_registered_namespaces_are_heard() -> None:
    assert scan("@media:print x\n@RELAY:Bob y\n", NAMESPACES) == []
    assert scan("@relay:Bob x", ()) == []


# ---- what holds for every text ----
PIECES = st.sampled_from(
    [
        "@relay:Bob ",
        "@memory:save",
        "@broadcast: ",
        "@media:x ",
        "\\@relay:X",
        "\\",
        "- ",
        "1. ",
        "● ",
        "> ",
        "    ",
        "\t",
        "```",
        "~~~",
        "<<<",
        ">>>",
        "\\>>>",
        "[thread:t1] ",
        "word ",
        "\n",
        "\n",
        "\n\n",
        "\r\n",
        "\r",
        "é😀",
        "\ud800",
        "\x00\x1b",
    ]
)
TEXTS = st.lists(PIECES, max_size=20).map("".join)


@given(st.one_of(TEXTS, st.text()))
def test_no_more_is_found_than_was_said(text: str) -> None:
    found = scan(text, NAMESPACES)
    lines = text.replace("\r\n", "\n").split("\n")
    heads = 0
    for match in found:
        heads += 1
        if isinstance(match, Match):
            assert match.raw in lines
            assert match.namespace in NAMESPACES
            rest = text
            for line in match.body.split("\n"):
                # Each line of the body was said, in this order, but for one backslash per escape.
                words = line.replace("\\", "").strip()
                at = rest.replace("\\", "").find(words)
                assert at >= 0
                rest = rest.replace("\\", "")[at + len(words) :]
    assert heads <= text.count("@")


@given(TEXTS, st.integers(0, 20))
def test_a_scanner_goes_on_from_its_state(text: str, at: int) -> None:
    lines = text.split("\n")
    first = Scanner(NAMESPACES)
    found = [x for line in lines[:at] for x in first.line(line)]
    state = json.loads(json.dumps(first.state()))
    second = Scanner(NAMESPACES)
    second.restore(state)
    assert second.open == first.open
    found += [x for line in lines[at:] for x in second.line(line)]
    unbroken = Scanner(NAMESPACES)
    expected = [x for line in lines for x in unbroken.line(line)]
    assert found + second.end() == expected + unbroken.end()


@given(TEXTS)
def test_escaping_every_pattern_silences_a_text(text: str) -> None:
    quiet = text.replace("@", "\\@")
    assert scan(quiet, NAMESPACES) == []


# A million characters each: whatever needed more than linear time would not come back.
LONG = 1_000_000
HOSTILE = {
    "body": ("@relay:Bob " + "x" * LONG, 1),
    "backslashes": ("@relay:Bob " + "\\" * LONG + "@x", 1),
    "escapes": ("@relay:Bob " + "\\@relay:" * (LONG // 8), 1),
    "attributes": ("@relay:Bob " + "[thread:a] " * (LONG // 11), 1),
    "open attributes": ("@relay:" + "[thread:" * (LONG // 8), 0),
    "punctuation": ("@relay:" + "," * LONG, 0),
    "spaces": ("@relay:Bob" + " " * LONG + "x", 1),
    "leading spaces": (" " * LONG + "@relay:Bob ```", 0),
    "ats": ("@" * LONG, 0),
    "backticks": ("`" * LONG + " `\n@relay:Bob x", 1),
    "spaces before a fence": ("@relay:Bob x\n" + "- " + " " * LONG + "x```", 1),
    "digits": ("1" * LONG + ". @relay:Bob ```", 0),
}


@pytest.mark.parametrize("shape", HOSTILE)
def test_long_lines_take_linear_time(shape: str) -> None:
    text, matches = HOSTILE[shape]
    found = scan(text, NAMESPACES, body_max=2 * LONG)
    assert [type(x) for x in found] == [Match] * matches


def test_200_000_characters_arrive_whole() -> None:
    body = "0123456789" * 20_000
    assert said(f"@relay:Bob {body}\n") == [("Bob", body)]


PATTERNS = (Path(__file__).parents[2] / "docs" / "patterns.md").read_text(encoding="utf-8")
SPACES = ("relay", "deploy")
EXAMPLES = re.findall(
    r"^(`{3,})text\n(.*?)^\1\n^\1hears\n(.*?)^\1$", PATTERNS, flags=re.MULTILINE | re.DOTALL
)


def described(found: Found) -> str:
    """One find in the notation of the page: the body's further lines are indented."""
    if isinstance(found, Unclosed):
        return f"unclosed to {found.target}"
    assert isinstance(found, Match)
    words = " ".join(f"{key}={value}" for key, value in found.attributes.items())
    body = found.body.replace("\n", "\n    ")
    return f"{found.namespace} to {found.target}{f' ({words})' if words else ''}: {body}"


@pytest.mark.parametrize(("said", "heard"), [(x[1], x[2]) for x in EXAMPLES])
def test_an_example_of_the_page(said: str, heard: str) -> None:
    finds = [described(found) for found in scan(said, SPACES)]
    assert "\n".join(finds or ["nothing"]) + "\n" == heard


def test_every_example_is_read() -> None:
    assert len(EXAMPLES) == len(re.findall(r"^`{3,}hears$", PATTERNS, flags=re.MULTILINE)) > 6


def test_the_page_itself_sends_nothing() -> None:
    assert scan(PATTERNS, SPACES) == []
