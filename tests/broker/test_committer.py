"""Requests and jobs that share a commit: what one of them does to the others."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from relay.broker.batch import AnyRequest, Batch
from relay.broker.committer import Committer
from relay.core.errors import RelayError, StorageError
from relay.ledger.store import Ledger
from relay.protocol.broker import Json, decode
from tests.broker.support import LineLog


class FakeClient:
    """Collects the answers."""

    closed = False

    def __init__(self) -> None:
        self.answers: dict[int, Json] = {}

    def send(self, line: bytes) -> None:
        answer = decode(line)
        self.answers[answer["n"]] = answer

    def answered(self, size: int) -> None:
        """Nothing is bounded here."""


def committing(ledger: Ledger) -> Committer:
    return Committer(ledger, log=LineLog(), ledger_failed=lambda error: None, now_ms=lambda: 1)


def fine(request: AnyRequest, batch: Batch) -> Json:
    return {}


def broken(*_: object) -> Json:
    raise ValueError("a fault")


def full(*_: object) -> Json:
    raise StorageError("the disk is full")


def no_job(batch: Batch) -> None:
    broken()


def full_job(batch: Batch) -> None:
    full()


@pytest.mark.parametrize(
    ("job", "handlers", "codes"),
    [
        pytest.param(None, [fine, broken, fine], ["", "internal", ""], id="a-fault"),
        pytest.param(no_job, [fine, fine], ["", ""], id="a-fault-of-a-job"),
        pytest.param(None, [fine, full, fine], ["storage", "storage", ""], id="a-full-disk"),
        pytest.param(full_job, [fine], ["storage"], id="a-full-disk-for-a-job"),
    ],
)
async def test_only_a_failing_disk_fails_what_was_handled_with_it(
    tmp_path: Path, job: Any, handlers: list[Any], codes: list[str]
) -> None:
    client = FakeClient()
    ledger = Ledger(str(tmp_path / "ledger.db"))
    committer = committing(ledger)
    for n, handler in enumerate(handlers):
        committer.submit(handler, AnyRequest(cast(Any, client), n, "op", {}, 0))
        if job is not None:
            committer.submit_job(job)
    await committer.drain()
    ledger.close()
    answers = [client.answers[n] for n in range(len(handlers))]
    assert [answer.get("error", {}).get("code", "") for answer in answers] == codes


async def test_who_asks_for_much_lets_others_pass_and_nothing_more_once_it_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.broker.committer.TURN", 0.0)
    greedy, gone, other = FakeClient(), FakeClient(), FakeClient()
    order: list[tuple[FakeClient, int]] = []

    def asked(request: AnyRequest, batch: Batch) -> Json:
        order.append((cast(FakeClient, request.client), request.n))
        return {}

    ledger = Ledger(str(tmp_path / "ledger.db"))
    committer = committing(ledger)
    for n in range(3):
        committer.submit(asked, AnyRequest(cast(Any, greedy), n, "history", {}, 0))
        committer.submit(asked, AnyRequest(cast(Any, gone), n, "history", {}, 0))
    committer.submit(asked, AnyRequest(cast(Any, other), 0, "hello", {}, 0))
    gone.closed = True
    await committer.drain()
    ledger.close()
    assert order == [(greedy, 0), (other, 0), (greedy, 1), (greedy, 2)]


async def test_what_raises_leaves_nothing_behind_and_no_request_without_an_answer(
    tmp_path: Path,
) -> None:
    """Not in the ledger, whoever began the transaction, nor of what was to follow."""
    client = FakeClient()
    followed: list[str] = []
    ledger = Ledger(str(tmp_path / "ledger.db"))
    committer = committing(ledger)

    def tell(text: str) -> None:
        ledger.begin()
        seq = ledger.next_seq()
        ledger.add([(seq, f"id-{text}", text, None, "relay", None, None, None, None, 1)], [])

    def job(text: str, batch: Batch) -> None:
        tell(text)
        batch.after.append(partial(followed.append, text))

    def half(n: int, batch: Batch) -> None:
        batch.on_failure.append(partial(followed.append, f"not {n}"))
        batch.owed.append(AnyRequest(cast(Any, client), n, "op", {}, 0))
        job("half", batch)
        broken()

    def refused(request: AnyRequest, batch: Batch) -> Json:
        tell("refused")
        raise RelayError("not this one", code="usage")

    for one in (partial(half, 1), partial(job, "first"), partial(half, 2)):
        committer.submit_job(one)
    committer.submit(refused, AnyRequest(cast(Any, client), 3, "op", {}, 0))
    committer.submit_job(partial(job, "last"))
    await committer.drain()
    with ledger.guard() as db:
        assert db.execute("SELECT seq, kind FROM events ORDER BY seq").fetchall() == [
            (1, "first"),
            (2, "last"),
        ]
    ledger.close()
    assert followed == ["not 1", "first", "not 2", "last"]
    codes = [client.answers[n]["error"]["code"] for n in (1, 2, 3)]
    assert codes == ["internal", "internal", "usage"]
