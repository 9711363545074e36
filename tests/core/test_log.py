"""The broker's log stays small, and never stands in the way."""

from __future__ import annotations

from pathlib import Path

from relay.core.log import Log, LogStream
from relay.directive.redact import redact


def test_it_is_bounded(tmp_path: Path) -> None:
    log = Log(str(tmp_path / "broker.log"), size_max=1000)
    for number in range(200):
        log.write(f"line {number}")
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["broker.log", "broker.log.1"]
    assert all(file.stat().st_size < 1100 for file in files)
    assert files[0].read_text().endswith("line 199\n")


def test_a_fault_is_recorded_and_explained(tmp_path: Path) -> None:
    log = Log(str(tmp_path / "broker.log"))
    try:
        raise ValueError("half a pair: \ud800")
    except ValueError:
        error = log.fault()
    assert error.code == "internal" and log.path in error.hint
    assert "ValueError: half a pair: \\ud800" in Path(log.path).read_text()


def test_what_cannot_be_written_is_given_up(tmp_path: Path) -> None:
    Log(str(tmp_path / "missing" / "broker.log")).write("nobody reads this")
    assert list(tmp_path.iterdir()) == []


def test_what_is_printed_becomes_bounded_lines_without_secrets(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    with LogStream(Log(str(path), redact, size_max=100_000)) as stream:
        print("the key is", "ghp_" + "x" * 36, file=stream)
        print("two\nlines", end="", file=stream)
        before = path.read_text()
    assert "ghp_****" in before and "xxxx" not in before and before.endswith(" two\n")
    assert path.read_text().endswith(" lines\n")
    with LogStream(Log(str(path), redact, size_max=100_000)) as stream:
        for _ in range(100):
            stream.write("no end " * 1000)
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 300_000
