"""The pump, end to end: real terminals, a fake session."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from relay.protocol import frames
from tests.pump.outer import DRIVER, Fake, Outer, alive
from tests.support import wait_until

PY = sys.executable


def script(tmp_path: Path, text: str) -> str:
    path = tmp_path / "agent.py"
    path.write_text(text)
    return str(path)


@pytest.mark.smoke
def test_random_output_arrives_verbatim_here_and_in_the_session(
    outer: Outer, fake: Fake, tmp_path: Path
) -> None:
    data = os.urandom(1 << 20)
    (tmp_path / "data").write_bytes(data)
    outer.raw()
    outer.wrap("cat", str(tmp_path / "data"))
    assert outer.wait() == 0
    assert bytes(outer.seen) == data
    fake.wait(frames.EXIT)
    assert fake.stream() == data


def test_nothing_of_the_tail_is_lost(outer: Outer, fake: Fake, tmp_path: Path) -> None:
    code = "import os; os.write(1, b'x' * (256 * 1024 - 3)); os.write(1, b'end'); os._exit(5)"
    outer.raw()
    outer.wrap(PY, "-S", "-c", code)
    assert outer.wait() == 5
    assert len(outer.seen) == 256 * 1024 and outer.seen.endswith(b"xend")
    assert json.loads(fake.wait(frames.EXIT)[0]) == {"status": 5, "signal": None, "unread": 0}
    assert len(fake.stream()) == 256 * 1024


def test_all_bytes_get_in(outer: Outer, tmp_path: Path) -> None:
    agent = script(
        tmp_path,
        "import os, tty\ntty.setraw(0)\nos.write(1, b'READY')\ngot = b''\n"
        "while len(got) < 256: got += os.read(0, 4096)\nos.write(1, got.hex().encode() + b'END')\n",
    )
    outer.wrap(PY, agent)
    outer.until(b"READY")
    outer.type(bytes(range(256)))
    outer.until(b"END")
    assert bytes(range(256)).hex().encode() in outer.seen
    assert outer.wait() == 0


def test_a_paste_into_a_late_reader_that_writes_meanwhile(outer: Outer, tmp_path: Path) -> None:
    size = 1 << 20
    agent = script(
        tmp_path,
        "import os, tty, hashlib\ntty.setraw(0)\nos.write(1, b'READY')\n"
        f"left = {size}\n"
        "while left: left -= os.write(1, b'o' * min(left, 65536))\n"
        "got = hashlib.sha256(); n = 0\n"
        f"while n < {size}:\n  d = os.read(0, 65536); got.update(d); n += len(d)\n"
        "os.write(1, got.hexdigest().encode() + b'END')\n",
    )
    outer.wrap(PY, agent)
    outer.until(b"READY")
    paste = os.urandom(size)
    outer.type(paste)
    outer.until(b"END")
    assert hashlib.sha256(paste).hexdigest().encode() in outer.seen
    assert outer.seen.count(b"o") >= size
    assert outer.wait() == 0


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("raise SystemExit(0)", 0),
        ("raise SystemExit(77)", 77),
        ("import os; os.kill(os.getpid(), 15)", 128 + 15),
        ("import os; os.kill(os.getpid(), 9)", 128 + 9),
    ],
)
def test_exit_statuses(outer: Outer, code: str, status: int) -> None:
    before = outer.modes()
    outer.wrap(PY, "-S", "-c", code)
    assert outer.wait() == status
    assert outer.modes() == before


def test_the_session_learns_who_and_where(outer: Outer, fake: Fake) -> None:
    outer.resize(91, 37, 910, 740)
    outer.wrap("--name", "Alice", "--task", "a task", "cat", "-")
    hello = json.loads(fake.wait(frames.HELLO)[0])
    wanted = {"cols": 91, "rows": 37, "xpixel": 910, "ypixel": 740, "name": "Alice", "offset": 0}
    assert {key: hello[key] for key in wanted} == wanted
    assert hello["command"] == ["cat", "-"] and os.path.exists(hello["tty"])
    assert alive(hello["pid"])
    start = fake.log()[0]
    assert start["args"]["task"] == "a task" and start["args"]["name"] == "Alice"
    assert start["args"]["run_id"] == hello["run_id"]
    outer.type(b"\x04")
    assert outer.wait() == 0


def test_the_agent_has_the_outer_modes_and_size(outer: Outer) -> None:
    modes = outer.modes()
    modes[0] &= ~termios.IXON
    modes[6][termios.VINTR] = b"\x1f"
    termios.tcsetattr(outer.slave, termios.TCSANOW, modes)
    outer.resize(91, 37, 910, 740)
    code = (
        "import termios, fcntl, struct; m = termios.tcgetattr(0);"
        "print(m[:4], m[6][termios.VINTR], struct.unpack('HHHH', fcntl.ioctl(0,"
        " termios.TIOCGWINSZ, b'0' * 8)), 'END')"
    )
    outer.wrap(PY, "-S", "-c", code)
    outer.until(b"END")
    outer.wait()
    wanted = f"{modes[:4]} {modes[6][termios.VINTR]} (37, 91, 910, 740) END"
    assert wanted.encode() in outer.seen


def test_a_resize_reaches_agent_and_session(outer: Outer, fake: Fake, tmp_path: Path) -> None:
    agent = script(
        tmp_path,
        "import os, signal\n"
        "signal.signal(signal.SIGWINCH, lambda *a: os.write(1, b'now %d %d.' % "
        "tuple(os.get_terminal_size())))\nos.write(1, b'READY')\n"
        "while True: signal.pause()\n",
    )
    outer.wrap(PY, agent)
    outer.until(b"READY")
    outer.resize(100, 50, 1000, 500)
    outer.until(b"now 100 50.")
    sizes = fake.wait(frames.SIZE)
    assert sizes[-1] == bytes.fromhex("00640032" + "03e801f4")
    outer.type(b"\x03")
    assert outer.wait() == -signal.SIGINT


def test_control_c_reaches_the_agent_while_nobody_reads_its_output(outer: Outer) -> None:
    outer.wrap("sh", "-c", "echo READY; exec yes")
    outer.until(b"READY")
    wait_until(lambda: outer.is_raw(), what="raw mode")
    os.write(outer.master, b"\x03")
    assert outer.wait() == -signal.SIGINT


def test_a_grandchild_that_keeps_the_terminal_delays_nothing_and_lives(
    outer: Outer, tmp_path: Path
) -> None:
    pid_file = tmp_path / "pid"
    outer.wrap("sh", "-c", f"sleep 1000 & echo $! > {pid_file}; echo gone; exit 4")
    assert outer.wait() == 4
    assert b"gone" in outer.seen
    pid = int(pid_file.read_text())
    assert alive(pid)
    os.kill(pid, signal.SIGKILL)


def test_sigkill_of_the_pump_restores_the_terminal(outer: Outer, tmp_path: Path) -> None:
    before = outer.modes()
    pid_file = tmp_path / "pid"
    outer.wrap("sh", "-c", f"echo $$ > {pid_file}; echo READY; exec cat")
    outer.until(b"READY")
    wait_until(outer.is_raw, what="raw mode")
    assert outer.process is not None
    outer.process.kill()
    wait_until(lambda: outer.modes() == before, 10, "restored modes")
    wait_until(lambda: not alive(int(pid_file.read_text())), 10, "the agent's end")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_signals_to_relay_are_the_agents(outer: Outer, number: signal.Signals) -> None:
    before = outer.modes()
    outer.wrap("sh", "-c", "echo READY; exec cat")
    outer.until(b"READY")
    assert outer.process is not None
    os.kill(outer.process.pid, number)
    assert outer.wait() == 128 + number
    assert outer.modes() == before


def test_the_terminal_is_closed(outer: Outer, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    outer.wrap("sh", "-c", f"echo $$ > {pid_file}; echo READY; exec cat")
    outer.until(b"READY")
    outer.hang_up()
    assert outer.process is not None
    outer.process.wait(20)
    wait_until(lambda: not alive(int(pid_file.read_text())), 20, "the agent's end")


def test_the_agents_signals_are_as_without_relay(outer: Outer) -> None:
    if not os.path.exists("/proc/self/status"):
        pytest.skip("no /proc")
    grep = "grep -E '^Sig(Ign|Blk)' /proc/self/status; echo END"
    outer.wrap("sh", "-c", grep)
    outer.until(b"END")
    outer.wait()
    without = subprocess.check_output(["sh", "-c", grep]).replace(b"\n", b"\r\n")
    assert without in outer.seen


def test_environment_and_descriptors_do_not_leak(outer: Outer, tmp_path: Path) -> None:
    agent = script(
        tmp_path,
        "import os, json\nfds = sorted(int(f) for f in os.listdir('/proc/self/fd'))\n"
        f"json.dump([dict(os.environ), fds], open({str(tmp_path / 'out')!r}, 'w'))\n",
    )
    if not os.path.exists("/proc/self/fd"):
        pytest.skip("no /proc")
    outer.env = {"PATH": os.environ["PATH"], "RELAY_HOME": os.environ["RELAY_HOME"]}
    outer.env.update({"FAKE": os.environ.get("FAKE", ""), "RELAY_PORT": "1", "ODD": "\udcff"})
    outer.env["RELAY_CONFIG"] = "of another run"
    outer.wrap("--name", "Env", PY, "-S", "-E", agent)
    outer.wait()
    env, fds = json.loads((tmp_path / "out").read_text())
    # What the reporting interpreter itself adds: its locale; the descriptor it lists with; and the
    # one that this test hands down.
    env.pop("LC_CTYPE", None)
    assert set(env) - set(outer.env) == {"RELAY_AGENT", "RELAY_RUN", "RELAY_SOCKET", "RELAY_TOKEN"}
    assert env["RELAY_AGENT"] == "Env" and env["ODD"] == "\udcff"
    assert not {"RELAY_PORT", "RELAY_CONFIG"} & set(env)
    assert set(fds) - {outer.slave} <= {0, 1, 2, 3, 4}


def test_python_does_not_add_a_locale(outer: Outer) -> None:
    outer.env = {k: v for k, v in outer.env.items() if not k.startswith(("LC_", "LANG"))}
    outer.wrap("env")
    outer.wait()
    assert b"RELAY_RUN" in outer.seen and b"LC_CTYPE" not in outer.seen


def test_inherited_descriptors_reach_the_agent(outer: Outer) -> None:
    outer.start("bash", "-c", f"exec {PY} {DRIVER} cat <(echo substituted)")
    assert outer.wait() == 0
    assert b"substituted" in outer.seen


def test_stdin_that_is_a_pipe_is_the_agents(outer: Outer) -> None:
    read, write = os.pipe()
    outer.wrap("sh", "-c", "cat; tty <&1", stdin=read)
    os.close(read)
    os.write(write, b"through the pipe")
    os.close(write)
    assert outer.wait() == 0
    assert b"through the pipe" in outer.seen and b"/dev/" in outer.seen


def test_stdout_that_is_a_file_is_the_agents(outer: Outer, fake: Fake, tmp_path: Path) -> None:
    with open(tmp_path / "out", "wb") as out:
        outer.wrap("sh", "-c", "tty; read x; echo got $x", stdout=out.fileno())
    hello = json.loads(fake.wait(frames.HELLO)[0])
    assert hello["cols"] == 0 and hello["tty"]
    outer.type(b"words\r")
    assert outer.wait() == 0
    assert (tmp_path / "out").read_text().endswith("got words\n")


def test_stdout_that_is_a_pipe_leaves_the_terminal_alone(outer: Outer, fake: Fake) -> None:
    read, write = os.pipe()
    before = outer.modes()
    outer.wrap("sh", "-c", "tty; echo READY >&2; read x; echo got $x", stdout=write)
    os.close(write)
    outer.until(b"READY")
    assert outer.modes() == before
    assert json.loads(fake.wait(frames.HELLO)[0])["tty"] is None
    outer.type(b"words\r")
    assert outer.wait() == 0
    with os.fdopen(read) as pipe:
        assert pipe.read().endswith("got words\n")


def piped(fake: Fake, *argv: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    env = {**os.environ, "FAKE": str(fake.folder)}
    return subprocess.run(
        [PY, DRIVER, *argv], input=stdin, capture_output=True, env=env, timeout=60, check=False
    )


def test_no_terminal_at_all(fake: Fake) -> None:
    done = piped(fake, "sh", "-c", "cat; echo err >&2; exit 6", stdin=b"words")
    assert (done.returncode, done.stdout, done.stderr) == (6, b"words", b"err\n")
    assert json.loads(fake.wait(frames.EXIT)[0]) == {"status": 6, "signal": None, "unread": None}


def test_a_reader_that_goes_away_ends_the_agent(fake: Fake) -> None:
    env = {**os.environ, "FAKE": str(fake.folder)}
    line = f"{PY} {DRIVER} yes | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", line], capture_output=True, env=env, timeout=60, check=False
    )
    assert done.stdout == b"y\n141\n"


@pytest.mark.smoke
def test_job_control_in_a_real_shell(outer: Outer, tmp_path: Path) -> None:
    """Ctrl-Z stops the agent and gives the shell its terminal; fg gives it back."""
    agent = script(
        tmp_path,
        "import os, tty, signal\n"
        "tty.setraw(0)\nos.write(1, b'RAW1')\n"
        "assert os.read(0, 1) == b'a'\n"
        "os.kill(0, signal.SIGTSTP)\n"
        "tty.setraw(0)\nos.write(1, b'RAW2')\nkey = os.read(0, 1)\nos.write(1, b'got:' + key)\n",
    )
    outer.env["PS1"] = "$ "
    outer.start("bash", "--norc", "--noprofile", "-i")
    outer.until(b"$ ")
    outer.type(f"{PY} {DRIVER} {PY} {agent}\r".encode())
    outer.until(b"RAW1")
    outer.type(b"a")
    outer.until(lambda seen: b"$ " in seen.partition(b"Stopped")[2])
    outer.type(b"echo shell-$((40+2))\r")
    outer.until(b"shell-42")
    outer.type(b"fg\r")
    outer.until(b"RAW2")
    outer.type(b"z")
    outer.until(lambda seen: b"$ " in seen.partition(b"got:z")[2])
    outer.type(b"echo status-$?\r")
    outer.until(b"status-0")
    outer.type(b"exit\r")
    outer.wait()


def test_control_z_on_a_line_program(outer: Outer) -> None:
    outer.env["PS1"] = "$ "
    outer.start("bash", "--norc", "--noprofile", "-i")
    outer.until(b"$ ")
    outer.type(f"{PY} {DRIVER} sh -c 'echo READY; exec cat'\r".encode())
    outer.until(b"\rREADY")
    outer.type(b"first\r")  # echoed twice, so cat runs: a shell stopped in vfork stops nobody
    outer.until(lambda seen: seen.count(b"first") == 2)
    outer.type(b"\x1a")
    outer.until(b"Stopped")
    outer.until(lambda seen: b"$ " in seen.partition(b"Stopped")[2])
    outer.type(b"fg\r")
    outer.until(lambda seen: seen.count(b"exec cat") >= 3)
    outer.type(b"words\r")
    outer.until(lambda seen: seen.count(b"words") >= 2)
    outer.type(b"\x04")
    outer.until(lambda seen: b"$ " in seen.rpartition(b"words")[2])
    outer.type(b"echo status-$?\r")
    outer.until(b"status-0")
    outer.type(b"exit\r")
    outer.wait()


def test_continued_in_the_background_and_reading_the_terminal_it_stops_again(outer: Outer) -> None:
    outer.env["PS1"] = "$ "
    outer.start("bash", "--norc", "--noprofile", "-i")
    outer.until(b"$ ")
    outer.type(f"{PY} {DRIVER} sh -c 'echo READY; cat'\r".encode())
    outer.until(b"\rREADY")
    outer.type(b"first\r")  # echoed twice, so cat runs: a shell stopped in vfork stops nobody
    outer.until(lambda seen: seen.count(b"first") == 2)
    outer.type(b"\x1a")
    outer.until(lambda seen: b"$ " in seen.partition(b"Stopped")[2])
    outer.type(b"bg\r")
    outer.until(b" &")

    def told() -> bool:
        """A shell tells of a stopped job before its next prompt."""
        outer.type(b"\r")
        outer.read(0.1)
        return outer.seen.count(b"Stopped") >= 2

    wait_until(told)
    outer.type(b"fg\r")
    outer.until(lambda seen: b"; cat'" in seen.rpartition(b"fg")[2])
    outer.type(b"words\r")
    outer.until(lambda seen: seen.count(b"words") >= 2)
    outer.type(b"\x03")
    outer.until(lambda seen: b"$ " in seen.rpartition(b"words")[2])
    outer.type(b"exit\r")
    outer.wait()
