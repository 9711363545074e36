"""The session's end of the pump: replay, back-pressure, refusals. Real terminals, fake sessions."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import sys
from functools import partial
from pathlib import Path

import pytest

from relay.protocol import frames
from relay.pump import session_link as module
from relay.pump.session_link import PAUSE_MAX, SessionLink
from tests.pump.outer import Fake, Outer, alive
from tests.support import found, wait_until

PY = sys.executable


def write(number: int, sequence: int, text: bytes) -> bytes:
    return struct.pack(">II", number, sequence) + text


def sequences(fake: Fake) -> list[tuple[int, bytes]]:
    return [(int.from_bytes(f[:4], "big"), f[4:]) for f in fake.frames(frames.ACTIVITY)]


def test_sessions_killed_during_a_stream_lose_and_double_nothing(
    outer: Outer, fake: Fake, tmp_path: Path
) -> None:
    code = (
        "import os, sys\n"
        "for n in range(4000):\n"
        "  os.write(1, b'%06d ' % n * 40 + b'\\r\\n')\n"
        "  if n % 1000 == 999: sys.stdin.readline()\n"
    )
    outer.raw()
    outer.wrap(PY, "-S", "-c", code)
    killed: list[int] = []
    for round_ in range(4):
        outer.until(b"%06d \r\n" % (round_ * 1000 + 500))
        # Not before it knows that it is one: the next one counts it.
        wait_until(lambda: len(fake.frames(frames.HELLO)) == len(fake.pids()) > len(killed))
        wait_until(lambda: fake.frames(frames.OUTPUT) and alive(fake.pids()[-1]))
        pid = fake.pids()[-1]
        os.kill(pid, signal.SIGKILL)
        killed.append(pid)
        # One that dies in the very moment in which the agent ends is another matter: nobody is
        # left then to start the next.
        wait_until(partial(_dead, pid))
        outer.type(b"\n")
    assert outer.wait() == 0
    fake.wait(frames.EXIT)
    wanted = b"".join(b"%06d " % n * 40 + b"\r\n" for n in range(4000))
    # What was typed is echoed between the lines; taken out it leaves the output alone.
    heard = fake.stream()
    assert heard == bytes(outer.seen)
    assert b"".join(line for line in heard.splitlines(True) if len(line) > 3) == wanted
    hellos = [json.loads(h) for h in fake.frames(frames.HELLO)]
    assert [h["restarts"] for h in hellos] == list(range(len(hellos)))
    for hello, checkpoint in zip(hellos, fake.frames(frames.CHECKPOINT), strict=True):
        offset = hello["offset"]
        assert checkpoint == (b"checkpoint %d" % offset if offset else b"")


def _dead(pid: int) -> bool:
    return not alive(pid)


def test_a_session_that_never_acknowledges_is_dropped_and_said_so(outer: Outer, fake: Fake) -> None:
    fake.set_mode("noack")
    outer.env |= {"SPOOL_MAX": "4000000", "PATIENCE": "0.3"}
    code = "import os\nfor n in range(800): os.write(1, b'x' * 65536)\nos.write(1, b'the end')"
    outer.raw()
    outer.wrap(PY, "-S", "-c", code)
    assert outer.wait(60) == 0
    assert outer.seen.count(b"x" * 65536) >= 1 and b"the end" in outer.seen
    assert b"relay: the session was given up" in outer.seen


def test_a_flood_waits_on_disk_for_a_session_that_sleeps_and_is_heard_by_the_next(
    outer: Outer, fake: Fake, tmp_path: Path
) -> None:
    """64 MB are twice what memory holds. The agent goes on; whoever comes next hears it all."""
    line = b"%06d " % 1 * 36 + b"\r\n"
    code = (
        "import os, sys\n"
        f"block = {line!r} * 64\n"
        "for n in range(4000): os.write(1, block)\n"
        "os.write(1, b'READY'); os.read(0, 1)\n"
    )
    outer.raw()
    fake.set_mode("hang")
    outer.wrap(PY, "-S", "-c", code)
    outer.until(lambda seen: seen.endswith(b"READY"), 60)
    wait_until(fake.pids)
    assert outer.process is not None
    pump = outer.process.pid
    files = spool_files(pump)
    assert files is None or sum(files) > 50_000_000
    assert not list(Path(os.environ["RELAY_HOME"]).rglob("spool*"))
    fake.set_mode("ack")
    os.kill(fake.pids()[0], signal.SIGKILL)
    wait_until(lambda: len(fake.stream()) == len(outer.seen), 60, "all of it heard")
    assert fake.stream() == bytes(outer.seen)
    wait_until(lambda: not spool_files(pump), 20, "the room given back")
    outer.type(b"x")
    assert outer.wait() == 0


def spool_files(pid: int) -> list[int] | None:
    """The sizes of the nameless files that a process has open; None where nobody can tell."""
    folder = Path(f"/proc/{pid}/fd")
    if not folder.exists():
        return None
    found = []
    for fd in folder.iterdir():
        with contextlib.suppress(OSError):
            if "/spool-" in os.readlink(fd):
                found.append(fd.stat().st_size)
    return found


def test_a_session_that_hangs_does_not_disturb(outer: Outer, fake: Fake) -> None:
    fake.set_mode("hang")
    outer.wrap("sh", "-c", "echo READY; read x; echo got $x")
    outer.until(b"READY")
    outer.type(b"words\r")
    outer.until(b"got words")
    assert outer.wait() == 0


@pytest.mark.parametrize("mode", ["die", "garbage"])
def test_a_session_that_cannot_run_is_started_until_it_can(
    outer: Outer, fake: Fake, mode: str
) -> None:
    fake.set_mode(mode)
    outer.wrap("sh", "-c", "echo READY; read x; echo got $x")
    outer.until(b"READY")
    wait_until(lambda: len(fake.pids()) >= 7, 60, "seven sessions")
    fake.set_mode("ack")
    wait_until(lambda: b"READY" in fake.stream(), 60, "the eighth")
    outer.type(b"words\r")
    assert outer.wait() == 0
    fake.wait(frames.EXIT)
    assert fake.stream() == bytes(outer.seen)


def test_the_pause_before_the_next_session_grows_to_a_minute_and_is_short_again() -> None:
    link = SessionLink(_no_process, lambda *_: b"", b"")
    now, pauses = 0.0, []
    link.open(now)
    for _ in range(30):
        due = found(link.deadline)
        pauses.append(round(due - now, 3))
        now = due
        link.tick(now)
    assert pauses == sorted(pauses) and pauses[0] == 0.1
    assert pauses[-1] == PAUSE_MAX and not link.dropped
    link.broken(now + PAUSE_MAX)
    assert found(link.deadline) - now - PAUSE_MAX == pytest.approx(0.1)


def _no_process() -> tuple[int, int]:
    raise OSError(11, "no process to be had")


def test_a_session_comes_back_with_the_draft_known(outer: Outer, fake: Fake) -> None:
    outer.wrap("cat")
    fake.wait(frames.HELLO)
    outer.type(b"a draft")
    fake.wait(frames.ACTIVITY)
    os.kill(fake.pids()[0], signal.SIGKILL)
    fake.wait(frames.HELLO, 2)
    last = fake.wait(frames.ACTIVITY, 2)[-1]
    assert last[4:] == frames.TYPED
    outer.type(b"\x03")
    assert outer.wait() == -signal.SIGINT


def test_words_that_depend_on_the_screen_are_refused_once_the_agent_has_written(
    outer: Outer, fake: Fake
) -> None:
    outer.wrap("cat")
    fake.wait(frames.HELLO)
    fake.send(frames.WRITE_AT, write(1, 0, (0).to_bytes(8, "big") + b"first\r"))
    assert fake.wait(frames.WRITTEN) == [(1).to_bytes(4, "big")]
    outer.until(lambda seen: seen.count(b"first") == 2)
    fake.send(frames.WRITE_AT, write(2, 0, (0).to_bytes(8, "big") + b"refused\r"))
    assert fake.wait(frames.OVERTAKEN) == [(2).to_bytes(4, "big")]
    wait_until(lambda: b"".join(fake.wait(frames.OUTPUT)).count(b"first") == 2)
    heard = len(b"".join(fake.wait(frames.OUTPUT)))
    fake.send(frames.WRITE_AT, write(3, 0, heard.to_bytes(8, "big") + b"third\r"))
    fake.wait(frames.WRITTEN, 2)
    outer.until(lambda seen: seen.count(b"third") == 2)
    assert b"refused" not in outer.seen
    outer.type(b"\x04")
    assert outer.wait() == 0


def test_words_go_in_and_are_refused_after_typing(outer: Outer, fake: Fake) -> None:
    outer.wrap("cat")
    fake.wait(frames.HELLO)
    fake.send(frames.WRITE, write(1, 0, b"first words\r"))
    assert fake.wait(frames.WRITTEN) == [(1).to_bytes(4, "big")]
    outer.until(lambda seen: seen.count(b"first words") == 2)
    outer.type(b"d")
    fake.wait(frames.ACTIVITY)
    fake.send(frames.WRITE, write(2, 0, b"refused words\r"))
    assert fake.wait(frames.REFUSED) == [(2).to_bytes(4, "big")]
    outer.type(b"\r")
    wait_until(lambda: sequences(fake)[-1][1][:1] == frames.ENTERED)
    fake.send(frames.WRITE, write(3, sequences(fake)[-1][0], b"third words\r"))
    fake.wait(frames.WRITTEN, 2)
    outer.until(lambda seen: seen.count(b"third words") == 2)  # cat's own, or it splits the draft
    outer.type(b"draft")
    fake.wait(frames.ACTIVITY, 3)
    fake.send(frames.WRITE, write(4, frames.ANY_SEQUENCE, b" and words\r"))
    fake.wait(frames.WRITTEN, 3)
    outer.until(lambda seen: seen.count(b"draft and words") == 2)
    assert b"refused words" not in outer.seen
    outer.type(b"\x04")
    assert outer.wait() == 0


def test_words_arrive_whole_while_the_person_types(
    outer: Outer, fake: Fake, tmp_path: Path
) -> None:
    """The agent reads late, so the words cannot all go at once; keys wait behind them."""
    agent = tmp_path / "agent.py"
    agent.write_text(
        "import os, tty, signal, time\ntty.setraw(0)\nos.write(1, b'READY')\n"
        "signal.sigwait([signal.SIGUSR1])\ngot = b''\n"
        "while not got.endswith(b'keys'): got += os.read(0, 65536)\n"
        "os.write(1, b'<' + got[-10:] + b'>%d' % len(got))\n"
    )
    outer.wrap(
        PY,
        "-c",
        "import signal, runpy, sys; signal.pthread_sigmask(0, [signal.SIGUSR1]); "
        "runpy.run_path(sys.argv[1])",
        str(agent),
    )
    outer.until(b"READY")
    fake.wait(frames.HELLO)
    words = b"w" * 60_000 + b"whole"
    fake.send(frames.WRITE, write(7, 0, words))
    wait_until(lambda: _queued(outer, fake), what="words in the agent's terminal")
    outer.type(b"keys")
    assert outer.process is not None
    os.kill(outer.process.pid, signal.SIGUSR1)
    assert outer.wait() == 0
    assert b"<wwholekeys>%d" % (len(words) + 4) in outer.seen
    assert fake.wait(frames.WRITTEN) == [(7).to_bytes(4, "big")]


def test_control_c_does_not_wait_behind_words(outer: Outer, fake: Fake) -> None:
    code = "import tty, signal, os; tty.setcbreak(0); os.write(1, b'READY'); signal.pause()"
    outer.wrap(PY, "-c", "import signal; signal.signal(2, signal.SIG_DFL); " + code)
    outer.until(b"READY")
    fake.wait(frames.HELLO)
    fake.send(frames.WRITE, write(7, 0, b"w" * 60_000))
    wait_until(lambda: _queued(outer, fake), what="words in the agent's terminal")
    outer.type(b"\x03")
    assert outer.wait() == -signal.SIGINT


def _queued(outer: Outer, fake: Fake) -> bool:
    """Whether the agent's terminal holds unread input."""
    import fcntl
    import termios

    path = json.loads(fake.frames(frames.HELLO)[0])["tty"]
    fd = os.open(path, os.O_RDWR | os.O_NOCTTY)
    try:
        raw = fcntl.ioctl(fd, termios.FIONREAD, b"\0" * 4)
    finally:
        os.close(fd)
    return int.from_bytes(raw, sys.byteorder) > 0


