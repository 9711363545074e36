"""The emulator's library: from what was kept of it, or by its own import."""

from __future__ import annotations

from pathlib import Path

import pyghostty.core
import pytest

from relay.core.errors import RelayError
from relay.screen import emulator_library
from relay.screen.emulator import Emulator


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emulator_library, "_loaded", None)


def works() -> bool:
    terminal = Emulator(20, 4)
    terminal.feed(b"one\r\ntwo")
    mark = terminal.mark(1, 1)
    again = Emulator(1, 1, snapshot=terminal.snapshot())
    return again.visible()[:2] == ["one", "two"] and mark.position() == (1, 1)


def test_it_is_compiled_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    emulator_library.load(str(cache))
    assert works()
    (kept,) = cache.iterdir()
    assert kept.stat().st_mode & 0o077 == 0
    monkeypatch.setattr(emulator_library, "_loaded", None)
    monkeypatch.setattr(emulator_library, "_compile", None)  # would be called, were it not kept
    emulator_library.load(str(cache))
    assert works()
    assert emulator_library.load(None).ffi is not pyghostty.core.ffi


def test_a_broken_file_is_removed_and_the_import_stands_in(tmp_path: Path) -> None:
    emulator_library.load(str(tmp_path))
    (kept,) = tmp_path.iterdir()
    kept.write_bytes(kept.read_bytes()[:1000])
    emulator_library._loaded = None
    assert emulator_library.load(str(tmp_path)).ffi is pyghostty.core.ffi
    assert works() and not kept.exists()


def test_a_file_that_others_may_write_is_not_run(tmp_path: Path) -> None:
    emulator_library.load(str(tmp_path))
    (kept,) = tmp_path.iterdir()
    kept.write_text("raise SystemExit('this was run')")
    kept.chmod(0o666)
    emulator_library._loaded = None
    emulator_library.load(str(tmp_path))
    assert works()


def test_a_directory_that_cannot_be_written_costs_only_time(tmp_path: Path) -> None:
    # Not by permissions: root may write anywhere.
    (tmp_path / "file").write_text("")
    emulator_library.load(str(tmp_path / "file" / "cache"))
    assert works() and [path.name for path in tmp_path.iterdir()] == ["file"]


def test_what_loads_is_known_before_a_run_and_what_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    emulator_library.check(str(tmp_path))
    broken = tmp_path / "libghostty-vt.so"
    broken.write_text("no library")
    monkeypatch.setenv("PYGHOSTTY_LIB", str(broken))
    with pytest.raises(RelayError, match="cannot be loaded.*libghostty-vt") as refused:
        emulator_library.check(str(tmp_path))
    assert refused.value.code == "no_emulator"
    monkeypatch.setattr("sys.meta_path", [])
    with pytest.raises(RelayError, match="it is not installed"):
        emulator_library.check(str(tmp_path))
