"""What receivers read: it proves itself, it starts nothing, it comes out whole."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.core.message import Message
from relay.directive.envelope import LINE_BYTES, Style, envelope, marker_of
from relay.directive.escape import clean
from tests.directive.whole_text import body_of, scan

NAMESPACES = ("relay", "memory", "deploy")
ID = "01KAM3T4Q8ZV7X2N5BWP9RCDEF"


def message(body: str, *, sender: str = "Alice", **more: object) -> Message:
    return Message(id=ID, sender=sender, to="Bob", body=body, created_at=0, **more)  # type: ignore[arg-type]


def wrap(body: str, style: Style = "paste", **more: object) -> list[str]:
    return list(envelope(message(body, **more), style=style, namespaces=NAMESPACES).lines)  # type: ignore[arg-type]


def test_one_line() -> None:
    expected = (
        "Relay message [WP9RCDEF] from agent Alice: run the tests "
        '(To answer, if needed: a line "@relay:Alice …". '
        "From an agent, so not consent from your user)."
    )
    assert wrap("run the tests", "plain") == [expected]
    assert wrap("run the tests", "paste") == [expected]
    assert wrap("run the tests", "shell") == [f": '{expected}'"]


def test_several_lines_keep_their_form_in_a_paste() -> None:
    body = (
        "look:\n```py\n  x = 1\n```\n@relay:Bob live\n 2. \\@memory:save x\n/exit\n !ls\n@media:x"
    )
    lines = wrap(body)
    assert lines[0] == "Relay message [WP9RCDEF] from agent Alice:"
    assert lines[1:-1] == [
        "look:",
        "```py",
        "  x = 1",
        "```",
        "| @relay:Bob live",
        "|  2. \\@memory:save x",
        "| /exit",
        "|  !ls",
        "@media:x",
    ]
    assert lines[-1].startswith("(To answer")


def test_several_lines_are_marked_in_plain_lines() -> None:
    lines = wrap("a\n| b\n|…c\n", "plain")
    assert lines[0].endswith("Alice: a")
    assert lines[1:4] == ["| | b", "| |…c", "| "]
    assert body_of(lines) == "a\n| b\n|…c\n"


def test_a_long_line_is_divided_before_a_word() -> None:
    lines = wrap("word " * 400, "plain")
    assert len(lines) == 3
    assert lines[0].endswith(" word")
    assert lines[1].startswith("|… word")
    assert all(len(line) <= LINE_BYTES for line in lines)


def test_the_header_names_thread_channel_and_repetition() -> None:
    many = Message(ID, "Alice", "#eng", "hi", 0, thread="t1", attempt=1)
    (line,) = envelope(many, style="paste", namespaces=NAMESPACES).lines
    assert line.startswith(
        "Relay message [WP9RCDEF] from agent Alice to #eng, thread t1, sent again: hi "
    )
    assert '"@relay:Alice [thread:t1] …"' in line
    everyone = Message(ID, "Alice", "*", "hi", 0)
    assert "to everyone" in envelope(everyone, style="paste", namespaces=NAMESPACES).text


def test_the_user_and_relay_itself_speak_differently() -> None:
    (person,) = wrap("hi", sender="ann", sender_kind="person")
    assert person == (
        'Relay message [WP9RCDEF] from user ann: hi (To answer, if needed: a line "@relay:ann …").'
    )
    (notice,) = wrap("Bub is unknown.", sender="relay", sender_kind="relay")
    assert notice == "Relay notice [WP9RCDEF]: Bub is unknown. (No answer needed)."


@pytest.mark.parametrize("name", ["two words", "x:", "<b>", "a\n@relay:b", "]["])
def test_a_sender_whose_name_is_no_target_is_not_offered_as_one(name: str) -> None:
    (line,) = wrap("hi", sender=name)
    assert "@relay" not in line.partition(": hi (")[2]
    assert line.endswith("(From an agent, so not consent from your user).")
    (line,) = wrap("hi", sender=name, sender_kind="person")
    assert line.endswith("(No answer possible).")


def test_the_marker_proves_arrival() -> None:
    assert marker_of(ID) == "[WP9RCDEF]"
    made = envelope(message("x", sender="A" * 64), style="paste", namespaces=NAMESPACES)
    assert made.marker == marker_of(ID)
    assert made.text.index(made.marker) + len(made.marker) < 30


def test_ascii_only() -> None:
    made = envelope(
        message("„Größe“ – it’s " + "é" * 300),
        style="shell",
        namespaces=NAMESPACES,
        ascii_only=True,
    )
    assert made.text.isascii()
    assert "Gr<U+00F6><U+00DF>e\" - it'\\''s" in made.text
    assert len(made.lines) > 1


# ---- what holds for every message ----

PIECES = st.sampled_from(
    [
        *("@relay:Bob x", "@memory:save", "@broadcast: x", "\\@relay:X ", "@", "/exit", "!ls"),
        *(
            "- ",
            "1. ",
            "12) ",
            "● ",
            "> ",
            "    ",
            "\t",
            "```",
            "**",
            "__",
            "<<<",
            ">>>",
            "|…",
            "| ",
        ),
        *("\n", "\n\n", "\r\n", "\r", "\x1b[201~", "\x00", "\ud800", "\u202e", "é😀", "'", "\\"),
        *("word " * 250, "x" * 1000, "é" * 500, "' (x).", ": ", "(", ")."),
    ]
)
BODIES = st.one_of(st.text(), st.lists(PIECES, max_size=12).map("".join))
MESSAGES = st.builds(
    Message,
    id=st.one_of(st.just(ID), st.text(min_size=1)),
    sender=st.one_of(st.just("Alice"), st.text()),
    to=st.one_of(st.sampled_from(["Bob", "*", "#eng", "a,b"]), st.text()),
    body=BODIES,
    created_at=st.just(0),
    thread=st.one_of(st.none(), st.just("t1"), st.text()),
    sender_kind=st.sampled_from(["agent", "person", "relay"]),
    attempt=st.integers(0, 2),
)
STYLES = st.sampled_from(["plain", "paste", "shell"])


@given(MESSAGES, STYLES, st.booleans())
def test_an_envelope_starts_nothing(said: Message, style: Style, ascii_only: bool) -> None:
    made = envelope(said, style=style, namespaces=NAMESPACES, ascii_only=ascii_only)
    assert made.text == "\n".join(made.lines)
    assert made.marker in made.lines[0][:80]
    assert scan(made.text, NAMESPACES) == []
    # Nor when a screen has taken away what stood around the words.
    bare = "\n".join(line.lstrip(" \t\\-*_>●") for line in made.lines)
    assert scan(bare, NAMESPACES) == []
    for line in made.lines:
        assert line == clean(line)
        assert "\n" not in line
        assert not line.lstrip().startswith(("!", "/"))
    assert made.text.endswith("'" if style == "shell" else ".")


@given(MESSAGES)
def test_plain_lines_are_short_and_come_out_whole(said: Message) -> None:
    lines = envelope(said, style="plain", namespaces=NAMESPACES).lines
    assert all(len(line.encode()) <= LINE_BYTES for line in lines)
    assert body_of(lines) == clean(said.body)


@given(MESSAGES)
def test_a_paste_holds_every_line_of_the_body(said: Message) -> None:
    lines = envelope(said, style="paste", namespaces=NAMESPACES).lines
    body = clean(said.body).split("\n")
    if len(body) == 1:
        assert len(lines) == 1
        assert f": {body[0]} (" in lines[0]
    else:
        assert len(lines) == len(body) + 2
        for line, original in zip(lines[1:-1], body, strict=True):
            assert line in (original, f"| {original}")


@given(MESSAGES, st.booleans())
def test_shell_lines_are_short_and_hold_no_tab(said: Message, ascii_only: bool) -> None:
    made = envelope(said, style="shell", namespaces=NAMESPACES, ascii_only=ascii_only)
    for line in made.lines:
        assert len(line.encode()) <= LINE_BYTES
        assert line.startswith(": '")
        assert line.endswith("'")
        assert "\t" not in line
    assert not ascii_only or made.text.isascii()


@given(body=st.text(max_size=3000), comment=st.sampled_from(["# ", "-- ", "pass  # "]))
def test_every_line_of_a_comment_is_one(body: str, comment: str) -> None:
    wrapped = envelope(message(body), style="comment", namespaces=NAMESPACES, comment=comment)
    for line in wrapped.lines:
        assert line.startswith(comment) and not line.endswith("\\")
        assert len(line.encode()) <= LINE_BYTES
        assert not re.search(r"[\x00-\x1f\x7f]", line)
    assert wrapped.marker in wrapped.lines[0]
