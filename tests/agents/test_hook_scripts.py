"""The commands of hooks, run as agents run them, against the session's own server."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from relay.agents.context_door import TEXTS_MAX, ContextDoor, door_of
from relay.agents.hook_install import asker, giver, reporter, telling, write_teller
from relay.session.hook_server import HookServer
from tests.agents.installs import run_of

TOKEN = "the-token"
WHY = "relay was not asked"
EVENT = {
    "hook_event_name": "PreToolUse",
    "tool_input": {"command": "echo 'é' \"$x\" `y` \\n %s \x7f"},
}


class Ended:
    """How a command ended."""

    def __init__(self, status: int, out: bytes, err: bytes) -> None:
        self.status, self.out, self.err = status, out, err.decode()


async def sh(command: str, port: int, *, token: str = TOKEN, path: str = "", event: str) -> Ended:
    env = {"PATH": path or os.environ["PATH"], "RELAY_PORT": str(port), "RELAY_TOKEN": token}
    pipe = asyncio.subprocess.PIPE
    shell = shutil.which("sh")
    assert shell is not None
    process = await asyncio.create_subprocess_exec(
        shell, "-c", command, stdin=pipe, stdout=pipe, stderr=pipe, env=env
    )
    async with asyncio.timeout(300):
        out, err = await process.communicate(event.encode())
    assert process.returncode is not None
    return Ended(process.returncode, out, err)


def run(
    command: str,
    answer: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]],
    *,
    token: str = TOKEN,
    path: str = "",
    event: dict[str, Any] = EVENT,
) -> Ended:
    """The command against a server that answers so."""

    async def main() -> Ended:
        listener = socket.create_server(("127.0.0.1", 0), backlog=8)
        server = HookServer(answer, TOKEN)
        await server.serve(listener)
        try:
            port = listener.getsockname()[1]
            return await sh(command, port, token=token, path=path, event=json.dumps(event))
        finally:
            await server.close()

    return asyncio.run(main())


def raw(command: str, answer: bytes, *, hold: bool = False) -> Ended:
    """The command against something that sends these bytes and hangs up, or does not."""

    async def main() -> Ended:
        over = asyncio.Event()

        async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            if hold:
                await over.wait()
            writer.close()

        server = await asyncio.start_server(client, "127.0.0.1", 0)
        async with server:
            ended = await sh(command, server.sockets[0].getsockname()[1], event="{}")
            over.set()
        return ended

    return asyncio.run(main())


async def silent(event: dict[str, Any]) -> dict[str, Any]:
    return {}


@pytest.mark.parametrize("length", [1, 20_000])
def test_what_is_answered_is_printed(length: int) -> None:
    asked: list[dict[str, Any]] = []
    answer = {"reason": "nö " * length}

    async def answering(event: dict[str, Any]) -> dict[str, Any]:
        asked.append(event)
        return answer

    big = {**EVENT, "more": "x" * length}
    ended = run(asker(300, WHY), answering, event=big)
    assert (ended.status, json.loads(ended.out), ended.err) == (0, answer, "")
    assert asked == [{**big, "relay": {}}]


@pytest.mark.parametrize("size", [65535, 65536, 65537])
def test_an_event_of_any_size_arrives_whole(size: int) -> None:
    asked: list[dict[str, Any]] = []

    async def answering(event: dict[str, Any]) -> dict[str, Any]:
        asked.append(event)
        return {}

    event = {**EVENT, "more": ""}
    event["more"] = "x" * (size - len(json.dumps(event).encode()))
    assert run(asker(300, WHY), answering, event=event).status == 0
    assert asked == [{**event, "relay": {}}]


def test_nothing_to_say_is_said_with_nothing() -> None:
    ended = run(asker(300, WHY), silent)
    assert (ended.status, ended.out, ended.err) == (0, b"", "")


async def raising(event: dict[str, Any]) -> dict[str, Any]:
    raise ValueError


def test_no_answer_is_a_refusal_with_words() -> None:
    ended = run(asker(300, WHY), raising)
    assert (ended.status, ended.out) == (2, b"")
    assert ended.err == f"{WHY}: it answered with the status 500\n"
    ended = run(asker(300, WHY), silent, token="wrong")
    assert (ended.status, "403" in ended.err) == (2, True)


def test_nobody_there_is_a_refusal_with_words() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    ended = asyncio.run(sh(asker(300, WHY), port, event="{}"))
    assert (ended.status, ended.err) == (2, f"{WHY}: it cannot be reached\n")
    ended = asyncio.run(sh(asker(300), port, event="{}"))
    assert (ended.status, ended.out, ended.err) == (0, b"", "")
    ended = asyncio.run(sh(reporter(), port, event="{}"))
    assert (ended.status, ended.out, ended.err) == (0, b"", "")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"", "it did not answer"),
        (b"HTTP/1.1 200 OK\r\n", "its answer was cut off"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n{", "its answer was cut off"),
        (b"HTTP/1.1 200 OK\r\n\r\n", "its answer was cut off"),
        (b"HTTP/1.1 503 No\r\nContent-Length: 2\r\n\r\n{}", "it answered with the status 503"),
        (b"nonsense\r\n\r\n", "it answered with the status "),
    ],
)
def test_half_an_answer_is_none(answer: bytes, why: str) -> None:
    ended = raw(asker(300, WHY), answer)
    assert (ended.status, ended.out) == (2, b"")
    assert ended.err.startswith(f"{WHY}: {why}")


def test_an_answer_is_not_waited_for_without_end() -> None:
    ended = raw(asker(1, WHY), b"", hold=True)
    assert (ended.status, ended.err) == (2, f"{WHY}: it did not answer\n")


def test_headers_are_read_in_any_spelling() -> None:
    ended = raw(asker(300, WHY), b'HTTP/1.1 200 OK\r\ncontent-length: 8\r\nx: y\r\n\r\n{"a": 1}')
    assert (ended.status, ended.out, ended.err) == (0, b'{"a": 1}', "")


def test_without_bash_what_is_asked_is_refused(tmp_path: Path) -> None:
    for name in ("cat", "sh"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    ended = run(asker(300, WHY), silent, path=str(tmp_path))
    assert (ended.status, ended.out, ended.err) == (2, b"", f"{WHY}: bash is missing\n")
    for command in (asker(300), reporter()):
        ended = run(command, silent, path=str(tmp_path))
        assert (ended.status, ended.out, ended.err) == (0, b"", "")


async def test_a_report_arrives_with_its_headers() -> None:
    told: list[dict[str, Any]] = []

    async def listening(event: dict[str, Any]) -> dict[str, Any]:
        told.append(event)
        return {"unheard": True}

    listener = socket.create_server(("127.0.0.1", 0), backlog=8)
    server = HookServer(listening, TOKEN)
    await server.serve(listener)
    port = listener.getsockname()[1]
    ended = await sh(
        reporter({"X-Relay-Messaging-Socket": "$RELAY_TOKEN"}), port, event=json.dumps(EVENT)
    )
    async with asyncio.timeout(10):
        while not told:
            await asyncio.sleep(0.01)
    await server.close()
    assert (ended.status, ended.out, ended.err) == (0, b"", "")
    assert told == [{**EVENT, "relay": {"messaging-socket": TOKEN}}]


def test_what_a_person_has_bash_do_at_its_start_does_not_speak(tmp_path: Path) -> None:
    (tmp_path / "noise").write_text("echo noise; exit 3\n")

    async def answer(event: dict[str, Any]) -> dict[str, Any]:
        return {"a": 1}

    # As in the environment of the agent; sh() gives only what a hook needs.
    command = f"export BASH_ENV='{tmp_path}/noise'\n{asker(300, WHY)}"
    ended = run(command, answer)
    assert (ended.status, ended.out, ended.err) == (0, b'{"a": 1}', "")


async def test_an_event_arrives_in_one_piece() -> None:
    pieces: list[bytes] = []

    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pieces.append(await reader.read(65536))
        writer.close()

    server = await asyncio.start_server(client, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        await sh(asker(300), port, event=json.dumps(EVENT))
    (piece,) = pieces
    assert json.loads(piece.partition(b"\r\n\r\n")[2]) == EVENT


Tell = Callable[[list[str]], bool]


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.setblocking(False)
        yield made


@pytest.fixture
def script(listener: socket.socket, tmp_path: Path) -> str:
    port = listener.getsockname()[1]
    return write_teller(run_of("Bob", token="t", port=port, folder=str(tmp_path / "it's")))


@pytest.fixture
def tell(listener: socket.socket) -> Tell:
    def told(line: list[str]) -> bool:
        """Whether the session is told when this runs."""
        subprocess.run(line, input=b"{}", timeout=30, check=True)
        try:
            listener.accept()[0].close()
        except BlockingIOError:
            return False
        return True

    return told


def test_an_agent_that_the_agent_starts_is_not_told_of(script: str, tell: Tell) -> None:
    agent, inner = os.getpid(), os.getppid()
    assert tell(["sh", "-c", telling(script)])
    assert not tell(["sh", script, str(inner)])
    assert tell(["sh", script, str(agent)])
    hook = ["sh", "-c", telling(script)]
    inner_hook = f"import subprocess; subprocess.run({hook!r}, check=True)"
    assert not tell([sys.executable, "-c", inner_hook])
    assert tell(hook)


def test_an_agent_that_starts_anew_is_told_of(script: str, tell: Tell) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    assert tell(["sh", script, str(gone.pid)])
    assert tell(["sh", "-c", telling(script)])
    assert not tell(["sh", script, str(os.getppid())])


def hook(file: Path) -> str:
    """What the agent's hook prints."""
    done = subprocess.run(["sh", "-c", giver(str(file))], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def told(printed: str) -> str:
    output = json.loads(printed)["hookSpecificOutput"]
    assert output["hookEventName"] == "UserPromptSubmit"
    return str(output["additionalContext"])


def test_what_waits_is_told_with_the_next_prompt_and_once(tmp_path: Path) -> None:
    file = tmp_path / "the run's" / "context.json"
    door = ContextDoor(str(file), "UserPromptSubmit")
    assert hook(file) == ""
    assert door.give("first") and door.give("second") and door.give("first")
    assert told(hook(file)) == "first\n\nsecond"
    assert hook(file) == ""
    assert door.give("third")
    assert file.stat().st_mode & 0o777 == 0o600
    assert told(hook(file)) == "third"


def test_of_more_than_there_is_room_for_the_newest_is_told(tmp_path: Path) -> None:
    file = tmp_path / "context.json"
    door = ContextDoor(str(file), "UserPromptSubmit")
    assert door.give("x" * TEXTS_MAX) and door.give("new")
    assert told(hook(file)) == "new"


def test_a_file_that_an_agent_reads_keeps_what_is_in_it(tmp_path: Path) -> None:
    file = tmp_path / "relay.md"
    door = ContextDoor(str(file))
    assert not door.give("no file, no door")
    file.write_text("How to talk.\n")
    assert door.give("memory: x") and not door.tells_once
    assert file.read_text() == "How to talk.\n\nmemory: x\n"
    door.give("y" * TEXTS_MAX)
    assert file.read_text() == "How to talk.\n\nmemory: x\n"


def test_a_plan_that_names_none_has_none() -> None:
    assert door_of({"hooks": True}) is None
