"""What agents cost: the tokens that sessions report, the op ``usage``, and the caps.

A cap of the person's own configuration holds messages to an agent that has used it up today. It is
reckoned in US dollars, by the prices of relay.features.cost.prices.
"""

from __future__ import annotations

import time
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, cast

from relay.broker.batch import Accepted, Batch, ClientRequest, Served, serve
from relay.broker.delivery_window import DeliveryWindows
from relay.broker.directory import Directory, Member
from relay.broker.door import BrokerFeature
from relay.broker.kernel import Kernel
from relay.broker.parts import BrokerParts
from relay.core.bounded import BoundedDict
from relay.core.errors import UsageError
from relay.core.ids import derived_ulid, new_ulid
from relay.core.message import AgentState
from relay.core.source_events import LimitCause
from relay.features.cost.ops import USAGE, Usage, UsageAnswer, UsageRow
from relay.features.cost.prices import COUNTS, user_prices
from relay.features.cost.settings import CAP_OF_ALL, CAPS
from relay.ledger.schema import AgentRecord
from relay.ledger.store import Ledger
from relay.protocol.agent_ops import AgentStateReport
from relay.protocol.broker import Json, encode

#: Models of one run that are counted, and the most tokens that one can have used.
_MODELS_MAX, _TOKENS_MAX = 20, 1 << 48
#: Accounts that are known, and the longest limit. Seconds.
ACCOUNTS_MAX, LONGEST = 1000, 8 * 86400.0
THREAD = "limits"
_GOES_ON = (
    "The usage limit is over that has stopped your turn. Go on where you were stopped; if nothing"
    " was left to do, do nothing."
)
_WORKS = (AgentState.BUSY.value, AgentState.BLOCKED.value)
#: Rows of one answer.
ROWS_MAX = 5000
_SUMS = ", ".join(f"ifnull(sum({name}), 0)" for name in COUNTS)


