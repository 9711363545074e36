"""Worker processes of the memory: killed, hanging, printing, forking, unable to start."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from relay.broker import memory_process
from relay.broker.memory_process import STARTS_MAX, Worker
from relay.core.errors import ConfigError, RelayError, StorageError, Timeout
from relay.core.paths import Home
from relay.memory.applying import TRIES_MAX
from relay.memory.outbox import waiting_in
from tests.broker.support import Json
from tests.memory.flaky import saying
from tests.memory.flaky_worker import COMMAND, folder
from tests.support import wait_until

STORE: Json = {"backend": "qdrant", "config": {"url": "http://127.0.0.1:1"}}
#: No test waits so long; it is there against hanging.
LONG = 60.0


class Rig:
    """A worker around a flaky store, and how it is asked."""

    def __init__(self, home: Home) -> None:
        home.create()
        self.home = home
        self.at = 1_795_000_000_000
        self.logged: list[str] = []
        Path(home.memory).mkdir()
        saying(folder(home))
        self.worker = self.made()

    def made(self, **how: Any) -> Worker:
        how = {"answer_max": LONG, "close_max": LONG, "start": COMMAND, **how}
        return Worker(self.home, STORE, self.logged.append, **how)

    def remade(self, **how: Any) -> None:
        self.worker.close()
        self.worker = self.made(**how)

    def says(self, **what: str | None) -> None:
        saying(folder(self.home), **what)

    def ask(self, op: str, **fields: Any) -> Json:
        self.at += 1
        request = {"op": f"memory_{op}", "cwd": "/src/shop", **fields}
        return self.worker.answer(request, None, None, self.at)

    def save(self, text: str) -> Json:
        return self.ask("save", text=text)

    def texts(self) -> list[str]:
        return [row["text"] for row in self.ask("list", limit=1000)["memories"]][::-1]

    def pids(self) -> list[int]:
        """Of the processes that opened the store, the newest last."""
        return [int(line) for line in (folder(self.home) / "opened").read_text().split()]


@pytest.fixture
def rig(isolated_home: Path) -> Iterator[Rig]:
    rig = Rig(Home(str(isolated_home)))
    yield rig
    rig.worker.kill()
    rig.worker.close()


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


def test_it_answers_and_ends(rig: Rig) -> None:
    assert rig.save("one")["outcome"] == "new"
    assert rig.texts() == ["one"]
    [pid] = rig.pids()
    assert os.getpgid(pid) == pid != os.getpgrp()
    rig.remade()
    left(pid)
    assert rig.texts() == ["one"]
    assert rig.logged == []


def test_nothing_of_an_agents_or_the_stores_keys_is_in_its_arguments(rig: Rig) -> None:
    rig.save("one")
    process = Path(f"/proc/{rig.pids()[0]}")
    if not process.exists():
        command = ["ps", "-o", "args=", "-p", str(rig.pids()[0])]
        arguments = subprocess.run(command, capture_output=True, check=True, timeout=20).stdout
    else:
        arguments = (process / "cmdline").read_bytes()
        assert os.readlink(process / "cwd") == os.path.realpath(rig.home.memory)
    assert arguments and b"127.0.0.1" not in arguments


@pytest.mark.parametrize("when", ["die", "die-after"])
def test_one_that_is_killed_in_a_save_says_so_and_the_next_request_works(
    rig: Rig, when: str
) -> None:
    rig.save("confirmed")
    rig.says(**{when: ""})
    with pytest.raises(StorageError) as died:
        rig.save("in hand")
    assert died.value.code == "memory_worker"
    assert "was ended by SIGKILL before it answered" in died.value.message
    assert "look before you do it again" in died.value.hint
    rig.says(**{when: None})
    there = rig.texts()
    assert there == ["confirmed"] + (["in hand"] if when == "die-after" else [])
    assert rig.save("in hand")["outcome"] == ("same" if when == "die-after" else "new")
    assert sorted(rig.texts()) == ["confirmed", "in hand"]
    left(rig.pids()[0])


def test_one_that_dies_while_nobody_asks_is_started_again_without_a_word(rig: Rig) -> None:
    rig.save("one")
    os.kill(rig.pids()[0], signal.SIGKILL)
    assert rig.worker._process is not None
    wait_until(rig.worker._process.has_ended)
    assert rig.texts() == ["one"]
    assert len(rig.pids()) == 2 and "SIGKILL while nobody used it" in rig.logged[0]


def test_one_that_hangs_is_killed_and_reaped(rig: Rig) -> None:
    rig.remade(answer_max=1.0)
    rig.save("one")
    rig.says(hang="")
    with pytest.raises(Timeout, match="its process was ended"):
        rig.save("two")
    left(rig.pids()[0])
    rig.says(hang=None)
    rig.remade()
    assert rig.texts() == ["one"]


def test_one_that_hangs_can_be_killed_from_elsewhere(rig: Rig) -> None:
    rig.save("one")
    rig.says(hang="")
    raised: list[RelayError] = []

    def ask() -> None:
        try:
            rig.save("two")
        except RelayError as error:
            raised.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    wait_until((folder(rig.home) / "hangs").exists)
    rig.worker.kill()
    thread.join(20)
    assert not thread.is_alive() and raised[0].code == "memory_worker"
    with pytest.raises(RelayError, match="the broker stops"):
        rig.save("three")
    left(rig.pids()[0])
    assert len(rig.pids()) == 1


def test_what_it_prints_disturbs_nothing_and_is_logged_within_bounds(rig: Rig) -> None:
    rig.says(loud="")
    for number in range(3):
        assert rig.save(f"fact number {number}")["memory"]["text"] == f"fact number {number}"
    rig.says(loud=None)
    assert rig.texts() == ["fact number 0", "fact number 1", "fact number 2"]
    rig.worker.close()
    logs = list(Path(rig.home.logs).glob("memory.log*"))
    text = "".join(path.read_text() for path in logs)
    assert "neither is this an answer" in text and "yyy" in text
    assert all(path.stat().st_size < 1_300_000 for path in logs) and len(logs) <= 2


def test_what_it_forks_disturbs_nothing_and_ends_with_it(rig: Rig) -> None:
    rig.says(fork="")
    rig.save("one")
    rig.save("two")
    [pid] = rig.pids()
    rig.says(fork=None)
    assert len(rig.texts()) == 2
    rig.worker.close()
    left(pid)


def test_what_it_forks_does_not_hide_its_death(rig: Rig) -> None:
    rig.says(fork="")
    rig.save("one")
    rig.says(die="")
    with pytest.raises(StorageError, match="SIGKILL"):
        rig.save("two")
    left(rig.pids()[0])


def test_one_that_is_misconfigured_says_so_each_time_and_is_started_once(rig: Rig) -> None:
    rig.says(misconfigured="the vectors have 384 numbers, not 768")
    for _ in range(10):
        with pytest.raises(ConfigError, match="384") as refused:
            rig.save("one")
        assert refused.value.hint == "write it otherwise"
    assert len(set(rig.pids())) == 1
    rig.says(misconfigured=None)
    assert rig.save("one")["outcome"] == "new"
    assert len(set(rig.pids())) == 1


@pytest.mark.parametrize("code", ["import nothing_of_the_kind", "import os; os.abort()"])
def test_one_that_cannot_start_is_not_started_for_ever(rig: Rig, tmp_path: Path, code: str) -> None:
    starts = tmp_path / "starts"
    counted = f"open({str(starts)!r}, 'a').write('x');{code}"
    rig.remade(start=[sys.executable, "-c", counted])
    told = set()
    for _ in range(10):
        with pytest.raises(StorageError) as refused:
            rig.save("one")
        assert refused.value.code == "memory_worker" and "memory.log" in refused.value.hint
        told.add(refused.value.message)
    assert starts.read_text() == "x" * STARTS_MAX
    assert f"the process of the memory ended {STARTS_MAX} times within a minute" in told
    if "nothing" in code:
        log = Path(rig.home.logs) / "memory.log"
        assert "No module named 'nothing_of_the_kind'" in log.read_text()


def test_what_cannot_be_started_at_all_is_told(rig: Rig) -> None:
    rig.remade(start=["/nowhere/python"])
    with pytest.raises(StorageError, match="cannot be started: No such file"):
        rig.save("one")


def test_what_is_no_answer_ends_it(rig: Rig) -> None:
    code = "import socket; s = socket.socket(fileno=0); s.recv(99); s.send(b'[1]\\n'); s.recv(9)"
    rig.remade(start=[sys.executable, "-c", code])
    with pytest.raises(StorageError, match="what is no answer"):
        rig.save("one")
    assert rig.worker._process is None


@pytest.mark.parametrize("how", ["idle", "hangs", "within a line"])
def test_it_ends_by_itself_when_the_broker_is_gone(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setenv("LAST_MOMENTS", "0.3")
    rig.says(fork="")
    rig.save("one")
    rig.says(fork=None)
    [pid] = rig.pids()
    process = rig.worker._process
    assert process is not None
    if how == "within a line":
        process._send(b'{"n":9,"request":{"op":"mem', time.monotonic() + 9)
    if how == "hangs":
        rig.says(hang="")
        process._send(b'{"n":9,"request":{"op":"memory_stats"},"agent":null,', time.monotonic() + 9)
        process._send(b'"run":null,"now_ms":5}\n', time.monotonic() + 9)
        wait_until((folder(rig.home) / "hangs").exists)
    process._channel.close()  # as the kernel does for a broker that is killed
    wait_until(process.has_ended)
    assert process.end(0.0)
    rig.worker._process = None
    left(pid)
    rig.says(hang=None)
    rig.remade()
    assert rig.texts() == ["one"]


def test_what_is_kept_is_stored_while_nobody_asks(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APPLY_EVERY", "0.05")
    rig.says(away="nobody listens")
    for number in range(30):
        assert rig.save(f"fact number {number}")["outcome"] == "kept"
    rig.says(away=None)
    wait_until(lambda: not waiting_in(rig.home.memory), what="the kept saves to be stored")
    assert len((folder(rig.home) / "calls").read_text().splitlines()) == 30


@pytest.mark.parametrize("when", ["die", "die-after"])
def test_what_is_kept_outlives_a_kill_while_it_is_stored(rig: Rig, when: str) -> None:
    """Killed before the store has the first, and between that and its leaving the outbox."""
    rig.save("zero")
    rig.says(away="nobody listens")
    told = [rig.save(f"fact {number}") for number in range(4)]
    assert {(one["outcome"], one["problem"]) for one in told} == {("kept", "nobody listens")}
    rig.says(away=None, **{when: ""})
    for _ in range(2):
        with pytest.raises(StorageError, match="SIGKILL"):
            rig.texts()
    rig.says(**{when: None})
    rows = rig.ask("list", limit=1000)["memories"][::-1]
    assert [row["text"] for row in rows] == ["zero", "fact 0", "fact 1", "fact 2", "fact 3"]
    assert [row["id"] for row in rows[1:]] == [one["memory"]["id"] for one in told]
    stats = rig.ask("stats")
    assert (stats["kept"], stats["refused"], stats["problem"]) == (0, 0, None)


def test_what_the_store_dies_of_does_not_block_the_others_for_ever(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_process, "START_SPAN", 0.0)
    rig.says(away="nobody listens")
    told = [rig.save(text)["memory"]["id"] for text in ("before", "the poison", "behind")]
    rig.says(away=None, poison="the poison")
    for _ in range(TRIES_MAX):
        with pytest.raises(StorageError, match="SIGKILL"):
            rig.texts()
    assert rig.texts() == ["before", "behind"]
    stats = rig.ask("stats")
    assert (stats["kept"], stats["refused"]) == (0, 1)
    assert "process ended each time" in stats["problem"] and told[1] in stats["problem"]
    assert rig.ask("get", id=told[1])["memory"]["text"] == "the poison"
    assert rig.ask("forget", id=told[1])["memory"]["id"] == told[1]
    assert rig.ask("stats")["refused"] == 0


def test_no_kill_loses_doubles_or_reorders_what_was_confirmed(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker is killed at random times, while the store goes away and comes back."""
    monkeypatch.setattr(memory_process, "START_SPAN", 0.0)
    chance = random.Random(20261122)
    confirmed: list[str] = []
    tried: list[str] = []
    for number in range(120):
        if chance.random() < 0.2:
            rig.says(away="gone" if chance.random() < 0.5 else None)
        killer = None
        process = rig.worker._process
        if process is not None and chance.random() < 0.3:
            killer = threading.Timer(chance.random() * 0.02, process.kill)
            killer.start()
        text = f"fact number {number:03}"
        tried.append(text)
        try:
            assert rig.save(text)["outcome"] in ("new", "kept")
            confirmed.append(text)
        except StorageError as error:
            assert error.code == "memory_worker", error
        if killer is not None:
            killer.join()
    rig.says(away=None)
    if killer is not None and process is not None:
        wait_until(process.has_ended)  # else it could take the next request with it
    there = rig.texts()
    assert [text for text in there if text in set(confirmed)] == confirmed
    # What was in hand may be there, too, in its place; nothing is there twice.
    assert [text for text in tried if text in set(there)] == there
    assert rig.ask("stats")["kept"] == 0 and len(confirmed) < 120


def test_stats_say_which_store_it_is_without_its_keys(rig: Rig) -> None:
    store = {"backend": "qdrant", "config": {"url": "http://127.0.0.1:1", "api_key": "hunter2"}}
    rig.worker.close()
    rig.worker = Worker(rig.home, store, rig.logged.append, start=COMMAND)
    stats = rig.ask("stats")
    assert stats["store"]["config"]["vector_store"]["api_key"] == "…"
    assert "hunter2" not in repr(stats) and stats["folder"] is None
    rig.says(away="nobody listens")
    rig.save("one")
    stats = rig.ask("stats")
    assert (stats["backend"], stats["kept"], stats["problem"]) == ("qdrant", 1, "nobody listens")


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


def test_fastembed_is_not_imported_unless_it_is_named(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "fastembed.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))
    rig.says(imports="fastembed")
    with pytest.raises(StorageError, match="import of fastembed halted"):
        rig.save("a")
    monkeypatch.setitem(STORE, "backend", "mem0")
    monkeypatch.setitem(STORE, "config", {"embedder": {"provider": "fastembed", "model": "m"}})
    rig.remade()
    assert rig.save("a")["outcome"] == "new"
