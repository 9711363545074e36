"""Channels that a configuration connects, from an adapter in a worker to the ledger and back."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from relay.broker.client import connect
from relay.broker.server import wall_ms
from relay.config.trust import untrust, user_config
from relay.core.agent_names import owner_name
from relay.core.paths import Home
from relay.features.personas import answers, channels
from relay.features.personas.ops import DISPATCHES, PERSON_ADD, PERSON_MERGE, REDISPATCH
from relay.ledger.content_files import store
from relay.ledger.store import Ledger
from relay.protocol.agent_ops import REGISTER
from relay.protocol.broker_ops import STATUS
from relay.protocol.message_ops import EVENT, INBOX, SEND
from tests.broker.fixtures import Configure
from tests.broker.support import broker_thread, register, registration
from tests.features.personas.broker.test_answers import answered
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
    with sqlite3.connect(home.ledger) as db:
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
