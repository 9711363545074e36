"""Usage limits of accounts: who shares one waits, and what was broken off goes on once.

A file of its own, as it is nobody's business but the sessions': one reports that its agent is
limited and for how long; the others with the same account hold their messages until then, and the
agent whose turn was broken off is told to go on. That is a message like any other, which its
session holds until the limit ends, with an id made of the run and of when the limit began: told
twice, or after a kill of anybody, it is still one message.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

from relay.broker.batch import Accepted, Batch
from relay.broker.delivery_window import DeliveryWindows
from relay.broker.directory import Directory, Member
from relay.core.bounded import BoundedDict
from relay.core.ids import derived_ulid, new_ulid
from relay.core.message import AgentState
from relay.ledger.schema import AgentRecord
from relay.protocol.agents import AgentStateReport
from relay.protocol.broker import Json, encode

#: Accounts that are known, and the longest limit. Seconds.
ACCOUNTS_MAX, LONGEST = 1000, 8 * 86400.0
THREAD = "limits"
_GOES_ON = (
    "The usage limit is over that has stopped your turn. Go on where you were stopped; if nothing"
    " was left to do, do nothing."
)
_LIMIT = re.compile(r"\blimit|quota", re.IGNORECASE)
_WORKS = (AgentState.BUSY.value, AgentState.BLOCKED.value)


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
        limited = record.state == AgentState.LIMITED.value and _LIMIT.search(record.reason or "")
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
