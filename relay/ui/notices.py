"""What the person is told while they look elsewhere: from rows of the broker to words. Pure.

A file of its own because it decides without doing: the notifier reads rows, and sends notices. What
agents write is hostile here too: a notice is plain text on one line, without controls, and short.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from relay.config.notify_settings import quiet_minutes
from relay.core.visible import visible

Json = dict[str, Any]
#: Characters of a notice's text, and of its title.
TEXT_MAX, TITLE_MAX = 200, 60
#: Notices of one kind that are told one by one; of more that come together only how many.
TOGETHER = 3
_ESC, _END = "\033]", "\033\\"


@dataclass(frozen=True, slots=True)
class Notice:
    """One thing to tell. The same ``key`` is the same thing, and is told once."""

    key: str
    kind: str  # one of relay.config.notify_settings.KINDS
    agent: str
    title: str
    text: str

    @property
    def line(self) -> str:
        """All of it on one line."""
        return f"{self.title}: {self.text}" if self.text else self.title


def of_message(row: Mapping[str, Any], owner: str) -> Notice | None:
    """Mail for the person: a row of the stream, or of their inbox."""
    to = row["to"] if isinstance(row["to"], list) else [row["to"]]
    if row["from"] == owner or owner not in to:
        return None
    return _notice(
        f"message {row['id']}", "mail", row["from"], f"{row['from']} writes", row["body"]
    )


def of_item(item: Mapping[str, Any]) -> Notice:
    """What waits for the person's answer."""
    agent = item.get("agent") or ""
    title = f"{agent or 'relay'} needs your answer"
    return _notice(f"item {item['id']}", "dialog", agent, title, item["what"])


def of_agent(row: Mapping[str, Any], was: str | None) -> Notice | None:
    """An agent that has ended, or whose model does not answer at present; ``was``: the state
    before."""
    name, state, since = row["name"], row["state"], row["since_ms"]
    if state == was or state not in ("gone", "limited"):
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
    """The notices, and in place of many of one kind one that counts them."""
    by_kind: dict[str, list[Notice]] = {}
    for one in notices:
        by_kind.setdefault(one.kind, []).append(one)
    told: list[Notice] = []
    for kind, some in by_kind.items():
        if len(some) <= TOGETHER:
            told += some
            continue
        names = list(dict.fromkeys(one.agent for one in some if one.agent))
        who = ", ".join(names[:5]) + (" and others" if len(names) > 5 else "")
        what = {
            "mail": "new messages",
            "dialog": "things wait for your answer",
            "ended": "agents have ended",
            "limited": "agents are limited",
        }[kind]
        told.append(_notice(some[-1].key, kind, "", f"{len(some)} {what}", who))
    return told


def is_quiet(quiet: str, minute: int) -> bool:
    """Whether ``minute`` of the day lies in the quiet hours ``quiet``; they may span midnight."""
    hours = quiet_minutes(quiet)
    if hours is None:
        return False
    begin, end = hours
    return begin <= minute < end if begin <= end else minute >= begin or minute < end


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
