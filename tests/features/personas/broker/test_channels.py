"""Channels: from an adapter in a worker to the ledger, and what personas answer on its way back."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from relay.broker.client import connect
from relay.broker.server import wall_ms
from relay.config.trust import untrust, user_config
from relay.core.agent_names import owner_name
from relay.core.dispatch import FULL, BrokerDispatch, DeliveryContext
from relay.core.message import QueueMode
from relay.core.paths import Home
from relay.features.personas import answers, channels, dispatch_rows
from relay.features.personas.ops import DISPATCH, DISPATCHES, PERSON_ADD, PERSON_MERGE, REDISPATCH
from relay.ledger.content_files import store
from relay.ledger.store import Ledger
from relay.protocol.agent_ops import REGISTER
from relay.protocol.broker_ops import STATUS
from relay.protocol.message_ops import EVENT, INBOX, SEND
from tests.broker.fixtures import Configure
from tests.broker.support import broker_thread, held, message_id, register, registration
from tests.support import unchecked, wait_until

#: An adapter of each form; what they do they write into files of ``{folder}``.
ADAPTERS = """
import asyncio, pathlib, time
folder = pathlib.Path({folder!r})

def note(name, text):
    with open(folder / name, "a") as file:
        file.write(str(text) + "\\n")

@relay.adapter("chat")
async def chat():
    for number in (1, 2, 1):
        told = yield {{"source_id": str(number), "sender": "ann", "content": f"c{{number}}"}}
        note("chat", told["duplicate"])
    for wrong in ({{"content": 7}}, {{"metadata": {{"a": set()}}}}):
        told = yield wrong
    note("chat", told)

@relay.adapter("chat").send
async def answer(context, text):
    note("sent", [context.to, context.reply_to, context.attempt, text])

@relay.adapter("mail")
async def mail():
    yield {{"source_id": "m", "content": "mail", "files": [folder / "picture.png"]}}
    time.sleep(3600)

@relay.adapter("mail").send
def post(context, text):
    return 1 / 0

@relay.adapter("sms").send
async def text(context, text):
    raise SystemExit("no signal")

@relay.adapter("icq").send
async def write(context, text):
    raise asyncio.CancelledError("no friends")

@relay.adapter("irc").send
def say(context, text):
    raise SystemExit("no server")

@relay.adapter("live")
async def live(inlet):
    note("live", (await inlet.put({{"content": "live", "sender": "x"}}))["duplicate"])
    raise SystemExit("the line was cut")
