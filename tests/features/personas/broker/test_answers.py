"""What personas answer, on its way back: rows as the turn engine writes them, and a channel."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from types import SimpleNamespace
from typing import Any

import pytest

from relay.broker.client import connect
from relay.broker.committer import Committer
from relay.broker.delivery_window import DeliveryWindows
from relay.broker.directory import Directory
from relay.broker.door import BrokerFeature
from relay.broker.loop_guard import HeldMessages, LoopGuard
from relay.broker.ops_delivery import DeliveryOps
from relay.broker.watchers import Watchers
from relay.core.agent_names import owner_name
from relay.core.dispatch import FULL, BrokerDispatch, DeliveryContext
from relay.core.errors import RelayError
from relay.core.message import QueueMode
from relay.core.paths import Home
from relay.features.personas import answers, dispatch_rows
from relay.features.personas.answers import AnswerDeliveries
from relay.features.personas.ops import DISPATCH, DISPATCHES
from relay.ledger.store import Ledger
from relay.protocol.broker import Json
from relay.protocol.message_ops import INBOX
from tests.broker.support import LineLog, broker_thread, held, kernel_of, message_id, register

EVENT = message_id(7)
SECRET = "sk-ant-api03-" + "abcdefghij" * 4


def answered(
    ledger: Ledger,
    *texts: str,
    channel: str = "relay",
    sender: str = "",
    hops: int = 0,
    now_ms: int = 0,
) -> list[str]:
    """Rows of an event, a dispatch of it and its answers; the answers' ids."""
    sender = sender or owner_name()
    ids = []
    ledger.begin()
    for number, text in enumerate(texts, now_ms):
        seq = ledger.next_seq()
        event = message_id(100 + seq)
        ledger.add([(seq, event, "message", sender, "person", None, "t", "hi", None, seq)], [])
        dispatch = BrokerDispatch(
            id=message_id(1000 + seq),
            hook_id="user/one",
            persona="atlas",
            session="main",
            queue_mode=QueueMode.FOLLOWUP,
            permissions=FULL,
            delivery_context=DeliveryContext(channel, reply_to=event),
        )
        dispatch_rows.add_dispatches(
            ledger, seq, [dispatch], config="user", hops=hops, now_ms=number
        )
        with ledger.guard() as db:
            db.execute(
                "INSERT INTO answers (id, turn, dispatch, channel, delivery_json, content, open,"
                " state, due_ms, created_ms, updated_ms) VALUES (?,NULL,?,?,?,?,1,'queued',?,?,?)",
                (
                    *(message_id(2000 + seq), dispatch.id, channel),
                    *(json.dumps(dispatch.delivery_context.to_json()), text),
                    *(number, number, number),
                ),
            )
        ids.append(dispatch.id)
    ledger.commit()
    return ids


def test_an_answer_reaches_who_asked_and_only_once(home: Home) -> None:
    home.create()
    ledger = Ledger(home.ledger)
    answered(ledger, "forty-two")
    answered(ledger, "to Bob", sender="Bob", hops=3)
    answered(ledger, "to myself", sender="atlas")
    answered(ledger, "nobody here asked", sender="relay")
    answered(ledger, "the clock asked", sender="relay", channel="timer")
    ledger.close()
    for _ in range(2):  # the second broker finds nothing left to do
        with broker_thread(home):
            with register(home, "Bob") as bob:
                got = bob.next_push(20)
                assert got is not None and got["from"] == "atlas" and got["body"] == "to Bob"
            with connect(home) as client:
                rows = client.request(INBOX)["rows"]
                assert [(row["from"], row["body"], row["thread"]) for row in rows] == [
                    ("atlas", "forty-two", "t"),
                    ("atlas", "nobody here asked", "t"),
                    ("atlas", "the clock asked", "t"),
                ]


def test_what_goes_on_without_a_person_is_held(home: Home) -> None:
    with broker_thread(home), register(home, "Bob"):
        ledger = Ledger(home.ledger)
        answered(ledger, "and on", sender="Bob", hops=20)
        ledger.close()
    with broker_thread(home), connect(home) as client:
        [item] = held(client)
        assert (item["agent"], item["details"]["to"]) == ("atlas", ["Bob"])
        assert item["about"][0].startswith("21 messages followed from one another")


class Channel:
    """A channel whose adapter does as it is told."""

    def __init__(self, does: Callable[[Json], object] = lambda _: None) -> None:
        self.sent: list[Json] = []
        self._does = does

    async def send(self, channel: str, answer: Json, limit: float) -> None:
        self.sent.append(answer)
        done = self._does(answer)
        if isinstance(done, asyncio.Future | asyncio.Event):
            await (done.wait() if isinstance(done, asyncio.Event) else done)


