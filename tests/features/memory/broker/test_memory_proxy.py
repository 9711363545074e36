"""The memory service behind the broker's proxy: killed, hanging, printing, unable to start."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from relay.broker.batch import AnyRequest, Batch
from relay.broker.client import BrokerClient, connect
from relay.broker.directory import Directory
from relay.config import trust
from relay.core.errors import ConfigError, RelayError, Timeout
from relay.core.paths import Home
from relay.core.processes import ancestry
from relay.features.memory import broker
from relay.features.memory.broker import DEATHS_MAX, STARTS_MAX, STORE_DEATHS_MAX, MemoryProxy
from relay.features.memory.ops import MEMORY_LIST, MEMORY_STATS
from relay.features.memory.service import STORES_MAX
from relay.protocol.broker import error_from
from relay.protocol.broker_ops import STOP
from tests.broker.support import (
    Json,
    LineLog,
    broker_process,
    lock_is_free,
    register,
    stop_broker,
    wait_for_broker,
)
from tests.features.memory.flaky_service import COMMAND, folder, saying
from tests.support import unchecked, wait_until

#: No test waits so long; it is there against hanging. Seconds.
LONG = 60.0


def store(host: str = "main", **config: Any) -> Json:
    return {"backend": "qdrant", "config": {"url": f"http://{host}:1", **config}}


class Caller:
    """The broker's side of a connection with one request, or several."""

    def __init__(self) -> None:
        self.lines: SimpleQueue[bytes] = SimpleQueue()
        self.deferred = 0
        self.member = None
        self.ancestors = ancestry(os.getpid())

    def defer(self) -> None:
        self.deferred += 1

    def undefer(self) -> None:
        self.deferred -= 1

    def send(self, line: bytes) -> None:
        self.lines.put(line)

    def answer(self) -> Json:
        record: Json = json.loads(self.lines.get(timeout=LONG))
        if not record["ok"]:
            raise error_from(record["error"])
        return record


class Rig:
    """A proxy in a loop of its own, with flaky stores, and how it is asked."""

    def __init__(self, home: Home) -> None:
        home.create()
        self.home = home
        self.at = 1_795_000_000_000
        self.log = LineLog()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.says()
        self.make()

    def make(self, **how: Any) -> None:
        self.call(lambda: self._make(**how))

    def _make(self, **how: Any) -> None:
        how = {"command": COMMAND, "deadline": LONG, "log": self.log, **how}
        self.proxy = MemoryProxy(self.home, Directory(), **how)

    def call(self, function: Callable[[], Any]) -> Any:
        async def called() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(called(), self.loop).result(LONG)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self.proxy.close(), self.loop).result(LONG)

    def end(self) -> None:
        if self.proxy._service is not None:
            self.proxy._service.kill()
        self.close()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(LONG)
        self.loop.close()

    def says(self, host: str = "main", **what: str | None) -> None:
        folder(self.home, host).mkdir(parents=True, exist_ok=True)
        saying(folder(self.home, host), **what)

    def submit(self, op: str, *, host: str = "main", **fields: Any) -> Caller:
        self.at += 1
        caller: Any = Caller()
        fields = {"cwd": "/src/shop", "store": store(host), **fields}
        request = AnyRequest(caller, 7, f"memory_{op}", fields, 99)

        def ask() -> None:
            batch = Batch(self.at)
            self.proxy.ask(request, batch)
            for call in batch.after:
                call()

        self.call(ask)
        result: Caller = caller
        return result

    def ask(self, op: str, **fields: Any) -> Json:
        return self.submit(op, **fields).answer()

    def save(self, text: str, **fields: Any) -> Json:
        return self.ask("save", text=text, **fields)

    def texts(self, **fields: Any) -> list[str]:
        return [row["text"] for row in self.ask("list", limit=1000, **fields)["memories"]][::-1]

    def pids(self, host: str = "main") -> list[int]:
        """Of the processes that opened the store, the newest last."""
        return [int(line) for line in (folder(self.home, host) / "opened").read_text().split()]

    def hangs(self, host: str = "main") -> None:
        """Wait until the store hangs."""
        wait_until((folder(self.home, host) / "hangs").exists, what="the store to hang")


