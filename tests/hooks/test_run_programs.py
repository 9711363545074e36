from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from relay.hooks import run_programs
from relay.hooks.hook_types import Command
from relay.hooks.run_programs import Ended, run_command
from tests.hooks.programs import ESCAPES, alive, end, group_is_gone, script, watched
from tests.support import wait_until

#: The time that a program has which must not need it.
LONG = 30.0
SHORT = 0.05
BIG = b"x" * 1_000_000


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[bytes]]]:
    with watched(monkeypatch) as processes:
        yield processes


@pytest.fixture(params=["pidfd", "looks"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How the end of a process is seen: as on Linux, or as on macOS and old kernels."""
    if request.param != "pidfd":
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    return str(request.param)


def _run(command: Command | str | list[str], payload: bytes = b"{}", **options: Any) -> Ended:
    if isinstance(command, str):
        command = Command(shell=command)
    elif isinstance(command, list):
        command = Command(argv=tuple(command))
    options = {"cwd": "/", "env": dict(os.environ), "timeout": LONG, **options}

    async def whole() -> Ended:
        return await asyncio.wait_for(run_command(command, payload, **options), 2 * LONG)

    return asyncio.run(whole())


@contextlib.contextmanager
def _ignoring(number: int) -> Iterator[None]:
    """Programs that are started here ignore a signal from their first moment on."""
    before = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(number, before)


# -- what it is given, and what is taken from it


def test_it_gets_the_input_and_its_output_and_status_are_seen(way: str, tmp_path: Path) -> None:
    ended = _run(
        'cat; pwd >&2; printf %s "$WORD" >&2; exit 3',
        b'{"a": 1}',
        cwd=str(tmp_path),
        env={"WORD": "word"},
    )
    assert ended == Ended(3, b'{"a": 1}', f"{tmp_path}\nword".encode())


def test_arguments_are_no_shells_business(tmp_path: Path) -> None:
    echo = script(tmp_path / "it's $(touch bad)", 'printf "%s|" "$@"')
    words = ["$(touch bad)", "`touch bad`", "; touch bad", "a  b", "*", "'\"", "-n", ""]
    assert _run([echo, *words], cwd=str(tmp_path)).stdout.decode() == "|".join(words) + "|"
    assert [path.name for path in tmp_path.iterdir()] == ["it's $(touch bad)"]


def test_more_input_than_a_pipe_holds_passes_while_it_answers() -> None:
    ended = _run("cat", BIG, kept_max=2 * len(BIG))
    assert (ended.status, ended.stdout, ended.cut) == (0, BIG, False)


@pytest.mark.parametrize(
    "line", ["exec <&-; echo fine", "echo fine", "exec 0</dev/null; echo fine"]
)
def test_one_that_does_not_read_its_input_is_harmless(way: str, line: str) -> None:
    assert _run(line, BIG) == Ended(0, b"fine\n")


def test_it_inherits_no_descriptors_of_ours() -> None:
    ends = os.pipe()
    try:
        os.set_inheritable(ends[1], True)
        assert _run(f"test -e /dev/fd/{ends[1]} || echo none").stdout == b"none\n"
    finally:
        for one in ends:
            os.close(one)


def test_it_has_a_session_of_its_own_and_so_no_terminal() -> None:
    ask = "import os; print(os.getsid(0) == os.getpgid(0) == os.getpid())"
    assert _run([sys.executable, "-S", "-c", ask]).stdout == b"True\n"


def test_no_exit_status_is_not_taken_for_success() -> None:
    with _ignoring(signal.SIGCHLD):
        ended = _run("exit 0")
    assert (ended.status, ended.error) == (None, "nobody knows its exit status")


# -- what cannot be started


def _no_interpreter(path: Path) -> str:
    script(path, "")
    path.write_text("#!/nowhere/at/all\n")
    return str(path)


def _no_first_line(path: Path) -> str:
    script(path, "")
    path.write_text("echo hello\n")
    return str(path)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda path: str(path), "there is no such program"),
        (lambda path: "no-such-program-anywhere", "there is no such program"),
        (lambda path: script(path, "", 0o644), "it is not executable"),
        (lambda path: path.mkdir() or str(path), "it is a directory"),
        (_no_interpreter, "the program in its #! line is missing"),
        (_no_first_line, "it is neither a binary nor a script with a #! line"),
        (lambda path: "a\0b", "embedded null byte"),
        (lambda path: "\ud800", "surrogates not allowed"),
    ],
)
def test_what_cannot_be_run_is_an_error_that_says_why(tmp_path: Path, make: Any, why: str) -> None:
    program = make(tmp_path / "hook")
    ended = _run([program])
    assert ended.status is None
    assert not ended.timed_out
    assert ended.error.startswith(f"{program!r} cannot be started: ")
    assert ended.error.endswith(why)


def test_a_vanished_working_directory_is_an_error(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    script(gone / "hook", "echo here")
    shutil.rmtree(gone)
    why = f"'/bin/sh' cannot be started: there is no working directory {str(gone)!r}"
    assert _run("echo here", cwd=str(gone)) == Ended(None, error=why)
    assert "there is no working directory" in _run(["./hook"], cwd=str(gone)).error


# -- what does not end, and what it leaves behind


def test_the_end_of_the_time_ends_the_whole_group(
    way: str, started: list[subprocess.Popen[bytes]]
) -> None:
    ended = _run("sleep 600 & sleep 600 | sleep 600", timeout=SHORT, grace=SHORT)
    assert (ended.timed_out, ended.error) == (True, "it did not end within 0.05 s")
    wait_until(lambda: group_is_gone(started[0].pid))


def test_the_polite_signal_comes_first(way: str) -> None:
    ended = _run("exec sleep 600", timeout=SHORT, grace=LONG)
    assert (ended.status, ended.timed_out) == (-signal.SIGTERM, True)


def test_one_that_ignores_the_polite_signal_is_killed(
    way: str, started: list[subprocess.Popen[bytes]]
) -> None:
    with _ignoring(signal.SIGTERM):
        ended = _run("sleep 600 & sleep 600; sleep 600", timeout=SHORT, grace=SHORT)
    assert (ended.status, ended.timed_out) == (-signal.SIGKILL, True)
    wait_until(lambda: group_is_gone(started[0].pid))


def test_a_stopped_one_hears_the_polite_signal_too() -> None:
    ended = _run("kill -STOP $$", timeout=SHORT, grace=LONG)
    assert (ended.status, ended.timed_out) == (-signal.SIGTERM, True)


def test_it_may_clean_up_when_it_must_end(tmp_path: Path) -> None:
    # A flood, as that comes after the trap, while a time limit may come before it.
    line = f"trap 'echo clean >{tmp_path}/log; exit 4' TERM; yes"
    ended = _run(line, flood_max=1000, grace=LONG)
    assert ended.status == 4
    assert (tmp_path / "log").read_text() == "clean\n"


def test_a_child_that_holds_the_output_is_not_waited_for(
    way: str, started: list[subprocess.Popen[bytes]]
) -> None:
    ended = _run("sleep 600 & echo $!", linger=SHORT, grace=LONG)
    assert (ended.status, ended.error) == (0, "")
    wait_until(lambda: group_is_gone(started[0].pid))
    wait_until(lambda: not alive(int(ended.stdout)))


def test_a_child_that_holds_the_output_and_ignores_signals_is_killed() -> None:
    with _ignoring(signal.SIGTERM):
        ended = _run("sleep 600 & echo $!", linger=SHORT, grace=SHORT)
    assert ended.status == 0
    wait_until(lambda: not alive(int(ended.stdout)))


def test_what_a_child_still_prints_at_once_counts() -> None:
    ended = _run("(read x; echo late) <&0 & exec 0</dev/null; echo early", b"go\n", linger=LONG)
    assert sorted(ended.stdout.split()) == [b"early", b"late"]


def test_a_child_that_has_left_the_group_is_not_waited_for(way: str) -> None:
    ended = _run(ESCAPES, linger=SHORT, grace=10 * LONG)
    pid = int(ended.stdout)
    try:
        assert (ended.status, ended.error) == (0, "")
        assert alive(pid)
    finally:
        end(pid)


def test_a_child_that_has_let_go_of_the_output_may_stay() -> None:
    ended = _run("sleep 600 </dev/null >/dev/null 2>&1 & echo $!", linger=10 * LONG)
    pid = int(ended.stdout)
    try:
        assert ended.status == 0
        assert alive(pid)
    finally:
        end(pid)


def test_what_cannot_be_killed_is_left_to_a_thread_that_reaps_it(
    monkeypatch: pytest.MonkeyPatch, started: list[subprocess.Popen[bytes]]
) -> None:
    monkeypatch.setattr(run_programs, "_KILL_WAIT", SHORT)
    with monkeypatch.context() as patch:
        patch.setattr(os, "killpg", lambda _pid, _number: None)
        ended = _run("exec sleep 600", timeout=SHORT, grace=SHORT)
    assert (ended.status, ended.timed_out) == (None, True)
    end(started[0].pid)
    wait_until(lambda: started[0].returncode is not None)


# -- what prints too much


def test_what_is_beyond_the_limit_is_read_and_thrown_away() -> None:
    ended = _run("head -c 3000000 /dev/zero; head -c 5 /dev/zero >&2", kept_max=1000)
    assert (ended.status, ended.error, ended.cut) == (0, "", True)
    assert (len(ended.stdout), len(ended.stderr)) == (1000, 5)


@pytest.mark.parametrize("where", ["", ">&2"])
def test_a_flood_ends_the_program_and_takes_no_memory(
    where: str, started: list[subprocess.Popen[bytes]]
) -> None:
    tracemalloc.start()
    try:
        ended = _run(f"exec head -c 1000000000 /dev/zero {where}", kept_max=100_000)
        _now, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert ended.error == f"it printed more than {run_programs.FLOOD_MAX} bytes"
    assert (ended.status, ended.timed_out) == (-signal.SIGTERM, False)
    assert len(ended.stdout + ended.stderr) == 100_000
    assert peak < 2_000_000
    wait_until(lambda: group_is_gone(started[0].pid))


def test_an_endless_flood_that_ignores_signals_is_killed() -> None:
    with _ignoring(signal.SIGTERM):
        ended = _run("yes; yes", flood_max=100_000, grace=SHORT)
    assert ended.status == -signal.SIGKILL
    assert "more than 100000 bytes" in ended.error


# -- what is given up


def _ready(path: Path) -> bool:
    return path.exists()


@pytest.mark.parametrize("line", ["touch {0}; sleep 600 & sleep 600", "touch {0}; sleep 600 &"])
def test_giving_up_kills_everything(
    tmp_path: Path, line: str, started: list[subprocess.Popen[bytes]]
) -> None:
    ready = tmp_path / "ready"

    async def whole() -> None:
        command = Command(shell=line.format(ready))
        task = asyncio.ensure_future(
            run_command(command, b"", cwd="/", env=os.environ, timeout=LONG, linger=LONG)
        )
        await asyncio.to_thread(wait_until, lambda: _ready(ready))
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        wait_until(lambda: group_is_gone(started[0].pid))

    with _ignoring(signal.SIGTERM):
        asyncio.run(whole())


async def test_giving_up_twice_leaves_the_rest_to_a_thread(
    tmp_path: Path, started: list[subprocess.Popen[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = Command(shell="exec sleep 600")
    with monkeypatch.context() as patch:
        patch.setattr(os, "killpg", lambda _pid, _number: None)
        task = asyncio.ensure_future(
            run_command(command, b"", cwd="/", env=os.environ, timeout=LONG)
        )
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
    end(started[0].pid)
    await asyncio.to_thread(wait_until, lambda: started[0].returncode is not None)
