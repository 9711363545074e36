"""Acknowledged means stored: killed at any moment, a full disk, an answer that got lost."""

from __future__ import annotations

import os
import random
import resource
import signal
import socket
import sqlite3
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest

from relay.broker.client import BrokerClient, connect
from relay.core.errors import BrokerUnavailable, StorageError
from relay.core.ids import new_ulid
from relay.core.paths import Home
from relay.ledger.store import Ledger
from relay.protocol.broker import decode, encode
from relay.protocol.broker_ops import HELLO, STATUS, STOP
from relay.protocol.message_ops import HISTORY, INBOX, SEND, SHOW
from tests.broker.support import (
    Json,
    broker_process,
    kill_broker,
    lock_is_free,
    register,
    stop_broker,
    wait_for_broker,
)
from tests.support import wait_until

#: docs/reliability.md has the figures of 100.
ROUNDS = int(os.environ.get("RELAY_KILLS", "4"))
IN_FLIGHT = 32
RECIPIENTS = ("Al", "Bob", "Cy")


class Flood:
    """Sends with ``IN_FLIGHT`` requests out, until the broker dies; remembers what was promised."""

    #: Answers after which the broker may be killed.
    ENOUGH = 100

    def __init__(self, home: Home, round_: int) -> None:
        self.promised: dict[str, str] = {}  # id -> recipient
        self.events: dict[str, str] = {}  # source id -> id
        self.round = round_
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(30)
        self._socket.connect(home.broker_socket)
        self._asked: dict[int, tuple[str, str]] = {}
        self._n = 0

    def run(self, enough: threading.Event) -> None:
        try:
            self._send(IN_FLIGHT)
            part = b""
            while data := self._socket.recv(65536):
                *lines, part = (part + data).split(b"\n")
                for line in lines:
                    answer = decode(line)
                    assert answer["ok"], answer
                    id_, to = self._asked.pop(answer["n"])
                    if to:
                        self.promised[id_] = to
                    else:  # told twice, and one event
                        assert self.events.setdefault(id_, answer["id"]) == answer["id"]
                if len(self.promised) > self.ENOUGH:
                    enough.set()
                self._send(len(lines))
        except (BrokenPipeError, ConnectionResetError):
            pass  # killed while we were writing
        finally:
            enough.set()
            self._socket.close()

    def _send(self, count: int) -> None:
        for _ in range(count):
            self._n += 1
            id_, to, fields = self.request(self._n)
            self._asked[self._n] = (id_, to)
            self._socket.sendall(encode({"n": self._n, **fields}))

    def request(self, number: int) -> tuple[str, str, Json]:
        """The id, the recipient and the fields of request ``number``; of an event of another
        channel its source id, and no recipient."""
        if number % 5 == 0:
            source = f"{self.round}.{number // 10}"
            outside: Json = {"channel": "mail", "source_id": source, "sender": source}
            return source, "", {"op": "event", "outside": outside}
        to = RECIPIENTS[number % 3]
        id_ = new_ulid(self.round * 100_000 + number)
        fields: Json = {"op": "send", "to": to, "id": id_, "offline": True}
        return id_, to, {**fields, "body": f"{self.round} {number}"}


def test_killed_at_any_moment(home: Home) -> None:
    home.create()
    promised: dict[str, str] = {}
    events: dict[str, str] = {}
    moment = random.Random(7)
    for round_ in range(1, ROUNDS + 1):
        process = broker_process(home)
        with process:
            wait_for_broker(home)
            flood = Flood(home, round_)
            enough = threading.Event()
            thread = threading.Thread(target=flood.run, args=(enough,))
            thread.start()
            assert enough.wait(30)
            threading.Event().wait(moment.random() / 50)  # not always at the same point
            process.send_signal(signal.SIGKILL)
            process.wait(timeout=30)
            thread.join(timeout=30)
            assert not thread.is_alive()
        assert len(flood.promised) > 100
        promised.update(flood.promised)
        events.update(flood.events)
    print(f"{len(promised)} messages and {len(events)} events acknowledged, {ROUNDS} kills")
    check(home, promised)
    with closing(sqlite3.connect(home.ledger)) as database:
        asked = "SELECT source_id, id FROM events WHERE channel='mail'"
        found = database.execute(asked).fetchall()
        assert len(found) == len(dict(found))
        assert events.items() <= dict(found).items()
        missing = (
            "SELECT count(*) FROM events e LEFT JOIN event_participants p ON p.event = e.seq"
            " WHERE e.channel='mail' AND p.person IS NULL"
        )
        assert database.execute(missing).fetchone() == (0,)


