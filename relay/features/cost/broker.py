"""What agents cost: the tokens that sessions report, the op ``usage``, and the caps.

A cap of the person's own configuration holds messages to an agent that has used it up today. It is
reckoned in US dollars, by the prices of relay.features.cost.prices.
"""

from __future__ import annotations

import time
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from relay.broker.batch import AnyRequest, Batch, Served, untyped
from relay.broker.directory import Member
from relay.broker.door import BrokerFeature
from relay.broker.kernel import Kernel
from relay.broker.parts import BrokerParts
from relay.core.errors import UsageError
from relay.features.cost import usage_rows
from relay.features.cost.prices import user_prices
from relay.features.cost.settings import CAP_OF_ALL, CAPS
from relay.features.cost.usage_limits import UsageLimits
from relay.ledger.schema import AgentRecord
from relay.protocol.agents import AgentStateReport
from relay.protocol.broker import Json

#: Models of one run that are counted, and the most tokens that one can have used.
_MODELS_MAX, _TOKENS_MAX = 20, 1 << 48


def feature(parts: BrokerParts) -> CostFeature:
    """The feature in the broker."""
    return CostFeature(parts.kernel)


class CostFeature(BrokerFeature):
    """Counts tokens, says who has used up a cap, and which accounts have met their limits."""

    def __init__(self, kernel: Kernel) -> None:
        self._ledger = kernel.ledger
        self._directory = kernel.directory
        self._configs = kernel.configs
        self._limits = UsageLimits(kernel.directory, kernel.windows)
        self._prices = user_prices()
        self._day = ""
        self._spent: dict[str, float] | None = None  # dollars of that day, by lower-case name

    def ops(self) -> list[Served]:
        """Of the person alone."""
        return untyped({"usage": self.usage})

    def usage(self, request: AnyRequest, batch: Batch) -> Json:
        """What was used since a time."""
        self._directory.check_person(request, "see what agents cost")
        since = request.fields.get("since_ms", 0)
        if type(since) is not int or since < 0:
            raise UsageError("since_ms is a time in milliseconds")
        rows = usage_rows.usage(self._ledger, _day(since), since)
        return {
            "rows": rows[: usage_rows.ROWS_MAX],
            "more": len(rows) > usage_rows.ROWS_MAX,
            "caps": self._caps(),
        }

    def reported(
        self, member: Member, now: AgentRecord, fields: AgentStateReport, batch: Batch
    ) -> None:
        """The session of ``member`` has told how it is, and what its run has used so far."""
        self._count(member, fields.get("usage", []), batch)
        self._limits.reported(member, now, fields, batch)

    def _count(self, member: Member, value: list[Any], batch: Batch) -> None:
        """Store the tokens that a run has used so far, by the model."""
        if member.record.run is None:
            return
        changed = False
        for entry in value[:_MODELS_MAX]:
            model, counts = entry if isinstance(entry, list) and len(entry) == 2 else ("", None)
            if not isinstance(model, str) or not isinstance(counts, list) or len(counts) != 4:
                continue
            if all(type(one) is int and 0 <= one < _TOKENS_MAX for one in counts):
                names = (member.record.run, member.name, model[:100], _day(batch.now_ms))
                changed |= usage_rows.add_usage(self._ledger, *names, member.cause, counts)
        if changed:
            batch.after.append(partial(self._forget))

    def why_held(self, name: str, now_ms: int) -> str:
        """Why a message to this agent waits for the person; "" where it may go on."""
        caps = self._caps()
        if not caps:
            return ""
        spent = self._spent_on(_day(now_ms))
        for glob, most in caps.items():
            if glob == CAP_OF_ALL:
                used, whose = sum(spent.values()), "all agents"
            elif fnmatchcase(name.lower(), glob.lower()):
                used, whose = spent.get(name.lower(), 0.0), name
            else:
                continue
            if used >= most:
                return f"the cap of ${most:.2f} a day for {whose} is used up (${used:.2f})"
        return ""

    def _caps(self) -> dict[str, float]:
        return self._configs.own_setting(CAPS.key) or {}

    def _spent_on(self, day: str) -> dict[str, float]:
        prices = user_prices(self._prices)
        if self._spent is None or day != self._day or prices is not self._prices:
            self._day, self._prices, self._spent = day, prices, {}
            for agent, model, counts in usage_rows.usage_of_day(self._ledger, day):
                cost = prices.dollars(model, counts) or 0.0
                self._spent[agent.lower()] = self._spent.get(agent.lower(), 0.0) + cost
        return self._spent

    def _forget(self) -> None:
        self._spent = None


def _day(ms: int) -> str:
    """The day of the person's calendar that a time is of."""
    return time.strftime("%Y-%m-%d", time.localtime(ms / 1000))
