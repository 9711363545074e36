"""What a single line is."""

from __future__ import annotations

import pytest

from relay.directive.line_parser import Fence, Head, LineParser

READER = LineParser(("relay", "memory", "deploy"))


def head(line: str) -> Head:
    found = READER.head(line)
    assert found is not None, line
    return found


@pytest.mark.parametrize(
    "line",
    [
        "@relay:Bob hi",
        " @relay:Bob hi",
        "   @relay:Bob hi",
        "- @relay:Bob hi",
        "* @relay:Bob hi",
        "+ @relay:Bob hi",
        "1. @relay:Bob hi",
        "12) @relay:Bob hi",
        "  - @relay:Bob hi",
        "● @relay:Bob hi",
        "• @relay:Bob hi",
        "✦ @relay:Bob hi",
        "⏺ @relay:Bob hi",
    ],
)
def test_a_head_may_follow_spaces_a_list_marker_or_a_glyph(line: str) -> None:
    assert (head(line).target, head(line).text) == ("Bob", "hi")


@pytest.mark.parametrize(
    "line",
    [
        "    @relay:Bob hi",
        "\t@relay:Bob hi",
        "-\t@relay:Bob hi",
        "-@relay:Bob hi",
        "> @relay:Bob hi",
        "`@relay:Bob hi`",
        "**@relay:Bob** hi",
        "tell @relay:Bob hi",
        "\\@relay:Bob hi",
        "\\\\@relay:Bob hi",
        '"@relay:Bob hi"',
        "1234567890. @relay:Bob hi",
        "▶ @relay:Bob hi",
        "@media:print hi",
        "@Relay:Bob hi",
        "@relay Bob hi",
        "@relay:",
        "@relay: Bob hi",
        "@relay:<name> hi",
        "@relay:[name] hi",
        "@relay:{name} hi",
        "@relay:$NAME hi",
        "@relay:… hi",
        "@relay:!? hi",
        "",
        "@",
    ],
)
def test_everything_else_is_text(line: str) -> None:
    assert READER.head(line) is None


@pytest.mark.parametrize(
    ("word", "target"),
    [
        ("Bob,", "Bob"),
        ("Bob:", "Bob"),
        ("Bob;", "Bob"),
        ("Bob.", "Bob"),
        ("Bob?!", "Bob"),
        ("Bob,Carol", "Bob,Carol"),
        ("*", "*"),
        ("*:", "*"),
        ("#eng", "#eng"),
        ("_x", "_x"),
        ("./a.py", "./a.py"),
        ("~/a", "~/a"),
        ("-1", "-1"),
        ("Zoë", "Zoë"),
        ("7", "7"),
    ],
)
def test_a_target_is_a_word_without_the_punctuation_that_ends_it(word: str, target: str) -> None:
    found = head(f"@relay:{word} hi")
    assert (found.target, found.text) == (target, "hi")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("@broadcast: hi", "hi"),
        ("@broadcast:* hi", "hi"),
        ("@broadcast:*: hi", "hi"),
        ("@broadcast:all hi", "hi"),
        ("@broadcast:everyone, hi", "hi"),
        ("@broadcast:hello to all", "hello to all"),
        ("@broadcast:", ""),
    ],
)
def test_broadcast_is_everyone(line: str, text: str) -> None:
    found = head(line)
    assert (found.namespace, found.target, found.text) == ("relay", "*", text)


def test_broadcast_needs_relay_and_keeps_placeholders_out() -> None:
    assert READER.head("@broadcast:<text>") is None
    assert LineParser(("memory",)).head("@broadcast: hi") is None
    alone = LineParser(("broadcast",)).head("@broadcast:x hi")
    assert alone is not None
    assert (alone.namespace, alone.target) == ("broadcast", "x")


