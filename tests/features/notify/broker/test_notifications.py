"""A child that fails or hangs costs its own notice alone, and is reaped."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from relay.core.errors import ConfigError
from relay.core.paths import Home
from relay.features.notify import broker as notifications
from relay.features.notify.broker import (
    TEXT_MAX,
    PendingNotices,
    desktop_argv,
    gathered,
    of_agent,
    of_item,
    of_message,
    osc_9,
    osc_99,
    osc_777,
    terminal_form,
)
from relay.features.notify.settings import is_quiet, parse_notify
from tests.broker.support import kernel_of

#: Stands for notify-send: hangs, fails, and works, each once.
_DESKTOP = """#!/bin/sh
text=$(printf %s "$4")
case "$text" in
  hangs) echo $$ >>"$0.pids"; sleep 600 & wait ;;
  fails) printf "no \\033desktop" >&2; exit 3 ;;
  *) echo "$4" >>"$0.shown" ;;
esac
"""


class Stream:
    """Stands for the watchers: one message after the other."""

    def __init__(self) -> None:
        self.bodies: asyncio.Queue[str] = asyncio.Queue()

    async def after(self, place: int, kinds: object) -> tuple[int, list[dict[str, Any]]]:
        body = await self.bodies.get()
        row = {"what": "message", "id": body, "from": "Bob", "to": ["me"], "body": body}
        return place + 1, [row]


def test_a_child_that_hangs_or_fails_is_logged_and_the_next_notice_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(_three_notices(tmp_path, monkeypatch))


async def _three_notices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "notify-send"
    program.write_text(_DESKTOP)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(notifications, "_DEADLINE", 1.0)
    home = Home(str(tmp_path / "home"))
    home.create()
    own: dict[str, object] = {"notify": parse_notify(True)}
    configs: Any = SimpleNamespace(own_setting=own.get)
    stream: Any = Stream()
    log: asyncio.Queue[str] = asyncio.Queue()
    writer: Any = SimpleNamespace(write=log.put_nowait)
    owner: Any = SimpleNamespace(owner="me")
    kernel = kernel_of(
        home=home,
        directory=owner,
        configs=configs,
        watchers=stream,
        log=writer,
        now_ms=lambda: 0,
    )
    sent = notifications.NotifyFeature(kernel)
    sent.start()
    async with asyncio.timeout(30):
        stream.bodies.put_nowait("hangs")
        assert (await log.get()).startswith("notify: the desktop is not told: ")
        pid = int((tmp_path / "notify-send.pids").read_text())
        assert not Path(f"/proc/{pid}").exists()
        stream.bodies.put_nowait("fails")
        assert await log.get() == "notify: the desktop is not told: no ^[desktop"
        stream.bodies.put_nowait("works")
        while not (tmp_path / "notify-send.shown").exists():
            await asyncio.sleep(0.02)
        # From now on they want none, at once.
        own["notify"] = None
        stream.bodies.put_nowait("unwanted")
        while sent.busy:
            await asyncio.sleep(0.02)
    await sent.close()
    assert (tmp_path / "notify-send.shown").read_text() == "works\n" and log.empty()


HOSTILE = "--icon=/etc\x1b\\\x07\x9c;notify;<b>x</b>\n@relay:Bob go\u202e" + "y" * 5000


def message(body: str = "hi", **more: Any) -> dict[str, Any]:
    return {"id": "1", "from": "Bob", "to": ["me"], "body": body, **more}


def test_the_person_is_told_of_their_own_mail_and_of_news_of_agents() -> None:
    told = of_message(message(), "me")
    assert told is not None and told.line == "Bob writes: hi"
    assert of_message(message(to=["Carol"]), "me") is None
    assert of_message(message(**{"from": "me"}), "me") is None
    agent = {"name": "Bob", "state": "gone", "reason": "exit 1", "run": "r", "since_ms": 5}
    ended = of_agent({**agent, "was": "busy"})
    assert ended is not None and ended.line == "Bob has ended: exit 1"
    assert of_agent({**agent, "was": "gone"}) is None
    assert of_agent({**agent, "state": "idle", "was": "busy"}) is None
    limited = of_agent({**agent, "state": "limited", "reason": None, "was": "busy"})
    assert limited is not None and limited.line == "Bob is limited"
    assert of_item({"id": "i", "agent": "Bob", "what": "Run it?"}).line == (
        "Bob needs your answer: Run it?"
    )


def test_hostile_words_are_only_words_in_each_form() -> None:
    told = of_message(message(HOSTILE, **{"from": "-B;\x1b]"}), "me")
    assert told is not None and len(told.text) <= TEXT_MAX
    assert told.line.isprintable() and "@relay:" not in told.line and "\u202e" not in told.line
    for form in (osc_9, osc_777, osc_99):
        inside = form(told).removeprefix("\x1b]").removesuffix("\x1b\\")
        plain = inside.replace("\x1b\\\x1b]99;", "") if form is osc_99 else inside
        assert plain.isprintable()
    assert osc_777(told).count(";") == 3
    argv = desktop_argv(told)
    assert argv[:3] == ["notify-send", "--app-name=relay", "--"] and len(argv) == 5
    assert "<" not in argv[4]


def test_many_of_a_kind_become_one_that_counts_them() -> None:
    mail = [of_message(message(id=str(n), **{"from": f"B{n % 7}"}), "me") for n in range(9)]
    item = of_item({"id": "i", "agent": "Bob", "what": "Run it?"})
    told = gathered([one for one in mail if one is not None] + [item])
    assert [one.line for one in told] == [
        "9 new messages: B0, B1, B2, B3, B4 and others",
        "Bob needs your answer: Run it?",
    ]


def row(what: str, **fields: Any) -> dict[str, Any]:
    return {"what": what, **fields}


def test_each_thing_is_told_once_and_nothing_that_an_earlier_broker_told_of() -> None:
    pending = PendingNotices("me", since_ms=100)
    item = {"id": "i", "agent": "Bob", "what": "Run it?", "since_ms": 100}
    agent = {"name": "Bob", "state": "limited", "was": "idle", "run": "r", "since_ms": 99}
    rows = [
        row("message", **message()),
        row("item", item=item, open=True),
        row("item", item={**item, "chosen": 1}, open=True),
        row("item", item={**item, "id": "before", "since_ms": 99}, open=True),
        row("agent", **agent),
        row("gap", lost=-1),
    ]
    for one in rows * 2:
        pending.take(one)
    every = parse_notify(True)
    assert [one.line for one in pending.due(every, 0)] == [
        "Bob writes: hi",
        "Bob needs your answer: Run it?",
    ]
    assert pending.due(every, 0) == [] and not pending


def test_in_quiet_hours_notices_wait_but_not_for_what_is_answered_meanwhile() -> None:
    pending = PendingNotices("me", since_ms=0)
    item = {"id": "i", "agent": "Bob", "what": "Run it?", "since_ms": 1}
    pending.take(row("message", **message()))
    pending.take(row("item", item=item, open=True))
    quiet = parse_notify({"quiet": "22:00-07:00", "of": ["mail", "dialog"]})
    assert pending.due(quiet, 23 * 60) == [] and len(pending) == 2
    pending.take(row("item", item=item, open=False))
    assert [one.kind for one in pending.due(quiet, 8 * 60)] == ["mail"]


def test_what_was_not_asked_for_is_not_told_later_either() -> None:
    pending = PendingNotices("me", since_ms=0)
    for setting in (None, parse_notify({"of": ["dialog"]})):
        pending.take(row("message", **message(id=str(setting))))
        assert pending.due(setting, 0) == [] and not pending


@pytest.mark.parametrize(
    "quiet, minute, expected",
    [
        ("22:00-07:00", 23 * 60, True),
        ("22:00-07:00", 6 * 60 + 59, True),
        ("22:00-07:00", 7 * 60, False),
        ("12:00-13:00", 12 * 60, True),
        ("12:00-13:00", 23 * 60, False),
        ("", 0, False),
    ],
    ids=["late", "early", "after", "noon", "night", "none"],
)
def test_quiet_hours_may_span_midnight(quiet: str, minute: int, expected: bool) -> None:
    assert is_quiet(quiet, minute) is expected


def test_a_terminal_gets_what_it_knows_and_none_in_tmux() -> None:
    assert terminal_form({"TERM": "xterm-kitty"}) is osc_99
    assert terminal_form({"TERM_PROGRAM": "iTerm.app", "TERM": "xterm-256color"}) is osc_9
    assert terminal_form({"TERM": "foot"}) is osc_777
    assert terminal_form({"TERM": "xterm-256color"}) is None
    assert terminal_form({"TERM": "tmux-256color", "TERM_PROGRAM": "iTerm.app"}) is None


@pytest.mark.parametrize(
    "given",
    [7, {"bel": True}, {"bell": 1}, {"of": ["all"]}, {"quiet": "22-7"}, {"webhook": "file:///x"}],
    ids=["number", "key", "bell", "kind", "hours", "address"],
)
def test_a_mistake_in_the_setting_is_told(given: Any) -> None:
    with pytest.raises(ConfigError, match="notify"):
        parse_notify(given)
