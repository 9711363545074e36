"""Hearing programs that draw: not connected yet, line programs come first."""

from __future__ import annotations
from dataclasses import dataclass
from typing import Any
from relay.terminal.hearing import Outlet
@dataclass
class Snapshot:
    rows: list[str]
    cursor_line: int
    cols: int
class Painter:
    def __init__(self, out: Outlet) -> None:
        self.deadline: float | None = None
        self.pending = False
    def note(self, lines: list[str]) -> None: ...
    def tick(self, now: float) -> None: ...
    def look(self, snapshot: Snapshot, now: float, *, settle: bool) -> None: ...
    def state(self, now: float) -> dict[str, Any]: return {}
    def load(self, state: dict[str, Any], now: float) -> None: ...