@pytest.fixture
def rig(isolated_home: Path) -> Iterator[Rig]:
    rig = Rig(Home(str(isolated_home)))
    yield rig
    rig.end()


def gone(pid: int) -> bool:
    """Whether neither the process nor any of its group is there."""
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def left(pid: int) -> None:
    """Wait until all of them are gone: what was forked is the system's to reap."""
    wait_until(lambda: gone(pid), what="the worker's processes to end")


def test_nothing_of_the_stores_keys_is_in_its_arguments(rig: Rig) -> None:
    rig.save("one", store=store(api_key="hunter2"))
    process = Path(f"/proc/{rig.pids()[0]}")
    if not process.exists():
        pytest.skip("no /proc")
    assert b"hunter2" not in (process / "cmdline").read_bytes()
    assert os.readlink(process / "cwd") == os.path.realpath(rig.home.memory)


@pytest.mark.parametrize("when", ["die", "die-after"])
def test_a_save_in_which_the_service_was_killed_is_repeated_and_there_once(
    rig: Rig, when: str
) -> None:
    rig.save("confirmed")
    rig.says(**{when: "once"})
    saved = rig.save("in hand")
    assert saved["outcome"] == "new"
    rows = rig.ask("list", limit=9)["memories"]
    assert [row["text"] for row in rows] == ["in hand", "confirmed"]
    assert rows[0]["id"] == saved["memory"]["id"]
    assert len(rig.pids()) == 2 and "was ended by SIGKILL" in rig.log.lines[0]
    left(rig.pids()[0])


def test_what_the_service_dies_of_each_time_is_refused(rig: Rig) -> None:
    rig.save("confirmed")
    rig.says(poison="the poison")
    with pytest.raises(RelayError) as died:
        rig.save("the poison")
    assert died.value.code == "memory_worker"
    assert "was ended by SIGKILL before it answered" in died.value.message
    assert "look before you do it again" in died.value.hint
    assert len(rig.log.lines) == DEATHS_MAX
    assert rig.texts() == ["confirmed"]


def test_a_store_that_kills_the_service_each_time_is_refused_and_no_other(rig: Rig) -> None:
    rig.says(poison="the poison")
    told = set()
    for _ in range(STARTS_MAX):
        with pytest.raises(RelayError) as refused:
            rig.save("the poison")
        told.add(refused.value.message)
        assert rig.save("a local one", store=None)["memory"]["text"] == "a local one"
        assert rig.save("another store's", host="second")["memory"]
    assert f"the process of the memory ended {STORE_DEATHS_MAX} times within a minute" in told
    assert len(rig.log.lines) == STORE_DEATHS_MAX


def test_what_hangs_while_nobody_asks_costs_a_new_service(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HANG_MAX", "0.4")
    monkeypatch.setenv("APPLY_EVERY", "0.05")
    rig.save("one")
    rig.says(hang_idle="")
    rig.hangs()
    rig.says(hang_idle=None)
    assert rig.texts() == ["one"] and len(rig.pids()) == 2


def test_a_forget_is_not_done_twice(rig: Rig) -> None:
    saved = rig.save("one")["memory"]["id"]
    rig.says(die_forgetting="")
    with pytest.raises(RelayError, match="SIGKILL before it answered"):
        rig.ask("forget", id=saved)
    assert rig.texts() == ["one"]


def test_one_that_dies_while_nobody_asks_is_started_by_the_next_request(rig: Rig) -> None:
    rig.save("one")
    os.kill(rig.pids()[0], signal.SIGKILL)
    wait_until(lambda: rig.proxy._service is None, what="the death to be seen")
    assert rig.texts() == ["one"] and len(rig.pids()) == 2


def test_a_store_that_hangs_delays_no_other_and_is_answered_at_its_deadline(rig: Rig) -> None:
    rig.close()
    rig.make(deadline=2.0)
    rig.says(hang="")
    first = rig.submit("save", text="two")
    rig.hangs()
    second = rig.submit("save", text="three")
    assert rig.save("another store's", host="second")["outcome"] == "new"
    assert rig.save("a local one", store=None)["outcome"] == "new"
    for caller in (first, second):
        with pytest.raises(Timeout, match="did not answer within 2 s"):
            caller.answer()
        assert caller.deferred == 0


def test_a_service_that_hangs_at_its_end_is_killed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker, "CLOSE_DEADLINE", 0.2)
    rig.save("one")
    rig.says(hang="")
    waiting = rig.submit("save", text="two")
    rig.hangs()
    rig.close()
    with pytest.raises(RelayError, match="the broker stops"):
        waiting.answer()
    left(rig.pids()[0])
    assert len(rig.pids()) == 1


