"""Sends notices to the person's desktop and webhook, as the setting ``notify`` of their own
configuration says.

Each notice is sent by a child process of its own, which has a deadline: notify-send, or this
module's ``main``, which posts to the webhook. A look-up of a host's name cannot be cancelled, a
child can be killed.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import html
import json
import os
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relay.broker.door import BrokerFeature
from relay.broker.kernel import Kernel
from relay.broker.parts import BrokerParts
from relay.core import http
from relay.core.bounded import RecentSet
from relay.core.child_process import python
from relay.core.environment import own_environment
from relay.core.files import lock_open_file, open_private
from relay.core.paths import Home
from relay.core.visible import visible
from relay.features.notify.settings import NOTIFY, is_quiet
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
#: The kinds of rows of the stream of which some are worth a notice.
ROWS = ("message", "agent", "item")
#: Characters of a notice's text, and of its title.
TEXT_MAX, TITLE_MAX = 200, 60
#: Notices of one kind that are sent one by one; more that come together become one that counts
#: them.
TOGETHER = 3
#: Notices that wait to be sent, and keys that are remembered; beyond these the oldest go.
PENDING_MAX, KEYS_MAX = 1000, 5000
_ESC, _END = "\033]", "\033\\"


def feature(parts: BrokerParts) -> NotifyFeature:
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
            self._log.write(f"notify: no more notices are sent: {task.exception()!r}")
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
            self._log.write(
                f"notify: {whom} is not told: {argv[0]} cannot be run ({error.strerror})"
            )
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
            self._log.write(f"notify: {whom} is not told: {why}")


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


# -- what is worth a notice


@dataclass(frozen=True, slots=True)
class Notice:
    """One thing to tell. The same ``key`` is the same thing, and is told once."""

    key: str
    kind: str  # one of KINDS
    agent: str
    title: str
    text: str

    @property
    def line(self) -> str:
        return f"{self.title}: {self.text}" if self.text else self.title


def of_message(row: Mapping[str, Any], owner: str) -> Notice | None:
    """Mail for the person."""
    if row["from"] == owner or owner not in row["to"]:
        return None
    return _notice(
        f"message {row['id']}", "mail", row["from"], f"{row['from']} writes", row["body"]
    )


def of_item(item: Mapping[str, Any]) -> Notice:
    """What waits for the person's answer."""
    agent = item.get("agent") or ""
    title = f"{agent or 'relay'} needs your answer"
    return _notice(f"item {item['id']}", "dialog", agent, title, item["what"])


def of_agent(row: Mapping[str, Any]) -> Notice | None:
    """An agent that has ended, or whose model does not answer at present."""
    name, state, since = row["name"], row["state"], row["since_ms"]
    if state == row["was"] or state not in ("gone", "limited"):
        return None
    why = row.get("reason") or ""
    if state == "gone":
        return _notice(f"ended {row.get('run')}", "ended", name, f"{name} has ended", why)
    return _notice(f"limited {row.get('run')} {since}", "limited", name, f"{name} is limited", why)


def _notice(key: str, kind: str, agent: str, title: str, text: str | None) -> Notice:
    return Notice(key, kind, _plain(agent, TITLE_MAX), _plain(title, TITLE_MAX), _plain(text))


def _plain(text: str | None, most: int = TEXT_MAX) -> str:
    # Cut before it is looked at, too: a body may have a megabyte.
    shown = visible(" ".join((text or "")[: 4 * most].split()))
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def gathered(notices: Iterable[Notice]) -> list[Notice]:
    """The notices; in place of many of one kind, one that counts them."""
    by_kind: dict[str, list[Notice]] = {}
    for notice in notices:
        by_kind.setdefault(notice.kind, []).append(notice)
    result: list[Notice] = []
    for kind, same in by_kind.items():
        if len(same) <= TOGETHER:
            result += same
            continue
        names = list(dict.fromkeys(notice.agent for notice in same if notice.agent))
        who = ", ".join(names[:5]) + (" and others" if len(names) > 5 else "")
        what = {
            "mail": "new messages",
            "dialog": "things wait for your answer",
            "ended": "agents have ended",
            "limited": "agents are limited",
        }[kind]
        result.append(_notice(same[-1].key, kind, "", f"{len(same)} {what}", who))
    return result