@pytest.mark.parametrize(
    ("line", "attributes", "text"),
    [
        ("@relay:Bob [thread:t1] hi", {"thread": "t1"}, "hi"),
        ("@relay:Bob [thread: t1] hi", {"thread": "t1"}, "hi"),
        ("@relay:Bob[thread:t1] hi", {"thread": "t1"}, "hi"),
        ("@relay:Bob: [mode:steer][await:30s] hi", {"mode": "steer", "await": "30s"}, "hi"),
        ("@relay:Bob [thread:a] [thread:b] hi", {"thread": "b"}, "hi"),
        ("@relay:Bob [re:01ABC] [x:y] hi", {"re": "01ABC"}, "[x:y] hi"),
        ("@relay:Bob hi [thread:t1]", {}, "hi [thread:t1]"),
        ("@relay:Bob [thread] hi", {}, "[thread] hi"),
        ("@relay:Bob [thread:two words] hi", {}, "[thread:two words] hi"),
        ("@relay:Bob [Thread:t1] hi", {}, "[Thread:t1] hi"),
        ("@deploy:a[x:y] hi", {}, "hi"),
    ],
)
def test_known_attributes_stand_right_behind_the_target(
    line: str, attributes: dict[str, str], text: str
) -> None:
    assert (head(line).attributes, head(line).text) == (attributes, text)


@pytest.mark.parametrize(
    ("line", "block", "text"),
    [
        ("@relay:Bob <<<", True, ""),
        ("@relay:Bob <<<  ", True, ""),
        ("@relay:Bob<<<", True, ""),
        ("@relay:Bob [thread:t1] <<<", True, ""),
        ("@relay:Bob look: <<<", True, "look:"),
        ("@relay:Bob a<<<", False, "a<<<"),
        ("@relay:Bob <<< a", True, "a"),
        ("@relay:Bob \\<<<", False, "\\<<<"),
    ],
)
def test_a_block_opens_at_the_end_of_the_line(line: str, block: bool, text: str) -> None:
    assert (head(line).block, head(line).text) == (block, text)


@pytest.mark.parametrize(
    ("line", "fence"),
    [
        ("```", Fence("`", 3)),
        ("````py", Fence("`", 4)),
        ("      ```py x", Fence("`", 3)),
        ("\t~~~", Fence("~", 3)),
        ("- ```", Fence("`", 3)),
        ("1. ~~~~ `x`", Fence("~", 4)),
        ("● ```", Fence("`", 3)),
        ("```code```", None),
        ("``", None),
        ("x ```", None),
        ("> ```", None),
    ],
)
def test_fences(line: str, fence: Fence | None) -> None:
    assert READER.fence(line) == fence


@pytest.mark.parametrize(
    ("fence", "line", "closed"),
    [
        (Fence("`", 3), "```", True),
        (Fence("`", 3), "     ````  ", True),
        (Fence("`", 4), "```", False),
        (Fence("`", 3), "~~~", False),
        (Fence("`", 3), "``` x", False),
        (Fence("~", 3), "~~~", True),
        (Fence("~", 3), "", False),
    ],
)
def test_what_closes_a_fence(fence: Fence, line: str, closed: bool) -> None:
    assert fence.closed_by(line) is closed


def test_one_backslash_is_taken_from_registered_patterns_only() -> None:
    assert READER.unescape(r"\@relay:X \\@relay:X \@media:x \@broadcast: \n") == (
        r"@relay:X \@relay:X \@media:x @broadcast: \n"
    )


def test_items_and_their_indentation() -> None:
    assert [READER.item(x) for x in ("- a", "  1. a", " ● a", "-", "-a", "a", "---")] == [
        (0, False),
        (2, False),
        (1, True),
        (0, False),
        None,
        None,
        None,
    ]


def test_namespaces_may_hold_any_characters() -> None:
    odd = LineParser(("a.b", "c+", "(("))
    found = odd.head("@a.b:x hi")
    assert found is not None
    assert found.namespace == "a.b"
    assert odd.head("@axb:x hi") is None
    assert odd.unescape(r"\@((:x \@axb:x") == r"@((:x \@axb:x"


def test_memory_has_attributes_of_its_own() -> None:
    reader = LineParser(("relay", "memory"))
    head = reader.head("@memory:save [scope:user] [supersedes:k23] [thread:t] tea")
    assert head is not None and head.text == "[thread:t] tea"
    assert head.attributes == {"scope": "user", "supersedes": "k23"}
    glued = reader.head("@memory:list[limit:3]")
    assert glued is not None and (glued.target, glued.attributes) == ("list", {"limit": "3"})
    other = reader.head("@relay:Bob [scope:user] x")
    assert other is not None and (other.text, other.attributes) == ("[scope:user] x", {})
