"""Following one opencode's server: its stream, what is asked when it breaks off, and giving up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from relay.agents.base import AgentStart
from relay.agents.opencode import adapter as natives
from relay.agents.opencode.adapter import OpencodeAdapter
from relay.core.message import AgentState
from relay.core.source_events import Degraded, Line, SourceEvent
from tests.agents.opencode.fake_server import NOTHING, ok
from tests.agents.opencode.test_source import STARTED

SESSION = {"id": "ses_1", "time": {"created": STARTED + 1, "updated": STARTED + 5}}
USER = {"id": "msg_001", "sessionID": "ses_1", "role": "user", "time": {"created": STARTED + 2}}
ANSWER = {
    **{"id": "msg_002", "sessionID": "ses_1", "role": "assistant", "parentID": "msg_001"},
    "time": {"created": STARTED + 3},
}
HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def text(said: str, *, ended: bool) -> dict[str, Any]:
    time = {"start": 1, "end": 2} if ended else {"start": 1}
    ids = {"id": "prt_1", "messageID": "msg_002", "sessionID": "ses_1"}
    return {**ids, "type": "text", "text": said, "time": time}


class Server:
    """An opencode as far as relay asks it; ``say`` sends an event down the open stream."""

    def __init__(self) -> None:
        self.version = "1.18.33"
        self.refuses = False
        self.answers: dict[str, Any] = {"/session": [], "/permission": [], "/question": []}
        self.prompts: list[Any] = []
        self.deleted: list[str] = []
        self.streams: list[asyncio.StreamWriter] = []
        self.opened = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            method, path, _ = head.split("\r\n")[0].split(" ")
            if path == "/event" and not self.refuses:
                self.streams.append(writer)
                self.opened += 1
                writer.write(HEAD + chunk({"type": "server.connected", "properties": {}}))
                await reader.read()
                return
            length = [x for x in head.lower().split("\r\n") if x.startswith("content-length: ")]
            body = await reader.readexactly(int(length[0].split(" ")[1])) if length else b""
            writer.write(self._answer(method, path, body))
            await writer.drain()
        finally:
            writer.close()

    def _answer(self, method: str, path: str, body: bytes) -> bytes:
        path = path.split("?")[0]
        if self.refuses:
            return b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"
        if path == "/global/health":
            return ok({"healthy": True, "version": self.version})
        if path.endswith("/prompt_async"):
            self.prompts.append(json.loads(body))
            return NOTHING
        if method == "DELETE":
            self.deleted.append(path)
            return ok(True)
        return ok(self.answers.get(path, {}))

    def say(self, kind: str, **properties: Any) -> None:
        self.streams[-1].write(chunk({"type": kind, "properties": properties}))

    def hang_up(self) -> None:
        self.streams[-1].transport.abort()


def chunk(event: dict[str, Any]) -> bytes:
    data = b"data: " + json.dumps(event).encode() + b"\n\n"
    return b"%x\r\n%b\r\n" % (len(data), data)


class Ears:
    """Keeps what the source makes of what it is fed."""

    def __init__(self) -> None:
        self.native: OpencodeAdapter | None = None
        self.events: list[SourceEvent] = []
        self.notes: list[str] = []

    def hook(self, event: dict[str, Any], now: float) -> None:
        assert self.native is not None
        self.events += self.native.source.hook(event, now)

    def give_up(self, reason: str) -> None:
        assert self.native is not None
        self.events += self.native.source.failed(reason)

    def note(self, reason: str) -> None:
        self.notes.append(reason)

    def visible(self) -> list[str]:
        return []

    @property
    def lines(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Line)]

    @property
    def reasons(self) -> list[str]:
        return [event.reason for event in self.events if isinstance(event, Degraded)]


async def until(check: Callable[[], object]) -> None:
    async with asyncio.timeout(10):
        while not check():
            await asyncio.sleep(0.01)


def start(launch: dict[str, Any]) -> AgentStart:
    clock = asyncio.get_running_loop().time
    return AgentStart(
        started_ms=STARTED,
        pid=1,
        cwd="/srv/demo",
        folder="",
        launch=launch,
        env={},
        checkpoint={},
        clock=clock,
    )


@asynccontextmanager
async def watched(server: Server) -> AsyncIterator[tuple[OpencodeAdapter, Ears]]:
    """A native that follows ``server``."""
    listening = await asyncio.start_server(server, "127.0.0.1", 0)
    async with listening:
        native = OpencodeAdapter(start({"port": listening.sockets[0].getsockname()[1]}))
        ears = Ears()
        ears.native = native
        watching: Any = native.watch(ears, asyncio.Event(), lambda: None)  # type: ignore[arg-type]
        task = asyncio.ensure_future(watching)
        try:
            yield native, ears
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            for stream in server.streams:
                stream.transport.abort()
    await native.close()


def run(server: Server, test: Callable[[OpencodeAdapter, Ears], Awaitable[None]]) -> None:
    async def main() -> None:
        async with watched(server) as (native, ears):
            await test(native, ears)

    asyncio.run(main())


def begin(server: Server) -> None:
    """The person asks, the model begins to answer."""
    server.answers["/session"] = [SESSION]
    server.say("session.created", info=SESSION)
    server.say("message.updated", info=USER)
    server.say("session.status", sessionID="ses_1", status={"type": "busy"})
    server.say("message.updated", info=ANSWER)
    server.say("message.part.updated", part=text("", ended=False))


def say(server: Server, delta: str) -> None:
    server.say("message.part.delta", partID="prt_1", field="text", delta=delta)


def test_events_are_heard_as_they_come() -> None:
    server = Server()

    async def test(native: OpencodeAdapter, ears: Ears) -> None:
        await until(lambda: native.source.connected)
        assert native.channel is not None and native.channel.available
        begin(server)
        say(server, "One.\nTw")
        await until(lambda: ears.lines == ["One."])
        assert native.source.agent_state is AgentState.BUSY

    run(server, test)


def test_a_stream_that_breaks_off_loses_and_doubles_nothing() -> None:
    server = Server()

    async def test(native: OpencodeAdapter, ears: Ears) -> None:
        await until(lambda: native.source.connected)
        begin(server)
        say(server, "One.\nTw")
        await until(lambda: ears.lines == ["One."])
        server.answers["/session/status"] = {"ses_1": {"type": "busy"}}
        server.answers["/session/ses_1/message"] = [
            {"info": USER, "parts": []},
            {"info": ANSWER, "parts": [text("", ended=False)]},
        ]
        server.hang_up()
        await until(lambda: server.opened == 2 and native.source.connected)
        say(server, "ree.\nFour")
        server.say("message.part.updated", part=text("One.\nTwo.\nThree.\nFour.", ended=True))
        server.say("message.updated", info={**ANSWER, "finish": "stop"})
        await until(lambda: len(ears.lines) == 4)
        assert ears.lines == ["One.", "Two.", "Three.", "Four."]
        assert ears.reasons == []

    run(server, test)


def test_what_lies_after_a_stop_is_handed_over_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(natives, "AT_REST", 0.05)
    server = Server()
    lying = {**USER, "id": "msg_003"}
    parts = [{"type": "text", "text": "Relay [ABC]: look", "id": "prt_3"}]

    async def test(native: OpencodeAdapter, ears: Ears) -> None:
        await until(lambda: native.source.connected)
        begin(server)
        await until(lambda: native.source.conversation == "ses_1")
        assert native.channel is not None
        await native.channel.submit("Relay [ABC]: look", "[ABC]")
        server.answers["/session/ses_1/message/msg_003"] = {"info": lying, "parts": parts}
        server.say("message.updated", info=lying)
        part = {**parts[0], "messageID": "msg_003", "sessionID": "ses_1"}
        server.say("message.part.updated", part=part)
        server.say("session.status", sessionID="ses_1", status={"type": "idle"})
        await until(lambda: len(server.prompts) == 2)
        assert server.deleted == ["/session/ses_1/message/msg_003"]

    run(server, test)


@pytest.mark.parametrize("trouble", ["version", "password"])
def test_a_server_that_is_not_fit_leaves_it_to_the_screen(trouble: str) -> None:
    server = Server()
    server.version = "1.0.0" if trouble == "version" else server.version
    server.refuses = trouble == "password"

    async def test(native: OpencodeAdapter, ears: Ears) -> None:
        await until(lambda: ears.reasons)
        assert not native.source.trusted and native.patience == 0.0
        assert trouble in ears.reasons[0] or "1.0.0" in ears.reasons[0]

    run(server, test)


def test_without_a_server_the_screen_is_heard() -> None:
    async def main() -> None:
        native = OpencodeAdapter(start({"degraded": "--mini has no server"}))
        ears = Ears()
        ears.native = native
        await native.watch(ears, asyncio.Event(), lambda: None)  # type: ignore[arg-type]
        assert native.channel is None and not native.source.trusted
        assert "screen" in ears.reasons[0]
        assert await native.read(ears)  # type: ignore[arg-type]

    asyncio.run(main())


def test_a_server_that_stays_away_is_given_up_and_taken_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(natives, "COME_BACK", 0.05)
    server = Server()

    async def test(native: OpencodeAdapter, ears: Ears) -> None:
        await until(lambda: native.source.connected)
        server.answers["/session"] = None
        broken, server.answers = server.answers, {}
        server.version = ""
        server.__dict__["_answer"] = lambda *asked: b""
        server.hang_up()
        await until(lambda: ears.reasons)
        assert not native.source.trusted
        del server.__dict__["_answer"]
        server.version, server.answers = "1.18.33", broken
        await until(lambda: native.source.trusted and native.source.connected)

    run(server, test)


def test_a_server_that_is_not_understood_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(natives, "SHOW_ITSELF", 0.05)

    async def broken(*asked: Any, **more: Any) -> dict[str, Any]:
        raise TypeError("a number for a list")

    monkeypatch.setattr(natives, "snapshot", broken)

    async def test(native: OpencodeAdapter, ears: Ears) -> None:
        await until(lambda: ears.reasons)
        assert not native.source.trusted
        assert "a number for a list" in ears.notes[0]

    run(Server(), test)
