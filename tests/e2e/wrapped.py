"""A wrapped program in a terminal of its own, as a person would have it in front of them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from ptyprocess import PtyProcess

from tests.cli.verbs import run_here
from tests.support import found, wait_until

RELAY = [sys.executable, "-m", "relay"]
#: Says what it reads: a line program with a prompt, and nothing of relay in it.
ECHO = "import sys\nfor line in sys.stdin:\n    print('GOT', line.strip(), flush=True)\n"
#: Says what it is told to say: each line of its input, unchanged.
SAY = "import sys\nfor line in sys.stdin:\n    print(eval(line), flush=True)\n"


def python(source: str) -> list[str]:
    return [sys.executable, "-u", "-c", source]


def say(text: str) -> str:
    """What to type into SAY so that it says ``text``."""
    return repr(text) + "\n"


class Wrapped:
    """``relay wrap`` in a pseudo-terminal; what it shows is collected by a thread."""

    def __init__(
        self,
        command: list[str],
        *,
        name: str | None = None,
        size: tuple[int, int] = (24, 100),
        cwd: Path | None = None,
        env: dict[str, str] | None = None,
        options: list[str] | None = None,
    ) -> None:
        naming = ["--name", name] if name else []
        self._start([*RELAY, "wrap", *naming, *(options or []), "--", *command], size, cwd, env)

    @classmethod
    @contextmanager
    def directly(cls, command: list[str]) -> Iterator[Wrapped]:
        """A program that is not wrapped, in the same kind of terminal."""
        program = cls.__new__(cls)
        program._start(command, (24, 100), None, None)
        try:
            yield program
        finally:
            program.close()

    def _start(
        self, argv: list[str], size: tuple[int, int], cwd: Path | None, env: dict[str, str] | None
    ) -> None:
        self._terminal = PtyProcess.spawn(
            argv, dimensions=size, cwd=str(cwd) if cwd else None, env={**os.environ, **(env or {})}
        )
        self.pid: int = self._terminal.pid
        self._lock = threading.Lock()
        self._output = bytearray()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._terminal.fd, 65536)
            except OSError:  # Linux reports the end as EIO
                return
            if not data:
                return
            with self._lock:
                self._output += data

    @property
    def output(self) -> str:
        """Everything that was shown so far."""
        with self._lock:
            return self._output.decode("utf-8", "replace")

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._terminal.fd, text.encode())

    def wait_for(self, pattern: str, timeout: float = 30.0) -> re.Match[str]:
        """Until the output holds ``pattern``."""
        try:
            return found(lambda: re.search(pattern, self.output, re.S), timeout)
        except AssertionError:
            raise AssertionError(f"{pattern!r} is not in:\n{self.output[-4000:]}") from None

    def wait(self, timeout: float = 30.0) -> int:
        """The exit status, 128 + n for a signal."""
        wait_until(lambda: not self._terminal.isalive(), timeout, "the end of the program")
        self._reader.join(timeout)
        signaled = self._terminal.signalstatus
        return 128 + signaled if signaled is not None else int(self._terminal.exitstatus)

    def resize(self, rows: int, cols: int) -> None:
        """Change the size of the terminal."""
        self._terminal.setwinsize(rows, cols)

    def close(self) -> None:
        """Close the terminal and reap what is left."""
        if self._terminal.isalive():
            self._terminal.kill(signal.SIGHUP)
            wait_until(lambda: not self._terminal.isalive(), 15, "the end after a hang-up")
        self._terminal.close(force=True)
        self._reader.join(15)


@contextmanager
def wrapped(command: list[str], **options: Any) -> Iterator[Wrapped]:
    """A wrapped program that is ended when the block is left."""
    program = Wrapped(command, **options)
    try:
        yield program
    finally:
        program.close()


#: Verbs that start agents, and leave processes behind.
_STARTERS = ("resume", "spawn", "up", "wrap")
_one_at_a_time = threading.Lock()


def relay(*args: str, status: int | None = 0, stdin: str = "") -> str:
    """Run one ``relay`` command and return what it printed; ``status`` None accepts any.

    It runs in this process, which takes a tenth of the time, unless it starts agents, or another
    copy of relay is to be run.
    """
    if args[0] in _STARTERS or "PYTHONPATH" in os.environ:
        words = [*RELAY, *args]
        done = subprocess.run(words, input=stdin, capture_output=True, text=True, timeout=120)
    else:
        with _one_at_a_time:
            done = run_here(list(args), stdin)
    if status is not None:
        assert done.returncode == status, f"{args}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout if done.stdout else done.stderr


def relay_json(*args: str, status: int | None = 0) -> Any:
    """The parsed ``--json`` output of a ``relay`` command."""
    return json.loads(relay(*args, "--json", status=status))


def wait_registered(*names: str) -> None:
    """Until the broker knows these agents as running."""

    def there() -> bool:
        live = {agent["name"] for agent in relay_json("agents") if agent["state"] != "gone"}
        return set(names) <= live

    wait_until(there, 30, f"{names} to be registered")


def states(*, body: str | None = None) -> list[str]:
    """The states of all messages, or of those with this body."""
    return [row["state"] for row in relay_json("history") if body is None or row["body"] == body]


def send_in_vain(to: str, body: str, why: str) -> str:
    """Send a message, and wait until it is kept from its receiver for this reason. Its id."""
    id_: str = relay_json("send", to, body)["id"]
    kept: list[Any] = []

    def is_kept() -> bool:
        kept[:] = relay_json("show", id_)["deliveries"]
        return kept[0]["state"] == "queued" and why in (kept[0]["reason"] or "")

    try:
        wait_until(is_kept, 20)
    except AssertionError:
        raise AssertionError(f"not {why!r}: {kept}") from None
    return id_


def process_below(parent: int, words: str) -> int | None:
    """The child process of ``parent`` whose command line contains ``words``."""
    listing = subprocess.run(["ps", "-axo", "pid=,ppid=,command="], capture_output=True, text=True)
    for line in listing.stdout.splitlines():
        pid, of, command = line.split(None, 2)
        if int(of) == parent and words in command:
            return int(pid)
    return None


class HasPid(Protocol):
    """A pump, however it was started."""

    @property
    def pid(self) -> int: ...


def session_pid(program: HasPid) -> int | None:
    """The process id of the program's session, if one runs at this moment."""
    return process_below(program.pid, "session_main")


def kill_session(program: HasPid) -> None:
    """Kill the session with SIGKILL, and wait until the pump has started another."""
    before = found(lambda: session_pid(program))
    os.kill(before, signal.SIGKILL)
    wait_until(lambda: session_pid(program) not in (None, before), 20, "another session")


def kill_broker() -> None:
    """Kill the broker with SIGKILL."""
    status = relay_json("broker", "status")
    if status["running"]:
        os.kill(status["pid"], signal.SIGKILL)
