"""Clients that stall, flood and forge, all at once: they harm no other."""

from __future__ import annotations

import os
import socket
import statistics
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from relay.broker.client import connect
from relay.broker.stored_bytes import MIB, MINUTES, NOTED_MS, ROW, StoredBytes
from relay.core.agent_names import owner_name
from relay.core.errors import RelayError
from relay.core.paths import Home
from relay.protocol.agent_ops import AGENT_STATE, HOOKS_RAN
from relay.protocol.broker import LINE_MAX, encode
from relay.protocol.broker_ops import STATUS
from relay.protocol.message_ops import EVENT, INBOX, SEND, STATE
from tests.broker.support import Json, broker_process, register, wait_for_broker
from tests.support import unchecked

#: docs/reliability.md has the figures of a million.
SENDS = int(os.environ.get("RELAY_SENDS", "10000"))
ROUND_TRIPS = 10


class Hostile(threading.Thread):
    """A client of the worst kind, until it is cut off or told to end."""

    def __init__(self, home: Home) -> None:
        super().__init__(daemon=True)
        self.over = threading.Event()
        self.sent = 0
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        self.socket.connect(home.broker_socket)

    def run(self) -> None:
        try:
            self.act()
        except OSError:
            pass  # cut off
        finally:
            self.socket.close()

    def act(self) -> None:
        raise NotImplementedError


class HalfLine(Hostile):
    """Begins a request and says nothing more."""

    def act(self) -> None:
        self.socket.sendall(b'{"n":1,"op":"send","to":"Bo')
        self.over.wait()


class EndlessLine(Hostile):
    """One line of 1 GiB."""

    def act(self) -> None:
        while not self.over.is_set():
            self.socket.sendall(b"x" * 65536)
            self.sent += 65536


class Deaf(Hostile):
    """Asks for all that there is, again and again, and reads no answer."""

    def act(self) -> None:
        while not self.over.is_set():
            self.socket.sendall(encode({"n": 1, "op": "history", "limit": 1000}))


class Flood(Hostile):
    """Sends, as fast as it is read."""

    def act(self) -> None:
        answers = threading.Thread(target=self.read, daemon=True)
        answers.start()
        while self.sent < SENDS and not self.over.is_set():
            lines = (
                encode({"n": number, "op": "send", "to": "Nobody", "body": "x", "offline": True})
                for number in range(self.sent, self.sent + 500)
            )
            self.socket.sendall(b"".join(lines))
            self.sent += 500
        answers.join(60)

    def read(self) -> None:
        answers = 0
        while answers < self.sent or self.sent < SENDS:
            data = self.socket.recv(262144)
            if not data:
                return
            answers += data.count(b"\n")


def round_trips(home: Home) -> list[float]:
    """Milliseconds for messages of one to another, from the sending to having been seen."""
    times = []
    with register(home, "Al") as al, connect(home) as person:
        for number in range(ROUND_TRIPS):
            begun = time.perf_counter()
            id_ = person.request(SEND, to="Al", body=f"{number}")["id"]
            push = al.next_push(30)
            while push is not None and push["push"] != "deliver":
                push = al.next_push(30)
            assert push is not None and (push["id"], push["body"]) == (id_, f"{number}")
            for state in ("delivering", "submitted", "seen"):
                al.request(STATE, id=id_, state=state)
            times.append((time.perf_counter() - begun) * 1000)
    return times


def resident(pid: int) -> int:
    """MB of memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 >> 20


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads /proc")
def test_hostile_clients_harm_no_other(home: Home) -> None:
    home.create()
    with broker_process(home) as broker, ExitStack() as stack:
        stack.callback(broker.terminate)
        wait_for_broker(home)
        calm = round_trips(home)
        before = resident(broker.pid)
        hostile: list[Hostile] = [HalfLine(home) for _ in range(50)]
        hostile += [EndlessLine(home), Deaf(home), Flood(home)]
        for one in hostile:
            one.start()
        loud = round_trips(home)
        flood, endless = hostile[-1], hostile[-3]
        flood.join(600)
        assert flood.sent >= SENDS and not flood.is_alive()
        # The line was cut off: no more was taken than fits into the buffers on the way.
        endless.join(60)
        assert not endless.is_alive() and endless.sent < LINE_MAX + (4 << 20)
        grown = resident(broker.pid) - before
        for one in hostile:
            one.over.set()
        middle = [round(statistics.median(times), 2) for times in (calm, loud)]
        print(f"{middle} ms (worst {max(loud):.0f}), {grown} MB more after {flood.sent} sends")
        assert max(loud) < 10_000
        assert grown < 150
        with connect(home) as person:
            person.request(SEND, to="Al", body="and on it goes")


def test_the_room_comes_back_with_time_and_each_run_has_its_own() -> None:
    stored = StoredBytes(per_minute=60)
    assert stored.take("a", "send", 60 * MINUTES, 0)
    assert not stored.take("a", "send", 1, 0) and stored.take("b", "send", 1, 0)
    assert stored.take("a", "send", 500, 0, share=2)  # relay's own notices
    assert not stored.take("a", "send", 501, 1_000_000) and stored.take("a", "send", 500, 1_000_000)
    assert not stored.take("a", "send", 1, 0)  # a clock that goes back gives nothing
    assert stored.note("b", 0) == ""
    stored.take("a", "hooks_ran", 2000, 60_000)
    lost = "lost, as too much came: 3 messages, 1 hook report (2.444 KiB), the last 2m ago; "
    assert stored.note("a", 180_000).startswith(lost)
    assert stored.note("a", 60_000 + NOTED_MS) and not stored.note("a", 60_001 + NOTED_MS)


def test_an_agent_that_floods_is_refused_and_status_says_so(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELAY_STORED_MAX", "0.125")  # 4 MiB at once
    text = "x" * MIB
    with register(home, "Bob") as bob, connect(home) as person:
        for number in range(3):
            bob.request(SEND, to=owner_name(), body=f"{number}{text[ROW:]}")
        bob.request(EVENT, kind="own", body=text[2 * ROW :])
        beyond: list[tuple[str, Json]] = [
            ("send", {"to": owner_name(), "body": text[ROW:]}),
            ("event", {"kind": "own", "body": text[ROW:]}),
            ("automation_register", {"path": "/x.py", "source": text[ROW:]}),
        ]
        for op, fields in beyond:
            with pytest.raises(RelayError, match="one agent can have 4 MiB stored") as refused:
                unchecked(bob).request(op, **fields)
            assert refused.value.code == "too_much" and refused.value.hint
        assert bob.request(HOOKS_RAN, records=[{"stdout": text}])["stored"] == 0
        # What it owes is told all the same, its notices arrive, and the person is not limited.
        bob.request(AGENT_STATE, state="busy", reason="y" * MIB)
        bob.request(SEND, to="Bob", body="not sent: why", notice="about")
        for _ in range(5):
            person.request(SEND, to="Bob", body=text[ROW:])
        assert len(person.request(INBOX)["rows"]) == 3
        [agent] = person.request(STATUS)["agents"]
        assert agent["notes"][0].startswith(
            "lost, as too much came: 1 message, 1 event, 1 request, 1 hook report (4 MiB)"
        )
