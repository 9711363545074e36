"""Reads a whole text as the grammar does."""

from __future__ import annotations

from collections.abc import Collection

from relay.core.message import BODY_MAX
from relay.directive.grammar import Found, Scanner


def lines_of(text: str) -> list[str]:
    """The lines of ``text`` without their ends."""
    lines = text.split("\n")
    return [line.removesuffix("\r") for line in lines[:-1]] + [line for line in lines[-1:] if line]


def scan(text: str, namespaces: Collection[str], *, body_max: int = BODY_MAX) -> list[Found]:
    """What ``text`` holds."""
    scanner = Scanner(namespaces, body_max=body_max)
    return [found for line in lines_of(text) for found in scanner.line(line)] + scanner.end()
