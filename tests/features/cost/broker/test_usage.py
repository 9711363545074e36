"""What agents cost, as their sessions report it, and the caps that hold messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from relay.broker.client import BrokerClient, connect
from relay.core.errors import RelayError
from relay.core.paths import Home
from relay.features.cost import cost
from relay.protocol.messages import INBOX, SEND, STATE
from tests.broker.fixtures import Configure
from tests.broker.support import broker_thread, decide, register
from tests.broker.test_held_messages import next_delivery

MODEL = "claude-sonnet-4-5"  # $3 and $15 for a million tokens
DAY_MS = 86_400_000


class Now:
    """A clock that is set."""

    def __init__(self) -> None:
        self.ms = 1_790_000_000_000

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def now(home: Home) -> Iterator[Now]:
    clock = Now()
    with broker_thread(home, now_ms=clock):
        yield clock


def used(bob: BrokerClient, *counts: int) -> None:
    bob.request("agent_state", state="busy", usage=[[MODEL, counts]])


def test_what_a_run_has_used_counts_once_by_day_and_task(home: Home, now: Now) -> None:
    with register(home, "Bob") as bob, connect(home) as me:
        used(bob, 1000, 10, 0, 0)
        used(bob, 1000, 10, 0, 0)  # told again, as after a kill of the broker
        sent = me.request(SEND, to="Bob", body="Build it.")["id"]
        for state in ("delivering", "submitted", "seen"):
            bob.request(STATE, id=sent, state=state)
        used(bob, 900, 10, 0, 0)  # of a session that has lost a little
        used(bob, 1500, 20, 7, 0)
        now.ms += DAY_MS
        used(bob, 1501, 20, 7, 0)
        with pytest.raises(RelayError, match="only the person"):
            bob.request("usage")
    rows = cost.figures(home)
    assert [(one["task"], one["about"], one["input"], one["output"]) for one in rows] == [
        (sent, "Build it.", 1, 0),
        ("", None, 1000, 10),
        (sent, "Build it.", 500, 10),
    ]
    by_day = cost.added_up(rows, "day")
    assert [one["input"] for one in by_day] == [1, 1500]
    assert by_day[1]["money"] == pytest.approx((1500 * 3 + 20 * 15 + 7 * 0.3) / 1e6)
    assert len(cost.figures(home, now.ms)) == 1


@pytest.mark.parametrize("caps", [{"bo*": 3}, {"all": 3}], ids=["by name", "all"])
def test_a_cap_holds_messages_until_the_person_lets_them_go_or_the_next_day(
    home: Home, now: Now, configure: Configure, caps: dict[str, Any]
) -> None:
    configure(f"caps = {caps}\n")
    with register(home, "Bob") as bob, connect(home) as me:
        used(bob, 999_999, 0, 0, 0)
        assert me.request(SEND, to="Bob", body="a")["deliveries"][0]["state"] == "queued"
        used(bob, 1_000_000, 0, 0, 0)
        me.request("watch", kinds=["item"])
        [held] = me.request(SEND, to="Bob", body="b")["deliveries"]
        push = me.next_push(20)
        assert push is not None and push["rows"][0]["item"]["what"] == "to Bob: b"
        assert held["state"] == "held"
        assert held["reason"].startswith("the cap of $3.00 a day for ")
        [told] = me.request(INBOX)["rows"]
        assert "relay answer ID yes" in told["body"]
        decide(me, "yes")
        assert [next_delivery(bob)["body"] for _ in range(2)] == ["a", "b"]
        now.ms += DAY_MS
        assert me.request(SEND, to="Bob", body="c")["deliveries"][0]["state"] == "queued"
