"""The memory service behind a real broker, with a searcher: shared, killed, hanging."""

from __future__ import annotations

import json
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from relay.broker.client import BrokerClient, connect
from relay.config import trust
from relay.core.errors import RelayError
from relay.core.paths import Home
from relay.features.memory import broker
from relay.features.memory.ops import MEMORY_LIST, MEMORY_STATS
from relay.protocol.broker_ops import STOP
from tests.broker.support import (
    Json,
    broker_process,
    lock_is_free,
    register,
    stop_broker,
    wait_for_broker,
)
from tests.support import unchecked, wait_until

CWD = "/src/shop"
#: A configuration as a user writes it. The searcher writes down which process it is in, and hangs
#: at the word.
FILE = """\
import os, pathlib, threading

folder = pathlib.Path({folder!r})

def search(query, limit, scope):
    with open(folder / "pids", "a") as file:
        file.write(f"{{os.getpid()}}\\n")
    if "hang" in query:
        threading.Event().wait()
    return []

memory = {{"searcher": search}}
"""


class Searched:
    """A searcher in ``folder``, and how the store is asked with it."""

    def __init__(self, home: Home, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        path = folder / "relay.config.py"
        path.write_text(FILE.format(folder=str(folder)))
        sha256 = trust.trust(home, str(path))
        file = os.path.realpath(path)
        self.spec: Json = {"backend": "searcher", "config": {}, "file": file, "sha256": sha256}

    def ask(self, client: BrokerClient, op: str, **fields: Any) -> Json:
        answer: Json = unchecked(client).request(f"memory_{op}", store=self.spec, **fields)
        return answer

    def save(self, client: BrokerClient, text: str) -> Json:
        return self.ask(client, "save", text=text, cwd=CWD)

    def texts(self, client: BrokerClient) -> list[str]:
        rows = self.ask(client, "list", cwd=CWD, limit=1000)["memories"]
        return [row["text"] for row in rows][::-1]

    def pids(self) -> list[int]:
        """Of the processes that called it, the newest last."""
        try:
            pids = (self.folder / "pids").read_text().split()
        except FileNotFoundError:
            return []
        return list(dict.fromkeys(map(int, pids)))


@pytest.fixture
def store(home: Home, tmp_path: Path) -> Searched:
    home.create()
    return Searched(home, tmp_path / "store")


def there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def ended(pid: int) -> None:
    """Wait until the process is there no more."""
    wait_until(lambda: not there(pid), what="a service to end")


def test_the_store_is_one_whatever_finds_in_it(home: Home, store: Searched) -> None:
    def saves(name: str, run: str) -> None:
        with register(home, name, run=run, store=store.spec) as agent:
            for number in range(25):
                assert store.save(agent, f"{name} {number}")["memory"]["agent"] == name

    with ThreadPoolExecutor() as pool:
        for one in [pool.submit(saves, name, f"run-{name}") for name in ("Ada", "Bob")]:
            one.result(60)
    with connect(home) as client:
        wanted = sorted(f"{name} {number}" for name in ("Ada", "Bob") for number in range(25))
        assert sorted(store.texts(client)) == wanted
        rows = client.request(MEMORY_LIST, cwd=CWD, limit=100)["memories"]
        assert sorted(row["text"] for row in rows) == wanted
        stats = store.ask(client, "stats")
        assert (stats["count"], stats["problem"], stats["backend"]) == (50, None, "searcher")
        assert stats["index"]["filled"] is None and store.spec["file"] in stats["index"]["title"]
        plain = client.request(MEMORY_STATS)
        assert plain["store"] == {"backend": "local", "config": {}} and plain["index"] is None


def test_what_was_confirmed_outlives_a_broker_that_is_killed(home: Home, store: Searched) -> None:
    confirmed: list[str] = []
    for number in range(2):
        with broker_process(home) as process:
            wait_for_broker(home)
            with connect(home, start=False) as client, connect(home, start=False) as other:
                for part in "ab":
                    confirmed.append(f"fact {number} {part}")
                    store.save(client, confirmed[-1])
                store.ask(client, "search", cwd=CWD, query="fact")
                socket = other._socket
                assert socket is not None
                for n in range(5):  # these are in hand
                    text = f"in hand {number} {n}"
                    request = {"n": 100 + n, "op": "memory_save", "text": text, "cwd": CWD}
                    socket.sendall(json.dumps({**request, "store": store.spec}).encode() + b"\n")
                process.send_signal(signal.SIGKILL)
            process.wait(20)
    with connect(home) as client:
        found = store.texts(client)
        store.ask(client, "search", cwd=CWD, query="fact")
        assert [text for text in found if text.startswith("fact")] == confirmed
        assert len(set(found)) == len(found)
    # Those of the killed brokers have ended by themselves.
    for pid in store.pids()[:-1]:
        ended(pid)
    stop_broker(home)
    ended(store.pids()[-1])


def _ignoring(store: Searched, client: BrokerClient) -> None:
    try:
        store.ask(client, "search", cwd=CWD, query="hang")
    except RelayError:
        return


@pytest.mark.usefixtures("served")
def test_a_broker_that_stops_leaves_no_process_not_even_one_that_hangs(
    home: Home, store: Searched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker, "CLOSE_DEADLINE", 1.0)
    with connect(home) as client, connect(home) as other:
        store.save(client, "one")
        thread = threading.Thread(target=_ignoring, args=(store, other))
        thread.start()
        wait_until(store.pids)
        client.request(STOP)
        wait_until(lambda: lock_is_free(home), timeout=60, what="the broker to end")
        thread.join(60)
        assert not thread.is_alive()
    ended(store.pids()[0])
