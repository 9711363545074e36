"""The terminal emulator: the binding, its library, and the styles of rows."""

from __future__ import annotations

import threading
from pathlib import Path

import pyghostty.core
import pytest

from relay.core.errors import RelayError
from relay.screen import emulator_library
from relay.screen.emulator import Emulator, EmulatorError
from relay.screen.styled_rows import sgr, styled_rows


def emulator(cols: int = 10, rows: int = 4) -> Emulator:
    return Emulator(cols, rows, history=100)


def test_a_mark_follows_its_cell_through_scrolling_and_reflow() -> None:
    terminal = emulator()
    terminal.feed(b"a\r\n0123456789X")
    mark = terminal.mark(0, 2)
    terminal.resize(5, 4)
    assert mark.position() == (0, 3)
    terminal.resize(20, 4)
    assert mark.position() == (10, 1)
    terminal.feed(b"\r\n" * 20)
    assert mark.position() == (10, 1)
    assert terminal.history_rows > 1
    kept = terminal.from_bottom(mark)
    again = terminal.mark_from_bottom(kept)
    assert again is not None and again.position() == (10, 1)


def test_a_mark_that_left_the_scrollback_says_so() -> None:
    terminal = emulator()
    mark = terminal.mark(0, 0)
    for _ in range(200):
        terminal.feed(b"x\r\n" * 1000)
    assert mark.position() is None
    mark.close()
    mark.close()


def test_the_scrollback_is_bounded_and_never_shorter_than_asked() -> None:
    terminal = emulator(80, 24)
    terminal.feed(b"x\r\n" * 5000)
    shortest = terminal.history_rows
    for _ in range(5000):
        terminal.feed(b"x\r\n")
        shortest = min(shortest, terminal.history_rows)
    assert shortest >= 100
    assert terminal.history_rows < 2000


@pytest.mark.parametrize(
    "cut", [b"\x1b[3", b"\xe4\xb8", b"\x1b]0;ti", b"\x1b", b"", b"\x1b[?2026h\x1b[38;5"]
)
def test_a_snapshot_holds_everything(cut: bytes) -> None:
    rest = {b"\x1b[3": b"1mx", b"\xe4\xb8": b"\x96", b"\x1b]0;ti": b"tle\x07y"}
    terminal = emulator()
    terminal.feed(b"one\r\n\x1b[?2004htwo\r\nthree\r\nfour\r\nfive" + cut)
    first = Emulator(1, 1, history=100, snapshot=terminal.snapshot())
    # Twice, because the second must still know what the first had not finished.
    again = Emulator(1, 1, history=100, snapshot=first.snapshot())
    for one in (terminal, again):
        one.feed(rest.get(cut, b"5mz"))
    end = (9, terminal.total_rows - 1)
    assert again.text((0, 0), end) == terminal.text((0, 0), end)
    assert again.cursor == terminal.cursor
    assert again.title == terminal.title
    assert again.mode(2004)
    assert again.mode(2026) == terminal.mode(2026)


@pytest.mark.parametrize("data", [b"", b"nonsense", b"\x00" * 100])
def test_a_broken_snapshot_is_refused(data: bytes) -> None:
    with pytest.raises(EmulatorError):
        Emulator(80, 24, snapshot=data)


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
    monkeypatch.setattr(emulator_library, "_compiled", None)  # would be called, were it not kept
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


def test_a_mark_is_freed_while_cffi_is_in_the_middle_of_its_work() -> None:
    loaded = emulator_library.load()
    vars(loaded.lib).pop("ghostty_tracked_grid_ref_free", None)  # as in a process that begins
    terminal = Emulator(20, 5)
    mark = terminal.mark(0, 2)
    with loaded.ffi._lock:  # garbage may be collected just then, by the thread that has it
        freeing = threading.Thread(target=mark.close, daemon=True)
        freeing.start()
        freeing.join(30)
        assert not freeing.is_alive()


def test_what_a_terminal_shows_becomes_texts_with_styles() -> None:
    emulator = Emulator(40, 4)
    link = b"\x1b]8;;http://x/\x1b\\link\x1b]8;;\x1b\\"
    emulator.feed(b"a \x1b[1;31mred\x1b[0m \x1b[38;2;1;2;3;48;5;200mrgb\x1b[m " + link)
    emulator.feed(b"\r\n\x1b[7;3mbutton\r\n\x1b[0mend")
    first, second, third, fourth = styled_rows(emulator.visible(styled=True))
    coloured = {"fg": "#010203", "bg": 200}
    red = {"bold": True, "fg": 1}
    assert first == [("a ", {}), ("red", red), (" ", {}), ("rgb", coloured), (" link", {})]
    assert second == [("button", {"reverse": True, "italic": True})]
    assert (third, fourth) == ([("end", {})], [])
    assert sgr(coloured) == "\x1b[38;2;1;2;3;48;5;200m" and sgr({}) == ""
    assert sgr({"fg": "#\x1b[2J", "bold": True}) == "\x1b[1m"
