"""The broker replaced by one of a newer version, with another schema, under agents that talk."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, closing
from functools import partial

import pytest

from relay.broker.client import connect
from relay.core.paths import Home
from relay.ledger.schema import SCHEMA
from relay.protocol.messages import SEND
from tests.broker.support import Session, kill_broker, stop_broker

AGENTS = 20
MESSAGES = 15

#: A broker of the next version: it knows one more change of the tables.
_NEWER = """
import sys
from dataclasses import replace
from relay.ledger import schema
change = ("CREATE TABLE newer (x INTEGER)", "ALTER TABLE events ADD COLUMN newer TEXT")
schema.SCHEMA = replace(schema.SCHEMA, migrations=(*schema.SCHEMA.migrations, change))
from relay.broker.main import main
sys.exit(main(["--home", sys.argv[1]]))
"""


def start_newer(home: Home) -> None:
    command = ["/bin/sh", "-c", '"$@" &', "sh", sys.executable, "-c", _NEWER, home.root]
    subprocess.run(command, start_new_session=True, check=True, timeout=30)


@pytest.mark.parametrize("end", [stop_broker, kill_broker], ids=["stopped", "killed"])
def test_twenty_agents_notice_nothing_of_an_upgrade(
    home: Home, monkeypatch: pytest.MonkeyPatch, end: Callable[[Home], None]
) -> None:
    starts = []

    def launch(home: Home) -> None:
        starts.append(home)
        start_newer(home)

    async def talk(sessions: list[Session], number: int, half: asyncio.Event) -> None:
        """Say one thing after another to the next agent."""
        to = sessions[(number + 1) % AGENTS].name
        for text in range(MESSAGES):
            if text == MESSAGES // 2:
                half.set()
            await sessions[number].client.request(SEND, to=to, body=f"{text}")

    async def upgrade() -> list[Session]:
        async with AsyncExitStack() as stack:
            sessions = [
                await stack.enter_async_context(Session(home, f"A{number}"))
                for number in range(AGENTS)
            ]
            monkeypatch.setattr("relay.broker.start.launch", launch)
            halves = [asyncio.Event() for _ in sessions]
            async with asyncio.TaskGroup() as group:
                for number, half in enumerate(halves):
                    group.create_task(talk(sessions, number, half))
                await halves[0].wait()
                begun = time.monotonic()
                await asyncio.to_thread(end, home)
            for session in sessions:
                await session.until(partial(all_heard, session))
            print(f"{time.monotonic() - begun:.2f} s until all was heard")
            return sessions

    with connect(home):
        pass
    for session in asyncio.run(upgrade()):
        assert heard(session) == [f"{text}" for text in range(MESSAGES)]
        assert session.problems == []
    assert len(starts) < AGENTS / 2  # of those who miss it one starts it
    stop_broker(home)
    with closing(sqlite3.connect(home.ledger)) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (SCHEMA.version + 1,)
    os.unlink(home.ledger)  # of a version that the broker of the end of the test does not know


def all_heard(session: Session) -> bool:
    return len(heard(session)) >= MESSAGES


def heard(session: Session) -> list[str]:
    """What came, each message once: one that was not yet marked is offered again."""
    return list({push["id"]: push["body"] for push in session.delivered()}.values())
