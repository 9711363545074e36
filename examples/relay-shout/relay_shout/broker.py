"""The feature in the broker: the ops ``shout`` and ``shout_counts``."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from relay.broker.batch import Batch, ClientRequest, Served, serve
from relay.broker.door import BrokerFeature
from relay.broker.parts import BrokerParts
from relay.core.errors import UsageError
from relay.protocol.messages import MessageSent, Send
from relay.protocol.op import Request
from relay_shout.ops import SHOUT, SHOUT_COUNTS, Shout, ShoutCounts

_COUNT = (
    "INSERT INTO shout_counts VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET shouts = shouts + 1"
)


def feature(parts: BrokerParts) -> ShoutFeature:
    """The feature in the broker."""
    return ShoutFeature(parts)


class ShoutFeature(BrokerFeature):
    """Sends in capitals, and counts who does."""

    def __init__(self, parts: BrokerParts) -> None:
        self._kernel = parts.kernel
        self._messages = parts.messages

    def ops(self) -> list[Served]:
        """The feature's requests, and what carries each out."""
        return [serve(SHOUT, self.shout), serve(SHOUT_COUNTS, self.counts)]

    def row_kinds(self) -> Collection[str]:
        """What it puts into the stream."""
        return ("shout",)

    def shout(self, request: ClientRequest[Shout], batch: Batch) -> MessageSent | None:
        """Send the message in capitals. It is counted if it is stored: both in one commit."""
        to, body = request.fields["to"], request.fields["body"].upper()
        if not body.strip():
            raise UsageError("shout what?", hint="relay shout NAME WORDS")
        directory, ledger = self._kernel.directory, self._kernel.ledger
        speaker = directory.speaker(request)  # never what the request says of itself
        name = directory.owner if speaker is None else speaker.name
        message: Send = {"to": to, "body": body, "auth": request.fields.get("auth")}
        answer = self._messages.send(replace(request, fields=message), batch)
        ledger.begin()
        ledger.change(_COUNT, (name,))
        row = {"who": name, "to": to, "words": body[:1000]}
        batch.after.append(lambda: self._kernel.watchers.tell("shout", (name, to), row))
        return answer

    def counts(self, request: ClientRequest[Request], batch: Batch) -> ShoutCounts:
        """Who has shouted how often. For the person."""
        self._kernel.directory.check_person(request, "see who shouts")
        rows = self._kernel.ledger.rows("SELECT name, shouts FROM shout_counts ORDER BY name")
        return {"rows": [{"name": name, "shouts": shouts} for name, shouts in rows]}