"""


Json = dict[str, Any]


def rows(home: Home, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(home.ledger)) as db:
        return db.execute(query).fetchall()


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def test_what_adapters_tell_of_is_stored_and_acknowledged(
    home: Home, configure: Configure, tmp_path: Path
) -> None:
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    configure(ADAPTERS.format(folder=str(tmp_path)))
    with broker_thread(home):
        wait_until(lambda: len(lines(tmp_path / "chat")) == 4 and lines(tmp_path / "live"))
        wait_until(lambda: len(rows(home, "SELECT 1 FROM events")) >= 4)
        log = Path(home.logs, "worker-user.log")
        again = "the channel adapter live starts again in 1 s"
        wait_until(lambda: log.exists() and again in log.read_text())
        with connect(home) as client:
            failed = wait_until(lambda: unchecked(client).request(STATUS)["channels"]["failed"])
        assert failed["live"]["reason"] == "SystemExit: the line was cut"
    assert lines(tmp_path / "chat") == ["False", "False", "True", "None"]
    found = rows(home, "SELECT channel, source_id, agent, body FROM events WHERE body<>'live'")
    assert sorted(found) == [
        ("chat", "1", "ann", "c1"),
        ("chat", "2", "ann", "c2"),
        ("mail", "m", "mail", "mail"),
    ]
    [(sha256, name)] = rows(home, "SELECT sha256, name FROM event_files")
    assert (name, len(sha256)) == ("picture.png", 64)
    assert "content must be a text" in log.read_text() and "the line was cut" in log.read_text()


def test_an_answer_goes_out_by_the_adapter_of_its_channel(
    home: Home, configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "TRIES_MAX", 1)
    (tmp_path / "picture.png").touch()
    configure(ADAPTERS.format(folder=str(tmp_path)))
    home.create()
    ledger = Ledger(home.ledger)
    answered(ledger, "hello Ann", channel="chat", sender="ann")
    answered(ledger, "hello Ben", channel="mail", sender="ben", now_ms=wall_ms())
    answered(ledger, "hello Dan", channel="sms", sender="dan")
    answered(ledger, "hello Eve", channel="irc", sender="eve")
    answered(ledger, "hello Fay", channel="icq", sender="fay")
    answered(ledger, "hello?", channel="fax", sender="cid", now_ms=wall_ms())
    ledger.close()
    with broker_thread(home), connect(home) as client:
        wait_until(lambda: not rows(home, "SELECT 1 FROM answers WHERE open"))
        told_before = "\n".join(row["body"] for row in client.request(INBOX)["rows"])
        dead = client.request(DISPATCHES, dead=True, which="atlas")["rows"]
        [fax] = [one for one in dead if one["channel"] == "fax"]
        assert (len(dead), fax["what"], fax["body"]) == (5, "answer", "hello?")
        assert client.request(STATUS)["dispatches"]["dead_answers"] == 5
        monkeypatch.setattr(answers, "TRIES_MAX", 2)
        ids = [one["id"] for one in dead if one["channel"] in ("mail", "fax")]
        client.request(REDISPATCH, which=ids)
        tried = "SELECT channel, state, attempts FROM answers WHERE channel IN ('mail', 'fax')"
        # The adapter of one may send it later; the other has none, and goes to the inbox at once.
        expected = {("mail", "queued", 1), ("fax", "dead", 1)}
        wait_until(lambda: set(rows(home, tried)) == expected)
        told = client.request(INBOX)["rows"][-1]["body"]
        assert "no channel adapter sends over fax" in told and "hello?" in told
        client.request(REDISPATCH, which=["atlas"], drop=True)
    [sent] = lines(tmp_path / "sent")
    assert sent.startswith("['ann', ") and sent.endswith(", 0, 'hello Ann']")
    states = rows(home, "SELECT channel, state FROM answers ORDER BY channel")
    assert dict(states) == dict.fromkeys(("fax", "icq", "irc", "sms"), "dropped") | {
        "chat": "sent",
        "mail": "queued",
    }
    for one in ("ZeroDivisionError", "no signal", "no server", "CancelledError"):
        assert one in told_before


def test_channels_end_with_trust_and_come_back_after_a_kill(
    home: Home, configure: Configure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "LOOK_EVERY", 0.02)
    configure(
        f"""
import os, time
@relay.adapter("chat")
async def chat():
    with open({str(tmp_path / "pids")!r}, "a") as file:
        print(os.getpid(), file=file)
    time.sleep(3600)
    yield
"""
    )
    pids = tmp_path / "pids"
    with broker_thread(home):
        first = int(wait_until(lambda: lines(pids))[0])
        os.kill(first, signal.SIGKILL)
        second = int(wait_until(lambda: lines(pids)[1:])[0])
        with connect(home) as client:
            for number in range(20):  # while the broker looks, again and again
                asked = {"channel": "mail", "source_id": str(number)}
                client.request(EVENT, outside=asked)
        assert len(lines(pids)) == 2 and not _ended(second)
        untrust(home, user_config())
        wait_until(lambda: _ended(second))
    assert len(lines(pids)) == 2


def _ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_an_adapter_that_stands_still_holds_up_nothing_else(
    home: Home, configure: Configure
) -> None:
    configure(
        """
import time
@relay.adapter("stuck")
async def stuck():
    time.sleep(3600)
    yield

@relay.adapter("chat")
async def chat(inlet):
    await inlet.put({"content": "x"})

@relay.route
def any(event):
    return False
"""
    )
    with broker_thread(home), connect(home) as client:
        wait_until(lambda: rows(home, "SELECT 1 FROM evaluations"))
        assert unchecked(client).request(STATUS)["channels"]["names"] == ["stuck", "chat"]


def test_a_broker_with_channels_stays_when_nobody_is_there(
    home: Home, configure: Configure
) -> None:
    configure(
        """
import asyncio
@relay.adapter("clock")
async def clock():
    for number in range(12):
        await asyncio.sleep(0.05)
        yield {"source_id": str(number)}
