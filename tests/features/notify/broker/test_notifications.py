"""A child that fails or hangs costs its own notice alone, and is reaped."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from relay.core.paths import Home
from relay.features.notify import broker as notifications
from relay.features.notify.notices import parse_notify
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
    owner: Any = SimpleNamespace(owner="me")
    kernel = kernel_of(
        home=home,
        directory=owner,
        configs=configs,
        watchers=stream,
        log=log.put_nowait,
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
