"""``relay memory export`` and ``import`` as a user meets them, in a terminal and cut off."""

from __future__ import annotations

import io
import itertools
import json
import os
import pty
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from relay.broker.client import connect
from relay.core.paths import Home
from relay.features.memory import moves
from relay.features.memory.ops import MEMORY_STATS
from relay.features.memory.records import TIME_MAX
from tests.cli.fixtures import Run
from tests.support import wait_until

RELAY = (sys.executable, "-m", "relay", "memory")


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test works in a repository of its own."""
    folder = tmp_path / "shop"
    (folder / ".git").mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder


def row(number: int, **fields: object) -> dict[str, object]:
    stamp = {"scope": "user", "owner": "", "created_ms": number, "updated_ms": number}
    return {"id": f"k{number:05}", "text": f"fact {number}", **stamp, **fields}


def lines(*rows: object) -> str:
    return "".join(json.dumps(one) + "\n" for one in rows)


def parsed(done: subprocess.CompletedProcess[str], status: int = 0) -> Any:
    assert done.returncode == status, done.stdout + done.stderr
    return json.loads(done.stdout)


# -- export


def test_a_file_that_is_there_is_replaced_only_when_asked_to(relay: Run, tmp_path: Path) -> None:
    file = tmp_path / "kept.jsonl"
    file.write_text("the backup of yesterday\n")
    relay("memory", "import", "-", stdin=lines(row(1)))
    error = parsed(relay("memory", "export", str(file), "--json"), 2)["error"]
    assert error["code"] == "exists" and "--force" in error["hint"]
    assert file.read_text() == "the backup of yesterday\n"
    link = tmp_path / "link.jsonl"
    link.symlink_to(file)
    assert relay("memory", "export", str(link)).returncode == 2
    assert "1 memory is in" in relay("memory", "export", str(link), "--force").stderr
    assert link.is_symlink() and json.loads(file.read_text())["text"] == "fact 1"
    assert sorted(os.listdir(tmp_path))[:2] == ["kept.jsonl", "link.jsonl"]
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".part")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_one_that_is_ended_leaves_no_part(number: signal.Signals, tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from relay.features.memory.moves import export_target\n"
        "with export_target(sys.argv[1], replace=True) as target:\n"
        "    target.write('half')\n"
        "    target.flush()\n"
        "    print('begun', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    file = tmp_path / "kept.jsonl"
    file.write_text("the backup of yesterday\n")
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None and process.stdout.readline() == b"begun\n"
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode in (-signal.SIGINT, 128 + number)
    assert file.read_text() == "the backup of yesterday\n"
    assert sorted(os.listdir(tmp_path)) == ["kept.jsonl", "shop"]


def test_a_pipe_is_written_and_stays_a_pipe(relay: Run, tmp_path: Path) -> None:
    relay("memory", "import", "-", stdin=lines(row(1), row(2)))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    assert relay("memory", "export", str(pipe)).returncode == 0
    reader.join(30)
    assert len(read[0].splitlines()) == 2 and stat.S_ISFIFO(os.stat(pipe).st_mode)
    assert "folder" in relay("memory", "export", str(tmp_path), "--force").stderr


def test_a_disk_that_is_full_is_said(relay: Run) -> None:
    if not os.path.exists("/dev/full"):
        return  # Linux has it
    relay("memory", "import", "-", stdin=lines(row(1)))
    for words, unbuffered in (["export"], ""), (["list", "--json"], "1"):
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [*RELAY, *words],
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                timeout=60,
                env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            )
        assert done.returncode == 1 and "cannot be written: No space left" in done.stderr


def test_a_stream_that_the_caller_closed(broker_home: Home) -> None:
    for words, closed, status, said in (
        ("stats", ">&-", 1, "cannot be written"),
        ("show zzzz --json", ">&-", 3, ""),
        ("save -", "<&-", 2, "the text is empty"),
        ("save", "<&-", 2, "the text is empty"),
        ("import -", "<&-", 0, "0 new"),
        ("save fact", "2>&-", 0, ""),
        ("list", "2>&-", 0, ""),
    ):
        script = f'exec "$0" -m relay memory {words} {closed}'
        done = subprocess.run(
            ["sh", "-c", script, sys.executable], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == status and said in done.stderr, words
        assert "Traceback" not in done.stderr and "fault" not in done.stderr


# -- import


def test_bad_lines_are_named_and_the_good_ones_kept(relay: Run, tmp_path: Path) -> None:
    bad: list[tuple[bytes, str]] = [
        (b"not JSON", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b'{"id": "cut o', "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"17", "it is not an object"),
        (lines(row(1, scope="team")).encode().strip(), "'scope' is none of"),
        (lines(row(1, id="../x")).encode().strip(), "cannot be an id"),
        (lines(row(1, text="\ud800")).encode().strip(), "not valid Unicode"),
        (lines(row(1, agent="\ud800")).encode().strip(), "cannot be an agent's name"),
        (lines(row(1, session="\x1b[2J")).encode().strip(), "cannot be a session"),
        (lines(row(1, updated_ms=1 << 52)).encode().strip(), "not a time"),
        (lines(row(1, created_ms=TIME_MAX + 1)).encode().strip(), "not a time"),
        (b"x" * moves.LINE_MAX, "too long"),
        (b"x" * (3 * moves.LINE_MAX + 7), "too long"),
    ]
    for number, (line, reason) in enumerate(bad):
        file = tmp_path / f"{number}.jsonl"
        one, two = (lines(row(10 * number + n)).encode() for n in (1, 2))
        file.write_bytes(one + b"\n" + line + b"\n" + two)
        error = parsed(relay("memory", "import", str(file), "--json"), 2)["error"]
        [found] = error["lines"]
        assert found["line"] == 3 and reason in found["reason"]
        assert (error["code"], error["new"], error["bad"]) == ("bad_lines", 2, 1)
    count = parsed(relay("memory", "stats", "--json"))["count"]
    assert count == 2 * len(bad)
    done = relay("memory", "import", "-", stdin="x\n" * 12_345)
    assert "line 2 (it is not JSON)" in done.stderr and "and 12335 more" in done.stderr


def test_one_that_was_cut_off_goes_on(relay: Run, broker_home: Home) -> None:
    whole = lines(*map(row, range(1300)))
    importing = subprocess.Popen(
        [*RELAY, "import", "-"], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert importing.stdin is not None
    importing.stdin.write(whole[: len(whole) * 11 // 13])
    importing.stdin.flush()
    with connect(broker_home) as client:
        wait_until(lambda: client.request(MEMORY_STATS)["count"] == 1000)
    importing.send_signal(signal.SIGINT)
    said = importing.communicate(timeout=30)[1]
    assert importing.returncode == -signal.SIGINT
    # The answer to the second page may have been on its way.
    told = "cut off; so far: {} new, 0 that were there; run it again to go on\n"
    assert said in (told.format(500), told.format(1000))
    done = relay("memory", "import", "-", stdin=whole)
    assert done.stderr == "300 new, 1000 that were there\n"
    assert relay("memory", "import", "-", stdin=whole).stderr == "0 new, 1300 that were there\n"
    exported = relay("memory", "export").stdout.splitlines()
    assert [json.loads(one)["text"] for one in exported] == [f"fact {n}" for n in range(1300)]


def test_what_is_there_with_another_content_is_counted_and_stays(relay: Run) -> None:
    relay("memory", "import", "-", stdin=lines(row(1)))
    done = relay("memory", "import", "-", stdin=lines(row(1, text="another"), row(2)))
    assert "1 new, 0 that were there, 1 that are there with another content" in done.stderr
    assert "fact 1" in relay("memory", "show", "k00001").stdout


def test_pages_are_bounded_however_long_the_file_is() -> None:
    class Endless(io.RawIOBase):
        """A file without an end, with lines of 2 KB."""

        def __init__(self) -> None:
            self._left = b""
            self._rows: Iterator[int] = itertools.count()
            self.read_so_far = 0

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            self._left = self._left or lines(row(next(self._rows), text="x" * 2000)).encode()
            given = self._left[: len(buffer)]
            self._left = self._left[len(given) :]
            buffer[: len(given)] = given
            self.read_so_far += len(given)
            return len(given)

    source = Endless()
    pages = moves._pages(io.BufferedReader(source), moves._Counts())
    sizes = [len(rows) for rows, _ in itertools.islice(pages, 4)]
    assert all(100 < size <= 500 for size in sizes)
    assert source.read_so_far < 5 * (1 << 20)


def test_the_latest_time_is_shown_everywhere_on_earth(relay: Run) -> None:
    latest = lines(row(1, created_ms=TIME_MAX, updated_ms=TIME_MAX))
    assert relay("memory", "import", "-", stdin=latest).returncode == 0
    for zone in ("Etc/GMT-14", "Etc/GMT+12"):
        for words in (("list",), ("show", "k00001"), ("list", "--json"), ("forget", "k00001")):
            done = relay("memory", *words, env={"TZ": zone})
            assert done.returncode == 0 and "fact" in done.stdout + done.stderr, done.stderr
        relay("memory", "import", "-", stdin=latest)


def test_what_was_imported_cannot_steer_the_terminal(relay: Run) -> None:
    text, meta = "\x1b[31mred fact", {"\x1b[2J": "\x1b[2J"}
    relay("memory", "import", "-", stdin=lines(row(1, text=text, meta=meta)))
    for words in (("list",), ("show", "k00001"), ("search", "fact")):
        out = relay("memory", *words).stdout
        assert "^[[31mred" in out and "\x1b" not in out


# -- setup


def test_a_setup_that_is_ended_leaves_no_pip(tmp_path: Path, broker_home: Home) -> None:
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip" / "__init__.py").touch()
    told = tmp_path / "told"
    (tmp_path / "pip" / "__main__.py").write_text(
        "import os, signal, time\n"
        f"with open({str(told) + '.part'!r}, 'w') as file:\n"
        "    file.write(str(os.getpid()))\n"
        f"os.rename({str(told) + '.part'!r}, {str(told)!r})\n"
        "signal.pause()\n"
    )
    process = subprocess.Popen(
        [*RELAY, "setup"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: told.exists() or process.poll() is not None)
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=30)[1]
    if "numpy" in said:
        assert process.returncode == 1  # there is nothing to fetch without it
        return
    assert process.returncode == 128 + signal.SIGTERM, said
    with pytest.raises(ProcessLookupError):
        os.kill(int(told.read_text()), 0)


# -- in a terminal


def in_terminal(*words: str, stdout: Any = None) -> tuple[int, str]:
    """The status, and what appeared in a terminal that is stderr (and stdout, unless given)."""
    outer, inner = pty.openpty()
    process = subprocess.Popen(
        [*RELAY, *words],
        stdin=subprocess.DEVNULL,
        stdout=inner if stdout is None else stdout,
        stderr=inner,
    )
    os.close(inner)
    shown = b""
    try:
        while data := os.read(outer, 65536):
            shown += data
    except OSError:  # its last writer has gone
        pass
    finally:
        os.close(outer)
        status = process.wait(60)
    return status, shown.decode()


def test_a_bar_is_drawn_in_a_terminal_and_nowhere_else(relay: Run, tmp_path: Path) -> None:
    file = tmp_path / "all.jsonl"
    file.write_text(lines(*map(row, range(600))))
    status, shown = in_terminal("import", str(file))
    assert status == 0 and "#" in shown and "500 memories" in shown
    assert shown.endswith("\r600 new, 0 that were there\r\n")
    status, shown = in_terminal("export", str(tmp_path / "copy.jsonl"))
    assert status == 0 and "] 600 of 600 memories" in shown
    status, shown = in_terminal("export", stdout=subprocess.DEVNULL)
    assert status == 0 and "600 of 600" in shown
    status, shown = in_terminal("export")  # there the lines themselves appear
    assert status == 0 and "600 of 600" not in shown and shown.count("\n") == 600
    for words in (("import", str(file)), ("export", str(tmp_path / "other.jsonl"))):
        done = relay("memory", *words)
        assert "#" not in done.stderr and "\r" not in done.stderr
