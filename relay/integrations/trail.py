"""Trajectories with ``trail`` (npm agent-trajectories): begun with the task, completed at the end.

In ``relay.config.py``::

    from relay import Relay
    from relay.integrations import trail

    relay = Relay(task="fix the flaky test")
    trail.use(relay)

An agent writes ``@trail:decision Use a queue``, ``@trail:reflect …``, ``@trail:complete …``,
``@trail:abandon …`` or ``@trail:status``. The trajectory lies in the project, and trail allows one
active at a time there: agents that work in one project write into the same one.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from relay.core.errors import RelayError
from relay.core.files import lock_open_file, make_private_folder
from relay.core.paths import Home
from relay.hooks.context import Context

if TYPE_CHECKING:
    from relay.app.relay import Relay

#: How long one call of trail may take, and how long another's call is waited for, in seconds.
CALL_TIMEOUT = 15.0
#: Of the time that an agent has at its end, so much stays for closing the trajectory.
CLOSING = 3.0
_LOOK_AGAIN = 0.5
#: Characters of what trail says that are shown to an agent, and of a summary made by relay.
_SHOWN_MAX = 2000
_SUMMARY_MAX = 300

TEACH = """\
Your work is recorded as a trajectory ({title}). Record what matters, each on a line of its own:
@trail:decision what you chose, and why
@trail:reflect where you stand
@trail:complete what you accomplished"""
REMIND = """\
The session ends now. Complete your trajectory with one line:
@trail:complete what you accomplished"""


class TrailError(RelayError):
    """trail is missing, or says no."""

    code = "trail"


@dataclass(frozen=True, slots=True)
class Trail:
    """trail in one project. ``data_dir`` as in ``trail --data-dir``; "" is its own default."""

    cwd: str
    agent: str
    program: str = "trail"
    data_dir: str = ""

    async def current(self) -> tuple[str, str] | None:
        """The id and the title of the active trajectory; None without one."""
        said = await self._call("status")
        if "Active Trajectory:" not in said:
            return None
        identifier, title = (
            next((line.partition(":")[2].strip() for line in said.splitlines() if mark in line), "")
            for mark in ("Active Trajectory:", "Task:")
        )
        return identifier, title

    async def start(self, title: str) -> str:
        """Begin a trajectory; its id. Raises TrailError when one is active."""
        return (await self._call("start", "--agent", self.agent, "--quiet", "--", title)).strip()

    async def run(self, verb: str, text: str) -> str:
        """``decision``, ``reflect`` … with ``text``; what trail said."""
        return await self._call(verb, "--", text)

    async def complete(self, summary: str) -> str:
        """Complete the active trajectory."""
        return await self._call("complete", f"--summary={summary}")

    async def abandon(self, reason: str) -> str:
        """Abandon the active trajectory."""
        return await self._call("abandon", f"--reason={reason}")

    async def status(self) -> str:
        """What ``trail status`` says."""
        return await self._call("status")

    async def _call(self, *words: str) -> str:
        options = ["--data-dir", self.data_dir] if self.data_dir else []
        try:
            async with asyncio.timeout(CALL_TIMEOUT), self._alone():
                return await self._execute([self.program, *options, *words])
        except TimeoutError:
            raise TrailError(
                f"trail {words[0]} did not end within {CALL_TIMEOUT:g} s",
                hint="try it by hand in the project's folder",
            ) from None

    async def _execute(self, argv: list[str]) -> str:
        try:
            process = await asyncio.create_subprocess_exec(
                *argv,
                cwd=self.cwd,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as error:
            raise TrailError(
                f"trail cannot be run: {error.strerror}",
                hint="install it with: npm install -g agent-trajectories",
            ) from None
        try:
            out, err = await process.communicate()
        except asyncio.CancelledError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            raise
        said = out.decode("utf-8", "replace")
        if process.returncode:
            # Among the lines of a stack trace one is meant for people.
            lines = (err.decode("utf-8", "replace") or said).strip().splitlines() or ["it failed"]
            reason = next((line for line in lines if line.startswith("Error: ")), lines[0])
            raise TrailError(reason.removeprefix("Error: "), hint="see: trail status")
        return said

    @contextlib.asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """trail rewrites its file whole: two agents at once would lose one's entry."""
        path = _own_file("trail", f"{os.path.realpath(self.cwd)}\0{self.data_dir}")
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            while not lock_open_file(fd):
                await asyncio.sleep(0.02)  # nothing tells of a lock that is free again
            yield
        finally:
            os.close(fd)


