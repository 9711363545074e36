"""Dispatches while the broker is killed: none acknowledged is lost, none is answered twice."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress

import pytest

from relay.broker.client import BrokerClient, connect
from relay.config import names
from relay.core.errors import RelayError
from relay.core.ids import new_ulid
from relay.core.paths import Home
from relay.core.processes import read_process
from relay.protocol.broker_ops import STATUS
from relay.protocol.message_ops import STATE, TURN
from tests.broker.support import Json, register, stop_broker, wait_for_broker
from tests.broker.test_durability import Flood
from tests.support import wait_until

#: docs/reliability.md has the figures of 100.
ROUNDS = int(os.environ.get("RELAY_KILLS", "3"))
#: Dispatches in one round: the agent has a commit for each step of each.
AT_MOST = 70
SESSIONS = 4


class DispatchFlood(Flood):
    """32 dispatches out at a time, to four sessions of one persona."""

    ENOUGH = 40

    def _send(self, count: int) -> None:
        super()._send(min(count, AT_MOST - self._n))

    def request(self, number: int) -> tuple[str, str, Json]:
        id_ = new_ulid(self.round * 100_000 + number)
        fields: Json = {"op": "dispatch", "persona": "atlas", "session": f"s{number % SESSIONS}"}
        return id_, "atlas", {**fields, "id": id_, "body": f"{self.round} {number}"}


class Atlas(threading.Thread):
    """A wrapped agent that answers all it is sent. Now and then its session dies before it has
    told the end of a turn; the next one tells it."""

    def __init__(self, home: Home) -> None:
        super().__init__(daemon=True)
        self.seen: list[str] = []
        self._home = home
        self._untold: list[str] = []
        self._over = threading.Event()
        self._chance = random.Random(3)

    def run(self) -> None:
        while not self._over.is_set():
            with suppress(RelayError), register(self._home, "atlas") as client:
                self._serve(client)

    def _serve(self, client: BrokerClient) -> None:
        while not self._over.is_set():
            for id_ in list(self._untold):
                client.request(TURN, ids=[id_], started_ms=1, text=f"did {id_}")
                self._untold.remove(id_)
            push = client.next_push(0.1)
            if push is None or push["push"] != "deliver":
                continue
            if push["id"] not in self.seen:  # else its broker was killed before it knew
                self.seen.append(push["id"])
                self._untold.append(push["id"])
            client.request(STATE, id=push["id"], state="seen")
            if self._chance.random() < 0.02:
                return

    def stop(self) -> None:
        self._over.set()
        self.join(20)
        assert not self.is_alive()


@pytest.fixture
def atlas(home: Home) -> Iterator[Atlas]:
    home.create()
    claim = names.claim(home, "atlas", "bash", "run-1")  # its run outlives every broker
    with closing(connect(home)):
        thread = Atlas(home)
        thread.start()
    yield thread
    thread.stop()
    claim.release()


def test_a_broker_killed_at_any_moment_loses_no_dispatch_and_answers_none_twice(
    home: Home, atlas: Atlas
) -> None:
    promised: dict[str, str] = {}
    moment = random.Random(7)
    floods = kills = 0
    while kills < ROUNDS:
        floods += 1
        wait_for_broker(home)
        flood = DispatchFlood(home, floods)
        enough = threading.Event()
        thread = threading.Thread(target=flood.run, args=(enough,))
        thread.start()
        assert enough.wait(60)
        threading.Event().wait(moment.random() / 20)  # not always at the same point
        kill(home)
        kills += len(flood.promised) > flood.ENOUGH  # else it was the one before that was killed
        thread.join(timeout=30)
        assert not thread.is_alive()
        promised.update(flood.promised)
    with connect(home):
        over = 60 + 5 * ROUNDS
        wait_until(lambda: not still_open(home, "dispatches"), over, what="the last turns")
        wait_until(lambda: not still_open(home, "answers"), 20, what="the last answers")
    atlas.stop()
    stop_broker(home)
    check(home, promised, atlas.seen)


def kill(home: Home) -> None:
    """Kill the broker. The agent's session may have started another before anybody can look."""
    with connect(home) as client:
        pid = client.request(STATUS)["pid"]
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: read_process(pid) is None, what="the broker to end")


def still_open(home: Home, table: str) -> bool:
    with closing(sqlite3.connect(home.ledger)) as db:
        return db.execute(f"SELECT 1 FROM {table} WHERE open=1 LIMIT 1").fetchone() is not None


def check(home: Home, promised: dict[str, str], seen: list[str]) -> None:
    with closing(sqlite3.connect(home.ledger)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert db.execute("PRAGMA foreign_key_check").fetchall() == []
        states = dict(db.execute("SELECT id, state FROM dispatches"))
        assert set(promised) <= set(states)
        assert set(states.values()) == {"done"}
        # Each reached the agent once, had one turn and one answer, and none was begun again.
        assert len(seen) == len(states)
        asked = db.execute("SELECT dispatch FROM agent_messages WHERE role='user'").fetchall()
        assert sorted(row[0] for row in asked) == sorted(states)
        answers = db.execute("SELECT dispatch, state FROM answers").fetchall()
        assert sorted(answers) == sorted((id_, "sent") for id_ in states)
        told = db.execute("SELECT body FROM events WHERE agent='atlas' AND kind='message'")
        assert max(Counter(row[0] for row in told).values()) == 1
        # Numbers without gaps, and each turn hangs from the one before it.
        for session, label in db.execute("SELECT id, label FROM agent_sessions").fetchall():
            numbers = db.execute(
                "SELECT number FROM agent_messages WHERE session=? ORDER BY seq", (session,)
            ).fetchall()
            assert [row[0] for row in numbers] == list(range(1, len(numbers) + 1)), label
            turns = db.execute(
                "SELECT t.id, t.parent_turn FROM agent_turns t JOIN agent_messages m"
                " ON m.turn=t.id AND m.role='user' WHERE t.session=? ORDER BY m.seq",
                (session,),
            ).fetchall()
            before = None
            for turn, parent in turns:
                assert parent == before
                before = turn
