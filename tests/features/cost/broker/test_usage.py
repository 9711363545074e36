"""What agents cost, as their sessions report it, and the caps that hold messages."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from relay.broker.client import BrokerClient, connect
from relay.core.errors import RelayError
from relay.core.paths import Home
from relay.features.cost import verbs
from relay.features.cost.ops import USAGE
from relay.features.cost.prices import Prices, PricesError, parse_prices, user_prices
from relay.protocol.agent_ops import AGENT_STATE
from relay.protocol.broker_ops import WATCH
from relay.protocol.message_ops import INBOX, SEND, STATE
from tests.broker.fixtures import Configure
from tests.broker.support import Json, Session, broker_thread, decide, register
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
    bob.request(AGENT_STATE, state="busy", usage=[[MODEL, counts]])


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
            bob.request(USAGE)
    rows = verbs.priced(verbs.asked(home, 0)["rows"], user_prices())
    assert [(one["task"], one["about"], one["input"], one["output"]) for one in rows] == [
        (sent, "Build it.", 1, 0),
        ("", None, 1000, 10),
        (sent, "Build it.", 500, 10),
    ]
    by_day = verbs.added_up(rows, "day")
    assert [one["input"] for one in by_day] == [1, 1500]
    assert by_day[1]["money"] == pytest.approx((1500 * 3 + 20 * 15 + 7 * 0.3) / 1e6)
    assert len(verbs.asked(home, now.ms)["rows"]) == 1


@pytest.mark.parametrize("caps", [{"bo*": 3}, {"all": 3}], ids=["by name", "all"])
def test_a_cap_holds_messages_until_the_person_lets_them_go_or_the_next_day(
    home: Home, now: Now, configure: Configure, caps: dict[str, Any]
) -> None:
    configure(f"caps = {caps}\n")
    with register(home, "Bob") as bob, connect(home) as me:
        used(bob, 999_999, 0, 0, 0)
        assert me.request(SEND, to="Bob", body="a")["deliveries"][0]["state"] == "queued"
        used(bob, 1_000_000, 0, 0, 0)
        me.request(WATCH, kinds=["item"])
        [held] = me.request(SEND, to="Bob", body="b")["deliveries"]
        push = me.next_push(20)
        assert push is not None and push["rows"][0]["item"]["what"] == "to Bob: b"
        assert held["state"] == "held"
        assert held["reason"] and held["reason"].startswith("the cap of $3.00 a day for ")
        [told] = me.request(INBOX)["rows"]
        assert "relay answer ID yes" in told["body"]
        decide(me, "yes")
        assert [next_delivery(bob)["body"] for _ in range(2)] == ["a", "b"]
        now.ms += DAY_MS
        assert me.request(SEND, to="Bob", body="c")["deliveries"][0]["state"] == "queued"


REASON = "a usage limit is reached: resets 3pm"


async def reports(one: Session, state: str, account: str = "acc-1", **fields: Any) -> None:
    await one.client.request(AGENT_STATE, state=state, account=account, **fields)


def told(one: Session) -> list[Json]:
    asked = (push for push in one.pushes if push["push"] == "ask" and push["kind"] == "limited")
    return [push["request"] for push in asked]


def goes_on(one: Session) -> list[Json]:
    return [push for push in one.delivered() if push["thread"] == "limits"]


@pytest.mark.usefixtures("served")
def test_who_shares_the_account_is_told_and_the_broken_turn_goes_on_once(home: Home) -> None:
    async def scenario() -> None:
        async with (
            asyncio.timeout(60),
            Session(home, "Ann", run="r1") as ann,
            Session(home, "Bob", run="r2") as bob,
            Session(home, "Eve", run="r3") as eve,
        ):
            await reports(bob, "idle")
            await reports(eve, "idle", account="acc-2")
            await reports(ann, "busy")
            for _ in range(3):  # as after a kill of the broker, or where a note is new
                await reports(
                    ann, "limited", reason=REASON, cause="usage", retry=3600.0, notes=[str(_)]
                )
            await bob.until(lambda: told(bob))
            [limit] = told(bob)
            assert 3590 < limit["seconds"] <= 3600 and "ann uses, too" in limit["reason"]
            await ann.until(lambda: goes_on(ann))
            # A session after a kill says it all anew, and is offered what is open.
            async with Session(home, "Ann", run="r1") as again:
                await reports(again, "limited", reason=REASON, cause="usage", retry=3600.0)
                await again.until(lambda: goes_on(again))
                assert [one["id"] for one in goes_on(again)] == [goes_on(ann)[0]["id"]]
                # Somebody who comes later is told, too.
                async with Session(home, "Cid", run="r4") as cid:
                    await reports(cid, "idle")
                    await cid.until(lambda: told(cid))
                # An idle agent that meets the limit has nothing to go on with.
                await reports(
                    eve, "limited", account="acc-2", reason=REASON, cause="usage", retry=60.0
                )
                await reports(again, "idle")
                await bob.until(lambda: told(bob)[-1]["seconds"] == 0)
            assert not goes_on(eve) and not told(eve) and not told(ann)

    asyncio.run(scenario())


def test_the_longest_glob_that_fits_says_what_tokens_cost() -> None:
    prices = Prices(
        parse_prices(
            "prices:\n  m-*: {input: 1, output: 2}\n"
            "  m-big*: {input: 10, output: 20, cached: 0.5, written: 12}\n"
        )
    )
    assert prices.dollars("m-small", (1_000_000, 500_000, 1_000_000, 0)) == 3.0
    assert prices.dollars("some/M-Big-2", (0, 0, 2_000_000, 1_000_000)) == 13.0
    assert prices.dollars("other", (1, 1, 1, 1)) is None


def test_every_mistake_has_its_line() -> None:
    with pytest.raises(PricesError) as caught:
        parse_prices("prices:\n  a: {input: x, output: 2}\n  b: {input: 1}\n  c: {inptu: 1}\n")
    assert [one.line for one in caught.value.mistakes] == [2, 3, 4, 4]


def test_the_persons_file_wins_and_one_that_is_wrong_is_left_out() -> None:
    known = user_prices()
    sonnet = known.of("claude-sonnet-4-5-20250929")
    assert sonnet is not None
    path = Path(os.environ["HOME"], ".config/relay/prices.yaml")
    path.parent.mkdir(parents=True)
    path.write_text("prices:\n  claude-sonnet-4-5*: {input: 0, output: 0}\n")
    mine = user_prices(known)
    assert mine.of("claude-sonnet-4-5-20250929") == (0, 0, 0, 0)
    assert user_prices(mine) is mine
    path.write_text("prices: 7\n")
    wrong = user_prices(mine)
    assert wrong.of("claude-sonnet-4-5-20250929") == sonnet
    assert "prices.yaml" in wrong.problem