def feature(parts: BrokerParts) -> CostFeature:
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
        return [serve(USAGE, self.usage)]

    def usage(self, request: ClientRequest[Usage], batch: Batch) -> UsageAnswer:
        self._directory.check_person(request, "see what agents cost")
        since = request.fields.get("since_ms", 0)
        if since < 0:
            raise UsageError("since_ms is a time in milliseconds")
        rows = usage_since(self._ledger, _day(since), since)
        return {
            "rows": cast(list[UsageRow], rows[:ROWS_MAX]),
            "more": len(rows) > ROWS_MAX,
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
                changed |= add_usage(self._ledger, *names, member.cause, counts)
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
            for agent, model, counts in usage_of_day(self._ledger, day):
                cost = prices.dollars(model, counts) or 0.0
                self._spent[agent.lower()] = self._spent.get(agent.lower(), 0.0) + cost
        return self._spent

    def _forget(self) -> None:
        self._spent = None


def _day(ms: int) -> str:
    """The day of the person's calendar that a time is of."""
    return time.strftime("%Y-%m-%d", time.localtime(ms / 1000))


class UsageLimits:
    """Knows which accounts are limited. Belongs to the broker's loop."""

    def __init__(self, directory: Directory, windows: DeliveryWindows) -> None:
        self._directory = directory
        self._windows = windows
        #: By account: why, until when (milliseconds), and the agent that has met the limit.
        self._limits: BoundedDict[str, tuple[str, float, str]] = BoundedDict(ACCOUNTS_MAX)
        self._accounts: BoundedDict[str, str] = BoundedDict(ACCOUNTS_MAX)  # by agent

    def reported(
        self, member: Member, record: AgentRecord, fields: AgentStateReport, batch: Batch
    ) -> None:
        """A session says how its agent is: ``record``; ``member`` has what was before."""
        account, retry = fields.get("account"), fields.get("retry") or 0.0
        if not account:
            return
        key, before = member.name.lower(), member.record.state
        new = self._accounts.get(key) != account
        self._accounts[key] = account = account[:64]
        limited = record.state == AgentState.LIMITED and fields.get("cause") == LimitCause.USAGE
        known = self._limits.get(account)
        if limited and 0 < retry <= LONGEST:
            until = record.since_ms + retry * 1000
            self._limits[account] = record.reason or "", until, key
            if before in _WORKS:
                notice = Accepted.notice(member.name, _GOES_ON, THREAD, batch.now_ms)
                id_ = derived_ulid(record.since_ms, THREAD, record.run or "")
                self._windows.collect(replace(notice, id=id_, given=True), batch)
            if known is None or known[1:] != (until, key):
                batch.after.append(partial(self._tell, account, batch.now_ms))
        elif known is not None and known[2] == key and record.state in ("idle", "busy"):
            # It works again: a trial that fails says so at once.
            if record.state == "idle":
                self._limits[account] = known[0], 0.0, key
                batch.after.append(partial(self._tell, account, batch.now_ms))
                batch.after.append(partial(self._limits.pop, account, None))
        elif new and known is not None and known[1] > batch.now_ms:
            batch.after.append(partial(self._tell, account, batch.now_ms, key))

    def _tell(self, account: str, now_ms: int, only: str = "") -> None:
        """Tell the others with this account, or one of them."""
        why, until, who = self._limits.get(account) or ("", 0.0, "")
        seconds = max(0.0, (until - now_ms) / 1000)
        for key, theirs in list(self._accounts.items()):
            member = self._directory.get(key)
            if theirs != account or key == who or (only and key != only):
                continue
            if member is not None and member.client is not None:
                reason = f"{why} (of the account that {who} uses, too)"
                request: Json = {"seconds": seconds, "reason": reason}
                push: Json = {"push": "ask", "id": new_ulid(now_ms), "kind": "limited"}
                push |= {"by": "person", "request": request, "timeout": 10.0}
                member.client.send(encode(push))


def add_usage(
    ledger: Ledger, run: str, agent: str, model: str, day: str, task: str, total: list[int]
) -> bool:
    """Store what a run has used of a model by now, and is not stored yet, as of this day and task.
    Whether there was any. The same total again adds nothing."""
    before = ledger.row(f"SELECT {_SUMS} FROM usage WHERE run=? AND model=?", (run, model))
    more = [max(0, now - then) for now, then in zip(total, before, strict=True)]
    if not any(more):
        return False
    ledger.begin()
    ledger.change(
        "INSERT INTO usage VALUES (?,?,?,?,?,?,?,?,?) ON CONFLICT DO UPDATE SET"
        " input=input+excluded.input, output=output+excluded.output,"
        " cached=cached+excluded.cached, written=written+excluded.written",
        (run, model, day, task, agent, *more),
    )
    return True


def usage_of_day(ledger: Ledger, day: str) -> list[tuple[str, str, tuple[int, ...]]]:
    """What each agent has used of each model on this day: (agent, model, counts)."""
    found = ledger.rows(
        f"SELECT agent, model, {_SUMS} FROM usage WHERE day=? GROUP BY agent, model", (day,)
    )
    return [(row[0], row[1], tuple(row[2:])) for row in found]


def usage_since(ledger: Ledger, since: str, since_ms: int) -> list[Json]:
    """All since the day ``since``, the newest day first; turns of headless personas as well, whose
    day begins at ``since_ms``. ``about``: the beginning of the message that is the task."""
    names = ("agent", "day", "task", "about", "model", *COUNTS)
    found = ledger.rows(
        f"SELECT u.agent, u.day, u.task, substr(e.body, 1, 200), u.model, {_SUMS} FROM usage u"
        " LEFT JOIN events e ON e.id = u.task WHERE u.day >= ?"
        " GROUP BY u.agent COLLATE NOCASE, u.day, u.task, u.model"
        " UNION ALL SELECT s.persona, date(t.started_ms / 1000, 'unixepoch', 'localtime'), '',"
        " s.label, ifnull(t.model, ''), sum(t.tokens_in), ifnull(sum(t.tokens_out), 0), 0, 0"
        " FROM agent_turns t JOIN agent_sessions s ON s.id = t.session"
        " WHERE s.persona NOT NULL AND t.tokens_in NOT NULL AND t.started_ms >= ?"
        " GROUP BY 1, 2, 4, 5 ORDER BY 2 DESC, 1 LIMIT ?",
        (since, since_ms, ROWS_MAX + 1),
    )
    return [dict(zip(names, row, strict=True)) for row in found]
