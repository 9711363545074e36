"""Following one opencode's server, asking it, and handing messages over."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from relay.agents.base import AgentStart, ChannelClosed
from relay.agents.opencode import adapter as doors
from relay.agents.opencode import adapter as natives
from relay.agents.opencode.adapter import (
    OpencodeAdapter,
    OpencodeChannel,
    OpencodeClient,
    ServerError,
    client_from,
)
from relay.agents.opencode.source import OpencodeSource
from relay.core.message import AgentState
from relay.core.source_events import Degraded, Line, SourceEvent
from tests.agents.opencode.test_source import STARTED, Script


@dataclass
class Asked:
    """One request."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class FakeServer:
    """``answer(asked)`` gives the bytes of the whole answer; after them it hangs up, unless
    ``stays``."""

    answer: Callable[[Asked], bytes]
    stays: bool = False
    asked: list[Asked] = field(default_factory=list)

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            method, path, _ = head[0].split(" ")
            headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in head[1:])}
            body = await reader.readexactly(int(headers.get("content-length", 0)))
            asked = Asked(method, path, headers, json.loads(body) if body else None)
            self.asked.append(asked)
            writer.write(self.answer(asked))
            await writer.drain()
            if self.stays:
                await reader.read()
        finally:
            writer.close()


def ok(value: Any) -> bytes:
    """An answer with JSON."""
    content = json.dumps(value).encode()
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(content), content)


NOTHING = b"HTTP/1.1 204 No Content\r\n\r\n"


@asynccontextmanager
async def client_of(
    server: FakeServer, password: str = "", host: str = "127.0.0.1"
) -> AsyncIterator[OpencodeClient]:
    """A client of this server."""
    listening = await asyncio.start_server(server, host, 0)
    async with listening:
        port = listening.sockets[0].getsockname()[1]
        yield OpencodeClient(host, port, "opencode", password)


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

    def reported(self, events: list[SourceEvent]) -> None:
        self.events += events

    def give_up(self, reason: str) -> None:
        assert self.native is not None
        self.events += self.native.source.failed(reason)

    def note(self, reason: str) -> None:
        self.notes.append(reason)

    def read(self) -> None:
        pass

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
        watching: Any = native.watch(ears)  # type: ignore[arg-type]
        task = asyncio.ensure_future(watching)
        try:
            yield native, ears
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            for stream in server.streams:
                stream.transport.abort()
    await native.close()


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


async def test_events_are_heard_as_they_come() -> None:
    server = Server()
    async with watched(server) as (native, ears):
        await until(lambda: native.source.connected)
        assert native.channel is not None and native.channel.available
        begin(server)
        say(server, "One.\nTw")
        await until(lambda: ears.lines == ["One."])
        assert native.source.agent_state is AgentState.BUSY


async def test_a_stream_that_breaks_off_loses_and_doubles_nothing() -> None:
    server = Server()
    async with watched(server) as (native, ears):
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


async def test_what_lies_after_a_stop_is_handed_over_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(natives, "AT_REST", 0.05)
    server = Server()
    lying = {**USER, "id": "msg_003"}
    parts = [{"type": "text", "text": "Relay [ABC]: look", "id": "prt_3"}]
    async with watched(server) as (native, ears):
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


@pytest.mark.parametrize("trouble", ["version", "password"])
async def test_a_server_that_is_not_fit_leaves_it_to_the_screen(trouble: str) -> None:
    server = Server()
    server.version = "1.0.0" if trouble == "version" else server.version
    server.refuses = trouble == "password"
    async with watched(server) as (native, ears):
        await until(lambda: ears.reasons)
        assert not native.source.trusted and native.patience == 0.0
        assert trouble in ears.reasons[0] or "1.0.0" in ears.reasons[0]


async def test_a_server_that_stays_away_is_given_up_and_taken_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(natives, "COME_BACK", 0.05)
    server = Server()
    async with watched(server) as (native, ears):
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


TEXT = "Relay message [ABC] from agent Bob: look"
AGENTS = [
    {"name": "build", "mode": "primary"},
    {"name": "plan", "mode": "primary"},
    {"name": "general", "mode": "subagent"},
]
FAILED = b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n"


def answers(messages: list[Any] | None = None, prompt: bytes = NOTHING) -> Any:
    def answer(asked: Asked) -> bytes:
        if asked.path.endswith("/prompt_async"):
            return prompt
        if asked.path == "/session" and asked.method == "POST":
            return ok({"id": "ses_new"})
        if asked.path == "/agent":
            return ok(AGENTS)
        if asked.path == "/session/status":
            return ok({})
        if asked.path.startswith("/session/ses_1/message/"):
            parts = [{"type": "text", "text": TEXT}]
            return ok({"info": {}, "parts": parts}) if asked.method == "GET" else ok(True)
        return ok(messages or [] if "/message" in asked.path else True)

    return answer


