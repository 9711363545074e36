"""Texts on which output scanners of this kind have failed; each is heard right here."""

from __future__ import annotations

from relay.directive.envelope import envelope
from relay.directive.grammar import Found, Match, Scanner

from .test_envelope import message
from .whole_text import lines_of, scan

NAMESPACES = ("relay", "memory")


def bodies(found: list[Found]) -> list[str]:
    return [x.body for x in found if isinstance(x, Match)]


def typed(*chunks: str) -> list[Found]:
    """What is found while ``chunks`` arrive and the stream then rests."""
    scanner = Scanner(NAMESPACES)
    complete = "".join(chunks).rpartition("\n")[0]
    found = [x for line in lines_of(f"{complete}\n") for x in scanner.line(line)]
    return found + scanner.pause()


def test_the_same_words_three_times_are_three_messages() -> None:
    assert bodies(scan("@relay:Bob OK\n" * 3, NAMESPACES)) == ["OK"] * 3


def test_bodies_that_begin_alike_are_all_sent() -> None:
    same = "The first hundred characters of both of these reports are equal to the letter. " * 2
    text = f"@relay:Bob {same}Result: 1\n@relay:Bob {same}Result: 2\n"
    assert bodies(scan(text, NAMESPACES)) == [f"{same}Result: 1", f"{same}Result: 2"]


def test_a_line_in_two_writes_is_one_message_with_its_tail() -> None:
    assert bodies(typed("@relay:Bob the first half", " and the second\n")) == [
        "the first half and the second"
    ]


def test_character_by_character_is_one_message() -> None:
    assert bodies(typed(*"@relay:Bob one word after another\n")) == ["one word after another"]


def test_a_line_that_is_still_being_written_is_no_message() -> None:
    assert typed("@relay:Bob one", " word") == []


def test_a_fence_is_not_sent_however_long_it_is() -> None:
    code = "@relay:Fake x\n" * 60
    assert scan(f"Example:\n```\n{code}```\n", NAMESPACES) == []
    assert bodies(scan(f"```\n{code}```\n@relay:Bob real", NAMESPACES)) == ["real"]


def test_a_wrapped_line_keeps_its_tail() -> None:
    text = "● @relay:Bob a sentence that the screen had to\n  wrap in the middle\n\n● done"
    assert bodies(scan(text, NAMESPACES)) == [
        "a sentence that the screen had to\nwrap in the middle"
    ]


def test_talking_about_a_pattern_sends_nothing() -> None:
    text = (
        "Use @relay:Bob to reach Bob.\n"
        "`@relay:Bob hi` sends hi.\n"
        '"@relay:Bob hi" does as well.\n'
        "> @relay:Bob hi\n"
        "\\@relay:Bob hi\n"
        "(@relay:Bob hi)\n"
    )
    assert scan(text, NAMESPACES) == []


def test_a_received_message_that_quotes_a_pattern_is_no_reply_when_echoed() -> None:
    quoting = message("Answer like this:\n@relay:Alice done\n- @relay:Alice done\n")
    plain, paste = envelope(quoting, style="plain"), envelope(quoting, style="paste")
    assert scan(plain.text, NAMESPACES) == scan(paste.text, NAMESPACES) == []


def test_instructions_with_placeholders_are_not_obeyed() -> None:
    text = (
        "# Messaging\n\n"
        "@relay:<name> <message>\n"
        "@relay:[name] message\n"
        "@relay:{target} message\n"
        "@relay:$TARGET message\n"
        "@broadcast:<message>\n\n"
        "    @relay:Bob an indented example\n\n"
        "```\n@relay:Bob a fenced example\n@relay:Bob <<<\nx\n```\n"
    )
    assert scan(text, NAMESPACES) == []
