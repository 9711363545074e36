"""A way to the link's server through ssh, so that no port of its machine is open.

ssh is the person's own program, with their configuration: it knows hosts, users, keys and jumps.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from relay.core.errors import RelayError, Timeout, UsageError
from relay.core.loopback_guard import loopback_listener
from relay.core.visible import visible

#: Neither a host nor a user begins with a dash: ssh would take it for an option. No character of
#: them means something to a shell, which ssh starts where its configuration says so.
_ADDRESS = re.compile(
    r"ssh://(?:(?P<user>\w[\w.+-]{0,63})@)?(?P<host>\w[\w.-]{0,252}|\[[0-9A-Fa-f:]{2,45}\])"
    r"(?::(?P<port>[0-9]{1,5}))?/?",
    re.ASCII,
)
#: Said to a shell that reads no profile, so that relay is found where pipx and uv install it.
_NEW = "sh -c 'PATH=\"$PATH:$HOME/.local/bin\"; exec relay link new --address 127.0.0.1'"
_CODE = re.compile(r"\brelay1:[\w-]+", re.ASCII)
#: Seconds in which a person has said who they are, and the other machine has answered.
_ASKING = 120
#: Connections that are carried at a time, and bytes of what an ssh says.
_AT_ONCE, _WORDS = 4, 64 * 1024
#: The statuses of ssh itself, and of a shell that does not find a program.
_FAILED, _NOT_FOUND = 255, 127


@dataclass(frozen=True, slots=True)
class SshWay:
    """Where ssh goes."""

    user: str
    host: str
    port: str

    @classmethod
    def read(cls, text: str) -> Self:
        """Of ``ssh://[USER@]HOST[:PORT]``. Raises UsageError."""
        found = _ADDRESS.fullmatch(text.strip())
        if found is None or not 0 < int(found["port"] or 1) < 65536:
            raise UsageError(f"{text!r} is not an address", hint="ssh://USER@HOST or ssh://HOST:22")
        return cls(found["user"] or "", found["host"].strip("[]"), found["port"] or "")

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"ssh://{self.user}{self.user and '@'}{host}{self.port and ':'}{self.port}"

    def command(self, *options: str, ask: bool = False) -> list[str]:
        """ssh to there. ``ask``: it may ask the person in their terminal."""
        # A connection that the person has open is shared; one of relay's would outlive it.
        words = ["ssh", "-T", "-o", "ControlMaster=no", "-o", "RemoteCommand=none"]
        words += ["-o", "ConnectTimeout=15"]
        if not ask:
            words += ["-o", "BatchMode=yes"]
        for letter, value in (("-l", self.user), ("-p", self.port)):
            if value:
                words += [letter, value]
        return [*words, *options, "--", self.host]

    def as_typed(self, command: str, *options: str) -> str:
        """ssh to there with this command, for a person to try."""
        port = ["-p", self.port] if self.port else []
        where = f"{self.user}{self.user and '@'}{self.host}"
        return " ".join(["ssh", *options, *port, where, command])


def new_code(way: SshWay) -> str:
    """A code of the machine there, which begins a link unless there is one. It may ask the person
    for a password, or whether the machine is the right one. Raises RelayError."""
    command = [*way.command(ask=sys.stdin.isatty()), _NEW]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_ASKING
        )
    except FileNotFoundError as error:
        raise UsageError("there is no ssh here", hint="install the OpenSSH client") from error
    except subprocess.TimeoutExpired as error:
        raise Timeout(
            f"{way} has not answered in {_ASKING} seconds", hint=f"try: {way.as_typed('true')}"
        ) from error
    if found := _CODE.search(done.stdout.decode(errors="replace")):
        return found[0]
    words = _last_words(done.stderr) or f"ended with status {done.returncode}"
    if done.returncode == _FAILED:
        raise RelayError(f"ssh does not get to {way}: {words}", hint=f"try: {way.as_typed('true')}")
    if done.returncode == _NOT_FOUND:
        raise RelayError(
            f"{way} has no relay that ssh finds ({words})",
            hint="there, as that user: pipx install 'relay-wrap[link]'; or, where it is installed,"
            ' ln -s "$(command -v relay)" ~/.local/bin/',
        )
    raise RelayError(f"{way} has no code: {words}", hint=f"try: {way.as_typed('relay link')}")


class Tunnel:
    """The way to a port of that machine's loopback interface, until the block ends.

    What connects to ``address`` here is carried by an ssh of its own, which ends with the
    connection, also where the broker is killed. Any user here may connect, as with ``ssh -L``: the
    server asks for a key. The block's end raises RelayError where ssh has failed, and says why.
    """

    def __init__(self, way: SshWay, address: str) -> None:
        """``address``: HOST:PORT of the server there, of which the port counts."""
        self._way = way
        port = address.rpartition(":")[2]
        self._command = way.command("-W", f"127.0.0.1:{port}")
        self._door = loopback_listener(0)
        self._door.setblocking(False)
        self.address = f"127.0.0.1:{self._door.getsockname()[1]}"
        self._words = ""  # the last ones of an ssh that has failed
        self._running: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._accepting = asyncio.get_running_loop().create_task(self._accept())
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        tasks = [self._accepting, *self._running]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._door.close()
        if self._words and (error is None or isinstance(error, Exception)):
            raise RelayError(
                f"{self._way}: {self._words}",
                hint="there is no terminal for relay's connection, so ssh must ask nothing"
                f" (ssh-copy-id, ssh-add); try: {self._way.as_typed('true', '-oBatchMode=yes')}",
            ) from error

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            connection, _ = await loop.sock_accept(self._door)
            with connection:
                if len(self._running) < _AT_ONCE:
                    await self._carry(connection.fileno())

    async def _carry(self, connection: int) -> None:
        self._words = ""
        printed, their_end = os.pipe()  # not asyncio's: a grandchild may hold the other end
        try:
            child = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=connection,
                stdout=connection,
                stderr=their_end,
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            os.close(printed)
            self._words = f"ssh cannot be run ({error.strerror})"
            return
        finally:
            os.close(their_end)
        task = asyncio.get_running_loop().create_task(self._follow(child, printed))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _follow(self, child: asyncio.subprocess.Process, printed: int) -> None:
        try:
            await child.wait()
        finally:
            if child.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
            if await child.wait() == _FAILED:
                os.set_blocking(printed, False)
                with suppress(BlockingIOError):
                    self._words = _last_words(os.read(printed, _WORDS)) or "ssh has failed"
            os.close(printed)


def _last_words(printed: bytes) -> str:
    """The last two lines, as one."""
    lines = [line.strip() for line in printed.decode(errors="replace").splitlines()]
    return visible("; ".join([line for line in lines if line][-2:]))[:500]
