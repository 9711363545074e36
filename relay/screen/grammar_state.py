"""What the grammar would have open after each line, without collecting what it holds. Pure.

The source of a flood must not leave out a line of a message, and must know which fence is open.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict
from typing import Any

from relay.core.message import BODY_MAX
from relay.directive.line_parser import Fence, Reader

_OPENERS = ("@", "```", "~~~")
#: What has more characters than this is refused for certain, however its lines are counted.
_LOST = 2 * BODY_MAX


class GrammarState:
    """Follows ``relay.directive.grammar.Scanner`` from line to line.

    A message may be taken for open when it is over already, never the other way round; blocks and
    fences are followed exactly.
    """

    def __init__(self, namespaces: Collection[str]) -> None:
        self._reader = Reader(namespaces)
        self._fence: Fence | None = None
        self._message = False
        self._block: int | None = None  # how many blocks are open within the open one
        self._size = 0  # characters of the message, at least

    @property
    def open(self) -> bool:
        """Whether what comes next belongs to a message."""
        return self._message or self._block is not None

    @property
    def lost(self) -> bool:
        """Whether it is too long to be sent: only where it ends still matters."""
        return self._size > _LOST and self.open

    @property
    def block(self) -> bool:
        """Whether what is open ends at ``>>>`` only."""
        return self._block is not None

    @property
    def fence(self) -> str:
        """What the fence that is open is made of, or nothing."""
        return "" if self._fence is None else self._fence.char * self._fence.length

    def line(self, text: str) -> None:
        """One more line."""
        if self.open:
            self._size += len(text.strip())
        if self._block is not None:
            self._line_in_block(text, self._block)
        elif self._fence is not None:
            if self._fence.closed_by(text):
                self._fence = None
        elif self._message and (not (bare := text.strip()) or bare[0] == ">"):
            self._message = False
        elif any(opener in text for opener in _OPENERS):
            self._line_that_opens(text)

    def past_fence(self, lines: str, start: int) -> int:
        """Where the fence ends that the line behind the newline at ``start`` opens, or -1.

        From its first line to its last such code changes nothing: none of it need be read.
        """
        end = lines.find("\n", start + 1)
        fence = None if self.open or end < 0 else self._reader.fence(lines[start + 1 : end])
        if fence is None:
            return -1
        mark = fence.char * fence.length
        while (place := lines.find(mark, end)) >= 0:
            begin = lines.rfind("\n", 0, place)
            end = lines.find("\n", place)
            end = end if end >= 0 else len(lines)
            if fence.closed_by(lines[begin + 1 : end]):
                return end
        return -1

    def _line_in_block(self, text: str, depth: int) -> None:
        if text.strip() == ">>>":
            self._block = depth - 1 if depth else None
        elif "@" in text and (head := self._reader.head(text)) is not None:
            self._block = depth + head.block

    def _line_that_opens(self, text: str) -> None:
        self._fence = self._reader.fence(text)
        if self._fence is None and (head := self._reader.head(text)) is not None:
            self._block = 0 if head.block else None
            self._size = 0
            self._message = not head.block
            if not head.block:
                self._fence = self._reader.fence(head.text)
        if self._fence is not None:
            self._message = False

    def pause(self) -> None:
        """The stream rests."""
        self._message = False

    def end(self) -> None:
        """The stream is over."""
        self._message, self._block, self._fence = False, None, None

    def state(self) -> dict[str, Any]:
        """As JSON."""
        fence = None if self._fence is None else asdict(self._fence)
        return {"fence": fence, "message": self._message, "block": self._block, "size": self._size}

    def load(self, state: dict[str, Any]) -> None:
        self._fence = None if state["fence"] is None else Fence(**state["fence"])
        self._message, self._block = bool(state["message"]), state["block"]
        self._size = int(state["size"])