class PendingNotices:
    """What is still to be sent. Rows of the stream go in, and each thing comes out once."""

    def __init__(self, owner: str, since_ms: int) -> None:
        """``owner``: the person's name. What an earlier process has told of (an item or an agent's
        state from before ``since_ms``, which a new broker hears of again) is not told again."""
        self._owner = owner
        self._since_ms = since_ms
        self._pending: dict[str, Notice] = {}
        self._known: RecentSet[str] = RecentSet(KEYS_MAX)

    def __len__(self) -> int:
        return len(self._pending)

    def take(self, row: Mapping[str, Any]) -> None:
        """Note what a row of the stream is worth telling."""
        notice: Notice | None = None
        match row["what"]:
            case "message":
                notice = of_message(row, self._owner)
            case "agent" if row["since_ms"] >= self._since_ms:
                notice = of_agent(row)
            case "item" if not row["open"]:  # answered: there is nothing to tell any more
                self._pending.pop(f"item {row['item']['id']}", None)
            case "item" if row["item"]["since_ms"] >= self._since_ms and not row.get("again"):
                notice = of_item(row["item"])
        if notice is None or notice.key in self._known:
            return
        self._known.add(notice.key)
        self._pending[notice.key] = notice
        while len(self._pending) > PENDING_MAX:
            del self._pending[next(iter(self._pending))]

    def due(self, settings: Mapping[str, Any] | None, minute: int) -> list[Notice]:
        """What is to be sent now, at ``minute`` of the day; without settings nothing ever is."""
        if settings is not None and is_quiet(settings["quiet"], minute):
            return []
        kinds = () if settings is None else settings["of"]
        notices = [notice for notice in self._pending.values() if notice.kind in kinds]
        self._pending.clear()
        return gathered(notices)


# -- the forms in which it is sent


def terminal_form(env: Mapping[str, str]) -> Callable[[Notice], str] | None:
    """How this terminal takes a notice for the desktop: OSC 9, 777 or 99; None: it takes none.

    In tmux and screen nobody knows which terminal shows it, or whether any does.
    """
    term, program = env.get("TERM", ""), env.get("TERM_PROGRAM", "")
    if env.get("TMUX") or env.get("STY") or term.startswith(("screen", "tmux")):
        return None
    if term == "xterm-kitty" or env.get("KITTY_WINDOW_ID"):
        return osc_99
    if program in ("iTerm.app", "WezTerm", "ghostty", "WarpTerminal") or term == "xterm-ghostty":
        return osc_9
    if term.startswith(("foot", "rxvt-unicode", "contour")):
        return osc_777
    return None


def osc_9(notice: Notice) -> str:
    """For iTerm2, WezTerm, ghostty, Warp."""
    # Without semicolons, which would make a command of ConEmu's of it.
    return f"{_ESC}9;{_field(notice.line)}{_END}"


def osc_777(notice: Notice) -> str:
    """For foot, urxvt, contour."""
    return f"{_ESC}777;notify;{_field(notice.title)};{_field(notice.text)}{_END}"


def osc_99(notice: Notice) -> str:
    """For kitty; in base64, so that nothing in it means anything."""
    title, body = (base64.b64encode(one.encode()).decode() for one in (notice.title, notice.text))
    begin = f"{_ESC}99;i=relay:e=1:d={0 if body else 1};{title}{_END}"
    return begin + (f"{_ESC}99;i=relay:e=1:p=body;{body}{_END}" if body else "")


def _field(text: str) -> str:
    return text.replace(";", ",")


def desktop_argv(notice: Notice) -> list[str]:
    """The command line of notify-send; bodies are markup there, and words that begin with a dash
    options."""
    text = html.escape(notice.text, quote=False)
    return ["notify-send", "--app-name=relay", "--", notice.title, text]


def webhook_body(notice: Notice, at: str) -> Json:
    """The JSON that is posted: ``text`` is what chats show."""
    fields = {"kind": notice.kind, "agent": notice.agent, "title": notice.title, "at": at}
    return {"text": notice.line, **fields, "body": notice.text}
