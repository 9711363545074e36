"""Runs one turn of a headless persona: ``claude -p``, ``codex exec`` and the like, then ends.

A process of its own, started by the broker (relay.features.personas.headless_turns), told and
telling as relay.protocol.turns says, on its standard input, which is a socket. Whatever becomes of
it, nothing of the turn goes on afterwards: all that the program has started ends with it.

What the turn may use is held at the program's own hooks, by the gate of a wrapped agent's session.
Where there is no such gate, a turn with limits does not begin, and none in a governed project.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from relay.agents import launch
from relay.agents.headless import READERS, HeadlessForm, HeadlessOutput
from relay.agents.hook_codec import AgentHookCall, text_of
from relay.agents.known_agents import make_hook_codec
from relay.agents.profile import find_profile
from relay.agents.tool_uses import UNASKED, limits, refusal
from relay.core import json_text
from relay.core.child_process import ENDING, end_descendants
from relay.core.errors import RelayError
from relay.core.files import make_private_folder
from relay.core.ids import RUN_TOKEN
from relay.core.paths import Home
from relay.core.processes import become_monitor, mark
from relay.directive.escape import clean
from relay.directive.redact import redact
from relay.features.governance.governed_paths import governed_root
from relay.features.governance.session import GovernedAgent, project_opener
from relay.features.governance.start import git_environment
from relay.features.personas.settings import PersonaSpec, parse_persona
from relay.features.personas.worker import LINE_MAX
from relay.protocol.turns import (
    ALIVE_EVERY,
    CALLS_MAX,
    TEXT_MAX,
    ToolCall,
    TurnCause,
    TurnRequest,
    TurnResult,
    TurnState,
)
from relay.session.hook_server import HookServer
from relay.session.session_events import EventQueue
from relay.session.tool_hooks import NoHooks, ToolHookEndpoint
from relay.session.turn_report import PermissionGate

#: Characters of the reason why a turn did not complete.
REASON_MAX = 500
#: Seconds that the broker may take to say what is to be done.
REQUEST_DEADLINE = 30.0

Json = dict[str, Any]
#: Bytes of a line that are kept, bytes of all output, and of what is said on standard error.
OUTPUT_LINE_MAX, OUTPUT_MAX, ERRORS_MAX = 8 * 1024 * 1024, 256 * 1024 * 1024, 16 * 1024
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
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


class CannotBegin(Exception):
    """The turn cannot begin."""

    def __init__(self, cause: TurnCause, detail: str) -> None:
        super().__init__(detail)
        self.result = TurnResult.of(cause, detail)


class HeadlessTurn:
    """One turn, from its request to its end."""

    def __init__(self, request: TurnRequest, tell: Any, stopped: asyncio.Event) -> None:
        self._request = request
        self._tell = tell
        self._stopped = stopped
        self._home = Home(request.home)
        self._folder = self._home.run_folder(request.turn)
        self._token = RUN_TOKEN + os.urandom(16).hex()
        self._spec: PersonaSpec = parse_persona(request.name, request.persona)
        self._profile, _ = find_profile(
            os.path.basename(self._spec.command[0]), self._home.profiles
        )
        self._form = self._spec.headless or self._profile.headless or HeadlessForm()
        self._gate = PermissionGate.of_one_turn(request.permissions)
        self._asked: set[str] = set()  # calls that have passed the gate
        self._refused: dict[str, ToolCall] = {}
        self._escaped = ""  # what was used and should not have been
        self._server: HookServer | None = None
        self._cwd = self._spec.cwd or self._spec.env.get("HOME") or os.path.expanduser("~")
        self._governed: GovernedTurn | None = None
        if self._spec.tools and (root := governed_root(self._cwd)):
            self._governed = GovernedTurn(self._home, request, self._spec, self._cwd, root)

    async def run(self) -> TurnResult:
        """Run it to its end. Never raises but for what is a fault of relay's own."""
        try:
            make_private_folder(self._folder)
            return await self._run()
        except CannotBegin as error:
            return error.result
        except OSError as error:
            what = f"{self._spec.command[0]} cannot be started: {error.strerror or error}"
            if error.filename not in (None, self._spec.command[0]):
                what += f": {error.filename}"
            gone = isinstance(error, FileNotFoundError)  # so it is a moment later
            return TurnResult.of(TurnCause.NOT_INSTALLED if gone else TurnCause.NOT_STARTED, what)
        finally:
            if self._server is not None:
                await self._server.close()
            if self._governed is not None:
                await self._governed.close()
            shutil.rmtree(self._folder, ignore_errors=True)

    async def _run(self) -> TurnResult:
        env = environment(self._request, self._spec, os.environ, self._credentials())
        resumed = bool(self._request.external_id and self._form.resume)
        ended = await self._try(env, resumed)
        began = ended.text or ended.tool_calls
        if resumed and ended.state is TurnState.FAILED and not (began or ended.needs_person):
            # Its own conversation has gone: what was said is told with the prompt.
            return await self._try(env, False)
        return ended

    async def _try(self, env: dict[str, str], resumed: bool) -> TurnResult:
        argv, prompt = self._command(resumed)
        argv, env = await self._gated(argv, env)
        output = READERS[self._form.output]()
        process = HeadlessProcess(
            argv, env, self._spec.cwd or env["HOME"], self._form, prompt, self._stopped
        )
        told = False

        def line(text: str) -> None:
            nonlocal told
            for id_, call in output.line(text, _now_ms()):
                self._check(id_, call, process)
            if output.external_id and not told:
                told = True
                self._tell({"tell": "started", "external_id": output.external_id})

        how = await process.run(line, self._request.deadline)
        return self._end(output, process, how)

    # -- the command

    def _command(self, resumed: bool) -> tuple[list[str], str]:
        """The command line, and what it is asked on its standard input or at its prompt. Raises
        CannotBegin."""
        request, form = self._request, self._form
        # In one line the history could not be told from the message.
        without_history = resumed or form.driven
        prompt = (without_history and request.resumed_prompt) or request.prompt
        told = request.system_prompt or ""
        if self._governed is not None:
            told = "\n\n".join(filter(None, (told, self._governed.rules)))
        said = {"model": self._spec.model, "id": request.external_id or "", "prompt": prompt}
        if resumed:
            said["resumed"] = "yes"
        if told and form.system:
            path = os.path.join(self._folder, "system-prompt.md")
            with open(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600), "w") as file:
                file.write(told)
            said |= {"text": told, "file": path}
        elif told:
            prompt = f"{told}\n\n{prompt}"
        prompt = form.inert(clean(prompt) if form.driven else prompt)
        if form.driven:
            prompt = " ".join(prompt.split())  # a line end would send it in pieces
            if (size := len(prompt.encode())) > TYPED_MAX:
                raise CannotBegin(
                    TurnCause.TOO_LONG,
                    f"it would be typed at a prompt, which takes {TYPED_MAX} bytes: it has {size}",
                )
        said["prompt"] = prompt
        argv = form.command(self._spec.command, **said)
        return argv, "" if form.takes_argument else prompt

    def _credentials(self) -> dict[str, str]:
        """The variables of the credentials that this turn may have. Raises CannotBegin."""
        found: dict[str, str] = {}
        for name in self._request.permissions.credentials:
            for variable, source in self._spec.credentials.get(name, {}).items():
                kind, _, where = source.partition(":")
                try:
                    found[variable] = os.environ[where] if kind == "env" else _secret(where)
                except (KeyError, OSError, ValueError) as error:
                    why = "is not set" if isinstance(error, KeyError) else f"{error}"
                    why = f"{name} cannot be had: {where} {why}"
                    raise CannotBegin(TurnCause.CREDENTIAL, why) from error
        return found

    # -- the gate

    async def _gated(
        self, argv: list[str], env: dict[str, str]
    ) -> tuple[list[str], dict[str, str]]:
        """The command with the gate in it, where something limits the turn. Raises CannotBegin."""
        if not (limits(self._request.permissions) or self._governed) or not self._spec.tools:
            return argv, env
        kind = os.path.basename(argv[0])
        codec = make_hook_codec(kind)
        if codec is None:
            raise CannotBegin(
                TurnCause.UNGATED,
                f"{kind} has no hooks by which this turn could be held to what it may"
                f" {'write' if self._governed else 'use'}"
                ' (a program without tools says so: "tools": False)',
            )
        if self._server is None:
            guards = [self._governed] if self._governed else []
            endpoint = ToolHookEndpoint(codec, NoHooks(), EventQueue(), None, self._refuses, guards)
            self._server = HookServer(endpoint.answer, self._token)
            self._listener = socket.create_server(("127.0.0.1", 0))
            await self._server.serve(self._listener)
        without = [one for one in UNASKED.get(kind, ()) if refusal(self._request.permissions, one)]
        terms = launch.LaunchTerms(
            terminal=False,
            gate_only=True,
            hooks=launch.TOOL_EVENTS if self._governed else launch.TOOL_EVENTS[:1],
            without=(*without, launch.SKILL_SHELL) if self._governed else tuple(without),
        )
        run = launch.Run(
            self._request.name,
            self._request.turn,
            launch.Endpoint(self._token, self._listener.getsockname()[1]),
            launch.Folders(self._folder, self._home.profiles),
            terms,
        )
        # A planner looks at the settings of the folder in which the program will run.
        os.chdir(self._spec.cwd or env["HOME"])
        plan = launch.plan(argv, env, run)
        gates = plan.data.get("gates")
        if not isinstance(gates, list) or not set(run.terms.hooks) <= set(gates):
            why = plan.data.get("ungated") or "no gate could be put in"
            why = f"{kind} cannot be held to what this turn may use: {why}"
            raise CannotBegin(TurnCause.UNGATED, why)
        more = {"RELAY_PORT": str(run.endpoint.port), "RELAY_TOKEN": self._token}
        if self._governed:
            more |= git_environment(env)
            more |= self._governed.hold({**env, **plan.env}, os.getcwd())
        return plan.argv, {**env, **more, **plan.env}

    def _refuses(self, call: AgentHookCall) -> str:
        """What the gate says, noted: not every program tells of calls that were refused."""
        name, id_ = text_of(call.fields, "tool_name"), text_of(call.fields, "tool_use_id")
        why = self._gate.refuses(call)
        if not why:
            self._asked.add(id_ or name)
        elif len(self._refused) < CALLS_MAX:
            now, given = _now_ms(), json_text.dumps(call.fields.get("tool_input"))
            made = ToolCall(name, given, why, "refused", now, now)
            self._refused[id_ or str(len(self._refused))] = made
        return why

    def _check(self, id_: str, call: ToolCall, process: HeadlessProcess) -> None:
        """A call has ended well: it should have been allowed."""
        if call.state != "completed" or not self._spec.tools or id_ in self._asked:
            return
        why = refusal(self._request.permissions, call.name)
        if why and not self._escaped:
            self._escaped = call.name
            process.stop()

    # -- the end

    def _end(self, output: HeadlessOutput, process: HeadlessProcess, how: TurnState) -> TurnResult:
        text = (process.said if self._form.driven else output.text).strip()
        ended = self._why(output, process, how)
        return replace(
            ended,
            text="" if ended.cause is TurnCause.ESCAPED or text == output.error else text,
            detail=redact(ended.detail)[:REASON_MAX],
            inferred=self._form.driven,
            model=output.model or self._spec.model or None,
            external_id=output.external_id,
            tokens_in=output.tokens_in,
            tokens_out=output.tokens_out,
            ended_ms=_now_ms(),
            tool_calls=(*output.tool_calls, *self._unsaid(output)),
        )

    def _why(self, output: HeadlessOutput, process: HeadlessProcess, how: TurnState) -> TurnResult:
        """How it has ended, and for which cause."""
        if self._escaped:
            return TurnResult.of(TurnCause.ESCAPED, self._escaped)
        if how is TurnState.TIMED_OUT:
            return TurnResult.of(TurnCause.DEADLINE, f"{round(self._request.deadline, 1):g}")
        if how is TurnState.INTERRUPTED:
            return TurnResult.of(TurnCause.OVERTAKEN)  # the broker knows for what
        if process.problem:
            return TurnResult.of(TurnCause.OUTPUT, process.problem)
        words = output.error or (clean(process.errors) if process.status else "")
        if needed := self._form.needs(words):
            return TurnResult.of(*needed)
        if output.error:
            return TurnResult.of(TurnCause.AGENT, output.error)
        if process.status:
            last = redact(process.errors).strip().splitlines()[-1:] or ["it said no more"]
            what = f"{self._spec.command[0]} ended with status {process.status}: {last[0]}"
            return TurnResult.of(TurnCause.STATUS, what)
        return TurnResult()

    def _unsaid(self, output: HeadlessOutput) -> list[ToolCall]:
        """The refused calls of which the program says nothing."""
        return [call for id_, call in self._refused.items() if not output.tells_of(id_, call.name)]


