"""One run of one behaviour: a folder, an outer terminal, a wrapped child, and events between them.

The child tells the test things by files that appear (``tell``), the test releases the child by a
FIFO (``wait`` and ``go``): nothing sleeps. Whatever happens, the stage ends within its limit and
leaves no process behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from relay.broker.client import BrokerClient
from relay.core.paths import Home
from relay.protocol.agent_ops import AGENTS
from tests.fidelity.wrappers import RELAY, Wrapper
from tests.pump.outer import Outer, alive
from tests.support import found, wait_until

PROMPT = b"stage$ "
_PRELUDE = Path(__file__).with_name("prelude.py").read_text()
_MARK = "FIDELITY_STAGE"
_CLEAN_UP = 10.0
#: What the child has not told so long after its wrapper's end it will not tell.
_AFTER_END = 3.0


class Late(AssertionError):
    """The behaviour's time is up."""


class Terminal(Outer):
    """The outer terminal; what is launched in it gets no descriptor but 0, 1 and 2."""

    def launch(
        self,
        argv: list[str],
        folder: Path,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
    ) -> None:
        """Run ``argv`` as the leader of the terminal's session, in ``folder``."""
        slave = self.slave
        self.process = subprocess.Popen(
            argv,
            stdin=slave if stdin is None else stdin,
            stdout=slave if stdout is None else stdout,
            stderr=slave if stderr is None else stderr,
            env=self.env,
            cwd=folder,
            start_new_session=True,
            preexec_fn=self.take,
        )

    def read(self, timeout: float = 0.0) -> bytes:
        """As in Outer; when the program has ended and nothing more comes, waiting is in vain."""
        ended = self.process is not None and self.process.poll() is not None
        got = super().read(timeout)
        assert got or not ended or not timeout, "the program has ended"
        return got


