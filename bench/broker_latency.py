"""How long a message waits for its acknowledgement (``python bench/broker.py --latency``).

In turns, in one run:

- ``raw``: a commit of one row in bare SQLite, ``synchronous=FULL``;
- ``one``: a message of one client, acknowledged when it is on the disk; goal: at most 2 × raw;
- ``alone``: one client that sends four messages a second, with nobody else there;
- ``many``: a hundred such clients, with 1000 sessions registered. Goal: at most 2 × alone.
"""

from __future__ import annotations

import itertools
import os
import random
import selectors
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque

from relay.broker.client import BrokerClient, connect
from relay.core.ids import new_ulid
from relay.core.paths import Home
from relay.protocol.agent_ops import AGENT_STATE, REGISTER
from relay.protocol.broker import encode
from relay.protocol.broker_ops import STOP

SESSIONS = 1000
CLIENTS = 100
#: Seconds between two messages of one client.
PAUSE = 0.25
#: Seconds that one round of paced messages takes.
ROUND = 5.0
GOAL = 2.0
BODY = "x" * 512
_MS = itertools.count(int(time.time() * 1000))

#: Registers sessions, and reads what they are sent, in a process of its own.
_SESSIONS = """
import resource, selectors, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
from relay.broker.client import connect
from relay.core.paths import Home
home, look, held = Home(sys.argv[1]), selectors.DefaultSelector(), []
for number in range(int(sys.argv[2])):
    held.append(connect(home, start=False))
    held[-1].request("register", name=f"S{number}", run=f"r{number}", token="t", kind="bench",
                     pid=0, cwd="/", command="")
    held[-1]._socket.setblocking(False)
    look.register(held[-1]._socket, selectors.EVENT_READ)
look.register(sys.stdin, selectors.EVENT_READ)
print(flush=True)
while True:
    for key, _ in look.select():
        if key.fileobj is sys.stdin or not key.fileobj.recv(65536):
            sys.exit()
"""


def raw(folder: str, count: int) -> list[float]:
    """Microseconds of each commit of one row."""
    database = sqlite3.connect(os.path.join(folder, f"{new_ulid(0)}.db"), isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    database.execute("CREATE TABLE rows (seq INTEGER PRIMARY KEY, id TEXT UNIQUE, body TEXT)")
    times = []
    for _ in range(count):
        begin = time.perf_counter()
        database.execute("BEGIN")
        database.execute("INSERT INTO rows (id, body) VALUES (?,?)", (new_ulid(next(_MS)), BODY))
        database.execute("COMMIT")
        times.append((time.perf_counter() - begin) * 1e6)
    database.close()
    return times


def one(client: BrokerClient, count: int) -> list[float]:
    """Microseconds until each message of one client was acknowledged."""
    connection = client._socket
    assert connection is not None
    connection.setblocking(True)
    times = []
    for number in range(count):
        line = _send(number, "Away")
        begin = time.perf_counter()
        connection.sendall(line)
        said = connection.recv(65536)
        times.append((time.perf_counter() - begin) * 1e6)
        if b'"ok":true' not in said:
            raise SystemExit(f"a message was refused: {said[:300]!r}")
    return times


def paced(clients: list[BrokerClient], names: list[str]) -> list[float]:
    """Microseconds until each was acknowledged, of clients that send one in each ``PAUSE``."""
    chance, look = random.Random(1), selectors.DefaultSelector()
    sockets = [client._socket for client in clients]
    due = [(time.perf_counter() + chance.random() * PAUSE, n) for n in range(len(sockets))]
    sent: dict[int, deque[float]] = {number: deque() for number in range(len(sockets))}
    times: list[float] = []
    for number, connection in enumerate(sockets):
        assert connection is not None
        connection.setblocking(True)
        look.register(connection, selectors.EVENT_READ, number)
    end = time.perf_counter() + ROUND
    while (now := time.perf_counter()) < end or any(sent.values()):
        due.sort()
        while due and due[0][0] <= now < end:
            at, number = due.pop(0)
            due.append((at + PAUSE, number))
            due.sort()
            connection = sockets[number]
            assert connection is not None
            sent[number].append(time.perf_counter())
            connection.sendall(_send(number, chance.choice(names)))
        for key, _ in look.select(max(0.0, min(due[0][0], end) - time.perf_counter())):
            said = os.read(key.fd, 65536)
            now = time.perf_counter()
            times += [(now - sent[key.data].popleft()) * 1e6 for _ in range(said.count(b"\n"))]
            if not said or b'"ok":false' in said:
                raise SystemExit(f"a message was refused: {said[:300]!r}")
    look.close()
    return times


def _send(number: int, to: str) -> bytes:
    fields = {"op": "send", "id": new_ulid(next(_MS)), "to": to, "body": BODY}
    return encode({"n": number, **fields})


def report(rounds: int, count: int) -> dict[str, object]:
    """The medians in microseconds, and their ratios."""
    times: dict[str, list[float]] = {"raw": [], "one": [], "alone": [], "many": []}
    with tempfile.TemporaryDirectory(prefix="relay-bench-") as folder:
        quiet, busy = (Home(os.path.join(folder, name)) for name in ("quiet", "busy"))
        lone = connect(quiet)
        with connect(quiet) as away:
            away.request(
                REGISTER, name="Away", run="r", token="t", kind="x", pid=0, cwd="/", command=""
            )
            away.request(AGENT_STATE, state="gone")
        clients = [connect(busy) for _ in range(CLIENTS)]
        names = [f"S{number}" for number in range(SESSIONS)]
        words = [sys.executable, "-c", _SESSIONS, busy.root, str(SESSIONS)]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as sessions:
            assert sessions.stdout is not None and sessions.stdin is not None
            if not sessions.stdout.readline():
                raise SystemExit("the sessions could not be registered")
            for _ in range(rounds):
                times["raw"] += raw(folder, count)
                times["one"] += one(lone, count)
                times["alone"] += paced([lone], ["Away"])
                times["many"] += paced(clients, names)
            sessions.stdin.close()
        for client in (lone, clients[0]):
            client.request(STOP)
        for client in (lone, *clients):
            client.close()
    middle = {name: statistics.median(values) for name, values in times.items()}
    return {
        "microseconds": {name: round(value) for name, value in middle.items()},
        "p95": {n: round(statistics.quantiles(v, n=20)[-1]) for n, v in times.items()},
        "one_to_raw": round(middle["one"] / middle["raw"], 2),
        "many_to_alone": round(middle["many"] / middle["alone"], 2),
        "goal": GOAL,
        "sessions": SESSIONS,
        "clients": CLIENTS,
    }
