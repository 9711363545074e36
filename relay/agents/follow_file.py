"""Follows a file of lines (a transcript, JSONL) that an agent writes as it goes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

from relay.agents.base import SourceFeed

#: Bytes that one poll reads at most, and that one line may have; a longer line is passed over.
READ_MAX = 4 * 1024 * 1024
LINE_MAX = 16 * 1024 * 1024
#: Of a file that is there already, only the end can be of this run.
LOOK_BACK = 1024 * 1024


class FileTail:
    """Reads a file of lines as it grows, also when it is replaced or truncated."""

    def __init__(self) -> None:
        self.path: str | None = None
        self._inode = 0
        self._offset = 0
        self._skipping = False  # inside a line that is too long

    def follow(self, path: str) -> None:
        """Read this file from now on; where it exists already, only from near its end."""
        if path == self.path:
            return
        self.path, self._offset, self._skipping = path, 0, False
        try:
            facts = os.stat(path)
        except OSError:
            self._inode = 0
            return
        self._inode = facts.st_ino
        if facts.st_size > LOOK_BACK:
            self._offset, self._skipping = facts.st_size - LOOK_BACK, True

    def poll(self) -> list[str]:
        """Return the lines that were completed since the last call, at most READ_MAX bytes."""
        if self.path is None:
            return []
        try:
            with open(self.path, "rb") as file:
                facts = os.fstat(file.fileno())
                if facts.st_ino != self._inode or facts.st_size < self._offset:
                    self._inode, self._offset, self._skipping = facts.st_ino, 0, False
                if facts.st_size == self._offset:
                    return []
                file.seek(self._offset)
                data = file.read(READ_MAX)
                if b"\n" not in data and len(data) == READ_MAX:
                    data += file.read(LINE_MAX - READ_MAX)
        except OSError:
            return []
        return self._lines(data)

    def state(self) -> dict[str, Any]:
        """Return a JSON-able checkpoint."""
        return {"path": self.path, "inode": self._inode, "offset": self._offset}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`state` was taken."""
        self.path, self._inode = state["path"], state["inode"]
        self._offset, self._skipping = state["offset"], False

    def _lines(self, data: bytes) -> list[str]:
        end = data.rfind(b"\n") + 1
        if not end:
            if len(data) >= LINE_MAX:
                self._offset += len(data)
                self._skipping = True
            return []
        self._offset += end
        lines = data[: end - 1].split(b"\n")
        if self._skipping:
            self._skipping = False
            del lines[0]
        return [line.decode("utf-8", "replace") for line in lines if line.strip()]


class FileFollower:
    """Hands each line of one growing file to the source once, also over a restart."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._tail = FileTail()
        # Where the tail was when all that it had read was handed over: while a thread reads on,
        # what is read but not yet handed over must not count.
        self._place = self._tail.state()
        self._reading = asyncio.Lock()

    async def read(self, path: str | None, feed: SourceFeed) -> bool:
        """Hand over what the file ``path`` holds beyond the last look; whether there was any."""
        found = False
        async with self._reading:
            if path:
                self._tail.follow(path)
                self._place = self._tail.state()
            while lines := await asyncio.to_thread(self._tail.poll):
                found = True
                for line in lines:
                    try:
                        feed.transcript(line, self._clock())
                    except Exception as error:
                        # Its form is not ours to promise: one odd line must not cost the others.
                        feed.note(f"a line of the transcript: {type(error).__name__}: {error}")
                self._place = self._tail.state()
        return found

    def state(self) -> dict[str, Any]:
        """Return a JSON-able checkpoint."""
        return dict(self._place)

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`state` was taken."""
        self._tail.restore(state)
        self._place = self._tail.state()
