"""The session's client: it reconnects, repeats, and says when it cannot."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from relay.broker import async_client
from relay.core.errors import BrokerUnavailable, NameTaken, RelayError, UsageError
from relay.core.paths import Home
from relay.protocol.broker_ops import HELLO
from relay.protocol.message_ops import HISTORY, WAIT
from tests.broker.support import Json, Session, registration


def test_requests_survive_the_brokers_death(home: Home) -> None:
    async def play() -> None:
        async with Session(home, "Al") as al:
            pids = set()
            for round_ in range(3):
                pid = (await al.client.request(HELLO))["pid"]
                pids.add(pid)
                sends = [
                    asyncio.ensure_future(al.client.send("Bob", f"{round_} {number}"))
                    for number in range(50)
                ]
                await sends[0]
                os.kill(pid, signal.SIGKILL)
                await asyncio.gather(*sends)
            assert len(pids) == 3
            rows = (await al.client.request(HISTORY))["rows"]
            expected = [f"{round_} {number}" for round_ in range(3) for number in range(50)]
            assert [row["body"] for row in rows] == expected
            assert {row["from"] for row in rows} == {"Al"}
            assert al.problems == []

    asyncio.run(play())


def test_refusals_are_raised_as_what_they_are(home: Home) -> None:
    async def play() -> None:
        async with Session(home, "Al") as al:
            with pytest.raises(UsageError, match="yourself"):
                await al.client.send("Al", "x")
            with pytest.raises(RelayError, match="surrogate"):
                await al.client.send("Bob", "\udc00")
            with pytest.raises(NameTaken):
                async with Session(home, "al", "run-2"):
                    raise AssertionError("a name was given twice")

    asyncio.run(play())


def test_a_full_outbox_waits_and_then_says_so(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(async_client, "OUTBOX_MAX", 2)

    async def play() -> None:
        async with Session(home, "Al") as al:
            pid = (await al.client.request(HELLO))["pid"]
            os.kill(pid, signal.SIGSTOP)
            try:
                stuck = [asyncio.ensure_future(al.client.send("Bob", f"{i}")) for i in range(2)]
                await asyncio.sleep(0)  # both take their place
                with pytest.raises(RelayError, match="in time"):
                    await al.client.send("Bob", "no room", deadline=0.1)
            finally:
                os.kill(pid, signal.SIGCONT)
            await asyncio.gather(*stuck)
            await al.client.send("Bob", "room again")
            rows = (await al.client.request(HISTORY))["rows"]
            assert [row["body"] for row in rows] == ["0", "1", "room again"]

    asyncio.run(play())


def test_the_connection_is_reported(home: Home) -> None:
    async def play() -> None:
        states: list[bool] = []
        changed = asyncio.Event()

        def connected(state: bool) -> None:
            states.append(state)
            changed.set()

        pushes: list[Json] = []
        client = async_client.AsyncClient(home, on_push=pushes.append, on_connected=connected)
        await client.open()
        await client.register(**registration("Al"))
        pid = (await client.request(HELLO))["pid"]
        os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(30):
            while states != [True, False, True]:
                changed.clear()
                await changed.wait()
        await client.close()
        assert states == [True, False, True, False]

    asyncio.run(play())


def test_a_broker_that_cannot_start_is_a_clear_error(home: Home) -> None:
    home.create()
    with open(home.ledger, "w", encoding="ascii") as file:
        file.write("no database")

    async def play() -> None:
        client = async_client.AsyncClient(home, on_push=lambda _: None)
        with pytest.raises(RelayError, match="not a ledger"):
            await client.open()
        await client.close()

    asyncio.run(play())


def test_without_a_broker_a_request_ends_in_time(home: Home) -> None:
    async def play() -> None:
        async with Session(home, "Al") as al:
            al.client._start = False
            os.kill((await al.client.request(HELLO))["pid"], signal.SIGKILL)
            with pytest.raises(BrokerUnavailable, match="in time"):
                await al.client.send("Bob", "x", deadline=0.3)
            assert any("no broker" in problem.message for problem in al.problems)

    asyncio.run(play())


def test_closing_ends_who_waits(home: Home) -> None:
    async def play() -> None:
        async with Session(home, "Al") as al:
            id_ = (await al.client.send("Bob", "x"))["id"]
            waits = asyncio.ensure_future(al.client.request(WAIT, id=id_, timeout=60))
            await al.client.request(HELLO)
        with pytest.raises(BrokerUnavailable, match="closed"):
            await waits
        with pytest.raises(BrokerUnavailable, match="closed"):
            await al.client.request(HELLO)

    asyncio.run(play())
