"""The message channel of Claude Code, its own messaging socket: no keys, no composer, no dialog.

Claude Code opens the socket by itself and names it to its hooks. It takes one JSON line for each
message, answers nothing, and queues what it cannot use at once. So a write is no proof: that the
model got the message shows in the hooks and the transcript (``ClaudeSource``). Tested by itself.
"""

from __future__ import annotations

import asyncio
import json
import os
import stat
from collections.abc import Callable

from relay.agents.base import ChannelClosed
from relay.core.processes import MARKS, is_own_agents, peer

#: Seconds to connect and to write one message.
DEADLINE = 5.0


class ClaudeChannel:
    """Writes messages to the socket whose path ``path()`` tells, once it is known."""

    def __init__(self, path: Callable[[], str | None]) -> None:
        self._path = path

    @property
    def available(self) -> bool:
        """Whether the socket is there and ours."""
        path = self._path()
        if not path:
            return False
        try:
            facts = os.stat(path)
        except OSError:
            return False
        return stat.S_ISSOCK(facts.st_mode) and facts.st_uid == os.getuid()

    async def submit(self, text: str, marker: str) -> None:
        """Hand ``text`` over. Raises ChannelClosed when it was certainly not taken.

        ``marker`` is not sent: it stands in ``text``, and ``ClaudeSource.accepted`` finds it there.
        """
        path = self._path()
        if not path or not self.available:
            raise ChannelClosed("Claude Code's messaging socket is not there")
        line = json.dumps({"type": "user", "message": {"role": "user", "content": text}}) + "\n"
        try:
            async with asyncio.timeout(DEADLINE):
                _, writer = await asyncio.open_unix_connection(path)
                try:
                    if MARKS and not is_own_agents(peer(writer.get_extra_info("socket"))):
                        raise ChannelClosed("what listens there is not this agent")
                    writer.write(line.encode())
                    await writer.drain()
                    writer.write_eof()
                    writer.close()
                    await writer.wait_closed()
                finally:
                    # After a failure the rest must not follow: it would complete a message that
                    # is sent again.
                    writer.transport.abort()
        except (OSError, TimeoutError) as error:
            reason = str(error) or "no answer"
            raise ChannelClosed(f"Claude Code's messaging socket: {reason}") from error
