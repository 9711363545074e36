"""The program of one headless turn: its environment, its output, its end with all that it started.

A file of its own, apart from what is asked and answered: processes and signals stand here only.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

from relay.agents.headless import HeadlessForm
from relay.core.child_process import ENDING, end_descendants
from relay.features.personas.personas import PersonaSpec
from relay.protocol.turns import TEXT_MAX, TurnRequest, TurnState

#: Bytes of a line that are kept, bytes of all output, and of what is said on standard error.
LINE_MAX, OUTPUT_MAX, ERRORS_MAX = 8 * 1024 * 1024, 256 * 1024 * 1024, 16 * 1024
#: Bytes of the line that a driven program is asked: a terminal drops the rest without a word.
TYPED_MAX = 1000 if sys.platform == "darwin" else 4000
#: Seconds that its pipes may stay open when it has ended.
DRAINING = 1.0
#: What any program needs. Everything else a persona names.
USUAL = frozenset(
    (
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "XDG_CONFIG_HOME", "XDG_DATA_HOME"),
        *("XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"),
    )
)


def environment(
    request: TurnRequest,
    spec: PersonaSpec,
    ours: Mapping[str, str],
    credentials: Mapping[str, str],
) -> dict[str, str]:
    """What the program's environment holds: the usual, the persona's, and the credentials."""
    env = {name: value for name, value in ours.items() if name in USUAL or name.startswith("LC_")}
    env["TERM"] = "dumb"
    for name, value in spec.env.items():
        if value is not None:
            env[name] = value
        elif name in ours:
            env[name] = ours[name]
    mine = {"RELAY_AGENT": request.name, "RELAY_RUN": request.turn, "RELAY_HOME": request.home}
    return {"HOME": os.path.expanduser("~"), **env, **credentials, **mine}


class HeadlessProcess:
    """Runs ``argv`` once; ``prompt`` is what it reads."""

    def __init__(
        self,
        argv: list[str],
        env: dict[str, str],
        cwd: str,
        form: HeadlessForm,
        prompt: str,
        stopped: asyncio.Event,
    ) -> None:
        self._argv = argv
        self._env = env
        self._cwd = cwd
        self._form = form
        self._prompt = prompt
        self._stopped = stopped
        self._own_stop = asyncio.Event()
        #: Its status, where it has ended by itself.
        self.status: int | None = None
        #: The end of what it wrote on standard error.
        self.errors = ""
        #: What a driven program answered.
        self.said = ""
        #: Why its output could not be read.
        self.problem = ""

    def stop(self) -> None:
        """End it now."""
        self._own_stop.set()

    async def run(self, line: Callable[[str], None], deadline: float) -> TurnState:
        """Run it to its end; ``line`` gets each line of its output. Raises OSError."""
        if not os.path.isdir(self._cwd):
            raise NotADirectoryError(f"the folder {self._cwd} is not there")
        try:
            if self._form.driven:
                return await self._race(asyncio.to_thread(self._drive, deadline), deadline)
            process = subprocess.Popen(
                self._argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self._env,
                cwd=self._cwd,
            )
            # asyncio's own would wait for the ends of the pipes, too.
            over = asyncio.ensure_future(asyncio.to_thread(process.wait))
            try:
                return await self._race(self._converse(process, over, line), deadline)
            finally:
                await self._end(process, over)
        finally:
            await asyncio.to_thread(end_descendants)

    async def _race(self, work: Coroutine[Any, Any, None], deadline: float) -> TurnState:
        """Until the work is done, somebody stops it, or the time is over."""
        task = asyncio.ensure_future(work)
        stops = [asyncio.ensure_future(one.wait()) for one in (self._stopped, self._own_stop)]
        try:
            done, _ = await asyncio.wait(
                {task, *stops}, timeout=deadline, return_when=asyncio.FIRST_COMPLETED
            )
            if task in done:
                task.result()
                return TurnState.COMPLETED
            return TurnState.INTERRUPTED if done else TurnState.TIMED_OUT
        finally:
            for one in (task, *stops):
                one.cancel()

    async def _converse(
        self,
        process: subprocess.Popen[bytes],
        over: asyncio.Future[int],
        line: Callable[[str], None],
    ) -> None:
        assert process.stdin and process.stdout and process.stderr
        loop = asyncio.get_running_loop()
        readers = [asyncio.StreamReader() for _ in range(2)]
        for reader, pipe in zip(readers, (process.stdout, process.stderr), strict=True):
            await loop.connect_read_pipe(partial(asyncio.StreamReaderProtocol, reader), pipe)
        made = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, process.stdin)
        stdin = asyncio.StreamWriter(made[0], made[1], None, loop)
        works = (self._feed(stdin), self._read(readers[0], line), self._read_errors(readers[1]))
        tasks = [asyncio.ensure_future(work) for work in works]
        try:
            self.status = await asyncio.shield(over)
            # What it has started may hold its pipes for ever.
            await asyncio.wait(tasks, timeout=DRAINING)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _feed(self, stdin: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):  # it reads no more
            stdin.write(self._prompt.encode(errors="replace"))
            await stdin.drain()
        stdin.close()

    async def _read(self, stdout: asyncio.StreamReader, line: Callable[[str], None]) -> None:
        kept, total = bytearray(), 0
        try:
            while data := await stdout.read(64 * 1024):
                total += len(data)
                if total > OUTPUT_MAX:
                    self.problem = f"it wrote more than {OUTPUT_MAX} bytes"
                    self.stop()
                    return
                *lines, rest = data.split(b"\n")
                for one in lines:
                    kept += one
                    line(kept[:LINE_MAX].decode(errors="replace"))
                    kept.clear()
                kept += rest[: max(0, LINE_MAX - len(kept))]
        finally:
            if kept:
                line(kept.decode(errors="replace"))

    async def _read_errors(self, stderr: asyncio.StreamReader) -> None:
        while data := await stderr.read(64 * 1024):
            self.errors = (self.errors + data.decode(errors="replace"))[-ERRORS_MAX:]

    async def _end(self, process: subprocess.Popen[bytes], over: asyncio.Future[int]) -> None:
        """Ask it to end, then make it."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if over.done():
                return
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, number)
            await asyncio.wait({over}, timeout=ENDING)

    def _drive(self, deadline: float) -> None:
        """Ask a program that converses in a terminal: wait for its prompt, type, wait again."""
        import pexpect  # only for such a program

        prompt = re.compile(self._form.prompt)
        child = pexpect.spawn(
            self._argv[0],
            self._argv[1:],
            env=self._env,
            cwd=self._cwd,
            timeout=deadline,
            encoding="utf-8",
            codec_errors="replace",
            echo=False,
            dimensions=(50, 200),
            maxread=64 * 1024,
            searchwindowsize=4096,
        )
        try:
            child.expect(prompt)
            child.sendline(self._prompt)
            child.expect(prompt)
            self.said = _plain(child.before or "")[:TEXT_MAX]
            if self._form.leave:
                child.sendline(self._form.leave)
        except (pexpect.EOF, pexpect.TIMEOUT) as error:
            ended = isinstance(error, pexpect.EOF)
            self.problem = "it ended before its prompt came" if ended else "its prompt did not come"
        except OSError as error:
            self.problem = f"it could not be typed to: {error.strerror}"
        finally:
            child.close(force=True)


_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


def _plain(text: str) -> str:
    return _ESCAPE.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
