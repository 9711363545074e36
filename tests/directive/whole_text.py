"""Reads a whole text as the grammar does."""

from __future__ import annotations

import re
from collections.abc import Collection

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


def as_written(line: str) -> str:
    """A line of a ``shell`` or ``comment`` envelope in the signs that it stands for."""
    line = re.sub("_U\\+([0-9A-F]{4,6})_", lambda m: chr(int(m[1], 16)), line)
    return re.sub("[！-～]", lambda m: chr(ord(m[0]) - 0xFEE0), line).replace("\xa0", " ")
