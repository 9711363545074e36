"""What the terminal benchmarks share: a program run bare, under script(1) and under ``relay wrap``,
each in a pseudo-terminal of its own, and what procfs(5) says about the processes of a wrapped run.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

KINDS = ("direct", "script", "wrap")
RELAY = [sys.executable, "-m", "relay"]
TICK = 1 / os.sysconf("SC_CLK_TCK")
_DEADLINE = 60.0
#: Nothing of ours uses more CPU than this in a window of _WINDOW seconds: the run is quiet.
_QUIET_TICKS = 1
_WINDOW = 0.7


class Terminal:
    """A command in a terminal that we play: ``master`` shows its output and takes its keys."""

    def __init__(self, argv: Sequence[str], env: dict[str, str], cwd: str | None = None) -> None:
        self.pid, self.master = pty.fork()
        if self.pid == 0:
            try:
                if cwd is not None:
                    os.chdir(cwd)
                os.execve(argv[0], list(argv), env)
            finally:
                os._exit(127)
        os.set_inheritable(self.master, False)  # or the next program keeps this terminal open
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))

    def read(self) -> bytes:
        """What the command showed, empty at its end. Blocks: see ``deadline``."""
        try:
            return os.read(self.master, 65536)
        except OSError:  # Linux says so when nobody holds the terminal any more
            return b""

    def read_until(self, mark: bytes) -> bytes:
        """Read until ``mark`` was shown."""
        shown = b""
        while mark not in shown:
            data = self.read()
            if not data:
                raise SystemExit(f"the program ended before it showed {mark!r}: {shown!r}")
            shown += data
        return shown

    def write(self, data: bytes) -> None:
        """Press keys."""
        os.write(self.master, data)

    def close(self) -> None:
        """Hang up, and reap the command. script(1) has to be told, for it stays on otherwise."""
        os.close(self.master)
        for number, patience in ((signal.SIGTERM, 0.5), (signal.SIGKILL, 10.0)):
            if self._ended(patience):
                return
            os.kill(self.pid, number)
        os.waitpid(self.pid, 0)

    def _ended(self, patience: float) -> bool:
        end = time.monotonic() + patience
        while not os.waitpid(self.pid, os.WNOHANG)[0]:
            if time.monotonic() > end:
                return False
            time.sleep(0.01)
        return True


def command(kind: str, argv: list[str], options: Sequence[str] = ()) -> list[str]:
    """``argv`` run bare, by script(1) or by ``relay wrap`` with ``options``."""
    if kind == "direct":
        return argv
    if kind == "wrap":
        return [*RELAY, "wrap", *options, "--", *argv]
    script = shutil.which("script")
    if script is None:
        raise SystemExit("script(1) is needed for the comparison; install util-linux")
    return [script, "-qec", "exec " + shlex.join(argv), "/dev/null"]


@contextlib.contextmanager
def home() -> Iterator[tuple[Path, dict[str, str]]]:
    """(a scratch folder, an environment whose RELAY_HOME and HOME lie in it); ends its broker."""
    _warn_of_others()
    with tempfile.TemporaryDirectory(prefix="relay-bench-", ignore_cleanup_errors=True) as folder:
        path = Path(folder)
        env = {key: value for key, value in os.environ.items() if not key.startswith("RELAY_")}
        env.pop("XDG_CONFIG_HOME", None)
        env.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed relay is compiled
        env.update(RELAY_HOME=str(path / "home"), HOME=str(path / "user"))
        # A burst of a benchmark is no loop.
        env["RELAY_RATE_MAX"] = env["RELAY_STORED_MAX"] = "0"
        (path / "user").mkdir()
        try:
            yield path, env
        finally:
            try:
                wait_alone(env)
            finally:
                for pid in of_module("session_main", env):
                    os.kill(pid, signal.SIGKILL)
                relay(env, "broker", "stop")


def _warn_of_others() -> None:
    """Say so when the machine is not ours alone: ratios survive that, tails and maxima do not."""
    before = _busy_ticks()
    time.sleep(1.0)
    cores = (_busy_ticks() - before) * TICK
    if cores > 0.1:
        print(f"others use {cores:.1f} of {os.cpu_count()} cores: expect noise", file=sys.stderr)


def _busy_ticks() -> int:
    user, nice, system, _, _, irq, softirq, steal = (
        int(field) for field in Path("/proc/stat").read_text().split()[1:9]
    )
    return user + nice + system + irq + softirq + steal


def relay(env: dict[str, str], *words: str, cwd: str | None = None) -> str:
    """Run one ``relay`` command; its output."""
    done = subprocess.run([*RELAY, *words], env=env, cwd=cwd, capture_output=True, timeout=60)
    return done.stdout.decode()


@contextlib.contextmanager
def deadline(seconds: float, what: str) -> Iterator[None]:
    """End the benchmark with a message when the block takes longer; costs the block nothing."""

    def ring(number: int, frame: object) -> None:
        raise SystemExit(f"gave up after {seconds:.0f} s: {what}")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def wait_until(check: Callable[[], bool], what: str, seconds: float = _DEADLINE) -> None:
    """Until ``check`` says yes; ends the benchmark after ``seconds``."""
    end = time.monotonic() + seconds
    while not check():
        if time.monotonic() > end:
            raise SystemExit(f"waited {seconds:.0f} s in vain for {what}")
        time.sleep(0.05)


@dataclass(frozen=True)
class Run:
    """The processes of one wrapped run, by pid."""

    pump: int
    monitor: int
    session: int

    def parts(self) -> dict[str, int]:
        return {"pump": self.pump, "monitor": self.monitor, "session": self.session}


def wait_ready(terminal: Terminal, name: str, env: dict[str, str]) -> Run:
    """Until the session of the agent ``name`` is registered and the whole run is at rest."""
    wait_listed([name], env)
    found = processes(terminal.pid)
    wait_quiet([*found.parts().values(), broker(env)])
    return found


def wait_listed(names: Sequence[str], env: dict[str, str]) -> None:
    """Until the sessions of these agents are registered with the broker."""

    def listed() -> bool:
        rows = json.loads(relay(env, "agents", "--live", "--json") or "[]")
        return set(names) <= {row["name"] for row in rows}

    wait_until(listed, f"the sessions of {', '.join(names)}")


def broker(env: dict[str, str]) -> int:
    """The pid of the broker."""
    return int(json.loads(relay(env, "broker", "status", "--json"))["pid"])


def processes(pump: int) -> Run:
    """The monitor and the session below ``pump``. Raises SystemExit when one is missing."""
    session = monitor = 0
    for pid in children(pump):
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
        if b"session_main" in words:
            session = pid
        elif children(pid):
            monitor = pid
    if not session or not monitor:
        raise SystemExit("the wrapped run has no session or no monitor")
    return Run(pump, monitor, session)


def wait_quiet(pids: Sequence[int]) -> None:
    """Until these processes use no CPU time to speak of."""
    before = sum(map(cpu, pids))

    def still() -> bool:
        nonlocal before
        time.sleep(_WINDOW)
        now = sum(map(cpu, pids))
        rest, before = now - before, now
        return rest <= _QUIET_TICKS * TICK

    wait_until(still, "the wrapped run to come to rest")


def wait_alone(env: dict[str, str]) -> None:
    """Until no session of this RELAY_HOME runs any more: they outlive their runs for a moment."""
    wait_until(lambda: not of_module("session_main", env), "the sessions to end")


def of_module(name: str, env: dict[str, str]) -> list[int]:
    """The pids of the processes of this RELAY_HOME that run the module ``name``."""
    home = f"RELAY_HOME={env['RELAY_HOME']}".encode()
    return [
        int(entry)
        for entry in os.listdir("/proc")
        if entry.isdigit()
        and name.encode() in _proc(entry, "cmdline")
        and home in _proc(entry, "environ").split(b"\0")
    ]


def _proc(pid: str, name: str) -> bytes:
    try:
        return Path("/proc", pid, name).read_bytes()
    except OSError:  # it has ended
        return b""


def children(pid: int) -> list[int]:
    """The pids of the processes whose parent is ``pid``."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and _stat(int(entry))[1:2] == [str(pid)]:
            found.append(int(entry))
    return found


def cpu(pid: int) -> float:
    """Seconds of CPU time that ``pid`` has used, 0 when it is gone. Steps of 10 ms."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) * TICK if fields else 0.0


def wakeups(pid: int) -> int:
    """How often the threads of ``pid`` have gone to sleep of their own will."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        for line in (task / "status").read_text().splitlines():
            if line.startswith("voluntary_ctxt_switches"):
                total += int(line.split()[1])
    return total


def memory(pid: int) -> dict[str, float]:
    """MB (10^6 bytes): ``pss`` and ``rss`` now, ``peak`` the largest RSS so far."""
    found = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        key, value = line.split(":")
        if key in ("Pss", "Rss"):
            found[key.lower()] = int(value.split()[0]) * 1024 / 1e6
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            found["peak"] = int(line.split()[1]) * 1024 / 1e6
    return found


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the program's name: state, ppid, …; none when gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def percentile(samples: Sequence[float], part: float) -> float:
    """The sample below which ``part`` (0 to 1) of them lie."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]
