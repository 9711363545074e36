"""What a session still does once its agent has ended, each of it within a time of its own."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from relay.session.session import Session

#: How long an ended agent's last words, hooks and messages may take.
CLOSING_DEADLINE = 20.0
#: How much of that the hooks of what happened before may take from those of the end.
HOOKS_DEADLINE = 8.0
#: How long the broker may take to hear of what was noted last.
TELLING_DEADLINE = 2.0
#: How long what it said is kept for a broker that is away or has no room: nobody waits for us now.
SENDING_DEADLINE = 600.0


async def end(session: Session) -> None:
    """Settle what the agent said, run the last hooks, say what came of it."""
    # First of all: what anybody is told from now on would reach the next agent of that name.
    session.lifecycle.agent_gone()
    session.remembering.agent_gone()
    session.ears.finish(session.now())
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CLOSING_DEADLINE):
            # Before what may take long: it decides whether the next run gets them again.
            await session.courier.close(session.exit_unread)
            await session.leaving.agent_gone()
            # The start comes before the end, and so does what the agent said last.
            await session.lifecycle.settle(HOOKS_DEADLINE)
            await _last_hooks(session)
            await session.dispatcher.settle(CLOSING_DEADLINE)
    if not await session.remembering.settle(SENDING_DEADLINE):
        print("given up: memories that the broker did not take", file=sys.stderr)
    if not await session.sender.settle(SENDING_DEADLINE):
        left = len(session.sender.state())
        print(f"given up: {left} messages that the broker did not take", file=sys.stderr)
    if session.last_words is not None:
        await session.last_words.end()
    session.progress.acknowledge()
    await session.hooks.close(CLOSING_DEADLINE)
    await session.reports.settle(TELLING_DEADLINE)  # what went wrong at the end, too
    await session.tasks.end(CLOSING_DEADLINE / 2)
    session.stop()


async def _last_hooks(session: Session) -> None:
    try:
        await session.lifecycle.end("exit")
    except asyncio.CancelledError:
        session.note("on_session_end took too long after the agent's end, and was ended")
        raise
