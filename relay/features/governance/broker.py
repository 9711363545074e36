"""Approvals: tool calls of agents that wait for the person's yes or no.

A session asks (``approval_ask``), and is answered when the person has decided or the time is up:
exactly once. The person sees and answers them as items (relay.broker.open_items). Nothing of it is
stored but the notice to the person and the answer. After a kill of the broker the session asks
again: an answer that did not reach it is lost, and never becomes a yes that nobody said.

What an id asks for never changes: else the person's yes to one thing could become one to another.
For the same reason agents do not see what others ask for, and nothing is approved by a name.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from relay.broker.batch import Accepted, AnyRequest, Batch, Client, ClientRequest, Served, serve
from relay.broker.directory import Member
from relay.broker.door import YES_NO, BrokerFeature, ItemAnswer, ItemKind
from relay.broker.kernel import Kernel
from relay.broker.parts import BrokerParts
from relay.core.bounded import BoundedDict
from relay.core.errors import RelayError, UsageError
from relay.core.ids import derived_ulid
from relay.features.governance.ops import (
    APPROVAL_ASK,
    APPROVAL_WITHDRAW,
    ApprovalAskQuery,
    ApprovalDecision,
    ApprovalWithdrawn,
    ApprovalWithdrawQuery,
)
from relay.protocol.broker import Json, encode
from relay.protocol.item_ops import Item, ItemChoice

#: Calls that wait: of one agent, and in all. A further one is refused at once.
PER_AGENT_MAX = 32
PENDING_MAX = 256
#: Seconds that a call may wait, whatever it asks for: an agent's own hook waits no longer.
SECONDS_MAX = 590.0
#: Characters of what is asked for. A longer one is refused: nobody would look at it.
WHAT_MAX = 8000
#: Characters of each other text, and of what the notice says of the call.
TEXT_MAX, NOTICE_MAX = 500, 200
#: Ids that are remembered with what was asked and decided.
REMEMBERED_MAX = 256
#: The choice that stands for all such calls of an intent.
ALWAYS = "always"
#: The thread in which the person is told.
THREAD = "approvals"
_ID = re.compile(r"[0-9A-Z]{26}")
_TEXTS = ("tool", "what", "why", "intent", "root", "cwd", "always")


@dataclass(eq=False, slots=True)
class _Waiting:
    """One call that waits."""

    shown: Json  # what the person is shown; the same for the same id
    asker: Client
    n: int  # the number that the asker gave it
    member: Member
    timer: asyncio.TimerHandle | None = None


def feature(parts: BrokerParts) -> ApprovalsFeature:
    """The feature in the broker."""
    return ApprovalsFeature(parts.kernel)


class ApprovalsFeature(BrokerFeature):
    """Keeps the calls that wait, and tells the person of them."""

    def __init__(self, kernel: Kernel) -> None:
        self._directory = kernel.directory
        self._windows = kernel.windows
        self._watchers = kernel.watchers
        self._waiting: dict[str, _Waiting] = {}
        #: By id what was asked, and what was decided: an answer may not have reached its session.
        self._known: BoundedDict[str, tuple[Json, ApprovalDecision | None]] = BoundedDict(
            REMEMBERED_MAX
        )

    def ops(self) -> list[Served]:
        """What sessions ask for."""
        return [serve(APPROVAL_ASK, self.ask), serve(APPROVAL_WITHDRAW, self.withdraw)]

    def item_kinds(self) -> Mapping[str, ItemKind]:
        """What the person answers."""
        return {"approval": self}

    # -- for sessions

    def ask(
        self, request: ClientRequest[ApprovalAskQuery], batch: Batch
    ) -> ApprovalDecision | None:
        """A session asks for its agent's call; it is answered later."""
        member = self._directory.member_of(request.client)
        if member is None:
            raise RelayError("only an agent's session asks for its approvals", code="forbidden")
        shown = _shown(request.fields, member.name, batch.now_ms)
        id_ = shown["id"]
        asked, decided = self._known.get(id_, (None, None))
        if asked is not None and asked != shown:
            raise UsageError(f"{id_} was asked for something else", code="forbidden")
        if decided is not None:
            return decided
        before = self._waiting.get(id_)
        theirs = [one for one in self._waiting.values() if one.member is member]
        if before is None and (len(theirs) >= PER_AGENT_MAX or len(self._waiting) >= PENDING_MAX):
            raise RelayError(
                f"{len(theirs)} calls of {member.name} wait for the person already", code="busy"
            )
        request.client.defer()
        if before is not None:
            self._forget(before)
        waiting = _Waiting(shown, request.client, request.n, member)
        self._waiting[id_] = waiting
        self._known[id_] = (shown, None)
        left = max(0.0, (shown["until_ms"] - batch.now_ms) / 1000)
        waiting.timer = asyncio.get_running_loop().call_later(left, self._late, waiting)
        self._count(member)
        batch.on_failure.append(partial(self._forget, waiting))
        self._watchers.item(_item(shown), open_=True)
        if not theirs:
            self._tell(waiting, batch)
        return None

    def withdraw(
        self, request: ClientRequest[ApprovalWithdrawQuery], batch: Batch
    ) -> ApprovalWithdrawn:
        """The agent has given the call up."""
        waiting = self._waiting.get(request.fields["id"])
        if waiting is None or waiting.asker is not request.client:
            return {"withdrawn": False}
        self._end(waiting, _answer(False, note="it was given up"))
        return {"withdrawn": True}

    def lost(self, client: Client) -> None:
        """A connection closed: its session asks again if it comes back."""
        for waiting in list(self._waiting.values()):
            if waiting.asker is client:
                self._forget(waiting)

    async def close(self) -> None:
        """The broker stops: sessions ask the next one."""
        for waiting in list(self._waiting.values()):
            self._forget(waiting)

    # -- for the person

    def waiting(self) -> list[Item]:
        """The calls that wait, as items."""
        return [_item(one.shown) for one in self._waiting.values()]

    def answered(
        self, items: Sequence[Item], answer: ItemAnswer, request: AnyRequest, batch: Batch
    ) -> bool:
        """The person says yes or no to these calls."""
        always = answer.key == ALWAYS
        granted = answer.yes or always
        decided = _answer(granted, by=answer.by, note=answer.note, always=always)
        for item in items:
            batch.after.append(partial(self._end, self._waiting[item["id"]], decided))
        return True

    # -- what ends it

    def _late(self, waiting: _Waiting) -> None:
        seconds = (waiting.shown["until_ms"] - waiting.shown["asked_ms"]) / 1000
        self._end(waiting, _answer(False, note=f"nobody said yes within {seconds:g} s"))

    def _end(self, waiting: _Waiting, answer: ApprovalDecision) -> None:
        id_ = waiting.shown["id"]
        if self._waiting.get(id_) is waiting:
            word = "Always" if answer["always"] else "Yes" if answer["granted"] else "No"
            said = word if answer["by"] else None
            self._forget(waiting, said, answer["by"])
            self._known[id_] = (waiting.shown, answer)
            waiting.asker.send(encode({"n": waiting.n, "ok": True, **answer}))

    def _forget(self, waiting: _Waiting, answer: str | None = None, by: str = "") -> None:
        id_ = waiting.shown["id"]
        if self._waiting.get(id_) is not waiting:
            return
        del self._waiting[id_]
        self._watchers.item(_item(waiting.shown), open_=False, answer=answer, by=by)
        if waiting.timer is not None:
            waiting.timer.cancel()
        waiting.asker.undefer()
        self._count(waiting.member)

    def _count(self, member: Member) -> None:
        member.approvals = sum(one.member is member for one in self._waiting.values())
        self._watchers.agent(member)

    def _tell(self, waiting: _Waiting, batch: Batch) -> None:
        """Tell the person, without what would let them decide unseen."""
        from relay.directive.redact import redact  # on use: a broker starts sooner without it

        shown = waiting.shown
        what = " ".join(redact(shown["what"]).split())
        if len(what) > NOTICE_MAX:
            what = what[: NOTICE_MAX - 1] + "…"
        text = (
            f"{shown['agent']} waits for your yes or no: {shown['tool']}: {what}\n"
            "See all of it with: relay items. Decide with: relay answer ID yes (or no)."
        )
        notice = Accepted.notice(self._directory.owner, text, THREAD, batch.now_ms)
        # The same after a kill of the broker, which then stores it once.
        id_ = derived_ulid(shown["asked_ms"], THREAD, shown["id"])
        self._windows.collect(replace(notice, id=id_, given=True), batch)


