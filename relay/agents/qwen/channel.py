"""The message channel of Qwen Code, its input file: no keys, no input line, no dialog.

Qwen Code looks at the file twice a second and queues each complete line that was added. It answers
nothing: that the model got a message shows in its event file (``QwenSource``). What stands in the
file has been handed over: by that a session that follows one that was killed can tell. Tested by
itself.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable

from relay.agents.base import ChannelClosed

#: Bytes of the file beyond which it begins afresh, when Qwen Code has read all that stands in it.
INPUT_MAX = 1024 * 1024
#: Seconds after which the next message follows though the last one has not reached the model:
#: those that Qwen Code finds together become one.
ON_ITS_WAY = 10.0


class QwenChannel:
    """Appends messages to the input file at ``path``."""

    def __init__(
        self,
        path: str,
        ready: Callable[[], bool],
        seen: Callable[[str], bool],
        clock: Callable[[], float],
        spelled: Callable[[str], str],
    ) -> None:
        """``ready()``: whether Qwen Code reads the file by now; ``seen(marker)``: whether a message
        has reached the model; ``clock`` is monotonic, in seconds; ``spelled(text)``: how Qwen Code
        leaves the words alone."""
        self._path = path
        self._ready = ready
        self._seen = seen
        self._clock = clock
        self._spelled = spelled
        self._last: tuple[str, float] | None = None

    @property
    def available(self) -> bool:
        """Whether what is written now will be read."""
        return self._ready() and os.access(self._path, os.W_OK)

    async def submit(self, text: str, marker: str) -> None:
        """Hand ``text`` over. Raises ChannelClosed when it was certainly not taken."""
        if not self._ready():
            raise ChannelClosed("Qwen Code does not read its input file yet")
        line = json.dumps({"type": "submit", "text": self._spelled(text), "id": marker})
        try:
            await asyncio.to_thread(self._append, line.encode() + b"\n")
        except OSError as error:
            raise ChannelClosed(f"Qwen Code's input file: {error.strerror or error}") from error
        self._last = marker, self._clock()

    def on_its_way(self, now: float) -> bool:
        """Whether the last message has not reached the model, which takes a second."""
        if self._last is None or now - self._last[1] > ON_ITS_WAY or self._seen(self._last[0]):
            self._last = None
        return self._last is not None

    def handed_over(self, marker: str) -> bool:
        """Whether a message with ``marker`` stands in the file, complete."""
        return marker in self._markers()

    def _append(self, line: bytes) -> None:
        fd = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            if size > INPUT_MAX and all(map(self._seen, self._markers())):
                os.ftruncate(fd, 0)
                size = 0
            # The half line of a session that was killed while it wrote is not for anybody.
            torn = size > 0 and os.pread(fd, 1, size - 1) != b"\n"
            data = b"\n" + line if torn else line
            written = os.write(fd, data)
            if written < len(data):
                # The rest must not follow: it would complete a message that is sent again.
                os.ftruncate(fd, size)
                raise OSError(0, "there is no room for the message")
        finally:
            os.close(fd)

    def _markers(self) -> list[str]:
        try:
            with open(self._path, "rb") as file:
                lines = file.read().split(b"\n")[:-1]
        except OSError:
            return []
        found = []
        for line in lines:
            try:
                found.append(str(json.loads(line)["id"]))
            except (ValueError, KeyError, TypeError):
                continue
        return found
