"""How fast the broker accepts messages, beside what the disk and the socket alone can do.

    python bench/broker.py [--json] [--rounds N] [--count N]
    python bench/broker.py --search [--json] [--rounds N]
    python bench/broker.py --routes [--json] [--rounds N] [--count N]      (broker_routes.py)
    python bench/broker.py --latency [--json] [--rounds N] [--count N]     (broker_latency.py)

Each round measures, one after the other, on the same file system:

- ``raw``: rows with the same bodies and unique ids into a bare SQLite table, new each time,
  ``synchronous=FULL``, 64 rows a commit, one process;
- ``accepted``: messages that a broker has stored and acknowledged, 64 in flight on one connection,
  to an agent that is not running; each is an event, a delivery and four B-trees;
- ``delivered``: the same to a session that is connected and reports nothing;
- ``echo``: lines of the same size to a process that sends them back, 64 in flight;
- ``nats``: the same messages to NATS JetStream that syncs always, where it is installed
  (broker_nats.py).

Ids go on from round to round, as those of real messages do. The figure that counts is the ratio
of the medians; goal: accepted / raw at least 0.35, accepted / nats at least 3.

``--search`` measures instead how long ``relay history --grep`` waits for its broker with a million
stored messages, and with 10 000: the same words, in turns. Goal: the median at most 3 times it.
``--routes``: what a thousand route functions of which one fires add to an event. Goal: 5 ms.
"""

from __future__ import annotations

import _socket
import argparse
import itertools
import json
import os
import random
import re
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import broker_latency
import broker_nats
import broker_routes

from relay.broker.client import BrokerClient, connect
from relay.core.ids import new_ulid
from relay.core.paths import Home
from relay.ledger.store import Ledger
from relay.protocol.agent_ops import AGENT_STATE, REGISTER
from relay.protocol.broker import encode
from relay.protocol.broker_ops import REINDEX, STOP
from relay.protocol.message_ops import HISTORY

IN_FLIGHT = 64
BODY = "x" * 512
GOAL = 0.35
#: Messages of the two ledgers that are searched, rows of an answer, words that are asked for.
SMALL, LARGE, ROWS, WORDS = 10_000, 1_000_000, 20, 60
SEARCH_GOAL = 3.0
#: The time in the next id: an id of an earlier round would land among those in the middle.
_MS = itertools.count(int(time.time() * 1000))

_ECHO = """
import socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1]); listener.listen()
print(flush=True)
peer, _ = listener.accept()
while data := peer.recv(262144):
    peer.sendall(data)
"""


def raw(folder: str, count: int) -> float:
    """Rows a second."""
    path = os.path.join(folder, f"raw-{new_ulid(0)}.db")
    database = sqlite3.connect(path, isolation_level=None)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=FULL")
    database.execute("CREATE TABLE rows (seq INTEGER PRIMARY KEY, id TEXT UNIQUE, body TEXT)")
    rows = [(new_ulid(next(_MS)), BODY) for _ in range(count)]
    begin = time.perf_counter()
    for start in range(0, count, IN_FLIGHT):
        database.execute("BEGIN")
        database.executemany(
            "INSERT INTO rows (id, body) VALUES (?, ?)", rows[start : start + IN_FLIGHT]
        )
        database.execute("COMMIT")
    seconds = time.perf_counter() - begin
    # The file stays until all is measured: what comes next would wait for the disk to free it.
    database.close()
    return count / seconds


def pipelined(connection: _socket.socket, lines: list[bytes]) -> float:
    """Lines a second, with ``IN_FLIGHT`` out; every line is answered with one line."""
    begin = time.perf_counter()
    connection.sendall(b"".join(lines[:IN_FLIGHT]))
    sent, answered = min(IN_FLIGHT, len(lines)), 0
    while answered < len(lines):
        data = connection.recv(262144)
        if not data or b'"ok":false' in data:
            raise SystemExit(f"a request was refused: {data[:300]!r}")
        fresh = data.count(b"\n")
        answered += fresh
        if sent < len(lines):
            connection.sendall(b"".join(lines[sent : sent + fresh]))
            sent += fresh
    return len(lines) / (time.perf_counter() - begin)


