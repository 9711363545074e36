"""Both clients against brokers that leave them without an answer, or end while they ask."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from relay.broker import async_client
from relay.broker.client import connect
from relay.cli.status import broker_status
from relay.core.build import build
from relay.core.errors import (
    EXIT_FAILED,
    BrokerUnavailable,
    NameTaken,
    RelayError,
    StorageError,
    UsageError,
)
from relay.core.paths import Home
from relay.protocol.broker import PROTOCOL, Json, decode, encode, refusal
from relay.protocol.broker_ops import HELLO
from relay.protocol.message_ops import HISTORY, SEND, WAIT
from tests.broker.support import Session
from tests.support import unchecked

#: What a broker does with a request that is no hello: the line to answer, or None to hang up.
Answer = Callable[[Json], bytes | None]


@contextmanager
def broker(home: Home, answer: Answer, *, greets: bool = True) -> Iterator[list[Json]]:
    """A broker that greets as it should; gives the other requests, which ``answer`` answers."""
    home.create()
    asked: list[Json] = []
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(home.broker_socket)
    listener.listen()

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as lines:
                for line in lines:
                    record = decode(line)
                    if not greets:
                        continue
                    if record["op"] == "hello":
                        hello = {"protocol": PROTOCOL, "version": "0", "pid": 1}
                        connection.sendall(encode({"n": record["n"], "ok": True, **hello}))
                        continue
                    asked.append(record)
                    reply = answer(record)
                    if reply is None:
                        break
                    connection.sendall(reply)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield asked
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(20)


def silent(record: Json) -> bytes:
    return b""


def hangs_up(record: Json) -> None:
    return None


@pytest.mark.parametrize("answer", [silent, hangs_up], ids=["hangs", "killed"])
def test_a_send_without_an_answer_does_not_end_like_one_that_is_stored(
    home: Home, answer: Answer
) -> None:
    with (
        broker(home, answer) as asked,
        connect(home) as client,
        pytest.raises(BrokerUnavailable, match="nobody knows whether") as failure,
    ):
        client.request(SEND, to="Bob", body="x", deadline=0.5)
    assert failure.value.exit_status == EXIT_FAILED
    # What was asked again had the same id, and that is what to look for.
    (id_,) = {one["id"] for one in asked}
    assert id_ in failure.value.hint


def test_a_refusal_after_a_broken_connection_says_nothing_of_the_first_try(home: Home) -> None:
    tries: list[Json] = []

    def full_the_second_time(record: Json) -> bytes | None:
        tries.append(record)
        return refusal(record["n"], StorageError("the disk is full")) if tries[1:] else None

    with (
        broker(home, full_the_second_time),
        connect(home) as client,
        pytest.raises(BrokerUnavailable, match="the disk is full; nobody knows whether"),
    ):
        client.request(SEND, to="Bob", body="x")


def test_a_refusal_is_what_it_says(home: Home) -> None:
    def full(record: Json) -> bytes:
        return refusal(record["n"], StorageError("the disk is full"))

    with broker(home, full), connect(home) as client, pytest.raises(StorageError) as failure:
        client.request(SEND, to="Bob", body="x")
    assert str(failure.value) == "the disk is full" and isinstance(failure.value, RelayError)


def test_an_older_broker_that_does_not_know_a_request_is_named(home: Home) -> None:
    def older(record: Json) -> bytes:
        error = UsageError(f"this broker knows no op {record['op']!r}")
        return refusal(record["n"], error)

    says = f"is of relay 0, this command of {re.escape(build())}"
    with (
        broker(home, older),
        connect(home) as client,
        pytest.raises(BrokerUnavailable, match=says) as failure,
    ):
        unchecked(client).request("something_new")
    assert "relay broker stop" in failure.value.hint


def test_a_broker_that_does_not_even_greet_is_no_timeout(home: Home) -> None:
    with (
        broker(home, silent, greets=False) as asked,
        pytest.raises(BrokerUnavailable, match="does not answer") as failure,
    ):
        connect(home, deadline=0.3)
    assert failure.value.exit_status == EXIT_FAILED and asked == []


def test_what_an_older_broker_does_not_tell_of_its_status_is_nothing(home: Home) -> None:
    told: Json = {
        **{"running": True, "pid": 1, "socket": "", "home": "", "version": "0", "uptime_s": 1.0},
        **{"counts": {"events": 7}, "agents": [], "parked": 2},
    }

    def older(record: Json) -> bytes:
        return encode({"n": record["n"], "ok": True, **told})

    with broker(home, older):
        found = broker_status(home)
    assert (found["counts"], found["held"], found["dispatches"]) == ({"events": 7}, 2, {})


async def test_requests_survive_the_brokers_death(home: Home) -> None:
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


async def test_refusals_are_raised_as_what_they_are(home: Home) -> None:
    async with Session(home, "Al") as al:
        with pytest.raises(UsageError, match="yourself"):
            await al.client.send("Al", "x")
        with pytest.raises(RelayError, match="surrogate"):
            await al.client.send("Bob", "\udc00")
        with pytest.raises(NameTaken):
            async with Session(home, "al", "run-2"):
                raise AssertionError("a name was given twice")


async def test_a_full_outbox_waits_and_then_says_so(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(async_client, "OUTBOX_MAX", 2)
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


async def test_a_broker_that_cannot_start_is_a_clear_error(home: Home) -> None:
    home.create()
    with open(home.ledger, "w", encoding="ascii") as file:
        file.write("no database")
    client = async_client.AsyncClient(home, on_push=lambda _: None)
    with pytest.raises(RelayError, match="not a ledger"):
        await client.open()
    await client.close()


async def test_without_a_broker_a_request_ends_in_time(home: Home) -> None:
    async with Session(home, "Al") as al:
        al.client._start = False
        os.kill((await al.client.request(HELLO))["pid"], signal.SIGKILL)
        with pytest.raises(BrokerUnavailable, match="in time"):
            await al.client.send("Bob", "x", deadline=0.3)
        assert any("no broker" in problem.message for problem in al.problems)


async def test_closing_ends_who_waits(home: Home) -> None:
    async with Session(home, "Al") as al:
        id_ = (await al.client.send("Bob", "x"))["id"]
        waits = asyncio.ensure_future(al.client.request(WAIT, id=id_, timeout=60))
        await al.client.request(HELLO)
    with pytest.raises(BrokerUnavailable, match="closed"):
        await waits
    with pytest.raises(BrokerUnavailable, match="closed"):
        await al.client.request(HELLO)