@asynccontextmanager
async def deliveries(
    ledger: Ledger, channel: Channel, clock: list[int]
) -> AsyncIterator[AnswerDeliveries]:
    directory = Directory()

    log = LineLog()
    committer = Committer(ledger, log=log, ledger_failed=lambda e: None, now_ms=lambda: clock[0])
    unheard: Any = SimpleNamespace(wants=lambda event: False)
    watchers = Watchers(ledger, directory, unheard, lambda: clock[0])
    kernel = kernel_of(
        ledger=ledger,
        committer=committer,
        directory=directory,
        windows=DeliveryWindows(ledger, directory, committer, watchers),
        watchers=watchers,
        features=BrokerFeature(),
        log=log,
    )
    ops = DeliveryOps(kernel)
    held = HeldMessages(kernel, ops, LoopGuard())
    made = AnswerDeliveries(kernel, held, channel)
    made.wake()
    yield made
    await made.close()


async def until(check: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not check():
            await asyncio.sleep(0)


def states(ledger: Ledger) -> list[tuple[str, int]]:
    with ledger.guard() as db:
        return db.execute("SELECT state, attempts FROM answers ORDER BY created_ms").fetchall()


@pytest.fixture
def ledger(home: Home) -> Ledger:
    home.create()
    return Ledger(home.ledger)


async def test_a_channel_gets_what_goes_to_one_place_in_order(ledger: Ledger) -> None:
    answered(ledger, "one", "two", channel="mail", sender="ann")
    answered(ledger, "three", channel="mail", sender="ben")

    gate = asyncio.Event()
    channel = Channel(lambda answer: gate if answer["text"] == "one" else None)
    async with deliveries(ledger, channel, [1000]):
        await until(lambda: len(channel.sent) == 2)
        assert {one["text"] for one in channel.sent} == {"one", "three"}
        gate.set()
        await until(lambda: len(channel.sent) == 3)
        await until(lambda: all(state == "sent" for state, _ in states(ledger)))
    first = channel.sent[0]
    assert (first["to"], first["persona"], first["attempt"]) == ("ann", "atlas", 0)
    assert first["context"]["channel"] == "mail" and first["context"]["reply_to"]


async def test_a_failed_try_is_followed_by_others_until_it_is_dead(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered(ledger, "never", channel="mail", sender="ann")
    monkeypatch.setattr(answers, "TRIES_MAX", 3)

    def refuse(_: Json) -> None:
        raise RelayError(f"the mailbox is full: {SECRET}")

    clock = [1000]
    channel = Channel(refuse)
    async with deliveries(ledger, channel, clock) as made:
        await until(lambda: states(ledger) == [("queued", 1)])
        made.wake()  # nothing is tried before its time
        for _ in range(3):
            await asyncio.sleep(0)
        assert len(channel.sent) == 1
        clock[0] += 1000
        made.wake()
        await until(lambda: states(ledger) == [("queued", 2)])
        clock[0] += 2000
        made.wake()
        await until(lambda: states(ledger) == [("dead", 3)])
    assert [one["attempt"] for one in channel.sent] == [0, 1, 2]
    with ledger.guard() as db:
        told = db.execute(
            "SELECT body FROM events e JOIN deliveries d ON d.event = e.seq WHERE d.recipient=?",
            (owner_name(),),
        ).fetchone()[0]
    assert "the mailbox is full" in told and "never" in told and SECRET not in told


async def test_an_answer_under_way_at_a_kill_is_tried_again_and_marked(ledger: Ledger) -> None:
    answered(ledger, "maybe twice", channel="mail", sender="ann")
    row = answers.open_answers(ledger, 1)[0]
    answers.sending(ledger, row.id, 61_000, 1000)
    ledger.commit()  # and here the broker was killed

    clock = [2000]
    channel = Channel()
    async with deliveries(ledger, channel, clock) as made:
        for _ in range(3):
            await asyncio.sleep(0)
        assert channel.sent == []  # who was asked may be at it still
        clock[0] = 61_000
        made.wake()
        await until(lambda: states(ledger) == [("sent", 2)])
    assert [one["attempt"] for one in channel.sent] == [1]


def test_a_persona_is_asked_in_full_and_the_secret_is_shown_to_nobody_else(home: Home) -> None:
    body = f"deploy with {SECRET}, please"
    with broker_thread(home), connect(home) as client:
        id_ = client.request(DISPATCH, persona="atlas", body=body)["id"]
        assert SECRET not in json.dumps(client.request(DISPATCHES))
    with closing(Ledger(home.ledger)) as ledger:
        assert [row.body for row in dispatch_rows.rows_of(ledger, [id_])] == [body]
