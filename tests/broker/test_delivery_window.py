"""Bursts, slow readers and reconnects: everything arrives, once, in order, in bounded memory."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from relay.broker import delivery_window
from relay.broker.batch import Batch, Job
from relay.broker.client import connect
from relay.broker.connection import OUTPUT_HIGH
from relay.broker.delivery_window import DeliveryWindows
from relay.broker.directory import Directory
from relay.core.message import State
from relay.core.paths import Home
from relay.protocol.agent_ops import AGENT_STATE
from relay.protocol.broker import WINDOW
from relay.protocol.broker_ops import HELLO
from relay.protocol.message_ops import SEND, SHOW, STATE
from tests.broker.support import Json, Session, register, stop_broker

pytestmark = pytest.mark.usefixtures("served")

BURST = 2000


async def test_a_burst_to_one_receiver(home: Home) -> None:
    async with Session(home, "Al") as al, Session(home, "Bob", "run-2") as bob:
        reports: set[asyncio.Task[object]] = set()
        loop = asyncio.get_running_loop()

        def seen(push: Json) -> None:
            report = bob.client.request(STATE, id=push["id"], state="seen", proof="test")
            reports.add(loop.create_task(report))

        bob.on_deliver = seen
        await asyncio.gather(*(al.client.send("Bob", f"{i}") for i in range(BURST)))
        await bob.until(lambda: len(bob.delivered()) >= BURST, timeout=120)
        await asyncio.gather(*reports)
        bodies = [int(push["body"]) for push in bob.delivered()]
        assert bodies == list(range(BURST))
        assert [push["delivery"] for push in bob.delivered()] == list(range(1, BURST + 1))

        def receipts() -> list[Json]:
            return [push for push in al.pushes if push["push"] == "receipt"]

        await al.until(lambda: len(receipts()) >= BURST, timeout=60)
        assert {push["state"] for push in receipts()} == {"seen"}
        assert len({push["id"] for push in receipts()}) == BURST


def test_a_session_has_a_window_of_deliveries_in_hand(home: Home) -> None:
    with connect(home) as client, register(home, "Bob") as bob:
        ids = [client.request(SEND, to="Bob", body="x")["id"] for _ in range(WINDOW + 50)]

        def pushed() -> list[str]:
            bob.request(HELLO)  # what was pushed before its answer is here then
            out = []
            while push := bob.next_push(0):
                out.append(push["id"])
            return out

        assert pushed() == ids[:WINDOW]
        bob.request(STATE, id=ids[0], state="delivering")
        assert pushed() == []  # still in hand
        for id_ in ids[: WINDOW // 2]:
            bob.request(STATE, id=id_, state="seen")
        assert pushed() == ids[WINDOW:]


def test_a_session_that_does_not_read_costs_bounded_memory(home: Home) -> None:
    stop_broker(home)  # its memory is looked at: it must be a process
    size, count = 200_000, 250
    with connect(home) as client, register(home, "Bob") as bob:
        pid = client.request(HELLO)["pid"]
        before = _resident(pid)
        for number in range(count):
            client.request(SEND, to="Bob", body=f"{number} " + "x" * size)
        # 50 MB were sent; the connection's buffer and a few lines are all that may be kept.
        assert _resident(pid) - before < 30_000_000 + 4 * OUTPUT_HIGH
        got: list[int] = []
        while len(got) < count:
            push = bob.next_push(20)
            assert push is not None
            got.append(int(push["body"].split()[0]))
        assert got == list(range(count))


def _resident(pid: int) -> int:
    """Bytes of memory of a process; 0 where the system has no /proc."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
    except FileNotFoundError:
        return 0


async def test_after_a_crash_of_the_broker_everything_open_is_offered_again(home: Home) -> None:
    stop_broker(home)
    async with Session(home, "Al") as al, Session(home, "Bob", "run-2") as bob:
        first = (await al.client.send("Bob", "first"))["id"]
        second = (await al.client.send("Bob", "second"))["id"]
        await bob.until(lambda: len(bob.delivered()) == 2)
        await bob.client.request(STATE, id=first, state="delivering", attempt=1)
        await bob.client.request(STATE, id=first, state="submitted")
        pid = (await al.client.request(HELLO))["pid"]
        os.kill(pid, signal.SIGKILL)
        third = (await al.client.send("Bob", "third"))["id"]
        await bob.until(lambda: len(bob.delivered()) == 5)
        again = bob.delivered()[2:]
        assert [(p["id"], p["state"], p["attempt"]) for p in again] == [
            (first, "submitted", 1),
            (second, "queued", 0),
            (third, "queued", 0),
        ]
        await bob.client.request(STATE, id=first, state="seen", proof="it had landed")
        shown = (await al.client.request(SHOW, id=first))["message"]["deliveries"][0]
        assert (shown["state"], shown["attempts"]) == ("seen", 1)


