"""The file of kept saves: one owner, bounded, durable, never another program's."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from relay.core.errors import StorageError
from relay.memory import kept_saves
from relay.memory.backend import StoreUnavailable
from relay.memory.kept_saves import ALIASES_MAX, KeptSave, KeptSaves, waiting_in
from relay.memory.records import Place, Scope
from tests.support import wait_until

USER = Place(Scope.USER)


def waiting(number: int, text: str = "a fact") -> KeptSave:
    return KeptSave(f"kept{number:04}", text, USER, "ada", "run-1", None, {"ä": [1]}, 5, 0, None)


def test_what_was_added_comes_back_as_it_was(tmp_path: Path) -> None:
    path = str(tmp_path / "deep" / "key.db")
    with_none = KeptSave(
        "kept0002", "日本語", Place(Scope.PROJECT, "/x"), None, None, "abc", None, 6
    )
    first = KeptSaves(path)
    first.add(waiting(1))
    first.add(with_none)
    first.close()
    first.close()
    second = KeptSaves(path)
    assert second.first() == waiting(1)
    second.applied(waiting(1), "kept0001")
    assert second.first() == with_none and second.alias("kept0001") is None
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert os.stat(tmp_path / "deep").st_mode & 0o777 == 0o700
    second.close()


def test_the_bounds_are_counted_again_when_it_is_opened(tmp_path: Path) -> None:
    path = str(tmp_path / "key.db")
    box = KeptSaves(path)
    for number in range(3):
        box.add(waiting(number, "schön"))
    size = box._size
    box.close()
    box = KeptSaves(path)
    assert (box._size, box._count) == (size, 3)
    for number in range(3):
        box.applied(waiting(number, "schön"), "other")
    assert (box._size, box._count) == (0, 0)
    box.close()


def test_aliases_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ALIASES_MAX == kept_saves.SAVES_MAX
    monkeypatch.setattr(kept_saves, "ALIASES_MAX", 3)
    box = KeptSaves(str(tmp_path / "key.db"))
    for number in range(6):
        box.add(waiting(number))
        box.applied(waiting(number), "real")
    known = [number for number in range(6) if box.alias(f"kept{number:04}")]
    assert known == [3, 4, 5]
    box.close()


def test_only_one_process_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "key.db")
    code = (
        "import sys, signal; from relay.memory.kept_saves import KeptSaves;"
        "box = KeptSaves(sys.argv[1]); print('has it', flush=True); signal.pause()"
    )
    other = subprocess.Popen([sys.executable, "-c", code, path], stdout=subprocess.PIPE)
    try:
        assert other.stdout is not None and other.stdout.readline() == b"has it\n"
        monkeypatch.setattr(kept_saves, "OWNER_WAIT", 0.1)
        with pytest.raises(StoreUnavailable, match="another process"):
            KeptSaves(path)
        assert waiting_in(str(tmp_path.parent)) == {}
    finally:
        other.send_signal(signal.SIGKILL)
        other.wait(20)
        other.stdout and other.stdout.close()
    KeptSaves(path).close()


@pytest.mark.parametrize("content", [b"not a database", b"sqlite"])
def test_what_is_not_ours_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "key.db"
    if content == b"sqlite":
        other = sqlite3.connect(path)
        other.execute("CREATE TABLE theirs (x)")
        other.commit()
        other.close()
    else:
        path.write_bytes(content * 100)
    before = path.read_bytes()
    for _ in range(2):  # the lock is given back
        with pytest.raises(StorageError) as refused:
            KeptSaves(str(path))
        assert refused.value.hint and str(path) in refused.value.message
    assert path.read_bytes() == before


SAVING = """
import sys
from relay.memory.records import Place, Scope
from relay.memory.kept_saves import KeptSaves, KeptSave
box, number = KeptSaves(sys.argv[1]), int(sys.argv[2])
while True:
    box.add(KeptSave(f"kept{number:06}", "x" * 500, Place(Scope.USER), None, None, None, None, 5))
    print(number, flush=True)
    number += 1
"""


def test_what_was_added_outlives_sigkill(tmp_path: Path) -> None:
    path, chance, confirmed = str(tmp_path / "key.db"), random.Random(7), -1
    for _ in range(4):
        command = [sys.executable, "-c", SAVING, path, str(confirmed + 1)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            for _ in range(chance.randrange(1, 40)):
                confirmed = int(child.stdout.readline())
            child.send_signal(signal.SIGKILL)
            for line in child.stdout.read().split(b"\n")[:-1]:
                confirmed = int(line)
        box = wait_until(lambda: KeptSaves(path))
        count = box.counts()[0]
        # One may be there that nobody was told of.
        assert count in (confirmed + 1, confirmed + 2)
        confirmed = count - 1
        box.close()
