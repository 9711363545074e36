"""Several processes on one folder, and processes that are killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from relay.features.memory.local.local_store import LocalStore
from relay.features.memory.records import Place, Scope

PLACES = [Place(Scope.PROJECT, "/src/shop"), Place(Scope.USER)]
#: Saves, and prints the id of each once it is confirmed; searches, lists and forgets in between.
WORKER = """
import sys, time
from relay.features.memory.local.local_store import LocalStore
from relay.features.memory.records import Place, Scope

folder, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
places = [Place(Scope.PROJECT, "/src/shop"), Place(Scope.USER)]
store = LocalStore(folder)
for number in range(count):
    place = places[number % 2]
    text = f"fact {number} of {name} " + "about redis " * (number % 7)
    saved = store.save(text, place, agent=name, session=None, now_ms=number)
    print(saved.memory.id, flush=True)
    if number % 5 == 0:
        store.search("redis fact", places, 5, now_ms=number)
    if number % 10 == 9:
        extra = store.save(f"soon gone {name} {number}", place, agent=name, session=None, now_ms=0)
        store.forget(extra.memory.id)
        store.list(places, 5)
store.close()
"""


def start(folder: Path, name: str, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, str(folder), name, str(count)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_processes_share_a_folder_without_a_lock_error(tmp_path: Path) -> None:
    # Nothing is there yet: they also race for making the files.
    workers = [start(tmp_path, f"w{number}", 40) for number in range(4)]
    ids: list[str] = []
    for worker in workers:
        out, err = worker.communicate(timeout=120)
        assert (worker.returncode, err) == (0, "")
        ids += out.split()
    store = LocalStore(str(tmp_path))
    kept = {memory.id for memory in store.export()}
    assert len(ids) == len(set(ids)) == 160 and kept == set(ids)
    assert sum(store.stats().counts.values()) == 160
    store.close()


@pytest.mark.parametrize("seed", range(3))
def test_what_was_confirmed_survives_a_kill(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    confirmed: list[str] = []
    for round_ in range(3):
        worker = start(tmp_path, f"w{round_}", 100_000)
        try:
            assert worker.stdout is not None and worker.stderr is not None
            for _ in range(rng.randrange(1, 40)):
                confirmed.append(worker.stdout.readline().strip())
        finally:
            os.kill(worker.pid, signal.SIGKILL)
            out, err = worker.communicate(timeout=60)
        assert err == ""
        # What was printed and not read yet was confirmed too; the last line may be cut.
        confirmed += [line for line in out.splitlines(keepends=True) if line.endswith("\n")]
    store = LocalStore(str(tmp_path))
    kept = {memory.id: memory for memory in store.export()}
    wanted = [id_.strip() for id_ in confirmed]
    assert wanted and [id_ for id_ in wanted if id_ not in kept] == []
    # The index and the rows tell the same: each can be found by its words.
    for id_ in rng.sample(wanted, min(5, len(wanted))):
        found = store.search(kept[id_].text, PLACES, 1000, now_ms=0)
        assert id_ in {hit.memory.id for hit in found}
    for place in PLACES:
        shelf = store._make(place)
        with shelf.writing() as db:
            db.execute("INSERT INTO texts (texts, rank) VALUES ('integrity-check', 1)")
    store.close()