def test_a_store_that_hangs_for_long_costs_a_new_service(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HANG_MAX", "0.4")
    rig.says(hang="")
    waiting = rig.submit("save", text="one")
    rig.hangs()
    rig.says(hang=None)
    assert waiting.answer()["outcome"] == "new"
    assert len(rig.pids()) == 2


def test_a_service_that_stands_still_is_replaced(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.save("one")
    rig.proxy._deadline = 1.0
    monkeypatch.setattr(broker, "SILENCE_MAX", 1.5)
    os.kill(rig.pids()[0], signal.SIGSTOP)
    for text in ("two", "three"):
        with pytest.raises(Timeout):
            rig.save(text)
    wait_until(lambda: rig.proxy._service is None, what="the death to be seen")
    rig.make()
    assert rig.texts() == ["one"]


def test_what_it_prints_disturbs_nothing_and_is_logged_within_bounds(rig: Rig) -> None:
    rig.says(loud="")
    for number in range(3):
        assert rig.save(f"fact number {number}")["memory"]["text"] == f"fact number {number}"
    rig.says(loud=None)
    assert rig.texts() == ["fact number 0", "fact number 1", "fact number 2"]
    rig.close()
    logs = list(Path(rig.home.logs).glob("memory.log*"))
    text = "".join(path.read_text() for path in logs)
    assert "neither is this an answer" in text and "yyy" in text
    assert all(path.stat().st_size < 1_300_000 for path in logs) and len(logs) <= 2


def test_what_it_forks_does_not_hide_its_death(rig: Rig) -> None:
    rig.says(fork="")
    rig.save("one")
    rig.says(fork=None, die="once")
    assert rig.save("two")["outcome"] == "new"
    left(rig.pids()[0])


def test_one_that_is_misconfigured_says_so_each_time_and_costs_no_new_process(rig: Rig) -> None:
    rig.says(misconfigured="the vectors have 384 numbers, not 768")
    for _ in range(10):
        with pytest.raises(ConfigError, match="384") as refused:
            rig.save("one")
        assert refused.value.hint == "write it otherwise"
    rig.says(misconfigured=None)
    assert rig.save("one")["outcome"] == "new"
    assert len(set(rig.pids())) == 1


@pytest.mark.parametrize("code", ["import nothing_of_the_kind", "import os; os.abort()"])
def test_one_that_cannot_start_is_not_started_for_ever(rig: Rig, tmp_path: Path, code: str) -> None:
    starts = tmp_path / "starts"
    counted = f"open({str(starts)!r}, 'a').write('x');{code}"
    rig.make(command=[sys.executable, "-c", counted])
    told = set()
    for _ in range(STARTS_MAX):
        with pytest.raises(RelayError) as refused:
            rig.save("one", store=None)
        assert refused.value.code == "memory_worker" and "memory.log" in refused.value.hint
        told.add(refused.value.message)
    assert starts.read_text() == "x" * STARTS_MAX
    assert f"the process of the memory ended {STARTS_MAX} times within a minute" in told
    if "nothing" in code:
        log = Path(rig.home.logs) / "memory.log"
        wait_until(lambda: "No module named 'nothing_of_the_kind'" in log.read_text())


def test_what_cannot_be_started_at_all_is_told(rig: Rig) -> None:
    rig.make(command=["/nowhere/python"])
    with pytest.raises(RelayError, match="cannot be started: No such file"):
        rig.save("one")


def test_what_is_no_answer_ends_it(rig: Rig) -> None:
    code = "import socket; s = socket.socket(fileno=0); s.recv(99); s.send(b'[1]\\n'); s.recv(9)"
    rig.make(command=[sys.executable, "-c", code])
    with pytest.raises(RelayError, match="before it answered"):
        rig.save("one")


@pytest.mark.parametrize("how", ["idle", "hangs", "within a line"])
def test_it_ends_by_itself_when_the_broker_is_gone(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setenv("LAST_MOMENTS", "0.3")
    rig.says(fork="")
    rig.save("one")
    rig.says(fork=None)
    process = rig.proxy._service
    assert process is not None
    if how == "within a line":
        rig.call(lambda: process.send(b'{"id":9,"request":{"op":"mem'))
    if how == "hangs":
        rig.says(hang="")
        rig.submit("stats")
        rig.hangs()
        rig.says(hang=None)
    rig.call(process.finish)  # as the kernel does for a broker that is killed
    left(rig.pids()[0])
    assert rig.texts() == ["one"]


def test_no_kill_loses_doubles_or_reorders_what_was_confirmed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service is killed at random times."""
    monkeypatch.setattr(broker, "START_SPAN", 0.0)
    chance = random.Random(20261122)
    confirmed: list[str] = []
    for number in range(25):
        process = rig.proxy._service
        killer = None
        if process is not None and chance.random() < 0.3:
            killer = threading.Timer(chance.random() * 0.02, process.kill)
            killer.start()
        text = f"fact number {number:03}"
        assert rig.save(text)["outcome"] == "new"
        confirmed.append(text)
        if killer is not None:
            killer.join()
    assert rig.texts() == confirmed and len(rig.log.lines) > 2


def test_beyond_so_many_stores_one_more_is_refused_and_the_default_one_is_not(rig: Rig) -> None:
    for number in range(STORES_MAX):
        rig.save("x", host=f"host{number}")
    with pytest.raises(RelayError, match="stores of memories are in use already") as busy:
        rig.save("one too many")
    assert busy.value.code == "busy"
    assert rig.save("a local one", store=None)["outcome"] == "new"


def test_one_store_with_another_key_is_opened_when_the_first_is_closed(rig: Rig) -> None:
    for number in range(4):
        rig.save(f"fact {number}", store=store(api_key=f"key {number % 2}"))
    assert rig.texts() == [f"fact {number}" for number in range(4)]
    assert len(rig.pids()) == 5 and len(set(rig.pids())) == 1


def test_stats_say_which_store_it_is_without_its_keys(rig: Rig) -> None:
    stats = rig.ask("stats", store=store(api_key="hunter2"))
    assert stats["store"]["config"]["vector_store"]["api_key"] == "…"
    assert "hunter2" not in repr(stats) and stats["backend"] == "qdrant"


def test_more_requests_than_may_wait_are_refused(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "PENDING_MAX", 3)
    rig.says(hang="")
    for _ in range(3):
        rig.submit("save", text="x")
    with pytest.raises(RelayError, match="too many requests") as busy:
        rig.submit("save", text="x")
    assert busy.value.code == "busy"


def test_a_batch_that_is_refused_saves_nothing(rig: Rig) -> None:
    def ask() -> Caller:
        caller: Any = Caller()
        batch = Batch(1)
        request = AnyRequest(caller, 1, "memory_save", {"text": "t"}, 99)
        rig.proxy.ask(request, batch)
        for call in batch.on_failure:
            call()
        refused: Caller = caller
        return refused

    assert rig.call(ask).deferred == 0
    assert rig.proxy._service is None and not rig.proxy._pending


@pytest.mark.parametrize(
    ("given", "kept"), [("", ""), (" corp.example , *.lan", " corp.example , *.lan,"), ("*", "")]
)
def test_what_is_on_this_machine_is_not_asked_through_the_users_proxy(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, given: str, kept: str
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://proxy.example:3128")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.setenv("no_proxy", given)
    rig.says(environ="")
    rig.save("a")
    seen = json.loads((folder(rig.home) / "environ").read_text())
    value = "*" if given == "*" else f"{kept}localhost,127.0.0.1,::1"
    assert seen["no_proxy"] == seen["NO_PROXY"] == value
    assert seen["http_proxy"] == "http://proxy.example:3128"


# -- The memory service behind a real broker, with a searcher: shared, killed, hanging.

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
def searched(home: Home, tmp_path: Path) -> Searched:
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


def test_the_store_is_one_whatever_finds_in_it(home: Home, searched: Searched) -> None:
    def saves(name: str, run: str) -> None:
        with register(home, name, run=run, store=searched.spec) as agent:
            for number in range(25):
                assert searched.save(agent, f"{name} {number}")["memory"]["agent"] == name

    with ThreadPoolExecutor() as pool:
        for one in [pool.submit(saves, name, f"run-{name}") for name in ("Ada", "Bob")]:
            one.result(60)
    with connect(home) as client:
        wanted = sorted(f"{name} {number}" for name in ("Ada", "Bob") for number in range(25))
        assert sorted(searched.texts(client)) == wanted
        rows = client.request(MEMORY_LIST, cwd=CWD, limit=100)["memories"]
        assert sorted(row["text"] for row in rows) == wanted
        stats = searched.ask(client, "stats")
        assert (stats["count"], stats["problem"], stats["backend"]) == (50, None, "searcher")
        assert stats["index"]["filled"] is None and searched.spec["file"] in stats["index"]["title"]
        plain = client.request(MEMORY_STATS)
        assert plain["store"] == {"backend": "local", "config": {}} and plain["index"] is None


def test_what_was_confirmed_outlives_a_broker_that_is_killed(
    home: Home, searched: Searched
) -> None:
    confirmed: list[str] = []
    for number in range(2):
        with broker_process(home) as process:
            wait_for_broker(home)
            with connect(home, start=False) as client, connect(home, start=False) as other:
                for part in "ab":
                    confirmed.append(f"fact {number} {part}")
                    searched.save(client, confirmed[-1])
                searched.ask(client, "search", cwd=CWD, query="fact")
                socket = other._socket
                assert socket is not None
                for n in range(5):  # these are in hand
                    text = f"in hand {number} {n}"
                    request = {"n": 100 + n, "op": "memory_save", "text": text, "cwd": CWD}
                    socket.sendall(json.dumps({**request, "store": searched.spec}).encode() + b"\n")
                process.send_signal(signal.SIGKILL)
            process.wait(20)
    with connect(home) as client:
        found = searched.texts(client)
        searched.ask(client, "search", cwd=CWD, query="fact")
        assert [text for text in found if text.startswith("fact")] == confirmed
        assert len(set(found)) == len(found)
    # Those of the killed brokers have ended by themselves.
    for pid in searched.pids()[:-1]:
        ended(pid)
    stop_broker(home)
    ended(searched.pids()[-1])


def _ignoring(searched: Searched, client: BrokerClient) -> None:
    try:
        searched.ask(client, "search", cwd=CWD, query="hang")
    except RelayError:
        return


@pytest.mark.usefixtures("served")
def test_a_broker_that_stops_leaves_no_process_not_even_one_that_hangs(
    home: Home, searched: Searched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker, "CLOSE_DEADLINE", 1.0)
    with connect(home) as client, connect(home) as other:
        searched.save(client, "one")
        thread = threading.Thread(target=_ignoring, args=(searched, other))
        thread.start()
        wait_until(searched.pids)
        client.request(STOP)
        wait_until(lambda: lock_is_free(home), timeout=60, what="the broker to end")
        thread.join(60)
        assert not thread.is_alive()
    ended(searched.pids()[0])
