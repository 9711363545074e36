"""Stores of the memory service behind a real broker: shared, killed, away."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from relay.broker import memory_proxy
from relay.broker.client import BrokerClient, connect
from relay.config import trust
from relay.core.errors import ConfigError, RelayError, UsageError
from relay.core.paths import Home
from tests.broker.support import (
    Json,
    broker_process,
    lock_is_free,
    register,
    stop_broker,
    wait_for_broker,
)
from tests.memory.flaky import saying
from tests.support import wait_until

CWD = "/src/shop"
#: A configuration as a user writes it, with a store that does what files in {folder} say.
FILE = """\
from pathlib import Path

from tests.memory.flaky import Flaky

def store():
    return Flaky(Path({folder!r}))

config = {{"memory": {{"backend": "custom", "config": {{"object": store}}}}}}
"""


class Store:
    """A custom store in ``folder``, and how it is asked."""

    def __init__(self, home: Home, folder: Path) -> None:
        self.folder = folder
        saying(folder)
        path = folder / "relay.config.py"
        path.write_text(FILE.format(folder=str(folder)))
        sha256 = trust.trust(home, str(path))
        file = os.path.realpath(path)
        self.spec: Json = {"backend": "custom", "config": {}, "file": file, "sha256": sha256}

    def says(self, **what: str | None) -> None:
        saying(self.folder, **what)

    def ask(self, client: BrokerClient, op: str, **fields: Any) -> Json:
        return client.request(f"memory_{op}", cwd=CWD, store=self.spec, **fields)

    def save(self, client: BrokerClient, text: str) -> Json:
        return self.ask(client, "save", text=text)

    def texts(self, client: BrokerClient) -> list[str]:
        rows = self.ask(client, "list", limit=1000)["memories"]
        return [row["text"] for row in rows][::-1]

    def pids(self) -> list[int]:
        """Of the processes that opened it, the newest last."""
        try:
            return [int(line) for line in (self.folder / "opened").read_text().split()]
        except FileNotFoundError:
            return []


@pytest.fixture
def make(home: Home, tmp_path: Path) -> Callable[[str], Store]:
    home.create()
    return lambda name: Store(home, tmp_path / name)


@pytest.fixture
def store(make: Callable[[str], Store]) -> Store:
    return make("store")


@pytest.fixture
def client(home: Home) -> Iterator[BrokerClient]:
    with connect(home) as connected:
        yield connected


def there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def ended(pid: int) -> None:
    """Wait until the process is there no more."""
    wait_until(lambda: not there(pid), what="a service to end")


def local(client: BrokerClient, text: str) -> Json:
    return client.request("memory_save", cwd=CWD, text=text)


def test_two_at_once_share_a_store_and_the_local_one_is_another(home: Home, store: Store) -> None:
    def saves(name: str, run: str) -> None:
        with register(home, name, run=run, store=store.spec) as agent:
            for number in range(25):
                assert store.save(agent, f"{name} {number}")["memory"]["agent"] == name

    with ThreadPoolExecutor() as pool:
        for one in [pool.submit(saves, name, f"run-{name}") for name in ("Ada", "Bob")]:
            one.result(60)
    with connect(home) as client:
        found = store.texts(client)
        assert sorted(found) == sorted(f"{name} {n}" for name in ("Ada", "Bob") for n in range(25))
        assert [text for text in found if text < "B"] == [f"Ada {n}" for n in range(25)]
        assert client.request("memory_list", cwd=CWD)["memories"] == []
        stats = store.ask(client, "stats")
        assert (stats["count"], stats["kept"], stats["refused"]) == (50, 0, 0)
        assert stats["store"]["file"] == store.spec["file"] and stats["problem"] is None
        stats = client.request("memory_stats")
        assert stats["store"] == {"backend": "local", "config": {}}
    assert len(store.pids()) == 1


def test_what_was_confirmed_outlives_a_broker_that_is_killed(home: Home, store: Store) -> None:
    confirmed: list[str] = []
    for number in range(4):
        with broker_process(home) as process:
            wait_for_broker(home)
            with connect(home, start=False) as client, connect(home, start=False) as other:
                for part in "ab":
                    confirmed.append(f"fact {number} {part}")
                    store.save(client, confirmed[-1])
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
        assert [text for text in found if text.startswith("fact")] == confirmed
        assert len(set(found)) == len(found)
    # Those of the killed brokers have ended by themselves.
    for pid in store.pids()[:-1]:
        ended(pid)
    stop_broker(home)
    ended(store.pids()[-1])


def test_a_store_that_is_away_keeps_saves_and_gets_them(client: BrokerClient, store: Store) -> None:
    store.says(away="nobody listens on port 6333")
    kept = store.save(client, "the tests need Redis")
    assert (kept["outcome"], kept["problem"]) == ("kept", "nobody listens on port 6333")
    assert store.ask(client, "get", id=kept["memory"]["id"])["memory"] == kept["memory"]
    newer = store.ask(client, "save", text="it is Valkey", supersedes=kept["memory"]["id"])
    assert newer["memory"]["supersedes"] == kept["memory"]["id"]
    with pytest.raises(RelayError, match="6333; 2 saves are kept until then") as away:
        store.ask(client, "search", query="redis")
    assert (away.value.code, away.value.exit_status) == ("memory_unavailable", 1)
    stats = store.ask(client, "stats")
    assert (stats["kept"], stats["problem"]) == (2, "nobody listens on port 6333")
    store.says(away=None)
    found = store.ask(client, "search", query="redis valkey")["memories"]
    assert [hit["id"] for hit in found] == [newer["memory"]["id"]]
    assert store.texts(client) == ["the tests need Redis", "it is Valkey"]


def test_kept_saves_outlive_broker_and_service(home: Home, store: Store) -> None:
    store.says(away="nobody listens")
    told: list[str] = []
    for number in range(3):
        with broker_process(home) as process:
            wait_for_broker(home)
            with connect(home, start=False) as client:
                for part in "ab":
                    told.append(store.save(client, f"fact {number} {part}")["memory"]["id"])
            process.send_signal(signal.SIGKILL)
            process.wait(20)
    store.says(away=None, die_after="once")
    with connect(home) as client:
        rows = store.ask(client, "list", limit=100)["memories"]
        assert [row["id"] for row in rows][::-1] == told
        assert store.ask(client, "stats")["kept"] == 0


def test_an_agent_is_held_to_its_place_when_what_it_replaces_was_out_of_sight(
    home: Home, client: BrokerClient, store: Store
) -> None:
    with register(home, "Bob", run="run-bob", store=store.spec) as bob:
        own = store.ask(bob, "save", text="Bob's own", scope="agent")["memory"]["id"]
    store.says(away="nobody listens")
    with register(home, "Ada", store=store.spec) as ada:
        kept = store.ask(ada, "save", text="instead", supersedes=own)
        assert kept["outcome"] == "kept"
        mine = store.ask(ada, "save", text="mine", scope="agent")["memory"]["id"]
    with (
        register(home, "Eve", run="run-eve", store=store.spec) as eve,
        pytest.raises(RelayError, match="there is no memory"),
    ):
        store.ask(eve, "forget", id=mine)
    store.says(away=None)
    stats = store.ask(client, "stats")
    assert stats["refused"] == 1 and "Ada may not replace a memory of agent bob" in stats["problem"]
    assert store.ask(client, "search", query="own", agent="Bob")["memories"]


def test_secrets_are_left_out_of_what_is_kept(
    client: BrokerClient, store: Store, home: Home
) -> None:
    token = "ghp_" + "0123456789" * 3 + "abcdef"
    store.says(away="nobody listens")
    kept = store.save(client, f"push with {token}")
    assert kept["redacted"] == ["github-token"] and token not in kept["memory"]["text"]
    for path in Path(home.memory, "kept").iterdir():
        assert token.encode() not in path.read_bytes()


def test_one_that_cannot_be_opened_says_so_each_time(client: BrokerClient, store: Store) -> None:
    store.says(misconfigured="the vectors have 384 numbers")
    for _ in range(6):
        with pytest.raises(ConfigError, match="384"):
            store.save(client, "one")
    assert len(set(store.pids())) == 1
    bad = {**store.spec, "sha256": "0" * 64}
    for _ in range(2):
        with pytest.raises(ConfigError, match="has changed since"):
            client.request("memory_stats", store=bad)


def test_what_names_no_store_is_refused(client: BrokerClient) -> None:
    wrong: list[Any] = [1, "local", [], {"backend": "oracle"}, {"backend": "custom"}, {"x": 1}]
    for spec in wrong:
        with pytest.raises(UsageError):
            client.request("memory_stats", store=spec)


def _ignoring(store: Store, client: BrokerClient) -> None:
    try:
        store.save(client, "x")
    except RelayError:
        return


@pytest.mark.usefixtures("served")
def test_a_broker_that_stops_leaves_no_process_not_even_one_that_hangs(
    home: Home, store: Store, make: Callable[[str], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_proxy, "CLOSE_DEADLINE", 1.0)
    idle = make("idle")
    with connect(home) as client, connect(home) as other:
        idle.save(client, "one")
        store.save(client, "one")
        store.says(hang="")
        thread = threading.Thread(target=_ignoring, args=(store, other))
        thread.start()
        wait_until((store.folder / "hangs").exists)
        client.request("stop")
        wait_until(lambda: lock_is_free(home), timeout=60, what="the broker to end")
        store.says(hang=None)
        thread.join(60)
        assert not thread.is_alive()
    for pid in [*idle.pids(), store.pids()[0]]:
        ended(pid)


def test_another_embedder_for_the_local_store_finds_what_is_there(client: BrokerClient) -> None:
    local(client, "the tests need Redis")
    spec = {"backend": "local", "config": {"embedder": {"provider": "none"}}}
    found = client.request("memory_search", query="redis", cwd=CWD, store=spec)["memories"]
    assert [hit["text"] for hit in found] == ["the tests need Redis"]
    assert client.request("memory_stats", store=spec)["store"] == spec


def test_the_broker_imports_nothing_of_memory(home: Home, store: Store) -> None:
    code = (
        "import sys, threading, runpy, os, json\n"
        "def watch():\n"
        "    sys.stdin.readline()\n"
        "    print(json.dumps(list(sys.modules)), flush=True)\n"
        "threading.Thread(target=watch, daemon=True).start()\n"
        f"sys.argv = ['x', '--home', {home.root!r}]\n"
        "runpy.run_module('relay.broker', run_name='__main__')\n"
    )
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as process:
        assert process.stdin is not None and process.stdout is not None
        wait_for_broker(home)
        with connect(home, start=False) as client:
            store.save(client, "one")
            process.stdin.write("now\n")
            process.stdin.flush()
            modules = set(json.loads(process.stdout.readline()))
            client.request("stop")
        process.wait(30)
    ours = {name for name in modules if name.split(".")[:2] == ["relay", "memory"]}
    assert ours == set()
    assert not modules & {"numpy", "mem0", "qdrant_client", "relay.memory.custom"}
