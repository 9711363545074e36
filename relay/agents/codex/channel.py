"""The message channel of Codex, its own queue: no keys, no input line, no dialog.

Codex keeps a queue of messages for each conversation in a database of its own; a message there
begins a turn when none runs. ``codex queue`` puts one in, but by its command line, which everybody
on the machine can read and which has a limit; ``codex app-server`` takes the same request on its
standard input. It is asked, answers and ends: nothing of it stays.

Codex looks into the queue every ten seconds while nothing happens, and at the end of each turn that
the person did not break off. So typing is quicker, and the queue is for when the input line is not
free (relay.session.typist).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import uuid
from collections.abc import Mapping
from typing import Any, Protocol

from relay.agents.base import ChannelClosed

#: Seconds that Codex may take to start, to take the message and to end.
DEADLINE = 20.0
#: Bytes that one line of its answers may have: it repeats the message.
ANSWER_MAX = 16 * 1024 * 1024
_CLIENT = {"clientInfo": {"name": "relay", "title": "relay", "version": "1"}}
_CAPABLE = {"capabilities": {"experimentalApi": True}}


class CodexConversation(Protocol):
    """The conversation in front, as the source knows it."""

    @property
    def conversation(self) -> str:
        """Its id; empty before its first turn."""
        ...

    @property
    def interrupted(self) -> bool:
        """Whether its last turn was broken off: then Codex does not look into the queue."""
        ...


class CodexChannel:
    """Puts messages into the queue of the conversation in front, once it has one."""

    def __init__(
        self, program: str, cwd: str, env: Mapping[str, str], conversation: CodexConversation
    ) -> None:
        """``program`` is Codex, to be started in ``cwd`` with ``env``."""
        self._program = program
        self._cwd = cwd
        self._env = env
        self._conversation = conversation
        self._queue: str | None = None

    def found(self, queue: str | None) -> None:
        """Take the path of the queue's database; what is closed at Codex's end was open before."""
        self._queue = queue or self._queue

    @property
    def available(self) -> bool:
        """Whether what is put into the queue will be taken from it."""
        return (
            bool(self._program and self._conversation.conversation)
            and not self._conversation.interrupted
        )

    def waits(self, marker: str) -> bool:
        """Whether a text with ``marker`` in it lies in the queue."""
        path = self._queue
        if not path:
            return False
        look = "SELECT count(*) FROM queued_items WHERE thread_id = ? AND instr(payload_json, ?)"
        try:
            with contextlib.closing(
                sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=1.0)
            ) as queue:
                [(count,)] = queue.execute(
                    look, (self._conversation.conversation, marker)
                ).fetchall()
        except sqlite3.Error:
            return False
        return bool(count)

    async def submit(self, text: str, marker: str) -> None:
        """Put ``text`` into the queue. Raises ChannelClosed when it was certainly not taken.

        ``marker`` is not sent: it stands in ``text``, and ``waits`` finds it there.
        """
        thread = self._conversation.conversation
        if not thread:
            raise ChannelClosed("the conversation has no turn yet")
        process = await self._start()
        try:
            async with asyncio.timeout(DEADLINE):
                await _ask(process, 1, "initialize", {**_CLIENT, **_CAPABLE})
                await _ask(
                    process,
                    2,
                    "thread/queue/add",
                    {
                        "threadId": thread,
                        "clientUserMessageId": str(uuid.uuid4()),
                        "input": [{"type": "text", "text": text}],
                    },
                )
        except (OSError, ValueError, TimeoutError) as error:
            if self.waits(marker):
                return
            raise ChannelClosed(f"Codex's queue: {str(error) or 'no answer'}") from error
        finally:
            await _end(process)

    async def _start(self) -> asyncio.subprocess.Process:
        try:
            return await asyncio.create_subprocess_exec(
                self._program,
                "app-server",
                cwd=self._cwd,
                env=dict(self._env),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                limit=ANSWER_MAX,
                start_new_session=True,
            )
        except OSError as error:
            raise ChannelClosed(f"Codex cannot be started for its queue: {error}") from error


async def _ask(
    process: asyncio.subprocess.Process, number: int, method: str, params: dict[str, Any]
) -> None:
    """One request, and its answer. Raises ChannelClosed when it is refused, ConnectionError when
    there is no answer."""
    assert process.stdin is not None and process.stdout is not None
    request = {"id": number, "method": method, "params": params}
    process.stdin.write((json.dumps(request) + "\n").encode())
    await process.stdin.drain()
    while line := await process.stdout.readline():
        answer = json.loads(line)
        if not isinstance(answer, dict) or answer.get("id") != number:
            continue
        if "error" in answer:
            refused = answer["error"]
            words = refused.get("message") if isinstance(refused, dict) else refused
            raise ChannelClosed(f"Codex's queue: {words}")
        return
    raise ConnectionError("its server ended without an answer")


async def _end(process: asyncio.subprocess.Process) -> None:
    """Its server ends with its input; what does not is killed."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        async with asyncio.timeout(DEADLINE / 4):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
