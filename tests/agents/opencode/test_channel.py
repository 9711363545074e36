"""Handing messages to opencode's server, and what happens when it does not answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from relay.agents.base import ChannelClosed
from relay.agents.opencode import adapter as doors
from relay.agents.opencode.adapter import OpencodeChannel, ServerError
from relay.agents.opencode.source import OpencodeSource
from relay.core.message import AgentState
from tests.agents.opencode.fake_server import NOTHING, Asked, FakeServer, client_of, ok
from tests.agents.opencode.test_source import STARTED, Script

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
def test_what_was_taken_back_is_not_lost_by_a_failure(
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

    async def main() -> None:
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

    asyncio.run(main())
    assert [asked.method for asked in server.asked].count("DELETE") == 1


def test_nothing_is_taken_back_from_a_turn_that_runs() -> None:
    script = Script().session()
    calm = answers()

    def busy(asked: Asked) -> bytes:
        if asked.path == "/session/status":
            return ok({"ses_1": {"type": "busy"}})
        found: bytes = calm(asked)
        return found

    server = FakeServer(busy)

    async def main() -> None:
        async with client_of(server) as client:
            await OpencodeChannel(client, script.source, str).again("ses_1", "msg_1")

    asyncio.run(main())
    assert said_in(server) == [] and all(asked.method == "GET" for asked in server.asked)


def test_what_may_have_arrived_is_looked_for_before_it_is_sent_again() -> None:
    script = Script().session()
    messages: list[Any] = []
    lost = answers(messages, prompt=b"")
    blind = FakeServer(lambda asked: FAILED if asked.method == "GET" else lost(asked))

    async def main() -> None:
        async with client_of(blind) as client:
            door = OpencodeChannel(client, script.source, str)
            for _ in range(2):
                with pytest.raises(ChannelClosed):
                    await door.submit(TEXT, "[ABC]")
            messages.append({"parts": [{"type": "text", "text": TEXT}]})
            blind.answer = lost
            await door.submit(TEXT, "[ABC]")

    asyncio.run(main())
    assert len(said_in(blind)) == 1
