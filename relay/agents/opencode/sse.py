"""Server-sent events, as opencode's server writes them: bytes in, JSON objects out. Pure."""

from __future__ import annotations

import json
from typing import Any

#: Bytes of one event; a longer one is passed over.
EVENT_MAX = 16 * 1024 * 1024


class Events:
    """Takes pieces of a stream, cut anywhere, and gives the events that are complete.

    ``dropped`` counts those that were too long or no JSON object.
    """

    def __init__(self) -> None:
        self._left = bytearray()
        self._data: list[bytes] = []
        self._size = 0
        self._skipping = False  # inside a line that is too long
        self.dropped = 0

    def feed(self, piece: bytes) -> list[dict[str, Any]]:
        """The events that ``piece`` completes."""
        self._left += piece
        end = self._left.rfind(b"\n") + 1
        if not end:
            if len(self._left) > EVENT_MAX:
                self._left.clear()
                self._skipping = True
            return []
        lines = bytes(self._left[: end - 1]).split(b"\n")
        del self._left[:end]
        found = []
        for line in lines:
            event = self._line(line.rstrip(b"\r"))
            if event is not None:
                found.append(event)
        return found

    def _line(self, line: bytes) -> dict[str, Any] | None:
        if self._skipping:  # the end of a line whose beginning is gone
            self._skipping = False
            self._size = EVENT_MAX + 1
            return None
        if line:
            if line.startswith(b"data:"):
                self._size += len(line)
                if self._size <= EVENT_MAX:
                    self._data.append(line[5:].removeprefix(b" "))
            return None
        if not self._size:
            return None
        data, size = b"\n".join(self._data), self._size
        self._data.clear()
        self._size = 0
        if size <= EVENT_MAX:
            try:
                event = json.loads(data)
            except ValueError:
                event = None
            if isinstance(event, dict):
                return event
        self.dropped += 1
        return None
