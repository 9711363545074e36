"""Only one process has a folder of memories, and a killed one lets it go."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from relay.core.errors import StorageError
from relay.memory.backend import StoreUnavailable
from relay.memory.vectors.qdrant_opening import FolderLock

_HOLDER = """
import sys
from relay.memory.vectors.qdrant_opening import FolderLock
lock = FolderLock(sys.argv[1], 0)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that has the folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with process:
        assert process.stdout and process.stdout.readline() == b"held\n"
        yield process
        process.kill()


def test_a_folder_that_another_process_has_is_refused(
    holder: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    with pytest.raises(StoreUnavailable) as caught:
        FolderLock(str(tmp_path), 0.2)
    assert str(tmp_path) in caught.value.message and caught.value.hint


def test_one_that_is_killed_is_waited_for(holder: subprocess.Popen[bytes], tmp_path: Path) -> None:
    threading.Timer(0.2, holder.kill).start()
    FolderLock(str(tmp_path), 20).close()


def test_what_is_closed_can_be_taken_again(tmp_path: Path) -> None:
    first = FolderLock(str(tmp_path / "new" / "folder"), 0)
    with pytest.raises(StoreUnavailable):
        FolderLock(str(tmp_path / "new" / "folder"), 0)
    first.close()
    first.close()
    FolderLock(str(tmp_path / "new" / "folder"), 0).close()


def test_what_cannot_be_a_folder_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError) as caught:
        FolderLock(str(tmp_path / "file" / "folder"), 0)
    assert "file" in caught.value.message
