"""The ops ``ingested`` and ``ingest``: transcripts of other programs go into the agent ledger.

The client reads and parses them, not the broker: they are large, they are somebody's who may mean
harm, and the person who asked for it can stop it. The broker takes rows of known form, a few
hundred in one commit, and checks from where to where they were read.
"""

from __future__ import annotations

import json

from relay.broker.batch import AnyRequest, Batch, Served, untyped
from relay.broker.door import BrokerFeature
from relay.broker.kernel import Kernel
from relay.broker.parts import BrokerParts
from relay.core.errors import RelayError, UsageError
from relay.features.ingest import ingested
from relay.features.ingest.ingested import IngestedFile
from relay.protocol.broker import Json
from relay.protocol.past_turns import SOURCES, WORD_MAX, PastTurns

#: Characters of what a reader must know of a file to go on with it.
STATE_MAX = 4 * 1024 * 1024


def feature(parts: BrokerParts) -> IngestFeature:
    """The feature in the broker."""
    return IngestFeature(parts.kernel)


class IngestFeature(BrokerFeature):
    """Stores what was read of transcripts, and says how far that is."""

    def __init__(self, kernel: Kernel) -> None:
        self._ledger = kernel.ledger
        self._directory = kernel.directory

    def ops(self) -> list[Served]:
        """Of the person alone."""
        return untyped({"ingested": self.ingested, "ingest": self.ingest})

    def ingested(self, request: AnyRequest, batch: Batch) -> Json:
        """How far a file was read."""
        self._directory.check_person(request, "ingest transcripts")
        found = ingested.place(self._ledger, _text(request, "path"))
        if found is None:
            return {"offset": None}
        state = json.loads(found.state)
        return {"offset": found.offset, "inode": found.inode, "state": state}

    def ingest(self, request: AnyRequest, batch: Batch) -> Json:
        """What was read of a file, and how far that is."""
        self._directory.check_person(request, "ingest transcripts")
        fields = request.fields
        known, offset = fields.get("known"), fields.get("offset")
        if type(offset) is not int or not 0 <= offset < 1 << 53:
            raise UsageError("offset is a number of bytes")
        if fields.get("source") not in SOURCES:
            raise UsageError(f"a source is one of {', '.join(SOURCES)}")
        state = json.dumps(fields.get("state") or {}, ensure_ascii=False)
        if len(state) > STATE_MAX:
            raise UsageError(f"a state of more than {STATE_MAX} characters", code="too_large")
        file = IngestedFile(
            _text(request, "path"), fields["source"], _text(request, "inode"), offset, state
        )
        rows = PastTurns.from_json(fields.get("rows"))
        self._ledger.begin()
        now = ingested.place(self._ledger, file.path)
        if now == file:
            return {"duplicate": True, "turns": 0, "messages": 0, "calls": 0}
        if known != (None if now is None else now.offset):
            raise RelayError(
                f"{file.path} is being ingested by another command",
                hint="what that one has read is stored; begin again when it is done",
                code="changed",
            )
        return {"duplicate": False, **ingested.add(self._ledger, file, rows, batch.now_ms)}


def _text(request: AnyRequest, name: str) -> str:
    value = request.fields.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= WORD_MAX:
        raise UsageError(f"{name} is a text of at most {WORD_MAX} characters")
    return value
