"""Tells the person what happens while they look elsewhere: follows the broker, sends notices.

Two of them may run. ``relay notify`` is in front of somebody: it writes into its terminal, rings
its bell, and tells the desktop by the terminal. The one that the broker starts where the setting
``notify`` is given has no terminal: it tells the desktop by notify-send, unless a terminal does,
and posts to the webhook. That one keeps what it has told beside the ledger, and writes it down
before it sends: each thing is told once, though the broker or it is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from relay.core import http
from relay.core.bounded import RecentSet
from relay.core.errors import RelayError
from relay.core.files import lock_open_file, open_private, read_file, write_atomically
from relay.core.paths import Home
from relay.ui.notices import (
    Json,
    Notice,
    desktop_argv,
    gathered,
    is_quiet,
    of_agent,
    of_item,
    of_message,
    webhook_body,
)
from relay.ui.watching import AsyncWatching

#: Seconds in which what comes together is gathered, between two looks in quiet hours, and for one
#: way to take a notice.
_GATHER, _QUIET_LOOK, _DEADLINE = 0.3, 20.0, 10.0
#: Notices that wait, and keys that are remembered; of more the oldest go.
WAITING_MAX, KEYS_MAX = 1000, 5000
#: Bytes of the file of keys.
_FILE_MAX = 1024 * 1024
#: Rows that are looked up at the start.
_ROWS = 200
#: Tries of a webhook that could not be reached, and seconds before the next one.
_TRIES, _AGAIN = 3, 5.0


class Way(Protocol):
    """A way to tell somebody. Raises RelayError where it does not get through."""

    async def send(self, notice: Notice) -> None: ...


class Told:
    """What was told already: in ``path``, or (none) only for as long as this lives."""

    def __init__(self, since_ms: int, path: str = "") -> None:
        """``since_ms``: where nothing was told yet, what is older needs no telling."""
        self._path = path
        self._keys: RecentSet[str] = RecentSet(KEYS_MAX)
        #: When it was last written.
        self.at_ms = since_ms
        #: Mail and questions that wait are told, unless they are older.
        self.since_ms = since_ms
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            kept = json.loads(read_file(path, _FILE_MAX)) if path else {}
            self.at_ms, self.since_ms = int(kept["at_ms"]), 0
            for key in kept["keys"]:
                self._keys.add(str(key))

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def add(self, keys: Iterable[str]) -> None:
        """Remember them. Raises OSError."""
        for key in keys:
            self._keys.add(key)
        self.at_ms = int(time.time() * 1000)
        if self._path:
            kept = {"at_ms": self.at_ms, "keys": list(self._keys)}
            write_atomically(self._path, json.dumps(kept), durable=False)


class Notifier:
    """Follows the broker, and tells what is new by all ``ways``. ``log`` gets what fails."""

    def __init__(
        self,
        home: Home,
        settings: Json,
        ways: Sequence[Way],
        told: Told,
        log: Callable[[str], None],
    ) -> None:
        self._home = home
        self._settings = settings
        self._ways = ways
        self._told = told
        self._log = log
        self._waiting: dict[str, Notice] = {}
        self._came = asyncio.Event()
        self._owner = ""

    async def run(self) -> None:
        """Tell for ever. Raises RelayError when the broker refuses."""
        async with (
            AsyncWatching(self._home, kinds=("message", "agent", "item")) as watching,
            asyncio.TaskGroup() as tasks,
        ):
            await self._look_up(watching)
            tasks.create_task(self._send())
            async for rows in watching.batches():
                if any(row["what"] == "gap" for row in rows):
                    await self._look_up(watching)
                for row in rows:
                    self._take(self._of_row(row))

    def _of_row(self, row: Json) -> Notice | None:
        if row["what"] == "message":
            return of_message(row, self._owner)
        if row["what"] == "agent":
            return of_agent(row, row["was"])
        if row["what"] != "item":
            return None
        if not row["open"]:  # it is answered: nobody needs to be told any more
            self._waiting.pop(f"item {row['item']['id']}", None)
            return None
        return of_item(row["item"])

    async def _look_up(self, watching: AsyncWatching) -> None:
        """What there is by now; of an earlier time nothing but what still waits."""
        request = watching.client.request
        inbox = await request("inbox", limit=_ROWS)
        self._owner = inbox["name"]
        try:
            items = (await request("items"))["rows"]
        except RelayError:  # a broker of before does not know it
            items = []
        agents = (await request("agents"))["agents"]
        told = self._told
        mail = [row for row in inbox["rows"] if row["created_ms"] >= told.since_ms]
        found = [of_message(row, self._owner) for row in mail]
        found += [of_item(item) for item in items if item["since_ms"] >= told.since_ms]
        found += [of_agent(row, None) for row in agents if row["since_ms"] >= told.at_ms]
        for one in found:
            self._take(one)

    def _take(self, notice: Notice | None) -> None:
        if notice is None or notice.key in self._told or notice.kind not in self._settings["of"]:
            return
        self._waiting.setdefault(notice.key, notice)
        while len(self._waiting) > WAITING_MAX:
            del self._waiting[next(iter(self._waiting))]
        self._came.set()

    async def _send(self) -> None:
        while True:
            await self._came.wait()
            self._came.clear()
            await asyncio.sleep(_GATHER)
            while self._waiting and self._is_quiet():
                await asyncio.sleep(_QUIET_LOOK)
            notices = list(self._waiting.values())
            self._waiting.clear()
            try:
                self._told.add(one.key for one in notices)
            except OSError as error:  # a full disk: told twice is better than not at all
                self._log(f"what was told cannot be kept: {error.strerror}")
            for one in gathered(notices):
                for way in self._ways:
                    try:
                        await way.send(one)
                    except RelayError as error:
                        self._log(error.line)

    def _is_quiet(self) -> bool:
        now = time.localtime()
        return is_quiet(self._settings["quiet"], now.tm_hour * 60 + now.tm_min)


# -- ways


class TerminalWay:
    """Writes each notice as a line, rings, and tells the desktop by ``form``, if there is one."""

    def __init__(self, write: Callable[[str], None], bell: bool, form: Any) -> None:
        self._write = write
        self._bell = bell
        self._form = form

    async def send(self, notice: Notice) -> None:
        """Tell it."""
        signs = "\a" if self._bell else ""
        if self._form is not None:
            signs += self._form(notice)
        self._write(f"{signs}{time.strftime('%H:%M:%S')}  {notice.line}\n")


class DesktopWay:
    """Runs notify-send, unless a terminal tells the desktop."""

    def __init__(self, home: Home) -> None:
        self._home = home

    async def send(self, notice: Notice) -> None:
        """Tell it. Raises RelayError."""
        lock = hold_terminal(self._home)
        if lock is None:
            return
        os.close(lock)
        argv = desktop_argv(notice)
        null = asyncio.subprocess.DEVNULL
        try:
            process = await asyncio.create_subprocess_exec(
                *argv, stdin=null, stdout=null, stderr=null, env=_desktop_environment()
            )
        except OSError as error:
            raise RelayError(
                f"the desktop is not told: {argv[0]} cannot be run ({error.strerror})",
                hint="install libnotify's notify-send, or run relay notify in a terminal",
            ) from error
        try:
            async with asyncio.timeout(_DEADLINE):
                status = await process.wait()
        except TimeoutError:
            process.kill()
            status = await process.wait()
        if status:
            raise RelayError(f"the desktop is not told: {argv[0]} ended with status {status}")


class WebhookWay:
    """Posts each notice as JSON; what it answers with, redirects too, is not followed."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def send(self, notice: Notice) -> None:
        """Tell it. Raises RelayError: nobody answered, or with another status than 2xx."""
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        body = json.dumps(webhook_body(notice, at)).encode()
        for left in reversed(range(_TRIES)):
            try:
                answer = await http.request("POST", self._url, (), body, timeout=_DEADLINE)
                break
            except http.RequestFailed as error:
                if error.sent or not left:  # it may have it: twice would be once too often
                    raise RelayError(f"the webhook is not told: {error}") from error
            await asyncio.sleep(_AGAIN)
        if not 200 <= answer.status < 300:
            raise RelayError(f"the webhook is not told: it answered with {answer.status}")