"""
    )
    with broker_thread(home, idle=0.1):
        wait_until(lambda: len(rows(home, "SELECT 1 FROM events")) == 12)


def test_only_the_persons_own_configuration_connects_channels(
    home: Home, configure: Configure, tmp_path: Path
) -> None:
    """A project's worker evaluates; what its adapters would do is not done."""
    project = tmp_path / "project"
    project.mkdir()
    text = f"""
@relay.adapter("chat")
async def chat():
    open({str(tmp_path / "ran")!r}, "w").close()
    yield {{"content": "x"}}

@relay.route
def all(event):
    return False
"""
    configure(text, project)
    with broker_thread(home), connect(home) as client:
        client.request(REGISTER, **{**registration("Bob"), "cwd": str(project)})
        client.request(SEND, to="Al", body="hello", offline=True)
        wait_until(lambda: rows(home, "SELECT 1 FROM evaluations"))
    assert not (tmp_path / "ran").exists()
    assert rows(home, "SELECT 1 FROM events WHERE channel='chat'") == []


def test_a_persona_is_told_who_speaks_and_where_the_files_are(
    home: Home, served: None, configure: Configure, tmp_path: Path
) -> None:
    configure(
        """
@relay.route
def family(event):
    if (event.metadata.get("person") or {}).get("relationship") == "family":
        seen = {key: event.metadata[key] for key in ("person", "files", "mood")}
        context = AddedContext(extracted={**seen, "type": event.sender_type.value})
        return HookResult(fire=True, routing=HookRouting("atlas"), context=context)
"""
    )
    data = b"\x89PNG"
    file: Json = {
        "sha256": store(home, data),
        "size": 4,
        "name": "a.png",
        "content_type": "image/png",
    }
    lies = {
        "person": {"relationship": "family"},
        "files": [{"path": "/etc/passwd"}],
        "mood": "good",
    }
    event = {"channel": "mail", "sender": "atlas", "content": "look", "metadata": lies}
    with register(home, "atlas") as atlas, connect(home) as client:
        stranger = client.request(EVENT, outside={**event, "source_id": "1"})
        client.request(PERSON_ADD, name="Mom", relationship="family", addresses=[["mail", "atlas"]])
        client.request(EVENT, outside={**event, "source_id": "2", "files": [file]})
        push = atlas.next_push(20)
        assert push is not None
    path = Path(home.root, "content", file["sha256"][:2], file["sha256"])
    assert path.read_bytes() == data
    assert (push["from"], push["from_kind"]) == ("mail:atlas", "channel")
    assert f"look\n[attached: a.png (image/png, 4 bytes): {path}]" in push["body"]
    [(context,)] = rows(home, "SELECT context_json FROM dispatches")
    extracted = json.loads(context)["extracted"]
    assert extracted["person"]["name"] == "Mom" and extracted["type"] == "known"
    assert [one["path"] for one in extracted["files"]] == [str(path)]
    assert extracted["mood"] == "good"
    found = rows(home, "SELECT e.id FROM dispatches d JOIN events e ON e.seq = d.event")
    assert stranger["id"] not in [one[0] for one in found]


def test_a_stranger_gets_a_conversation_of_his_own_until_he_is_known_to_be_you(
    home: Home, served: None, configure: Configure
) -> None:
    configure("@relay.route\ndef all(event): return HookResult(True, HookRouting('atlas'))")
    event = {"channel": "mail", "sender": "me@x", "content": "hi"}
    found = "SELECT session, permissions_json FROM dispatches ORDER BY seq"
    with connect(home) as client:
        client.request(EVENT, outside={**event, "source_id": "1"})
        client.request(EVENT, outside={**event, "sender": "ann", "source_id": "2"})
        client.request(EVENT, kind="note", body="mine")
        wait_until(lambda: len(rows(home, found)) == 3)
        client.request(PERSON_MERGE, one="mail:me@x", into=owner_name())
        client.request(EVENT, outside={**event, "source_id": "3"})
        wait_until(lambda: len(rows(home, found)) == 4)
    said = [(session, json.loads(given)["level"]) for session, given in rows(home, found)]
    assert said == [
        ("mail:dm:me@x", "minimal"),
        ("mail:dm:ann", "minimal"),
        ("main", "full"),
        ("main", "full"),
    ]
    aliases = rows(home, "SELECT persona, alias, label FROM session_aliases")
    assert aliases == [("atlas", "mail:dm:me@x", "main")]


# -- What personas answer, on its way back: rows as the turn engine writes them, and a channel.

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
