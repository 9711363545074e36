"""The door, against a listener of the test's own (the real one is in tests/real_agents)."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from relay.agents.base import ChannelClosed
from relay.agents.claude import adapter as doors
from relay.agents.claude.adapter import ClaudeChannel
from relay.agents.claude.source import ClaudeSource
from relay.core.processes import MARKS


def channel(path: str) -> ClaudeChannel:
    source = ClaudeSource(0)
    source.saved.socket = path
    return ClaudeChannel(source)


async def test_one_message_is_one_line(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    got: list[bytes] = []
    done = asyncio.Event()

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.append(await reader.read())
        writer.close()
        done.set()

    server = await asyncio.start_unix_server(client, path)
    door = channel(path)
    assert door.available
    await door.submit("two\nlines [M1] é.", "[M1]")
    async with asyncio.timeout(10):
        await done.wait()
    server.close()
    await server.wait_closed()
    [sent] = got
    assert sent.count(b"\n") == 1
    assert json.loads(sent)["message"] == {"role": "user", "content": "two\nlines [M1] é."}


def test_closed_doors(tmp_path: Path) -> None:
    path = tmp_path / "s"
    absent = [ClaudeChannel(ClaudeSource(0)), channel(str(path))]
    for door in absent:
        assert not door.available
        with pytest.raises(ChannelClosed):
            asyncio.run(door.submit("x", ""))
    path.write_text("a file")
    assert not channel(str(path)).available
    os.unlink(path)
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))  # what a process that was killed leaves behind: nobody listens
    with pytest.raises(ChannelClosed):
        asyncio.run(channel(str(path)).submit("x", ""))
    left.close()


def test_what_is_given_up_does_not_arrive_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is sent again, so the rest of the first try must not complete it."""
    monkeypatch.setattr(doors, "DEADLINE", 0.05)
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as busy:
        busy.bind(path)
        busy.listen()  # and reads nothing for longer than the deadline

        async def main() -> bytes:
            with pytest.raises(ChannelClosed):
                async with asyncio.timeout(10):
                    await channel(path).submit("x" * 1_000_000, "")
            busy.setblocking(False)
            reader, writer = await asyncio.open_unix_connection(sock=busy.accept()[0])
            async with asyncio.timeout(10):
                arrived = await reader.read()
            writer.close()
            await writer.wait_closed()
            return arrived

        assert b"\n" not in asyncio.run(main())


#: Listens at argv[1] inside another agent, or has a process that has ended listen there.
_LIAR = """import os, socket, sys
path, how = sys.argv[1:]
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
if how == "there": open("/proc/self/comm", "w").write("relay:0")
if how == "there" or not os.fork():
    listener.listen()
    if how == "gone": os._exit(0)
else: os.wait()
print("LISTENS", flush=True)
print(listener.accept()[0].recv(999), flush=True)
"""


@pytest.mark.skipif(not MARKS, reason="runs are marked on Linux only")
@pytest.mark.parametrize("how", ["there", "gone"])
def test_what_is_for_an_agent_is_handed_to_no_other(how: str, tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    words = [sys.executable, "-c", _LIAR, path, how]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as liar:
        assert liar.stdout is not None and liar.stdout.readline() == "LISTENS\n"
        with pytest.raises(ChannelClosed, match="not this agent"):
            asyncio.run(channel(path).submit("hello", ""))
        assert liar.stdout.readline() == "b''\n"