def submit(server: FakeServer, source: OpencodeSource, shown: str = "") -> None:
    async def main() -> None:
        async with client_of(server) as client:
            await OpencodeChannel(client, source, lambda: shown).submit(TEXT, "[ABC]")

    asyncio.run(main())


def said_in(server: FakeServer) -> list[tuple[str, Any]]:
    return [(a.path, a.body) for a in server.asked if a.path.endswith("/prompt_async")]


def test_it_goes_where_the_person_is_as_the_agent_they_use() -> None:
    script = Script().session()
    script.user("hi", agent="build", model={"providerID": "m", "modelID": "x"})
    server = FakeServer(answers())
    submit(server, script.source, "Plan")
    [(path, body)] = said_in(server)
    assert path == "/session/ses_1/prompt_async"
    assert body["parts"] == [{"type": "text", "text": TEXT}]
    assert body["agent"] == "plan"
    assert body["model"] == {"providerID": "m", "modelID": "x"}


@pytest.mark.parametrize("shown", ["", "General", "Nobody"])
def test_an_agent_that_cannot_be_told_is_the_last_one(shown: str) -> None:
    script = Script().session()
    script.user("hi", agent="build")
    server = FakeServer(answers())
    submit(server, script.source, shown)
    assert said_in(server)[0][1]["agent"] == "build"


def test_without_a_session_one_is_made_and_shown() -> None:
    server = FakeServer(answers())
    submit(server, Script().source)
    assert [asked.path for asked in server.asked] == [
        "/session",
        "/tui/select-session",
        "/session/ses_new/prompt_async",
    ]
    assert server.asked[1].body == {"sessionID": "ses_new"}


def test_what_is_there_already_is_not_sent_again() -> None:
    script = Script().session()
    script.user(TEXT)
    server = FakeServer(answers())
    submit(server, script.source)
    assert server.asked == []


def test_a_lost_answer_is_looked_for_and_found() -> None:
    script = Script().session()
    there = [{"info": {"id": "msg_1"}, "parts": [{"type": "text", "text": TEXT}]}]
    server = FakeServer(answers(there, prompt=b""))
    submit(server, script.source)
    assert len(said_in(server)) == 1


def test_what_did_not_arrive_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doors, "ARRIVAL", 0.05)
    for prompt in (b"", FAILED):
        with pytest.raises(ChannelClosed):
            submit(FakeServer(answers(prompt=prompt)), Script().session().source)


def test_it_is_open_while_connected_and_nothing_is_asked() -> None:
    source = OpencodeSource(STARTED)

    async def main() -> list[bool]:
        async with client_of(FakeServer(answers())) as client:
            door = OpencodeChannel(client, source, str)
            found = [door.available]
            script = Script(source).session()
            found.append(door.available)
            script.event("permission.asked", id="per_1", sessionID="ses_1", permission="bash")
            assert source.agent_state is AgentState.BLOCKED
            found.append(door.available)
            return found

    assert asyncio.run(main()) == [False, True, False]


def test_what_lies_is_taken_back_and_handed_over_again_three_times() -> None:
    script = Script().session()
    server = FakeServer(answers())

    async def main() -> None:
        async with client_of(server) as client:
            door = OpencodeChannel(client, script.source, str)
            assert not door.lies(TEXT)
            await door.submit(TEXT, "[ABC]")
            for _ in range(3):
                assert door.lies(TEXT)
                await door.again("ses_1", "msg_1")
            assert not door.lies(TEXT)
            after = OpencodeChannel(client, script.source, str)
            after.restore(door.state())
            assert not after.lies(TEXT)

    asyncio.run(main())
    assert [a.method for a in server.asked if a.path.endswith("/msg_1")] == ["GET", "DELETE"] * 3
    assert [body["parts"][0]["text"] for _, body in said_in(server)] == [TEXT] * 4


@pytest.mark.parametrize("trouble", [FAILED, b""])
async def test_what_was_taken_back_is_not_lost_by_a_failure(
    trouble: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doors, "INSIST_PAUSE", 0.0)
    monkeypatch.setattr(doors, "ARRIVAL", 0.0)
    script, calm = Script().session(), answers()
    failures = 0

    def failing(asked: Asked) -> bytes:
        nonlocal failures
        if asked.path.endswith("/prompt_async") and failures < 2:
            failures += 1
            return trouble
        found: bytes = calm(asked)
        return found

    server = FakeServer(calm)
    async with client_of(server) as client:
        shown = ""
        door = OpencodeChannel(client, script.source, lambda: shown)
        await door.submit(TEXT, "[ABC]")
        server.answer = failing
        await door.again("ses_1", "msg_1")
        assert failures == 2 and len(said_in(server)) == 4
        server.answer, shown = lambda a: FAILED if a.path == "/agent" else calm(a), "Plan"
        with pytest.raises(ServerError):
            await door.again("ses_1", "msg_1")
    assert [asked.method for asked in server.asked].count("DELETE") == 1