def hold_terminal(home: Home) -> int | None:
    """Hold the lock of the one terminal that tells the desktop; None where another has it."""
    lock = open_private(os.path.join(home.run, "notify.lock"), os.O_RDWR | os.O_CREAT)
    if lock_open_file(lock):
        return lock
    os.close(lock)
    return None


def _desktop_environment() -> dict[str, str]:
    """The broker may have been started where nobody had said which desktop is meant."""
    bus = f"/run/user/{os.getuid()}/bus"
    env = dict(os.environ)
    if "DBUS_SESSION_BUS_ADDRESS" not in env and os.path.exists(bus):
        env["DBUS_SESSION_BUS_ADDRESS"] = f"unix:path={bus}"
    return env


# -- the one that the broker starts


def main() -> None:
    """Tell for the broker, which sends the settings as lines of JSON, until it hangs up."""
    asyncio.run(_serve(Home(sys.argv[1])))


async def _serve(home: Home) -> None:
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    task: asyncio.Task[None] | None = None
    while line := await reader.readline():
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        task = asyncio.get_running_loop().create_task(_tell(home, json.loads(line)))
    if task is not None:
        task.cancel()
        await asyncio.wait([task])


async def _tell(home: Home, settings: Json) -> None:
    ways: list[Way] = []
    if settings["desktop"]:
        ways.append(DesktopWay(home))
    if settings["webhook"]:
        ways.append(WebhookWay(settings["webhook"]))
    told = Told(settings["since_ms"], os.path.join(home.root, "notified.json"))
    try:
        await Notifier(home, settings, ways, told, _log).run()
    except* RelayError as errors:
        for error in errors.exceptions:
            _log(str(error))


def _log(line: str) -> None:
    print(line, flush=True)