def test_a_stop_is_told(outer: Outer, fake: Fake) -> None:
    outer.env["PS1"] = "$ "
    outer.start("bash", "--norc", "--noprofile", "-i")
    outer.until(b"$ ")
    outer.type(f"{PY} {os.path.dirname(__file__)}/driver.py cat\r".encode())
    fake.wait(frames.HELLO)
    wait_until(outer.is_raw)
    outer.type(b"\x1a")
    assert fake.wait(frames.JOB) == [frames.STOPPED]
    outer.until(lambda seen: b"$ " in seen.partition(b"Stopped")[2])
    outer.type(b"fg\r")
    assert fake.wait(frames.JOB, 2) == [frames.STOPPED, frames.CONTINUED]
    outer.type(b"\x04")
    outer.until(lambda seen: b"$ " in seen.rpartition(b"fg")[2])
    outer.type(b"exit\r")
    outer.wait()


def test_an_answer_is_never_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for it would wait for ever."""
    monkeypatch.setattr(module, "_EVENTS_MAX", 4)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)

    def start() -> tuple[int, int]:
        return os.dup(ours.fileno()), 0

    with ours, theirs:
        link = SessionLink(start, lambda offset, size, restarts: b"{}", b"\0" * 8)
        link.open(0.0)
        link.event(frames.WRITTEN, (7).to_bytes(4, "big"))
        for number in range(10):
            link.event(frames.ACTIVITY, number.to_bytes(4, "big") + frames.TYPED)
        link.flush(0.0)
        received = frames.Decoder().feed(theirs.recv(65536))
        os.close(link.fd)
    kinds = [kind for kind, _ in received]
    assert kinds.count(frames.WRITTEN) == 1
    activity = [payload[:4] for kind, payload in received if kind == frames.ACTIVITY]
    assert activity == [number.to_bytes(4, "big") for number in (7, 8, 9)]
