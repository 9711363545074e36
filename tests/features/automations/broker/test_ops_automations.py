"""Automations are registered and updated while events come and brokers die."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from relay.broker.client import connect
from relay.core.paths import Home
from relay.features.automations.ops import (
    AUTOMATION_REGISTER,
    AUTOMATION_RUNS,
    AUTOMATION_UPDATE,
    AUTOMATIONS,
)
from relay.features.automations.ops_automations import folder_of
from relay.protocol.message_ops import EVENT
from tests.broker.support import kill_broker
from tests.support import unchecked, wait_until

Json = dict[str, Any]

COUNTING = """
def handler(ctx):
    ctx.state["count"] = ctx.state.get("count", 0) + 1
    return {{"enrich": {{"by": {version}, "count": ctx.state["count"]}}}}

automation = {{"name": "counting", "description": "counts", "handler": handler}}
"""


def test_each_event_is_run_by_one_version_while_others_take_its_place(
    home: Home, tmp_path: Path, served: None
) -> None:
    path, events = str(tmp_path / "counting.py"), 60

    def feed() -> None:
        with connect(home) as client:
            for number in range(events):
                event = {"channel": "sms", "sender": "x", "content": str(number)}
                client.request(EVENT, outside=event)

    with connect(home) as client:

        def runs() -> list[Json]:
            rows: list[Json] = unchecked(client).request(AUTOMATION_RUNS, name="counting")["rows"]
            return rows[::-1]

        client.request(AUTOMATION_REGISTER, path=path, source=COUNTING.format(version=1))
        feeding = threading.Thread(target=feed)
        feeding.start()
        for version in range(2, 6):
            wait_until(lambda: len(runs()) > 10 * (version - 2), what="some runs")  # noqa: B023
            source = COUNTING.format(version=version)
            answer = client.request(AUTOMATION_UPDATE, path=path, source=source)
            assert answer["automation"]["version"] == version
        feeding.join(20)
        everything: Json = {"name": "counting", "limit": 1000}
        wait_until(
            lambda: len(client.request(AUTOMATION_RUNS, **everything)["rows"]) == events,
            what="all runs",
        )
        found = unchecked(client).request(AUTOMATION_RUNS, **everything)["rows"][::-1]
    assert [one["result"]["enrich"]["count"] for one in found] == list(range(1, events + 1))
    versions = [one["version"] for one in found]
    assert versions == sorted(versions) == [one["result"]["enrich"]["by"] for one in found]


def test_who_registers_while_the_broker_is_killed_has_registered(
    home: Home, tmp_path: Path
) -> None:
    loading, goon = tmp_path / "loading", tmp_path / "goon"
    source = f"""
import os, time
open({str(loading)!r}, "w").close()
while not os.path.exists({str(goon)!r}):
    time.sleep(0.01)
automation = {{"name": "slow", "description": "loads slowly", "handler": print}}
"""
    answers: list[Json] = []

    def ask() -> None:
        with connect(home) as client:
            path = str(tmp_path / "slow.py")
            answers.append(dict(client.request(AUTOMATION_REGISTER, path=path, source=source)))

    asking = threading.Thread(target=ask)
    asking.start()
    wait_until(loading.exists, what="the file to be loaded")
    kill_broker(home)
    goon.touch()
    asking.join(30)
    assert [one["automation"]["status"] for one in answers] == ["active"]
    with connect(home) as client:
        assert [one["name"] for one in client.request(AUTOMATIONS)["rows"]] == ["slow"]


@pytest.mark.parametrize(
    ("path", "folder"),
    [
        ("/src/shop/.relay/automations/a.py", "/src/shop"),
        ("/.relay/automations/a.py", "/"),
        ("/src/shop/.relay/automations/more/a.py", None),
        ("/src/shop/a.py", None),
        ("/state/.relay/automations/a.py", None),
    ],
    ids=("project", "root", "below", "elsewhere", "home"),
)
def test_where_a_file_lies_says_whose_events_it_sees(path: str, folder: str | None) -> None:
    assert folder_of(path, Home("/state/.relay")) == folder
