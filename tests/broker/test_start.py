"""Starting: on demand, one at a time, an update, and clear words when it cannot."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from relay.broker.client import BrokerClient, connect
from relay.broker.main import failure_file, main
from relay.broker.start import failure_since
from relay.core.errors import BrokerUnavailable, RelayError, StorageError
from relay.core.paths import Home
from relay.core.processes import read_process
from relay.ledger.schema import SCHEMA
from relay.protocol.broker_ops import HELLO, STOP
from relay.protocol.message_ops import SEND
from tests.broker.support import (
    Session,
    broker_process,
    kill_broker,
    lock_is_free,
    lock_kept,
    stop_broker,
    wait_for_broker,
)
from tests.support import wait_until


def test_a_client_starts_it_and_leaves_no_child(home: Home) -> None:
    with connect(home) as client:
        pid = client.request(HELLO)["pid"]
        with pytest.raises(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)
        assert os.getsid(pid) != os.getsid(0)
        with connect(home) as other:
            assert other.request(HELLO)["pid"] == pid


def test_it_is_not_started_when_that_is_not_wanted(home: Home) -> None:
    with pytest.raises(BrokerUnavailable, match="no broker is running") as failure:
        connect(home, start=False)
    assert failure.value.hint
    assert not os.path.exists(home.broker_socket)


def test_of_several_that_start_at_once_one_serves(home: Home) -> None:
    home.create()
    started = [broker_process(home) for _ in range(4)]
    try:
        wait_for_broker(home)
        with connect(home, start=False) as client:
            pid = client.request(HELLO)["pid"]
            losers = [process for process in started if process.pid != pid]
            assert len(losers) == 3
            assert [process.wait(timeout=30) for process in losers] == [0, 0, 0]
            client.request(SEND, to="Bob", body="x", offline=True)
            client.request(STOP)
        winner = next(process for process in started if process.pid == pid)
        assert winner.wait(timeout=30) == 0
    finally:
        for process in started:
            process.kill()
            process.wait(timeout=30)
            assert process.stderr is not None
            process.stderr.close()


def test_a_stale_socket_is_replaced(home: Home) -> None:
    home.create()
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(home.broker_socket)
    stale.close()
    with connect(home) as client:
        assert client.request(HELLO)["protocol"] == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_cleanly(home: Home, number: signal.Signals) -> None:
    home.create()
    with broker_process(home) as process:
        wait_for_broker(home)
        with connect(home, start=False) as client:
            client.request(SEND, to="Bob", body="x", offline=True)
            process.send_signal(number)
            assert process.wait(timeout=30) == 0
        assert process.stderr is not None and process.stderr.read() == b""
    assert not os.path.exists(home.broker_socket)
    assert not os.path.exists(home.ledger + "-wal")  # everything is in the one file
    assert lock_is_free(home)


def test_it_ends_when_nobody_needs_it(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELAY_BROKER_IDLE", "0.2")
    with connect(home) as client:
        pid = client.request(HELLO)["pid"]
    wait_until(lambda: lock_is_free(home), what="the broker to end by itself")
    with connect(home) as client:
        assert client.request(HELLO)["pid"] != pid


def test_it_does_not_end_while_somebody_is_connected(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELAY_BROKER_IDLE", "0.05")
    with connect(home) as client:
        pid = client.request(HELLO)["pid"]
        assert client.next_push(0.5) is None
        assert client.request(HELLO)["pid"] == pid


@pytest.mark.parametrize("content", [b"this is no database", b"\x00" * 4096])
def test_a_file_that_is_no_ledger_is_reported_to_the_client(home: Home, content: bytes) -> None:
    home.create()
    Path(home.ledger).write_bytes(content)
    with pytest.raises(StorageError, match="not a ledger") as failure:
        connect(home)
    assert failure.value.hint
    assert Path(home.ledger).read_bytes() == content
    os.unlink(home.ledger)
    with connect(home) as client:  # as the hint says
        assert client.request(HELLO)["protocol"] == 1


def test_a_reason_that_cannot_be_left_for_the_client_is_in_the_log(home: Home) -> None:
    home.create()
    Path(home.ledger).write_bytes(b"x" * 200)
    os.mkdir(failure_file(home))
    assert main(["--home", home.root]) != 0
    log = Path(home.broker_log).read_text()
    assert "cannot start" in log and "not a ledger" in log and "Traceback" not in log


def test_a_stranger_that_holds_the_lock_is_the_reason_that_clients_are_told(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.create()
    monkeypatch.setattr("relay.broker.main._LOCK_WAIT", 0.0)
    begun = time.time()
    with lock_kept(home) as stranger:
        assert main(["--home", home.root]) != 0
        reason = failure_since(home, begun)
    assert isinstance(reason, BrokerUnavailable)
    assert reason.line.startswith(f"process {stranger.pid} (sleep 600) holds the broker's lock")
    assert "relay broker stop ends it" in reason.hint
    with connect(home) as client:
        assert client.request(HELLO)["protocol"] == 1


def test_a_state_directory_that_cannot_be_made(tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    with pytest.raises(RelayError) as failure:
        connect(Home(str(in_the_way / "relay")))
    assert failure.value.code == "state_dir" and "RELAY_HOME" in failure.value.hint


def test_a_state_directory_that_stays_as_it_is_is_named(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(home.root).mkdir(mode=0o755, exist_ok=True)
    Path(home.root).chmod(0o755)

    def refuse(fd: int, mode: int) -> None:  # as on a disk that is read only
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "fchmod", refuse)
    with pytest.raises(RelayError, match=f"{re.escape(home.root)}: Read-only file system"):
        home.create()


def test_a_broker_that_never_comes_is_not_waited_for_long(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.create()
    monkeypatch.setattr("relay.broker.start.launch", lambda home: None)
    with pytest.raises(BrokerUnavailable, match="cannot be reached") as failure:
        connect(home, deadline=0.2)
    assert home.broker_log in failure.value.hint


def test_where_the_disk_is_full_that_is_the_reason(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.create()
    monkeypatch.setattr("relay.broker.start.launch", lambda home: None)
    full = SimpleNamespace(f_bavail=3, f_frsize=4096)
    monkeypatch.setattr("relay.broker.start.os.statvfs", lambda path: full)
    with pytest.raises(BrokerUnavailable, match="no space is left at") as failure:
        connect(home, deadline=0.2)
    assert failure.value.hint == "make room there"


def test_the_reason_of_an_earlier_failure_is_not_taken_for_this_one(home: Home) -> None:
    home.create()
    Path(home.run, "broker.failed").write_text('{"at": 1, "error": {"code": "storage"}}')
    assert failure_since(home, 2.0) is None
    with connect(home) as client:
        client.request(HELLO)
    assert not os.path.exists(os.path.join(home.run, "broker.failed"))


@pytest.mark.parametrize("moved", ["unlink", "rename", "another"])
def test_a_socket_that_is_taken_away_is_made_again_by_the_same_broker(
    home: Home, moved: str
) -> None:
    with connect(home) as client:
        pid = client.request(HELLO)["pid"]
        if moved == "unlink":
            os.unlink(home.broker_socket)
        else:
            os.rename(home.broker_socket, home.broker_socket + ".moved")
        if moved == "another":
            Path(home.broker_socket).write_text("")
        if moved != "another":  # who only asks waits until it is there again
            with connect(home, start=False) as other:
                assert other.request(HELLO)["pid"] == pid
        with connect(home) as other:
            assert other.request(HELLO)["pid"] == pid
        assert client.request(HELLO)["pid"] == pid
    assert "the socket was removed: it is made again" in Path(home.broker_log).read_text()


def test_a_broker_whose_lock_was_taken_away_ends_for_the_next_one(home: Home) -> None:
    with connect(home) as client:
        pid = client.request(HELLO)["pid"]
    os.unlink(home.broker_lock)
    wait_until(lambda: read_process(pid) is None, what="the first broker to end")
    with connect(home) as client:
        assert client.request(HELLO)["pid"] != pid


def test_a_home_that_may_not_be_written_is_called_that() -> None:
    """In a process that is nobody's: root is refused nothing."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o777)
        command = [sys.executable, "-c", _SHUT, folder]
        told = subprocess.run(command, capture_output=True, text=True, timeout=30)
        assert "cannot be used: no permission" in told.stdout, told.stderr
        assert f"chmod -R u+rwX {folder}/home" in told.stdout