def check(home: Home, promised: dict[str, str]) -> None:
    with connect(home) as client:  # a last start: it recovers and serves what was stored
        assert client.request(STATUS)["counts"]["waiting"] >= len(promised)
        client.request(STOP)
    wait_until(lambda: lock_is_free(home), what="the broker to end")
    database = sqlite3.connect(home.ledger)
    assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    stored = database.execute(
        "SELECT e.id, d.recipient, d.n, e.body FROM events e JOIN deliveries d ON d.event = e.seq"
        " ORDER BY e.seq"
    ).fetchall()
    database.close()
    assert len({row[0] for row in stored}) == len(stored)
    found = {id_: to for id_, to, _, _ in stored}
    assert {id_: found.get(id_) for id_ in promised} == promised
    order: dict[str, list[int]] = defaultdict(list)
    spoken: dict[str, list[tuple[int, ...]]] = defaultdict(list)
    for _, to, number, body in stored:
        order[to].append(number)
        spoken[to].append(tuple(int(word) for word in body.split()))
    for to in RECIPIENTS:
        assert order[to] == list(range(1, len(order[to]) + 1))
        assert spoken[to] == sorted(spoken[to])


def test_a_repetition_after_a_lost_answer_is_one_message(home: Home) -> None:
    id_ = new_ulid(1)
    with connect(home) as client:
        lost = client._socket
        assert lost is not None
        line = encode({"n": 9, "op": "send", "to": "Bob", "offline": True, "body": "x", "id": id_})
        lost.sendall(line)
        assert lost.recv(1)  # it is stored; the answer is not read to its end
        with connect(home) as other:
            other.request(STOP)
    with connect(home) as client:  # after a restart, too
        again = client.request(SEND, to="Bob", body="x", id=id_, offline=True)
        assert again["duplicate"] is True
        assert len(client.request(HISTORY)["rows"]) == 1


def test_a_full_disk_is_an_error_and_nothing_is_acknowledged(home: Home) -> None:
    home.create()
    limit = 700_000  # the tables alone take more than half of it

    def bounded() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    process = broker_process(home, preexec_fn=bounded)
    accepted: list[str] = []
    try:
        wait_for_broker(home)
        with connect(home, start=False) as client:
            failure = None
            for number in range(200):
                try:
                    answer = client.request(
                        SEND, to="Bob", body=f"{number} " + "x" * 5000, offline=True
                    )
                except StorageError as error:
                    failure = error
                    break
                accepted.append(answer["id"])
            assert failure is not None and "nothing" in failure.hint
            assert accepted
            # It goes on reading, and refuses again without harm.
            assert client.request(HELLO)["protocol"] == 1
            try:
                client.request(SEND, to="Bob", body="y" * 500_000, offline=True)
                raise AssertionError("a message that cannot be stored was accepted")
            except StorageError:
                pass
            stored = [row["id"] for row in client.request(HISTORY)["rows"]]
            assert stored == accepted
    finally:
        process.terminate()
        process.wait(timeout=30)
        assert process.stderr is not None
        process.stderr.close()
    with connect(home) as client:  # with room again
        client.request(SEND, to="Bob", body="room", offline=True)
        assert [r["id"] for r in client.request(HISTORY)["rows"]][:-1] == accepted
    with register(home, "Bob") as bob:
        push = bob.next_push(20)
        assert push is not None and push["id"] == accepted[0]


def persons_inbox(client: BrokerClient) -> list[str]:
    return [row["body"] for row in client.request(INBOX)["rows"] if row["from"] == "relay"]


def test_a_ledger_that_is_removed_beneath_the_broker_is_put_back(home: Home) -> None:
    with connect(home) as client:
        client.request(SEND, to="Bob", body="before", offline=True)
        for name in ("", "-wal", "-shm"):
            os.unlink(home.ledger + name)
        client.request(SEND, to="Bob", body="after", offline=True)
        kill_broker(home)
    with connect(home) as client:
        rows = client.request(HISTORY)["rows"]
        assert [row["body"] for row in rows if row["to"] == "Bob"] == ["before", "after"]
        [told] = persons_inbox(client)
        assert "was removed. It has been put back" in told


