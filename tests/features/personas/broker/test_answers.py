"""What personas answer, on its way back: rows as the turn engine writes them, and a channel."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from relay.broker.client import connect
from relay.broker.server import wall_ms
from relay.core.agent_names import owner_name
from relay.core.dispatch import FULL, BrokerDispatch, DeliveryContext
from relay.core.message import QueueMode
from relay.core.paths import Home
from relay.features.personas import answers, dispatch_rows
from relay.features.personas.ops import DISPATCH, DISPATCHES
from relay.ledger.store import Ledger
from relay.protocol.message_ops import INBOX
from tests.broker.fixtures import Configure
from tests.broker.support import broker_thread, held, message_id, register
from tests.support import wait_until

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


#: An adapter that writes down what it sends, after it has done what a test wants.
MAIL = """
import asyncio, pathlib
folder = pathlib.Path({folder!r})

@relay.adapter("mail").send
async def post(context, text):
    with open(folder / "sent", "a") as file:
        print(context.to, context.persona, context.attempt, text, file=file)
    {does}
"""


def sent(folder: Path) -> list[str]:
    file = folder / "sent"
    return file.read_text().splitlines() if file.exists() else []


def states(home: Home) -> list[tuple[str, int]]:
    with closing(Ledger(home.ledger)) as ledger, ledger.guard() as db:
        return db.execute("SELECT state, attempts FROM answers ORDER BY created_ms").fetchall()


def test_a_channel_gets_what_goes_to_one_place_in_order(
    home: Home, configure: Configure, tmp_path: Path
) -> None:
    waits = "while text == 'one' and not (folder / 'go').exists(): await asyncio.sleep(0.01)"
    configure(MAIL.format(folder=str(tmp_path), does=waits))
    home.create()
    with closing(Ledger(home.ledger)) as ledger:
        answered(ledger, "one", "two", channel="mail", sender="ann", now_ms=wall_ms())
        answered(ledger, "three", channel="mail", sender="ben", now_ms=wall_ms())
    with broker_thread(home):
        wait_until(lambda: sorted(sent(tmp_path)) == ["ann atlas 0 one", "ben atlas 0 three"])
        (tmp_path / "go").touch()
        wait_until(lambda: sent(tmp_path)[2:] == ["ann atlas 0 two"])
        wait_until(lambda: states(home) == [("sent", 1)] * 3)


def test_a_failed_try_is_followed_by_others_until_it_is_dead(
    home: Home, configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "TRIES_MAX", 3)
    monkeypatch.setattr(answers, "PAUSE_MAX", 0.05)
    full = f"raise OSError('the mailbox is full: {SECRET}')"
    configure(MAIL.format(folder=str(tmp_path), does=full))
    home.create()
    with closing(Ledger(home.ledger)) as ledger:
        answered(ledger, "never", channel="mail", sender="ann", now_ms=wall_ms())
    with broker_thread(home), connect(home) as client:
        [row] = wait_until(lambda: client.request(INBOX)["rows"], what="the notice")
        assert "the mailbox is full" in row["body"] and "never" in row["body"]
        assert SECRET not in row["body"]
    assert sent(tmp_path) == [f"ann atlas {attempt} never" for attempt in range(3)]
    assert states(home) == [("dead", 3)]


def test_an_answer_under_way_at_a_kill_is_tried_again_and_marked(
    home: Home, configure: Configure, tmp_path: Path
) -> None:
    configure(MAIL.format(folder=str(tmp_path), does=""))
    home.create()
    with closing(Ledger(home.ledger)) as ledger:
        answered(ledger, "maybe twice", channel="mail", sender="ann")
        row = answers.open_answers(ledger, 1)[0]
        answers.sending(ledger, row.id, 61_000, 1000)
        ledger.commit()  # and here the broker was killed
        answered(ledger, "another", channel="mail", sender="ben")
    with broker_thread(home, now_ms=lambda: 2000):
        wait_until(lambda: sent(tmp_path), what="the other one")
    assert sent(tmp_path) == ["ben atlas 0 another"]  # who was asked may be at it still
    with broker_thread(home, now_ms=lambda: 61_000):
        wait_until(lambda: sent(tmp_path)[1:] == ["ann atlas 1 maybe twice"])


def test_a_persona_is_asked_in_full_and_the_secret_is_shown_to_nobody_else(home: Home) -> None:
    body = f"deploy with {SECRET}, please"
    with broker_thread(home), connect(home) as client:
        id_ = client.request(DISPATCH, persona="atlas", body=body)["id"]
        assert SECRET not in json.dumps(client.request(DISPATCHES))
    with closing(Ledger(home.ledger)) as ledger:
        assert [row.body for row in dispatch_rows.rows_of(ledger, [id_])] == [body]