class GovernedTurn:
    """What the project allows of one turn, which no session serves and no person is asked about."""

    def __init__(
        self, home: Home, request: TurnRequest, spec: PersonaSpec, cwd: str, root: str
    ) -> None:
        kind = os.path.basename(spec.command[0])
        agent = GovernedAgent(request.name, request.turn, kind, cwd, "", root)
        self._folder = home.run_folder(request.turn)
        self._project = project_opener(home, agent, os.getpid(), None)(root)
        self.rules = self._project.rules(words=False)

    def hold(self, env: dict[str, str], cwd: str) -> dict[str, str]:
        """Have the kernel hold its shell calls; see GovernedProject.hold."""
        return self._project.hold(self._folder, env, cwd)

    async def before(self, call: AgentHookCall, seconds: float) -> str:
        await self._project.select_in_shell(call)
        return await self._project.before(call, seconds)

    def agreed(self, call: AgentHookCall) -> bool:
        return self._project.agreed(call)

    async def after(self, call: AgentHookCall) -> str:
        return await self._project.after(call)

    async def close(self) -> None:
        await self._project.ended()


def _secret(path: str) -> str:
    with open(os.path.expanduser(path), encoding="utf-8") as file:
        value = file.read(64 * 1024).strip()
    if not value or "\0" in value:
        raise ValueError("is empty, or no text")
    return value


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