def test_a_ledger_whose_place_is_taken_is_not_written_any_more(home: Home, tmp_path: Path) -> None:
    with connect(home) as client:
        client.request(SEND, to="Bob", body="before", offline=True)
        other = Ledger(str(tmp_path / "other.db"))
        other.close()
        os.replace(tmp_path / "other.db", home.ledger)
        with pytest.raises(StorageError, match="another file has taken its place"):
            client.request(SEND, to="Bob", body="after", offline=True)
    wait_until(lambda: lock_is_free(home), what="the broker to end")
    with connect(home) as client:  # with the ledger that is there now
        client.request(SEND, to="Bob", body="from here on", offline=True)
        assert len(client.request(HISTORY)["rows"]) == 1


def test_damage_is_found_at_a_start_or_later_and_told_once(home: Home) -> None:
    with connect(home) as client:
        for number in range(300):
            client.request(SEND, to="Bob", body=f"{number} " + "x" * 200, offline=True)
    stop_broker(home)
    with closing(sqlite3.connect(home.ledger)) as db:
        [[root]] = db.execute("SELECT rootpage FROM sqlite_master WHERE name='agents'")
        [[events]] = db.execute("SELECT rootpage FROM sqlite_master WHERE name='events'")
    for page, where in ((root, "at the start"), (events, "later"), (1, "in the header")):
        with open(home.ledger, "r+b") as file:
            file.seek((page - 1) * 4096)
            file.write(b"\xff" * 4096)
        begun = time.monotonic()
        for _ in range(2):  # where it is found later, the first is refused
            with suppress(StorageError, BrokerUnavailable), connect(home) as client:
                sent = client.request(SEND, to="Bob", body=where, offline=True)
                break
        assert time.monotonic() - begun < 9
        with connect(home) as client:
            assert client.request(SHOW, id=sent["id"])["message"]["body"] == where
            assert len([text for text in persons_inbox(client) if "was damaged" in text]) >= 1
        stop_broker(home)
    assert len(list(Path(home.root).glob("ledger.db.damaged-*"))) == 3


@pytest.mark.parametrize("size", [0, 5000], ids=["all", "a part"])
def test_a_log_that_is_cut_beneath_the_broker_stops_nobody_for_long(home: Home, size: int) -> None:
    with connect(home) as client:
        for number in range(50):
            client.request(SEND, to="Bob", body=f"{number} " + "x" * 2000, offline=True)
    os.truncate(home.ledger + "-wal", size)
    accepted = []
    for number in range(5):
        with suppress(StorageError, BrokerUnavailable), connect(home) as client:
            body = f"after {number}"
            accepted.append(client.request(SEND, to="Bob", body=body, offline=True)["id"])
    kill_broker(home)
    with connect(home) as client:
        for id_ in accepted:
            assert client.request(SHOW, id=id_)["message"]
        assert len(accepted) >= 3


def cut(log: Path) -> None:
    os.truncate(log, log.stat().st_size * 3 // 4)


def flip(log: Path) -> None:
    """One bit, in the middle."""
    with open(log, "r+b") as file:
        file.seek(log.stat().st_size // 2)
        [byte] = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("damage", [cut, flip])
def test_acknowledged_messages_that_the_log_lost_are_missed(
    home: Home, damage: Callable[[Path], None]
) -> None:
    with connect(home) as client:
        for number in range(100):
            client.request(SEND, to="Bob", body=f"{number} " + "x" * 500, offline=True)
    kill_broker(home)
    damage(Path(home.ledger + "-wal"))
    with connect(home) as client:
        kept = len(client.request(HISTORY)["rows"])
        client.request(SEND, to="Bob", body="on it goes", offline=True)
        [told] = [text for text in persons_inbox(client) if "are missing" in text]
        assert 0 < kept < 100 and told.startswith(f"The last {100 - kept} messages and events")
    kill_broker(home)
    with connect(home) as client:  # told once
        assert len([text for text in persons_inbox(client) if "are missing" in text]) == 1


def test_a_ledger_that_is_begun_anew_misses_nothing(home: Home) -> None:
    with connect(home) as client:
        client.request(SEND, to="Bob", body="old", offline=True)
    stop_broker(home)
    os.rename(home.ledger, home.ledger + ".old")
    with connect(home) as client:
        client.request(SEND, to="Bob", body="new", offline=True)
        assert persons_inbox(client) == []
