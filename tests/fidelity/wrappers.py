"""The ways to run a program: bare, and each wrapper. A wrapper turns one argv into another."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Wrapper:
    """``command`` turns the child's argv into the argv to run; ``env`` is what that needs more."""

    name: str
    command: Callable[[list[str]], list[str]]
    env: dict[str, str] = field(default_factory=dict)


def _itself(argv: list[str]) -> list[str]:
    return argv


def _relay(argv: list[str]) -> list[str]:
    return [sys.executable, "-m", "relay", "wrap", "--", *argv]


DIRECT = Wrapper("direct", _itself)
RELAY = Wrapper("relay", _relay)
