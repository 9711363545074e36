"""Notices: what tells the person, while they look elsewhere, that something needs them. Pure.

The setting ``notify``, which events are worth a notice, and the forms in which one is sent. What
agents write is hostile: a notice is short plain text on one line, without control characters.
relay.features.notify.broker sends notices to the desktop and a webhook, ``relay notify`` shows them
in a terminal.
"""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from relay.core.bounded import RecentSet
from relay.core.errors import ConfigError
from relay.core.visible import visible

Json = dict[str, Any]
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
#: What there is to be told of: mail in the inbox, what waits for the person, an agent that ended,
#: one whose model does not answer at present (a usage limit).
KINDS = ("mail", "dialog", "ended", "limited")
_QUIET = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")
#: The keys, with what counts where nothing is said.
DEFAULTS: dict[str, Any] = {
    "desktop": True,
    "bell": True,
    "webhook": "",
    "of": list(KINDS),
    "quiet": "",
}


# -- the setting


def parse_notify(value: object) -> dict[str, Any]:
    """``notify: {…}``, checked and with all its keys; True stands for the defaults. Raises
    ConfigError."""
    if value is True:
        return dict(DEFAULTS)
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"notify must be True or a dictionary, not {value!r}", hint='write {"desktop": True}'
        )
    for key in value:
        if key not in DEFAULTS:
            raise ConfigError(
                f"unknown key {key!r} in notify", hint=f"it has {', '.join(DEFAULTS)}"
            )
    settings = {**DEFAULTS, **value}
    for key in ("desktop", "bell"):
        if not isinstance(settings[key], bool):
            raise ConfigError(f"notify: {key} must be True or False, not {settings[key]!r}")
    kinds = settings["of"]
    if not isinstance(kinds, list | tuple) or not set(kinds) <= set(KINDS):
        raise ConfigError(f"notify: of must be a list of {', '.join(KINDS)}, not {kinds!r}")
    settings["of"] = list(kinds)
    quiet = settings["quiet"]
    if not isinstance(quiet, str) or (quiet and not _quiet_minutes(quiet)):
        raise ConfigError(f"notify: quiet is {quiet!r}", hint='write "22:00-07:00", in local time')
    url = settings["webhook"]
    if not isinstance(url, str) or (url and not _is_address(url)):
        raise ConfigError(
            "notify: webhook is no address", hint='write "https://…": it gets a POST with JSON'
        )
    return settings


def _quiet_minutes(text: str) -> tuple[int, int] | None:
    """``22:00-07:00`` as minutes of the day; None for anything else."""
    match = _QUIET.fullmatch(text)
    if match is None:
        return None
    hours = [int(part) for part in match.groups()]
    return hours[0] * 60 + hours[1], hours[2] * 60 + hours[3]


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and url.isascii()


def is_quiet(quiet: str, minute: int) -> bool:
    """Whether ``minute`` of the day lies in the quiet hours ``quiet``; they may span midnight."""
    hours = _quiet_minutes(quiet)
    if hours is None:
        return False
    begin, end = hours
    return begin <= minute < end if begin <= end else minute >= begin or minute < end


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
        """All of it on one line."""
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
            case "item" if row["item"]["since_ms"] >= self._since_ms:
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