def test_a_new_run_gets_what_the_last_one_left_open(home: Home) -> None:
    with connect(home) as client:
        with register(home, "Bob") as bob:
            id_ = client.request(SEND, to="Bob", body="x")["id"]
            assert bob.next_push(20) is not None
            bob.request(STATE, id=id_, state="delivering", attempt=1)
            bob.request(AGENT_STATE, state="gone")
        with register(home, "Bob", run="run-2") as bob:
            push = bob.next_push(20)
            assert push is not None and (push["id"], push["attempt"]) == (id_, 1)
            answer = bob.request(STATE, id=id_, state="delivering", attempt=2)
            assert answer["attempts"] == 2


class _Shelf:
    """A ledger whose open deliveries a test writes down: (event, id)."""

    def __init__(self) -> None:
        self.open: list[tuple[int, str]] = []

    def open_deliveries(
        self, recipient: str, after: int, limit: int, max_bytes: int
    ) -> tuple[list[tuple[int, Json]], bool]:
        rows = [(event, {"id": id_, "attempts": 0}) for event, id_ in self.open if event > after]
        return rows[:limit], len(rows) > limit

    def nonce(self, id_: str, recipient: str) -> str:
        return ""


class _Line:
    """A connection that notes what is pushed."""

    paused = False

    def __init__(self) -> None:
        self.got: list[str] = []

    def send(self, line: bytes) -> None:
        self.got.append(json.loads(line)["id"])


def _windows(shelf: _Shelf) -> tuple[DeliveryWindows, list[Job]]:
    """Windows on a shelf, and the jobs that they submit."""
    jobs: list[Job] = []
    committer = SimpleNamespace(submit_job=jobs.append)
    return DeliveryWindows(cast(Any, shelf), Directory(), cast(Any, committer), MagicMock()), jobs


def commit(batch: Batch) -> None:
    for call in batch.after:
        call()


def test_what_is_released_while_the_ledger_is_read_on_is_not_passed_over() -> None:
    shelf, line = _Shelf(), _Line()
    windows, jobs = _windows(shelf)

    def read_on(batch: Batch) -> None:
        jobs.pop(0)(batch)

    shelf.open = [(5, "five")]
    windows.open("Bob", cast(Any, line))
    read_on(batch := Batch(0))
    commit(batch)
    assert line.got == ["five"]
    windows.released("Bob")
    # In one batch: the ledger is read on from the beginning, and the person lets an older one go.
    batch = Batch(0)
    read_on(batch)
    shelf.open = [(3, "three"), (5, "five"), (7, "seven")]
    batch.after.insert(0, lambda: windows.released("Bob"))
    commit(batch)
    while jobs:
        read_on(batch := Batch(0))
        commit(batch)
    assert line.got == ["five", "three", "seven"]


def test_a_window_is_read_on_past_what_the_session_has_in_hand() -> None:
    shelf, line = _Shelf(), _Line()
    windows, jobs = _windows(shelf)
    shelf.open = [(event, str(event)) for event in range(1, WINDOW + 50)]
    windows.open("Bob", cast(Any, line))
    for turn in range(2 * WINDOW):
        if jobs:
            jobs.pop(0)(batch := Batch(0))
            commit(batch)
        if turn == 2:
            windows.settled("Bob", shelf.open.pop(0)[1], State.SEEN)
            windows.released("Bob")
    assert not jobs  # it does not look for ever at the first, which are in hand
    assert line.got == [str(event) for event in range(1, WINDOW + 2)]


async def test_after_a_failed_commit_a_window_is_read_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery_window, "_AGAIN_AFTER", 0.0)
    shelf, line = _Shelf(), _Line()
    windows, jobs = _windows(shelf)
    shelf.open = [(1, "one")]
    windows.open("Bob", cast(Any, line))
    jobs.pop(0)(batch := Batch(0))
    for call in batch.on_failure:
        call()
    async with asyncio.timeout(20):
        while not jobs:
            await asyncio.sleep(0)
    jobs.pop(0)(batch := Batch(0))
    commit(batch)
    assert line.got == ["one"]
