"""Sends notices to the person's desktop and webhook, as the setting ``notify`` of their own
configuration says.

Each notice is sent by a child process of its own, which has a deadline: notify-send, or this
module's ``main``, which posts to the webhook. A look-up of a host's name cannot be cancelled, a
child can be killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Mapping, Sequence

from relay.broker.door import BrokerFeature
from relay.broker.kernel import Kernel
from relay.broker.parts import BrokerParts
from relay.core import http
from relay.core.child_process import python
from relay.core.files import lock_open_file, open_private
from relay.core.paths import Home
from relay.core.visible import visible
from relay.features.notify.notices import ROWS, Notice, PendingNotices, desktop_argv, webhook_body
from relay.features.notify.settings import NOTIFY
from relay.features.personas.workers import own_environment
from relay.protocol.broker import Json

#: Seconds in which notices that come together are gathered, and between two looks at the clock in
#: quiet hours.
GATHER, QUIET_LOOK = 0.3, 20.0
#: Seconds that one child may take, and one request of the child that posts.
_DEADLINE, _REQUEST_DEADLINE = 45.0, 10.0
#: Tries of a webhook that could not be reached, and seconds before the next one.
_TRIES, _AGAIN = 3, 5.0
#: Bytes that are read of what a child prints.
_PRINTED_MAX = 2000
_POST = python("relay.features.notify.broker")


def feature(parts: BrokerParts) -> NotifyFeature:
    """The feature in the broker."""
    return NotifyFeature(parts.kernel)


class NotifyFeature(BrokerFeature):
    """Follows the stream, and sends what is worth a notice. Belongs to the broker's loop."""

    def __init__(self, kernel: Kernel) -> None:
        self._home = kernel.home
        self._configs = kernel.configs
        self._watchers = kernel.watchers
        self._log = kernel.log
        self._pending = PendingNotices(kernel.directory.owner, kernel.now_ms())
        self._loop = asyncio.get_running_loop()
        self._came = asyncio.Event()
        self._sending = False
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def busy(self) -> bool:
        """Whether notices wait, for the end of quiet hours say, or are being sent."""
        ended = any(task.done() for task in self._tasks)
        return not ended and (bool(self._pending) or self._sending)

    def start(self) -> None:
        """Follow the stream from the first row of this broker on."""
        self._tasks = [self._loop.create_task(self._follow()), self._loop.create_task(self._send())]
        for task in self._tasks:
            task.add_done_callback(self._ended)

    async def close(self) -> None:
        """End, with what is being sent."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():  # a fault of ours: the broker goes on without notices
            self._log(f"notify: no more notices are sent: {task.exception()!r}")
            for other in self._tasks:
                other.cancel()

    async def _follow(self) -> None:
        place = 0
        while True:
            place, rows = await self._watchers.after(place, ROWS)
            for row in rows:
                self._pending.take(row)
            if self._pending:
                self._came.set()

    async def _send(self) -> None:
        while True:
            await self._came.wait()
            self._came.clear()
            await asyncio.sleep(GATHER)
            settings = self._settings()
            while not (notices := self._pending.due(settings, minute_now())) and self._pending:
                await asyncio.sleep(QUIET_LOOK)
                settings = self._settings()
            self._sending = True
            for notice in notices:
                assert settings is not None
                ways = [self._desktop(notice)] if settings["desktop"] else []
                ways += [self._webhook(notice, settings["webhook"])] if settings["webhook"] else []
                await asyncio.gather(*ways)
            self._sending = False

    def _settings(self) -> Json | None:
        """The setting as it is now: only the person's own file says where words may go."""
        settings: Json | None = self._configs.own_setting(NOTIFY.key)
        return settings

    # -- ways

    async def _desktop(self, notice: Notice) -> None:
        """Run notify-send, unless a terminal shows notices on the desktop."""
        try:
            lock = hold_terminal(self._home)
        except OSError:  # a terminal may show it as well, then: better than nowhere
            lock = None
        else:
            if lock is None:
                return
            os.close(lock)
        bus = f"/run/user/{os.getuid()}/bus"
        env = own_environment(self._home.root)
        if b"DBUS_SESSION_BUS_ADDRESS" not in env and os.path.exists(bus):
            # Where the broker was started nobody may have said which desktop is meant.
            env[b"DBUS_SESSION_BUS_ADDRESS"] = f"unix:path={bus}".encode()
        await self._run("the desktop", desktop_argv(notice), b"", env)

    async def _webhook(self, notice: Notice, url: str) -> None:
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        # Not as an argument: the address may hold a key, and others can read a command line.
        asked = json.dumps({"url": url, "body": webhook_body(notice, at)}).encode()
        await self._run("the webhook", _POST, asked, own_environment(self._home.root))

    async def _run(
        self, whom: str, argv: Sequence[str], asked: bytes, env: Mapping[bytes, bytes]
    ) -> None:
        """Run one child to its end, at most for ``_DEADLINE``, and log why it failed."""
        # Not a pipe of asyncio's: its wait() would go on while a grandchild holds the other end.
        printed, their_end = os.pipe()
        try:
            child = await asyncio.create_subprocess_exec(
                *argv,
                stdin=PIPE,
                stdout=DEVNULL,
                stderr=their_end,
                env=env,
                cwd=self._home.root,
                start_new_session=True,
            )
        except OSError as error:
            os.close(printed)
            self._log(f"notify: {whom} is not told: {argv[0]} cannot be run ({error.strerror})")
            return
        finally:
            os.close(their_end)
        assert child.stdin is not None
        child.stdin.write(asked)
        child.stdin.close()
        try:
            async with asyncio.timeout(_DEADLINE):
                await child.wait()
        except TimeoutError:
            pass
        finally:
            if child.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
            status = await child.wait()
            os.set_blocking(printed, False)
            why = ""
            with contextlib.suppress(BlockingIOError):
                why = os.read(printed, _PRINTED_MAX).decode(errors="replace")
            os.close(printed)
        if status:
            why = visible(" ".join(why.split())) or f"{argv[0]} ended with status {status}"
            self._log(f"notify: {whom} is not told: {why}")


def minute_now() -> int:
    """The minute of the day, in local time."""
    now = time.localtime()
    return now.tm_hour * 60 + now.tm_min


def hold_terminal(home: Home) -> int | None:
    """Hold the lock of the one terminal that shows notices on the desktop; None where another
    process has it."""
    lock = open_private(os.path.join(home.run, "notify.lock"), os.O_RDWR | os.O_CREAT)
    if lock_open_file(lock):
        return lock
    os.close(lock)
    return None


# -- the child that posts to the webhook


def main() -> None:
    """Post what standard input says; exit with 1, and say why, where that fails."""
    asked = json.load(sys.stdin)
    if problem := asyncio.run(_post(asked["url"], json.dumps(asked["body"]).encode())):
        sys.exit(problem)


async def _post(url: str, body: bytes) -> str:
    """Why it is not told, "" where it is. Redirects are not followed."""
    for left in reversed(range(_TRIES)):
        try:
            answer = await http.request("POST", url, (), body, timeout=_REQUEST_DEADLINE)
        except http.RequestFailed as error:
            if error.sent or not left:  # it may have it: twice would be once too often
                return error.message
            await asyncio.sleep(_AGAIN)
        else:
            return "" if 200 <= answer.status < 300 else f"it answered with {answer.status}"
    return ""