async def test_nothing_is_taken_back_from_a_turn_that_runs() -> None:
    script = Script().session()
    calm = answers()

    def busy(asked: Asked) -> bytes:
        if asked.path == "/session/status":
            return ok({"ses_1": {"type": "busy"}})
        found: bytes = calm(asked)
        return found

    server = FakeServer(busy)
    async with client_of(server) as client:
        await OpencodeChannel(client, script.source, str).again("ses_1", "msg_1")
    assert said_in(server) == [] and all(asked.method == "GET" for asked in server.asked)


async def test_what_may_have_arrived_is_looked_for_before_it_is_sent_again() -> None:
    script = Script().session()
    messages: list[Any] = []
    lost = answers(messages, prompt=b"")
    blind = FakeServer(lambda asked: FAILED if asked.method == "GET" else lost(asked))
    async with client_of(blind) as client:
        door = OpencodeChannel(client, script.source, str)
        for _ in range(2):
            with pytest.raises(ChannelClosed):
                await door.submit(TEXT, "[ABC]")
        messages.append({"parts": [{"type": "text", "text": TEXT}]})
        blind.answer = lost
        await door.submit(TEXT, "[ABC]")
    assert len(said_in(blind)) == 1


async def get(server: FakeServer, password: str = "", deadline: float = 5.0) -> object:
    async with client_of(server, password) as client:
        return await client.request("GET", "/x", deadline=deadline)


@pytest.mark.parametrize(
    "answer",
    [b"", b"SSH-2.0-OpenSSH\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n{broken"],
    ids=["nothing", "no HTTP", "no JSON"],
)
def test_what_is_no_answer_may_have_been_understood(answer: bytes) -> None:
    with pytest.raises(ServerError, match="opencode's server: ") as caught:
        asyncio.run(get(FakeServer(lambda asked: answer)))
    assert caught.value.sent


def test_a_refusal_says_what_was_refused() -> None:
    refusal = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 2\r\n\r\nno"
    with pytest.raises(ServerError, match="401 no") as caught:
        asyncio.run(get(FakeServer(lambda asked: refusal)))
    assert (caught.value.sent, caught.value.status) == (False, 401)


def test_nobody_there_means_nothing_was_sent() -> None:
    async def main() -> None:
        listening = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        listening.close()
        await listening.wait_closed()
        await OpencodeClient("127.0.0.1", port).request("GET", "/x")

    with pytest.raises(ServerError) as caught:
        asyncio.run(main())
    assert not caught.value.sent


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n", 401),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\nab", 0),
    ],
    ids=["refused", "broken off"],
)
def test_a_stream_that_does_not_go_on_is_an_error(answer: bytes, status: int) -> None:
    async def main() -> None:
        server = FakeServer(lambda asked: answer)
        async with client_of(server) as client, client.stream("/event") as events:
            while await events.read():
                pass

    with pytest.raises(ServerError) as caught:
        asyncio.run(main())
    assert caught.value.status == status


async def test_the_server_is_read_from_the_plan() -> None:
    assert client_from({}) is None
    assert client_from({"port": 0}) is None
    server = FakeServer(lambda asked: NOTHING)
    async with client_of(server) as known:
        port = int(known.address.rpartition(":")[2])
        client = client_from({"port": port, "username": "u", "password": "p"})
        assert client is not None
        await client.request("GET", "/x")
    pair = base64.b64encode(b"u:p").decode()
    assert server.asked[0].headers["authorization"] == f"Basic {pair}"


async def test_without_a_server_the_screen_is_heard() -> None:
    native = OpencodeAdapter(start({"degraded": "--mini has no server"}))
    ears = Ears()
    ears.native = native
    await native.watch(ears)  # type: ignore[arg-type]
    assert native.channel is None and not native.source.trusted
    assert "screen" in ears.reasons[0]
    assert await native.read(ears)  # type: ignore[arg-type]


async def test_a_server_that_is_not_understood_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(natives, "SHOW_ITSELF", 0.05)

    async def broken(*asked: Any, **more: Any) -> dict[str, Any]:
        raise TypeError("a number for a list")

    monkeypatch.setattr(natives, "snapshot", broken)
    async with watched(Server()) as (native, ears):
        await until(lambda: ears.reasons)
        assert not native.source.trusted
        assert "a number for a list" in ears.notes[0]
