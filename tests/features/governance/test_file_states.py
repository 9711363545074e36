"""What a file is now."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from relay.features.governance import call_plan
from relay.features.governance.call_plan import read_state, read_states, tree


def test_what_is_no_file_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    os.mkfifo(tmp_path / "fifo")
    assert read_state(str(tmp_path / "nothing")).is_absent
    assert read_state(str(tmp_path)).is_folder
    assert read_state(str(tmp_path / "fifo")).odd == "it is not a regular file"
    first = read_state(str(tmp_path / "link"))
    assert first.hash and first.data is None
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to("elsewhere")
    assert read_state(str(tmp_path / "link")).hash != first.hash


def test_a_large_file_is_told_by_its_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "large"
    file.write_bytes(b"a" * 3000)
    whole = read_state(str(file))
    assert whole.data == b"a" * 3000
    monkeypatch.setattr(call_plan, "LINES_MAX", 1000)
    hashed = read_state(str(file))
    assert hashed.hash == whole.hash and hashed.data is None
    monkeypatch.setattr(call_plan, "HASHED_MAX", 2000)
    monkeypatch.setattr(call_plan, "_END", 100)
    before = read_state(str(file))
    with open(file, "r+b") as out:
        out.write(b"b")
    os.utime(file, ns=(0, 0))
    assert read_state(str(file)).hash != before.hash


def test_one_call_has_only_so_much_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        (tmp_path / name).write_text("text")
    monkeypatch.setattr(call_plan, "CALL_MAX", 8)
    states = read_states(str(tmp_path / name) for name in "abc")
    assert [bool(one.odd) for one in states.values()] == [False, False, True]


def test_a_folder_is_listed_without_following_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in/side").mkdir(parents=True)
    (tmp_path / "in/side/file").write_text("")
    (tmp_path / "in/up").symlink_to("..")
    assert sorted(tree(str(tmp_path / "in")) or ()) == ["side", "side/file", "up"]
    monkeypatch.setattr(call_plan, "TREE_MAX", 2)
    assert tree(str(tmp_path / "in")) is None
