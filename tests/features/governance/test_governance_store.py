"""The state of governance: sessions are processes of their own that meet in one file."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from relay.core.errors import DamagedFile
from relay.core.paths import Home
from relay.features.governance import governance_store
from relay.features.governance.governance_store import GovernanceStore, Lease, Selection, start_of

#: A session that takes what is free and notes what it reads, and says so once it is done.
BUSY = """
import os, sys
from relay.core.paths import Home
from relay.features.governance.governance_store import GovernanceStore, Lease, start_of
store, run, pid = GovernanceStore.open(Home(sys.argv[1])), sys.argv[2], os.getpid()
for number in range(int(sys.argv[3])):
    paths = [str(number), "same" if int(sys.argv[4]) else run]
    wanted = [Lease("/p", path, run, run, pid, start_of(pid), "I", 0, 10**12) for path in paths]
    taken = not store.take(wanted, 1)[0]
    store.note(run, {paths[0]: str(number)})
    print(number, int(taken), flush=True)
sys.stdin.read()
"""


def session(home: Path, run: str, rounds: int, same: int = 0) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", BUSY, str(home), run, str(rounds), str(same)]
    pipe = subprocess.PIPE
    return subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True)


def lease(path: str, run: str, pid: int = 1, start: str = "0") -> Lease:
    return Lease("/p", path, run, run, pid, start, "INT-1", 5, 100)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[GovernanceStore]:
    made = GovernanceStore.open(Home(str(tmp_path)))
    yield made
    made.close()


def test_of_several_processes_one_gets_a_file(tmp_path: Path, store: GovernanceStore) -> None:
    runs = [session(tmp_path, run, 20, same=1) for run in ("a", "b", "c")]
    try:
        said = [[run.stdout.readline().split()[1] for _ in range(20)] for run in runs if run.stdout]
        # Whoever came first had it in each of its rounds, and nobody else in any.
        assert sorted("".join(set(one)) for one in said) == ["0", "0", "1"]
        assert len(store.leases("/p", 1)) == 21
    finally:
        for run in runs:
            run.communicate(timeout=10)
    # Of the dead everything is free.
    assert store.leases("/p", 1) == []
    assert store.take([lease("same", "d")], 1) == ([], ["same"])


def test_a_kill_loses_nothing_that_was_done(tmp_path: Path, store: GovernanceStore) -> None:
    for number in range(5):
        run = session(tmp_path, f"run-{number}", 100_000)
        assert run.stdout is not None
        for _ in range(20 + number):
            last = run.stdout.readline().split()[0]
        run.send_signal(signal.SIGKILL)
        run.communicate(timeout=10)
        assert store.baselines(f"run-{number}", [last]) == {last: last}
    again = GovernanceStore.open(Home(str(tmp_path)))
    assert again.take([lease("0", "x")], 1) == ([], ["0"])
    again.close()


def test_a_lease_ends_with_its_time_its_run_and_its_process(store: GovernanceStore) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        held = lease("f", "a", process.pid, start_of(process.pid))
        assert store.take([held], 10) == ([], ["f"])
        assert store.take([held], 10) == ([], [])
        assert store.take([lease("g", "b"), lease("f", "b")], 99) == ([held], [])
        assert store.leases("/p", 99) == [held]
        assert store.take([lease("f", "b")], 100) == ([], ["f"])
        store.release("b")
        assert store.take([held], 10) == ([], ["f"])
        process.kill()
    assert store.take([lease("f", "c")], 10) == ([], ["f"])


def test_where_the_file_is_taken_away_all_begin_anew_together(
    tmp_path: Path, store: GovernanceStore
) -> None:
    other = GovernanceStore.open(Home(str(tmp_path)))
    store.select(Selection("a", "/p", "A", "INT-1", 1))
    for ending in ("", "-wal", "-shm"):
        (tmp_path / f"governance.db{ending}").unlink()
    assert other.selection("a") is None
    held = lease("f", "a", os.getpid(), start_of(os.getpid()))
    assert store.take([held], 10) == ([], ["f"])
    assert other.take([lease("f", "b")], 10) == ([held], [])
    other.close()


def test_a_damaged_file_is_set_aside_and_all_begin_anew(
    tmp_path: Path, store: GovernanceStore
) -> None:
    path, chosen = tmp_path / "governance.db", Selection("a", "/p", "A", "INT-1", 1)
    store.select(chosen)
    store.close()
    for damage in (b"\xff" * 8192, path.read_bytes()[:200] + b"\xff" * 9000):
        path.write_bytes(damage)
        (tmp_path / "governance.db-wal").unlink(missing_ok=True)
        store = GovernanceStore.open(Home(str(tmp_path)))
        with contextlib.suppress(DamagedFile):  # found at its first use
            store.selection("a")
        assert store.selection("a") is None
        store.select(chosen)
        assert store.selection("a") == chosen
        store.close()
    assert len(list(tmp_path.glob("governance.db.damaged-*"))) == 2


def test_what_is_kept_is_bounded(store: GovernanceStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(governance_store, "BASELINES_MAX", 100)
    monkeypatch.setattr(governance_store, "BASELINES_ALL", 150)
    monkeypatch.setattr(governance_store, "SELECTIONS_MAX", 3)
    for run in ("a", "b"):
        store.note(run, {str(number): "x" for number in range(300)})
        found = store.baselines(run, map(str, range(300)))
        assert list(found) == [str(number) for number in range(200, 300)]
    assert len(store.baselines("a", map(str, range(300)))) <= 50
    for number in range(6):
        store.select(Selection(str(number), "/p", "A", "INT-1", number))
    assert [one.run for one in store.selections("/p")] == ["3", "4", "5"]
    store.forget("5")
    assert store.selection("5") is None and store.selection("4") is not None
