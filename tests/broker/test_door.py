"""Features of the broker, asked as one: what the fault of one of them does to the rest."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from relay.broker.batch import Accepted, Batch
from relay.broker.directory import Member
from relay.broker.door import BrokerFeature, Features
from relay.broker.ops_agents import person_record
from relay.ledger.store import Ledger
from tests.broker.support import LineLog

BOB = cast(Member, SimpleNamespace(name="Bob"))


class Writing(BrokerFeature):
    """Writes a row under its name, and may fail then."""

    def __init__(self, ledger: Ledger, key: str, *, fails: bool = False) -> None:
        self._ledger = ledger
        self._key = key
        self._fails = fails

    def _write(self, batch: Batch) -> None:
        self._ledger.begin()
        self._ledger.save_agent(person_record(self._key, "person", 1))
        batch.after.append(str)
        if self._fails:
            raise ValueError("a fault of the feature")

    def gone(self, member: Member, batch: Batch) -> None:
        self._write(batch)

    def decided(self, seq: int, batch: Batch) -> None:
        self._write(batch)

    def moved(self, id_: str, sender: str, to: str, new: object, batch: Batch) -> None:
        self._write(batch)

    def stored(self, messages: Sequence[Accepted], batch: Batch) -> None:
        self._write(batch)


@pytest.mark.parametrize(
    ("method", "args"),
    [
        ("gone", (BOB,)),
        ("decided", (1,)),
        ("moved", ("0123", "Al", "Bob", None)),
        ("stored", ((),)),
    ],
)
def test_what_a_feature_wrote_before_its_fault_is_taken_back(
    tmp_path: Path, method: str, args: tuple[Any, ...]
) -> None:
    ledger, log = Ledger(str(tmp_path / "ledger.db")), LineLog()
    features = Features(ledger, log)
    names = ["Before", "Broken", "Behind"]
    features.use([Writing(ledger, name, fails=name == "Broken") for name in names])
    batch = Batch(1)
    getattr(features, method)(*args, batch)
    ledger.commit()
    assert len(log.lines) == 1 and len(batch.after) == 2
    assert {one.name for one in ledger.agents()} == {"Before", "Behind"}
    ledger.close()


class Broken(BrokerFeature):
    """Knows nothing."""

    @property
    def busy(self) -> bool:
        raise ValueError("a fault of the feature")

    def news(self, member: Member) -> str:
        raise ValueError("a fault of the feature")


class Working(BrokerFeature):
    """Has something to do, and to tell."""

    @property
    def busy(self) -> bool:
        return True

    def news(self, member: Member) -> str:
        return "Ann has joined"


def test_a_broken_feature_neither_keeps_the_broker_nor_hides_another_ones_news(
    tmp_path: Path,
) -> None:
    ledger, log = Ledger(str(tmp_path / "ledger.db")), LineLog()
    features = Features(ledger, log)
    features.use([Broken()])
    assert (features.busy, features.news(BOB)) == (False, "") and len(log.lines) == 2
    features.use([Broken(), Working()])
    assert (features.busy, features.news(BOB)) == (True, "Ann has joined")
    ledger.close()
