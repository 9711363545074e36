"""Text in chunks cut anywhere becomes complete lines."""

from __future__ import annotations

import io

from relay.core.message import BODY_MAX

#: The longest line that is kept whole, in characters. Twice what a message may hold, so that a
#: line which had to be cut is certain to be refused as too long and is never sent as if whole.
LINE_MAX = 2 * BODY_MAX


class LineSplitter:
    """Lines from chunks. ``\\n`` and ``\\r\\n`` end a line; a lone ``\\r`` is text.

    At most ``line_max`` characters are held. The rest of a longer line is dropped and counted in
    ``dropped``; what is left of it is handed on and exceeds every permitted body, so the grammar
    answers it with TooLong.
    """

    def __init__(self, line_max: int = LINE_MAX) -> None:
        self.dropped = 0
        self._line_max = line_max
        self._pending = io.StringIO()

    def feed(self, chunk: str) -> list[str]:
        """Add ``chunk``; return the lines that it completed, without their line ends."""
        if "\n" not in chunk:
            self._keep(chunk)
            return []
        first, *middle, rest = chunk.split("\n")
        self._keep(first)
        lines = [self._whole(line) for line in (self._take(), *middle)]
        self._keep(rest)
        return lines

    def rest(self) -> list[str]:
        """The last line when the text ended without a line end: one line, or none."""
        pending = self._take()
        return [pending] if pending else []

    def _keep(self, text: str) -> None:
        room = self._line_max - self._pending.tell()
        if len(text) > room:
            self.dropped += len(text) - room
            text = text[:room]
        self._pending.write(text)

    def _take(self) -> str:
        text = self._pending.getvalue()
        self._pending = io.StringIO()
        return text

    def _whole(self, line: str) -> str:
        if len(line) > self._line_max:
            self.dropped += len(line) - self._line_max
            line = line[: self._line_max]
        return line[:-1] if line.endswith("\r") else line