def _item(shown: Json) -> Item:
    """The item of a call that waits for its approval."""
    return {
        "id": shown["id"],
        "agent": shown["agent"],
        "kind": "approval",
        "what": f"{shown['tool']}: {shown['what']}",
        "about": [
            *filter(None, [shown["why"]]),
            *([f"always allows: {shown['always']}"] if shown["always"] else []),
            f"for {shown['intent'] or 'no intent'}, in {shown['cwd'] or shown['root']}",
        ],
        "details": {name: shown[name] for name in _TEXTS if name != "what"},
        "choices": [*YES_NO, _always_for(shown["intent"])] if shown["always"] else YES_NO,
        "chosen": None,
        "since_ms": shown["asked_ms"],
        "until_ms": shown["until_ms"],
    }


def _always_for(intent: str) -> ItemChoice:
    return {"key": ALWAYS, "label": f"Always for {intent}"}


def _answer(
    granted: bool, *, by: str = "", note: str = "", always: bool = False
) -> ApprovalDecision:
    return {"granted": granted, "by": by, "note": note, "always": always}


def _shown(fields: ApprovalAskQuery, agent: str, now_ms: int) -> Json:
    """What a session asks for, checked. Raises UsageError."""
    id_, seconds, asked_ms = fields["id"], fields["seconds"], fields["asked_ms"]
    if not _ID.fullmatch(id_):
        raise UsageError("an approval has the id that its session gives it, a ULID")
    if not 0 < seconds <= SECONDS_MAX:
        raise UsageError(f"an approval may wait for at most {SECONDS_MAX:g} seconds")
    if not 0 <= asked_ms <= now_ms + 1000:
        raise UsageError("an approval says when it was asked for")
    texts = {name: str(fields.get(name) or "") for name in _TEXTS}
    what = texts["what"]
    if len(what) > WHAT_MAX:
        raise UsageError(
            f"it has {len(what)} characters, which nobody would read before they say yes",
            hint=f"at most {WHAT_MAX}: in smaller steps",
            code="too_large",
        )
    if len(texts["always"]) > TEXT_MAX:
        texts["always"] = ""  # nothing else than what is shown can be allowed
    cut = {name: text[:TEXT_MAX] for name, text in texts.items()} | {"what": what}
    until_ms = asked_ms + int(seconds * 1000)
    return {"id": id_, "agent": agent, **cut, "asked_ms": asked_ms, "until_ms": until_ms}