@pytest.mark.parametrize("limit", [64, 256])
def test_too_few_files_are_named_by_their_number(home: Home, limit: int) -> None:
    home.create()
    code = (
        "import resource, sys; from relay.broker.main import main;"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit}));"
        f"main(['--home', {home.root!r}])"
    )
    with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE) as process:
        if limit == 64:
            assert process.stderr is not None
            assert b"needs 96 open files, and the hard limit here is 64" in process.stderr.read()
            return
        wait_for_broker(home)
        with connect(home, start=False) as client:
            client.request(STOP)


_SHUT = """
import os, socket, sys
from relay.broker.client import BrokerClient, connect
from relay.core.errors import RelayError
from relay.core.paths import Home
from relay.core.processes import read_process
if os.getuid() == 0:
    os.setgid(65534); os.setuid(65534)
home = Home(sys.argv[1] + "/home")
home.create()
socket.socket(socket.AF_UNIX).bind(home.broker_socket)
os.chmod(home.broker_socket, 0o400)
try:
    connect(home)
except RelayError as error:
    print(error.line)
"""
_STRANGER = """
import os, socket, sys
os.setgid(65534); os.setuid(65534)
s = socket.socket(socket.AF_UNIX)
try:
    s.connect(sys.argv[1])
    print(s.recv(4096).decode(), end="")
except (PermissionError, BrokenPipeError, ConnectionResetError) as error:
    print(type(error).__name__)
"""


