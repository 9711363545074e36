"""Requests and jobs that share a commit: what one of them does to the others."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from relay.broker.batch import Batch, ClientRequest
from relay.broker.committer import Committer
from relay.core.errors import RelayError, StorageError
from relay.ledger.store import Ledger
from relay.protocol.broker import Json, decode


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


def fine(request: ClientRequest, batch: Batch) -> Json:
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
def test_only_a_failing_disk_fails_what_was_handled_with_it(
    tmp_path: Path, job: Any, handlers: list[Any], codes: list[str]
) -> None:
    client = FakeClient()

    async def play() -> None:
        ledger = Ledger(str(tmp_path / "ledger.db"))
        committer = Committer(
            ledger,
            log=lambda text: None,
            fault=lambda: RelayError("a fault", code="internal"),
            ledger_failed=lambda error: None,
            now_ms=lambda: 1,
        )
        for n, handler in enumerate(handlers):
            committer.submit(handler, ClientRequest(cast(Any, client), n, "op", {}, 0))
            if job is not None:
                committer.submit_job(job)
        await committer.drain()
        ledger.close()

    asyncio.run(play())
    answers = [client.answers[n] for n in range(len(handlers))]
    assert [answer.get("error", {}).get("code", "") for answer in answers] == codes


def test_who_asks_for_much_lets_others_pass_and_nothing_more_once_it_has_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.broker.committer.TURN", 0.0)
    greedy, gone, other = FakeClient(), FakeClient(), FakeClient()
    order: list[tuple[FakeClient, int]] = []

    def asked(request: ClientRequest, batch: Batch) -> Json:
        order.append((cast(FakeClient, request.client), request.n))
        return {}

    async def play() -> None:
        ledger = Ledger(str(tmp_path / "ledger.db"))
        committer = Committer(
            ledger,
            log=lambda text: None,
            fault=lambda: RelayError("a fault", code="internal"),
            ledger_failed=lambda error: None,
            now_ms=lambda: 1,
        )
        for n in range(3):
            committer.submit(asked, ClientRequest(cast(Any, greedy), n, "history", {}, 0))
            committer.submit(asked, ClientRequest(cast(Any, gone), n, "history", {}, 0))
        committer.submit(asked, ClientRequest(cast(Any, other), 0, "hello", {}, 0))
        gone.closed = True
        await committer.drain()
        ledger.close()

    asyncio.run(play())
    assert order == [(greedy, 0), (other, 0), (greedy, 1), (greedy, 2)]
