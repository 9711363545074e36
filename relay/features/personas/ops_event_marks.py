"""The op ``event_mark``: the person's own notes about events. An event itself never changes.

A file of its own, as each group of ops has one.
"""

from __future__ import annotations

import re

from relay.broker.batch import Batch, ClientRequest, Handler
from relay.broker.kernel import Kernel
from relay.broker.ops_query import one_id
from relay.core.errors import UsageError
from relay.ledger import event_rows, queries
from relay.protocol.broker import Json

#: Events in one request.
IDS_MAX = 1000
_WORD = re.compile(r"[\w.:/+-]{1,64}")


class EventMarkOps:
    """Tags, flags and archives events."""

    def __init__(self, kernel: Kernel) -> None:
        self._ledger = kernel.ledger
        self._directory = kernel.directory

    def handlers(self) -> dict[str, Handler]:
        """The handler of each op."""
        return {"event_mark": self.mark}

    def mark(self, request: ClientRequest, batch: Batch) -> Json:
        """Note one thing about each of these events; ``undo`` takes it back."""
        self._directory.check_person(request, "tag and flag events")
        fields = request.fields
        what, ids, undo = fields.get("what"), fields.get("ids"), bool(fields.get("undo"))
        if not isinstance(ids, list) or not 0 < len(ids) <= IDS_MAX:
            raise UsageError(f"ids is a list of 1 to {IDS_MAX} events")
        word = fields.get("word")
        if what in ("tag", "status") and not (what == "status" and undo):
            if not isinstance(word, str) or not _WORD.fullmatch(word):
                raise UsageError(
                    f"{word!r} cannot be a {what}",
                    hint="one word of letters, digits and _ . : / + - (at most 64)",
                )
        elif what not in ("status", *event_rows.FLAGS):
            raise UsageError(f"an event cannot be {what!r}")
        found = list(dict.fromkeys(one_id(self._ledger, one) for one in ids))
        self._ledger.begin()
        rows = []
        for id_ in found:
            event = queries.seq_of(self._ledger, id_)
            if what != "tag":
                value: object = (None if undo else word) if what == "status" else int(not undo)
                event_rows.mark(self._ledger, event, what, value, batch.now_ms)
            elif undo:
                event_rows.untag(self._ledger, event, str(word))
            else:
                owner = self._directory.owner
                event_rows.tag(self._ledger, event, str(word), owner, batch.now_ms)
            rows.append({"id": id_, **event_rows.marks_of(self._ledger, event)})
        return {"rows": rows}