def accepted(client: BrokerClient, to: str, count: int) -> float:
    """Acknowledged messages a second."""
    lines = [
        encode({"n": number, "op": "send", "id": new_ulid(next(_MS)), "to": to, "body": BODY})
        for number in range(1000, 1000 + count)
    ]
    connection = client._socket
    assert connection is not None
    connection.settimeout(60)
    return pipelined(connection, lines)


def echo(folder: str, count: int) -> float:
    """Lines a second to and from another process."""
    path = os.path.join(folder, f"{new_ulid(0)[-8:]}.sock")
    with (
        subprocess.Popen([sys.executable, "-c", _ECHO, path], stdout=subprocess.PIPE) as process,
        socket.socket(socket.AF_UNIX) as connection,
    ):
        assert process.stdout is not None
        process.stdout.readline()
        connection.connect(path)
        line = BODY.encode() + b"\n"
        rate = pipelined(connection, [line] * count)
        connection.close()
        process.wait(timeout=30)
    return rate


@contextmanager
def receivers(home: Home) -> Iterator[BrokerClient]:
    """A client, an agent ``Away`` that is known but gone, and one ``Here`` that only reads."""

    def register(name: str) -> BrokerClient:
        client = connect(home)
        client.request(
            REGISTER, name=name, run=name, token="t", kind="bench", pid=0, cwd="/", command=""
        )
        return client

    away = register("Away")
    away.request(AGENT_STATE, state="gone")
    here = register("Here")
    here_socket = here._socket
    assert here_socket is not None
    here_socket.settimeout(None)
    reader = threading.Thread(target=_read, args=(here_socket,), daemon=True)
    reader.start()
    client = connect(home)
    try:
        yield client
    finally:
        away.close()
        here_socket.shutdown(socket.SHUT_RDWR)
        reader.join(timeout=10)
        here.close()
        client.request(STOP)
        client.close()


def _read(connection: socket.socket) -> None:
    while connection.recv(262144):
        continue