# -- the process


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
                    line(kept[:OUTPUT_LINE_MAX].decode(errors="replace"))
                    kept.clear()
                kept += rest[: max(0, OUTPUT_LINE_MAX - len(kept))]
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


def _plain(text: str) -> str:
    return _ESCAPE.sub("", text).replace("\r\n", "\n").replace("\r", "\n")


async def serve(connection: socket.socket) -> None:
    """Take the request, run the turn, and tell of it."""
    reader, writer = await asyncio.open_connection(sock=connection, limit=LINE_MAX)

    def tell(record: Json) -> None:
        writer.write(json_text.dumps(record, ascii=False).encode(errors="replace") + b"\n")

    async with asyncio.timeout(REQUEST_DEADLINE):
        line = await reader.readline()
    if not line:
        return
    stopped = asyncio.Event()
    try:
        request = TurnRequest.from_json(json_text.loads(line.decode()))
        become_monitor(mark(request.home))
        turn = HeadlessTurn(request, tell, stopped)
    except (RelayError, ValueError, KeyError, TypeError) as error:
        why = error.line if isinstance(error, RelayError) else f"{type(error).__name__}: {error}"
        tell({"tell": "ended", **TurnResult.of(TurnCause.IMPOSSIBLE, why).to_json()})
        await writer.drain()
        return
    tell({"tell": "started"})
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(_listen(reader, stopped)), loop.create_task(_live(tell))]
    ended = await turn.run()
    for task in tasks:
        task.cancel()
    tell({"tell": "ended", **ended.to_json()})
    with contextlib.suppress(OSError):
        await writer.drain()
        writer.close()
        await writer.wait_closed()


async def _listen(reader: asyncio.StreamReader, stopped: asyncio.Event) -> None:
    """Until the broker says stop, or is gone."""
    with contextlib.suppress(OSError, ValueError):
        while line := await reader.readline():
            said = json_text.loads(line.decode())
            if isinstance(said, Mapping) and said.get("do") == "stop":
                break
    stopped.set()


async def _live(tell: Any) -> None:
    while True:
        await asyncio.sleep(ALIVE_EVERY)
        tell({"tell": "alive"})


def main() -> None:
    """Run the turn that comes on standard input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    connection = socket.socket(fileno=os.dup(0))
    asyncio.run(serve(connection))
    sys.stdout.flush()
