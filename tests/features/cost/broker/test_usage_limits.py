"""A usage limit concerns all agents of one account, and a turn that it broke off goes on once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from relay.core.paths import Home
from tests.broker.support import Json, Session

REASON = "a usage limit is reached: resets 3pm"


async def reports(one: Session, state: str, account: str = "acc-1", **fields: Any) -> None:
    await one.client.request("agent_state", state=state, account=account, **fields)


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
                await reports(ann, "limited", reason=REASON, retry=3600.0, notes=[str(_)])
            await bob.until(lambda: told(bob))
            [limit] = told(bob)
            assert 3590 < limit["seconds"] <= 3600 and "ann uses, too" in limit["reason"]
            await ann.until(lambda: goes_on(ann))
            # A session after a kill says it all anew, and is offered what is open.
            async with Session(home, "Ann", run="r1") as again:
                await reports(again, "limited", reason=REASON, retry=3600.0)
                await again.until(lambda: goes_on(again))
                assert [one["id"] for one in goes_on(again)] == [goes_on(ann)[0]["id"]]
                # Somebody who comes later is told, too.
                async with Session(home, "Cid", run="r4") as cid:
                    await reports(cid, "idle")
                    await cid.until(lambda: told(cid))
                # An idle agent that meets the limit has nothing to go on with.
                await reports(eve, "limited", account="acc-2", reason=REASON, retry=60.0)
                await reports(again, "idle")
                await bob.until(lambda: told(bob)[-1]["seconds"] == 0)
            assert not goes_on(eve) and not told(eve) and not told(ann)

    asyncio.run(scenario())