def measure(rounds: int, count: int) -> dict[str, list[float]]:
    """All figures of all rounds, interleaved."""
    figures: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="relay-bench-") as folder, ExitStack() as stack:
        home = Home(os.path.join(folder, "home"))
        nats = stack.enter_context(broker_nats.served(folder)) if broker_nats.program() else None
        with receivers(home) as client:
            subjects: dict[str, Callable[[], float]] = {
                "raw": lambda: raw(folder, count),
                "accepted": lambda: accepted(client, "Away", count),
                "delivered": lambda: accepted(client, "Here", count),
                "echo": lambda: echo(folder, count),
            }
            if nats is not None:
                subjects["nats"] = lambda: broker_nats.accepted(nats, BODY, count // 8)
            for name in ("raw", "accepted"):
                subjects[name]()  # warm
            for _ in range(rounds):
                for name, subject in subjects.items():
                    figures[name].append(subject())
    return figures


# -- search


def search(rounds: int) -> dict[str, object]:
    """Milliseconds of a search in the small ledger and in the large one, medians of all words."""
    chance = random.Random(1)
    docs = Path(__file__).resolve().parent.parent / "docs"
    text = "".join(page.read_text() for page in sorted(docs.glob("*.md")))
    known = Counter(re.findall(r"[a-z_]{2,}", text.lower()))
    words, weights = list(known), list(itertools.accumulate(known.values()))
    bodies = [" ".join(chance.choices(words, cum_weights=weights, k=16)) for _ in range(50_000)]
    wanted = [chance.choice([one for one in words if len(one) >= 5]) for _ in range(WORDS)]
    waited: dict[int, list[float]] = {SMALL: [], LARGE: []}
    built = {}
    with tempfile.TemporaryDirectory(prefix="relay-bench-") as folder, ExitStack() as stack:
        clients = {}
        for count in waited:
            home = Home(os.path.join(folder, str(count)))
            _stored(home, bodies, count)
            client = clients[count] = stack.enter_context(connect(home))
            stack.callback(partial(client.request, STOP))
            begin, more = time.perf_counter(), True
            while more:
                more = client.request(REINDEX, deadline=600.0)["more"]
            built[count] = round(time.perf_counter() - begin, 1)
        for _ in range(rounds):
            for word in wanted:
                for count, client in clients.items():
                    begin = time.perf_counter()
                    client.request(HISTORY, grep=word, limit=ROWS)
                    waited[count].append((time.perf_counter() - begin) * 1000)
    small, large = (round(statistics.median(waited[count]), 2) for count in (SMALL, LARGE))
    return {
        "milliseconds": {str(SMALL): small, str(LARGE): large},
        "p95": round(statistics.quantiles(waited[LARGE], n=20)[-1], 2),
        "large_to_small": round(large / small, 2),
        "goal": SEARCH_GOAL,
        "seconds_to_index": {str(count): seconds for count, seconds in built.items()},
    }


def _stored(home: Home, bodies: list[str], count: int) -> None:
    """A ledger with so many messages, each a little different, of a broker that has ended."""
    home.create()
    ledger = Ledger(home.ledger)
    for _ in range(0, count, 10_000):
        ledger.begin()
        rows = [(ledger.next_seq(), next(_MS)) for _ in range(10_000)]
        head = ("message", "Al", "agent", "followup", None)
        ledger.add(
            [
                (n, new_ulid(ms), *head, f"{bodies[n % len(bodies)]} {n}", None, ms)
                for n, ms in rows
            ],
            [(n, "Bob", n, 1, "queued", None, ms, 0, 0) for n, ms in rows],
        )
        ledger.commit()
    ledger.close()


def main() -> int:
    """Print the medians and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--count", type=int, default=0, help="messages, or events, a round")
    parser.add_argument("--search", action="store_true")
    parser.add_argument("--routes", action="store_true")
    parser.add_argument("--latency", action="store_true")
    options = parser.parse_args()
    if options.search or options.routes or options.latency:
        if options.search:
            found = search(options.rounds)
        elif options.routes:
            found = broker_routes.report(options.rounds, options.count or 20)
        else:
            found = broker_latency.report(options.rounds, options.count or 500)
        print(json.dumps(found, indent=2) if options.json else found)
        return 0
    options.count = options.count or 12_800
    figures = measure(options.rounds, options.count)
    medians = {name: round(statistics.median(values)) for name, values in figures.items()}
    ratios = [a / r for a, r in zip(figures["accepted"], figures["raw"], strict=True)]
    result = {
        "per_second": medians,
        "accepted_to_raw": round(medians["accepted"] / medians["raw"], 3),
        "delivered_to_raw": round(medians["delivered"] / medians["raw"], 3),
        "accepted_to_echo": round(medians["accepted"] / medians["echo"], 3),
        "accepted_to_nats": (
            round(medians["accepted"] / medians["nats"], 2) if "nats" in medians else None
        ),
        "accepted_to_raw_by_round": [round(ratio, 3) for ratio in ratios],
        "goal": GOAL,
        "in_flight": IN_FLIGHT,
        "body_bytes": len(BODY),
    }
    if options.json:
        print(json.dumps(result, indent=2))
        return 0
    for name, value in medians.items():
        print(f"{name:<10} {value:>9,} / s")
    print(f"accepted / raw   {result['accepted_to_raw']}  (goal {GOAL}; by round {ratios[0]:.2f}…)")
    print(f"accepted / echo  {result['accepted_to_echo']}")
    if "nats" in medians:
        print(f"accepted / nats  {result['accepted_to_nats']}  (goal 3)")
    else:
        print("nats             not installed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
