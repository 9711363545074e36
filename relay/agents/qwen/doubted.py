"""Messages of which it is not known yet whether they are whole, while the next ones begin. Pure.

A turn that the person stops ends like one whose API counts no tokens. The record of the chat holds
whole answers only, but it is written a moment later than the events: by then the person may have
asked something else.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from relay.agents.qwen.block import Block
from relay.core.source_events import SourceEvent

#: More than so many are never in doubt at a time; the oldest is then taken as broken off.
DOUBTED_MAX = 8


class Doubted:
    """Blocks in doubt, the oldest first, each with the time since when (None: not known)."""

    def __init__(self) -> None:
        self._blocks: deque[tuple[float | None, Block]] = deque()

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def put(self, block: Block, since: float | None) -> list[SourceEvent]:
        """One more; nothing is added to ``block`` any more."""
        self._blocks.append((since, block))
        return self._first().break_off() if len(self._blocks) > DOUBTED_MAX else []

    def recorded(self, answer: str) -> list[SourceEvent] | None:
        """The record of the chat holds ``answer``; None when that is no answer of these.

        Answers are recorded in order: what came before this one was stopped.
        """
        if not any(block.is_whole(answer) for _, block in self._blocks):
            return None
        events: list[SourceEvent] = []
        while not (block := self._first()).is_whole(answer):
            events += block.break_off()
        return events + block.complete()

    def late(self, now: float, patience: float) -> list[SourceEvent]:
        """Those that are not recorded ``patience`` seconds after their end were stopped."""
        known = ((now if since is None else since, block) for since, block in self._blocks)
        self._blocks = deque(known)
        events: list[SourceEvent] = []
        while self._blocks and now - (self._blocks[0][0] or 0.0) >= patience:
            events += self._first().break_off()
        return events

    def break_off(self) -> list[SourceEvent]:
        """No answer is recorded any more."""
        events: list[SourceEvent] = []
        while self._blocks:
            events += self._first().break_off()
        return events

    def state(self) -> list[dict[str, Any]]:
        """A JSON-able snapshot for :meth:`restore`."""
        return [block.state() for _, block in self._blocks]

    def restore(self, state: list[dict[str, Any]]) -> None:
        """Go on where :meth:`state` was taken; the clock is another one."""
        for one in state:
            block = Block()
            block.restore(one)
            self._blocks.append((None, block))

    def _first(self) -> Block:
        return self._blocks.popleft()[1]