class Stage:
    """What a behaviour works with; ``terminal`` is 80 columns by 24 rows of 10 by 20 pixels."""

    def __init__(self, wrapper: Wrapper, home: str, limit: float) -> None:
        self.wrapper = wrapper
        self.limit = limit
        self.folder = Path(tempfile.mkdtemp(prefix="fidelity-"))
        self.env = environment(home)
        self.env[_MARK] = str(self.folder)
        self.env.update(wrapper.env)
        self.terminal = Terminal(self.env)
        self.terminal.resize(80, 24, 800, 480)
        self._doors: list[int] = []
        self._previous: Any = None

    def __enter__(self) -> Stage:
        self._previous = signal.signal(signal.SIGALRM, self._late)
        signal.setitimer(signal.ITIMER_REAL, self.limit)
        return self

    def __exit__(
        self, kind: object, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._previous)
        if error is not None:
            shown = bytes(self.terminal.seen[-1000:])
            error.add_note(f"{self.wrapper.name}: the terminal's last bytes are {shown!r}")
        self.terminal.__exit__()
        for fd in self._doors:
            os.close(fd)
        wait_until(self._none_left, _CLEAN_UP, "the end of what the behaviour started")
        shutil.rmtree(self.folder, ignore_errors=True)

    def _late(self, number: int, frame: FrameType | None) -> None:
        raise Late(f"not done after {self.limit} s")

    # -- programs

    def child(self, source: str, name: str = "child.py") -> list[str]:
        """Write a Python program (with prelude.py's functions before it); returns its argv."""
        path = self.folder / name
        path.write_text(f"{_PRELUDE}\n\n{source}")
        return [sys.executable, "-S", "-E", str(path)]

    def start(self, argv: list[str], **given: int | None) -> None:
        """Run ``argv`` in the wrapper, as the leader of the terminal's session.

        ``stdin``, ``stdout`` and ``stderr`` may be other descriptors than the terminal.
        """
        self.bare(self.wrapper.command(argv), **given)

    def bare(self, argv: list[str], **given: int | None) -> None:
        """Run ``argv`` itself, without the wrapper, in the terminal."""
        self.terminal.launch(argv, self.folder, **given)

    def run(self, argv: list[str], **given: int | None) -> int:
        """The same to its end; the exit status, negative for a signal, as subprocess has it."""
        self.start(argv, **given)
        return self.terminal.wait(self.limit)

    def piped(self, argv: list[str], stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        """Run ``argv`` in the wrapper without any terminal, not even a controlling one."""
        return subprocess.run(
            self.wrapper.command(argv),
            input=stdin,
            capture_output=True,
            env=self.env,
            cwd=self.folder,
            start_new_session=True,
            timeout=self.limit,
            check=False,
        )

    # -- a shell, for whatever needs job control

    def shell(self) -> None:
        """Start an interactive bash in the terminal, not wrapped, and wait for its prompt."""
        self.env["PS1"] = PROMPT.decode()
        self.bare(["bash", "--norc", "--noprofile", "--noediting", "-i"])
        self.terminal.until(PROMPT)

    def line(self, argv: list[str]) -> str:
        """What to type into the shell to run ``argv`` in the wrapper."""
        return shlex.join(self.wrapper.command(argv))

    def enter(self, line: str) -> None:
        """Type a line into the shell; what the terminal showed before is forgotten."""
        self.terminal.read()
        self.terminal.seen.clear()
        self.terminal.type(os.fsencode(line) + b"\r")

    def prompt(self) -> bytes:
        """Wait for the shell's next prompt; returns what the terminal showed since ``enter``."""
        return self.terminal.until(PROMPT)

    # -- events

    def told(self, name: str, drain: bool = True) -> bytes:
        """Wait for the child's ``tell(name)``; meanwhile the terminal is read unless told not."""
        path = self.folder / name
        ended_at: float | None = None

        def look() -> bytes | None:
            nonlocal ended_at
            if drain:
                self.terminal.read()
            if path.exists():
                return path.read_bytes()
            process = self.terminal.process
            if process is not None and process.poll() is not None:
                ended_at = ended_at or time.monotonic()
                assert time.monotonic() < ended_at + _AFTER_END, "the program has ended"
            return None

        # found() takes an empty answer for none; so a byte more, and off again.
        return found(lambda: None if (data := look()) is None else data + b".", self.limit)[:-1]

    def shown(self, name: str, drain: bool = True) -> Any:
        """The value of the child's ``show(name, value)``."""
        return json.loads(self.told(name, drain))

    def has(self, name: str) -> bool:
        """Whether the child has told ``name`` already."""
        return (self.folder / name).exists()

    def go(self, name: str) -> None:
        """Let the child's ``wait(name)`` return."""
        path = self.folder / name
        with contextlib.suppress(FileExistsError):
            os.mkfifo(path)
        door = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        self._doors.append(door)  # closed at the end: what nobody has read yet would be gone
        os.write(door, b".")

    def settle(self) -> None:
        """Under relay: wait until the session listens, which starts beside the child."""
        if self.wrapper.name != RELAY.name:
            return
        folder = os.path.realpath(self.folder)
        with BrokerClient(Home(self.env["RELAY_HOME"]), start=False) as broker:

            def here() -> bool:
                agents = broker.request(AGENTS)["agents"]
                return any(a["cwd"] == folder and a["state"] != "gone" for a in agents)

            self.until(here, "the session")

    def until(self, check: Callable[[], object], what: str = "", drain: bool = True) -> None:
        """Wait for ``check``; meanwhile the terminal is read unless told not."""

        def look() -> object:
            if drain:
                self.terminal.read()
            return check()

        wait_until(look, self.limit, what)

    # -- processes (Linux: found by their environment)

    def processes(self) -> dict[int, list[str]]:
        """The pid and argv of everything that this stage has started and that still runs."""
        mark = os.fsencode(f"{_MARK}={self.folder}")
        running: dict[int, list[str]] = {}
        for entry in os.listdir("/proc") if os.path.isdir("/proc/self") else []:
            try:
                pid = int(entry)
                if mark not in Path("/proc", entry, "environ").read_bytes().split(b"\0"):
                    continue
                argv = Path("/proc", entry, "cmdline").read_bytes().split(b"\0")[:-1]
            except (ValueError, OSError):
                continue  # no process, or one that has just ended, or another user's
            if alive(pid):
                running[pid] = [os.fsdecode(word) for word in argv]
        return running

    def session(self) -> int:
        """Wait for relay's session process of this stage; its pid. Only under relay."""

        def look() -> int | None:
            self.terminal.read()
            for pid, argv in self.processes().items():
                if "relay.app.session_main" in argv:
                    return pid
            return None

        return found(look, self.limit)

    def _none_left(self) -> bool:
        left = self.processes()
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue  # it has ended since
        return not left


def environment(home: str) -> dict[str, str]:
    """What every wrapper starts with: nothing of the machine's own but where programs are."""
    folder = Path(home).parent
    return {
        "PATH": os.path.dirname(sys.executable) + os.pathsep + os.environ.get("PATH", os.defpath),
        "HOME": str(folder),
        "RELAY_HOME": home,
        "RELAY_BROKER_IDLE": "600",
        "TERM": "xterm-256color",
        "LANG": "C.UTF-8",
        "SHELL": "/bin/sh",
    }
