"""Reads a whole text as the grammar does, and the lines of an envelope as a person does."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from relay.core.message import BODY_MAX
from relay.directive.grammar import Found, Scanner
from relay.directive.line_parser import BULLETS


def lines_of(text: str) -> list[str]:
    """The lines of ``text`` without their ends."""
    lines = text.split("\n")
    return [line.removesuffix("\r") for line in lines[:-1]] + [line for line in lines[-1:] if line]


def scan(
    text: str, namespaces: Collection[str], *, bullets: str = BULLETS, body_max: int = BODY_MAX
) -> list[Found]:
    """What ``text`` holds."""
    scanner = Scanner(namespaces, bullets=bullets, body_max=body_max)
    return [found for line in lines_of(text) for found in scanner.line(line)] + scanner.end()


def body_of(lines: Sequence[str]) -> str:
    """The body of a ``plain`` envelope, its marked lines put together again."""
    first, *more = "\n".join(lines).replace("\n|…", "").split("\n| ")
    _header, _, first = first.partition(": ")
    if not more:
        return first[: first.rindex(" (")]
    return "\n".join([first, *more[:-1]])