def test_a_file_system_without_locks_is_called_that(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def without(*_: object) -> bool:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("relay.broker.main.sign_lock", without)
    begun = time.time() - 1
    assert main(["--home", home.root]) != 0
    assert f"relay: cannot lock {home.broker_lock}: No locks available" in capsys.readouterr().err
    assert (reason := failure_since(home, begun)) is not None
    assert reason.hint == "set RELAY_HOME to a directory on a local disk"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_is_refused() -> None:
    # Not in the folder of pytest, which other runs of it close again. And only this broker starts:
    # a second one, which a client starts when the first is slow, closes the doors as well.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        home = Home(f"{folder}/relay")
        home.create()
        with broker_process(home) as process:
            wait_for_broker(home)
            with connect(home, start=False) as client:
                refuses_another_user(home, client, Path(folder))
                client.request(STOP)
            assert process.wait(timeout=30) == 0


def refuses_another_user(home: Home, client: BrokerClient, folder: Path) -> None:
    pid = client.request(HELLO)["pid"]
    command = [sys.executable, "-I", "-c", _STRANGER, home.broker_socket]
    shut = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert shut.stdout.strip() == "PermissionError"
    # Even with every door on the way open, the broker asks who it is.
    socket_path = Path(home.broker_socket)
    for path in socket_path.parents:
        if not path.stat().st_mode & 1:
            assert path.is_relative_to(folder)
            path.chmod(path.stat().st_mode | 0o001)
    socket_path.chmod(0o777)
    out = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert "belongs to another user" in out.stdout
    assert '"ok":true' not in out.stdout
    assert client.request(HELLO)["pid"] == pid


_IMPOSTOR = """
import os, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
os.chmod(sys.argv[1], 0o777)
os.setgid(65534); os.setuid(65534)
listener.listen()  # the kernel notes who calls this
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_a_socket_of_another_user_is_not_trusted(home: Home) -> None:
    home.create()
    with subprocess.Popen(
        [sys.executable, "-I", "-c", _IMPOSTOR, home.broker_socket],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as impostor:
        assert impostor.stdout is not None and impostor.stdin is not None
        assert impostor.stdout.readline() == b"ready\n"
        with pytest.raises(BrokerUnavailable, match="another user"):
            connect(home)
        impostor.stdin.close()
    os.unlink(home.broker_socket)


AGENTS = 20
MESSAGES = 15
#: A broker of the next version: it knows one more change of the tables.
_NEWER = """
import sys
from dataclasses import replace
from relay.ledger import schema
change = ("CREATE TABLE newer (x INTEGER)", "ALTER TABLE events ADD COLUMN newer TEXT")
schema.SCHEMA = replace(schema.SCHEMA, migrations=(*schema.SCHEMA.migrations, change))
from relay.broker.main import main
sys.exit(main(["--home", sys.argv[1]]))
"""


def start_newer(home: Home) -> None:
    command = ["/bin/sh", "-c", '"$@" &', "sh", sys.executable, "-c", _NEWER, home.root]
    subprocess.run(command, start_new_session=True, check=True, timeout=30)


@pytest.mark.parametrize("end", [stop_broker, kill_broker], ids=["stopped", "killed"])
def test_twenty_agents_notice_nothing_of_an_upgrade(
    home: Home, monkeypatch: pytest.MonkeyPatch, end: Callable[[Home], None]
) -> None:
    starts = []

    def launch(home: Home) -> None:
        starts.append(home)
        start_newer(home)

    async def talk(sessions: list[Session], number: int, half: asyncio.Event) -> None:
        """Say one thing after another to the next agent."""
        to = sessions[(number + 1) % AGENTS].name
        for text in range(MESSAGES):
            if text == MESSAGES // 2:
                half.set()
            await sessions[number].client.request(SEND, to=to, body=f"{text}")

    async def upgrade() -> list[Session]:
        async with AsyncExitStack() as stack:
            sessions = [
                await stack.enter_async_context(Session(home, f"A{number}"))
                for number in range(AGENTS)
            ]
            monkeypatch.setattr("relay.broker.start.launch", launch)
            halves = [asyncio.Event() for _ in sessions]
            async with asyncio.TaskGroup() as group:
                for number, half in enumerate(halves):
                    group.create_task(talk(sessions, number, half))
                await halves[0].wait()
                begun = time.monotonic()
                await asyncio.to_thread(end, home)
            for session in sessions:
                await session.until(partial(all_heard, session))
            print(f"{time.monotonic() - begun:.2f} s until all was heard")
            return sessions

    with connect(home):
        pass
    for session in asyncio.run(upgrade()):
        assert heard(session) == [f"{text}" for text in range(MESSAGES)]
        assert session.problems == []
    assert len(starts) < AGENTS / 2  # of those who miss it one starts it
    stop_broker(home)
    with closing(sqlite3.connect(home.ledger)) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (SCHEMA.version + 1,)
    os.unlink(home.ledger)  # of a version that the broker of the end of the test does not know


def all_heard(session: Session) -> bool:
    return len(heard(session)) >= MESSAGES


def heard(session: Session) -> list[str]:
    """What came, each message once: one that was not yet marked is offered again."""
    return list({push["id"]: push["body"] for push in session.delivered()}.values())
