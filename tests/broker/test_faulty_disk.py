"""The disk at its worst: power that fails, writes and syncs that do, and how often is synced."""

from __future__ import annotations

import os
import random
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest

from relay.broker.client import connect
from relay.core.errors import StorageError
from relay.core.paths import Home
from relay.protocol.messages import HISTORY, SEND
from tests.broker import faulty_disk
from tests.broker.faulty_disk import FAULTS, Control, broker_on, lose_power
from tests.broker.support import wait_for_broker
from tests.broker.test_durability import Flood, check

pytestmark = pytest.mark.skipif(
    not faulty_disk.AVAILABLE, reason="this Python has SQLite built in, so it cannot be wrapped"
)
#: docs/reliability.md has the figures of 100.
FAILURES = int(os.environ.get("RELAY_KILLS", "3"))


@pytest.fixture
def control(tmp_path: Path) -> Control:
    return Control(tmp_path / "control")


PowerCut = Callable[[int, str], dict[str, str]]


@pytest.fixture
def power_cut(home: Home, tmp_path: Path, control: Control) -> PowerCut:
    """Sends with 32 requests in flight until the power fails; what was acknowledged."""
    moment = random.Random(11)

    def cut(round_: int, synchronous: str) -> dict[str, str]:
        disk = tmp_path / "disk"
        with broker_on(home, tmp_path / "control", disk, synchronous) as broker:
            wait_for_broker(home)
            flood, enough = Flood(home, round_), threading.Event()
            thread = threading.Thread(target=flood.run, args=(enough,))
            thread.start()
            assert enough.wait(30)
            threading.Event().wait(moment.random() / 50)  # not always at the same point
            broker.kill()
            thread.join(timeout=30)
            assert not thread.is_alive()
        lose_power(home, disk)
        return flood.promised

    return cut


def test_a_power_failure_loses_nothing_that_was_acknowledged(
    home: Home, power_cut: PowerCut, control: Control
) -> None:
    promised: dict[str, str] = {}
    for round_ in range(1, FAILURES + 1):
        promised.update(power_cut(round_, "FULL"))
    print(f"{len(promised)} acknowledged, {control.syncs} syncs")
    assert len(promised) > control.syncs  # several share one
    check(home, promised)


def test_a_power_failure_loses_messages_where_nothing_is_synced(
    home: Home, power_cut: PowerCut
) -> None:
    power_cut(1, "FULL")
    # Not each time: a checkpoint may have come just before.
    assert any(not power_cut(round_, "OFF").keys() <= stored(home) for round_ in range(2, 6))


def stored(home: Home) -> set[str]:
    """The events that can be read."""
    with closing(sqlite3.connect(home.ledger)) as db, suppress(sqlite3.DatabaseError):
        return {row[0] for row in db.execute("SELECT id FROM events")}
    return set()


def test_before_each_answer_the_disk_is_asked_to_keep_it(
    home: Home, tmp_path: Path, control: Control
) -> None:
    with broker_on(home, tmp_path / "control", tmp_path / "disk"):
        wait_for_broker(home)
        with connect(home, start=False) as client:
            for number in range(50):
                before = control.syncs
                client.request(SEND, to="Bob", body=f"{number}", offline=True)
                assert control.syncs > before


def test_what_the_disk_does_not_take_is_refused_and_the_rest_is_kept(
    home: Home, tmp_path: Path, control: Control
) -> None:
    accepted, refused = [], []
    with broker_on(home, tmp_path / "control", tmp_path / "disk"):
        wait_for_broker(home)
        with connect(home, start=False) as client:
            for number, fault in enumerate([*FAULTS, "", ""] * 6):
                control.fail(fault)
                try:
                    sent = client.request(SEND, to="Bob", body=f"{number}", offline=True)
                    accepted.append(sent["id"])
                except StorageError as error:
                    assert "nothing was stored" in error.hint
                    refused.append(fault)
            assert [row["id"] for row in client.request(HISTORY)["rows"]] == accepted
    lose_power(home, tmp_path / "disk")
    with connect(home) as client:
        assert [row["id"] for row in client.request(HISTORY)["rows"]] == accepted
    assert refused == [*FAULTS] * 6
