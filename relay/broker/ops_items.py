"""The ops ``items`` and ``item_answer``: what waits for the person, and one way to answer it all.

A file of its own: approvals, held messages and questions know nothing of each other. An answer is
stored before anything follows from it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from relay.broker.batch import Batch, ClientRequest, Handler
from relay.broker.kernel import Kernel
from relay.broker.loop_guard import PARKED_MAX, HeldMessages
from relay.broker.open_items import answer_event, choice_of, held_items
from relay.broker.ops_approvals import NOTE_MAX, ApprovalOps
from relay.broker.ops_hooks import SessionRequests
from relay.broker.ops_query import fitting
from relay.core.errors import NotFound, UsageError
from relay.ledger import queries
from relay.protocol.broker import Json

#: Seconds that an agent's session may take to type an answer.
TYPING = 40.0


class ItemOps:
    """Lists what waits, and hands answers on to whom they concern."""

    def __init__(
        self,
        kernel: Kernel,
        approvals: ApprovalOps,
        held: HeldMessages,
        sessions: SessionRequests,
    ) -> None:
        self._ledger = kernel.ledger
        self._directory = kernel.directory
        self._windows = kernel.windows
        self._committer = kernel.committer
        self._items = kernel.items
        self._approvals = approvals
        self._held = held
        self._sessions = sessions

    def handlers(self) -> dict[str, Handler]:
        """The handler of each op."""
        return {"items": self.items, "item_answer": self.answer}

    def items(self, request: ClientRequest, batch: Batch) -> Json:
        """What waits for the person, the oldest first."""
        self._directory.check_person(request, "see what waits for them")
        rows, more = fitting(self._all())
        return {"rows": rows, "more": more}

    def answer(self, request: ClientRequest, batch: Batch) -> Json | None:
        """The person answers one item."""
        who = self._directory.check_person(request, "answer what an agent asks")
        fields = request.fields
        item = self._meant(fields.get("id"))
        choice = item["choices"][choice_of(item, fields.get("choice"))]
        note = fields.get("note") or ""
        if not isinstance(note, str) or len(note) > NOTE_MAX:
            raise UsageError(f"the note is a text of at most {NOTE_MAX} characters")
        told: Json = {"item": item, "choice": choice, "by": who}
        stored = partial(answer_event, item, choice["label"], self._directory.owner, who)
        decided: Json = {"which": [item["id"]], "refuse": choice["key"] == "no", "note": note}
        if item["kind"] == "approval":
            self._approvals.approve(replace(request, fields=decided), batch)
            return told
        self._windows.collect(stored(batch.now_ms, note=note), batch)
        if item["kind"] == "held":
            self._held.decide(replace(request, fields=decided), batch)
            return told

        def ended(response: Json | None, why: str) -> Json:
            if response is None:
                self._items.answering(item["id"], None)
                self._committer.submit_job(
                    lambda later: self._windows.collect(stored(later.now_ms, failed=why), later)
                )
            return {**told, "gone": bool((response or {}).get("gone"))}

        asked = {"id": item["id"], "choice": item["choices"].index(choice)}
        self._items.answering(item["id"], choice["label"], who)
        self._sessions.forward(request, batch, item["agent"], "choose", asked, TYPING, ended)
        return None

    def _all(self) -> list[Json]:
        held = held_items(queries.parked(self._ledger, PARKED_MAX))
        return sorted([*self._items.rows(), *held], key=lambda one: int(one["since_ms"]))

    def _meant(self, part: object) -> Json:
        upper = str(part or "").upper()
        found = [one for one in self._all() if one["id"].upper().endswith(upper)]
        exact = [one for one in found if one["id"].upper() == upper]
        if len(upper) >= 4 and len(exact or found) == 1:
            return (exact or found)[0]
        if len(upper) >= 4 and found:
            raise UsageError(f"{len(found)} items have ids that end in {upper[:40]}")
        raise NotFound(
            f"nothing waits for you under the id {str(part)[:100]}", hint="what waits: relay items"
        )