class Begun:
    """Which trajectory each run has begun. In a file: a session may be killed, and the next one of
    its run knows it, too."""

    def note(self, session_id: str, identifier: str) -> None:
        """This run has begun it."""
        with open(self._file(session_id), "w", encoding="utf-8") as file:
            file.write(identifier)

    def of(self, session_id: str) -> str:
        """The id of what this run has begun last; "" if it has begun none."""
        try:
            with open(self._file(session_id), encoding="utf-8") as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def forget(self, session_id: str) -> None:
        """It is over with this run."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._file(session_id))

    def _file(self, session_id: str) -> str:
        return _own_file("trail-begun", session_id)


def _own_file(kind: str, key: str) -> str:
    """The path of a small file of relay's own for ``key``; its folder exists."""
    name = hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    folder = os.path.join(Home.from_env().root, "locks")
    make_private_folder(folder)
    return os.path.join(folder, f"{kind}-{name}")


def use(
    relay: Relay,
    *,
    program: str = "trail",
    data_dir: str = "",
    at_end: str = "complete",
    patience: float | None = None,
) -> None:
    """Register the hooks and ``@trail:`` on ``relay``.

    ``data_dir``: where trajectories lie; ``{agent}`` in it becomes the agent's name, so that each
    has its own. ``at_end``: what becomes of a trajectory that this agent began and did not close:
    "complete", "abandon" or "leave". ``patience``: how long an agent whose terminal was closed may
    take to complete it itself, in seconds (default: most of ``end_seconds``).
    """
    if at_end not in ("complete", "abandon", "leave"):
        raise TrailError(f"at_end is {at_end!r}", hint='it is "complete", "abandon" or "leave"')
    begun = Begun()

    def trail_of(ctx: Context) -> Trail:
        where = data_dir.replace("{agent}", ctx.agent_name)
        return Trail(ctx.working_dir, ctx.agent_name, program, where)

    async def on_start(ctx: Context) -> str | None:
        trail = trail_of(ctx)
        found = await trail.current()
        if found is None:
            if not ctx.task:
                return None
            try:
                begun.note(ctx.session_id, await trail.start(ctx.task))
            except TrailError:
                # Another agent may have begun one since.
                if (found := await trail.current()) is None:
                    raise
        return TEACH.format(title=found[1] if found else ctx.task)

    async def on_end(ctx: Context, reason: str | None) -> None:
        own, trail = begun.of(ctx.session_id), trail_of(ctx)
        if not own:
            return
        if reason == "hangup" and await _is_open(trail, own):
            ctx.inject(REMIND)
            allowed = relay.settings.end_seconds - CLOSING if patience is None else patience
            await _closed(trail, own, allowed)
        if at_end != "leave" and await _is_open(trail, own):
            if at_end == "complete":
                await trail.complete(_summary(ctx))
            else:
                await trail.abandon(f"{ctx.agent_name}'s session ended")
        begun.forget(ctx.session_id)

    async def on_pattern(target: str, message: str, ctx: Context) -> str:
        return await _do(trail_of(ctx), target, message, lambda i: begun.note(ctx.session_id, i))

    relay.on("session_start", on_start, name="trail: start")
    relay.on("session_end", on_end, name="trail: end", timeout=60)
    relay.pattern("trail", on_pattern)


async def _do(trail: Trail, target: str, message: str, started: Callable[[str], None]) -> str:
    async def start() -> str:
        started(identifier := await trail.start(message))
        return identifier

    calls: dict[str, Any] = {
        "decision": lambda: trail.run("decision", message),
        "reflect": lambda: trail.run("reflect", message),
        "complete": lambda: trail.complete(message),
        "abandon": lambda: trail.abandon(message),
        "status": trail.status,
        "start": start,
    }
    if target not in calls:
        return f"trail knows {', '.join(calls)}; not {target}"
    if not message.strip() and target != "status":
        return f"@trail:{target} needs a text"
    try:
        said: str = await calls[target]()
    except TrailError as error:
        return f"trail: {error.message}"
    return said.strip()[:_SHOWN_MAX]


async def _is_open(trail: Trail, identifier: str) -> bool:
    """Whether it is this one that is active: another agent may have begun the next."""
    found = await trail.current()
    return found is not None and found[0] == identifier


async def _closed(trail: Trail, identifier: str, seconds: float) -> None:
    """Wait until that trajectory is not active any more, at most so long."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while await _is_open(trail, identifier):
                await asyncio.sleep(_LOOK_AGAIN)


def _summary(ctx: Context) -> str:
    said = next((line.strip() for line in reversed(ctx.output) if line.strip()), "")
    last = f" It last said: {said[:_SUMMARY_MAX]}" if said else ""
    return f"{ctx.agent_name}'s session ended.{last}"
