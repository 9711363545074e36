"""Events of other channels than relay's own (the op ``event`` with ``outside``), and the person's
notes about stored events (``event_mark``). An event itself never changes.

An event of another channel comes from the person (``relay ingest event``) or from a channel
adapter, and is known by its channel and the channel's own id of it. Everything in it may be
somebody's who means harm: it says who it is from, and nothing in it decides how far to trust that.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, cast

from relay.broker.batch import Accepted, Batch, ClientRequest, Served, serve
from relay.broker.kernel import Kernel
from relay.broker.open_items import ANSWER
from relay.broker.ops_messages import META_MAX, OF_SESSIONS, THREAD_MAX, checked_id
from relay.broker.ops_query import one_id
from relay.core.dispatch import (
    RELAY_CHANNEL,
    TIMER_CHANNEL,
    PeerKind,
    PersonType,
    read_event,
)
from relay.core.errors import UsageError
from relay.core.ids import derived_ulid, new_ulid
from relay.core.message import BODY_MAX
from relay.core.visible import is_visible
from relay.features.personas.ops import EVENT_MARK, EventMark, MarkedEvent, MarkedEvents
from relay.ledger import event_rows, queries
from relay.ledger.content_files import CONTENT_MAX
from relay.ledger.event_rows import OUTSIDE, ContentFile, OutsideEvent
from relay.protocol.broker import check_unicode, not_unicode, too_deep
from relay.protocol.message_ops import ChannelEvent, StoreEvent

#: Characters of an address, an id of a channel's, a name of a file.
ADDRESS_MAX = 512
#: Files of one event.
FILES_MAX = 16
#: How deep metadata may be nested.
DEPTH_MAX = 32
_CHANNEL = re.compile(r"[a-z][a-z0-9_.-]{0,63}")
_KIND = re.compile(r"[a-z][a-z0-9_.-]{0,63}")
_CONTENT_TYPE = re.compile(r"[a-z0-9][a-z0-9.+/-]{0,126}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
#: What a sender may be said to be by what brings it: nobody who may do more than a stranger.
_SAID_TYPES = (PersonType.UNKNOWN, PersonType.WEBHOOK, PersonType.SYSTEM)
#: Events in one request.
IDS_MAX = 1000
_MARK_WORD = re.compile(r"[\w.:/+-]{1,64}")


class EventOps:
    """Checks and stores them; tags, flags and archives stored ones."""

    def __init__(self, kernel: Kernel) -> None:
        self._ledger = kernel.ledger
        self._directory = kernel.directory
        self._windows = kernel.windows

    def ops(self) -> list[Served]:
        """The ops."""
        return [serve(EVENT_MARK, self.mark)]

    def outside(self, request: ClientRequest[StoreEvent], batch: Batch) -> None:
        """One event of another channel, for which the person answers."""
        self._directory.check_person(request, "bring in what happens on other channels")
        self.from_channel(request, batch, self._directory.hops(None, request.client) or 0)

    def from_channel(self, request: ClientRequest[StoreEvent], batch: Batch, hops: int = 0) -> None:
        """One event of another channel, whoever asks; ``hops`` messages led to it."""
        id_ = request.fields.get("id")
        event = read_outside(
            request.fields["outside"], batch.now_ms, None if id_ is None else checked_id(id_)
        )
        if event.outside is not None and event.outside.channel == TIMER_CHANNEL:
            raise UsageError(
                f"the channel {TIMER_CHANNEL} is that of relay's own clock",
                hint="name the channel that it came over",
            )
        event.request = request
        event.hops, event.handled = hops, True
        self._windows.collect(event, batch)

    def mark(self, request: ClientRequest[EventMark], batch: Batch) -> MarkedEvents:
        """Note one thing about each of these events; ``undo`` takes it back."""
        self._directory.check_person(request, "tag and flag events")
        fields = request.fields
        what, ids, undo = fields["what"], fields["ids"], fields.get("undo", False)
        if not 0 < len(ids) <= IDS_MAX:
            raise UsageError(f"ids is a list of 1 to {IDS_MAX} events")
        word = fields.get("word")
        if what in ("tag", "status") and not (what == "status" and undo):
            if word is None or not _MARK_WORD.fullmatch(word):
                raise UsageError(
                    f"{word!r} cannot be a {what}",
                    hint="one word of letters, digits and _ . : / + - (at most 64)",
                )
        elif what not in ("status", *event_rows.FLAGS):
            raise UsageError(f"an event cannot be {what!r}")
        found = list(dict.fromkeys(one_id(self._ledger, one) for one in ids))
        self._ledger.begin()
        rows: list[MarkedEvent] = []
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
            rows.append({**event_rows.marks_of(self._ledger, event), "id": id_})
        return {"rows": rows}


def read_outside(given: object, now_ms: int, id_: str | None) -> Accepted:
    """The event that a program has written; ``id_`` is for one whose channel gives it none.

    Raises UsageError, which says what is wrong with it.
    """
    fields = cast(ChannelEvent, read_event(given))
    channel = _word(fields, "channel", _CHANNEL, None)
    if channel == RELAY_CHANNEL:
        raise UsageError(
            "the channel relay is relay's own", hint="name the channel that it came over"
        )
    kind = _word(fields, "kind", _KIND, "message")
    if kind == ANSWER or (kind in OF_SESSIONS and channel != TIMER_CHANNEL):
        raise UsageError(f"only an agent's session tells of a {kind}")
    timestamp = fields.get("timestamp", now_ms)
    if type(timestamp) is not int or not 0 <= timestamp < 1 << 48:
        raise UsageError(f"timestamp is in milliseconds since 1970, not {timestamp!r}")
    source_id = _line(fields, "source_id") or _source_of(channel, _line(fields, "id"))
    content = fields.get("content", "")
    files = _files(fields.get("files") or [])
    if not isinstance(content, str):
        raise UsageError("content must be a text; what is not text goes into files")
    if _size(content) > BODY_MAX:
        raise UsageError(
            f"content is {_size(content)} bytes long; the limit is {BODY_MAX}",
            code="too_large",
        )
    thread, peer = _line(fields, "thread", THREAD_MAX), _line(fields, "peer")
    kind_of_peer = _member(PeerKind, fields, "peer_kind", PeerKind.DM, tuple(PeerKind))
    if kind_of_peer is PeerKind.GROUP and peer is None:
        raise UsageError("the event of a group names it", hint='"peer": the group\'s id')
    outside = OutsideEvent(
        channel=channel,
        source_id=source_id,
        account=_line(fields, "account"),
        peer_kind=kind_of_peer,
        peer=peer,
        reply_to=_line(fields, "reply_to"),
        content_type=_word(fields, "content_type", _CONTENT_TYPE, "text"),
        occurred_ms=timestamp,
        sender_type=_member(PersonType, fields, "sender_type", PersonType.UNKNOWN, _SAID_TYPES),
        sender_name=_line(fields, "sender_name"),
        files=files,
    )
    # Never in the time to come: what is looked up by its id is looked for among the newest.
    at_ms = min(timestamp, now_ms)
    if source_id is not None:
        id_ = derived_ulid(at_ms, channel, source_id)
    return Accepted(
        request=None,
        id=new_ulid(at_ms) if id_ is None else id_,
        given=source_id is None and id_ is not None,
        kind=kind,
        sender=_line(fields, "sender") or channel,
        origin=OUTSIDE,
        body=content,
        thread=thread,
        meta=_metadata(fields.get("metadata")),
        outside=outside,
    )


def _source_of(channel: str, id_: str | None) -> str | None:
    """The channel's own id of ``imessage:abc123``."""
    return id_.removeprefix(f"{channel}:") or None if id_ else None


def _word(
    fields: Mapping[str, object], name: str, form: re.Pattern[str], default: str | None
) -> str:
    value = fields.get(name, default)
    if value is None:
        raise UsageError(f"an event needs its {name}")
    if not isinstance(value, str) or not form.fullmatch(value):
        raise UsageError(f"{name} cannot be {str(value)[:100]!r}", hint="lower-case letters, …")
    return value


def _line(fields: Mapping[str, object], name: str, longest: int = ADDRESS_MAX) -> str | None:
    value = fields.get(name)
    if value is None or value == "":
        return None
    if type(value) is int:
        value = str(value)  # as many programs number their threads
    if not isinstance(value, str) or len(value) > longest:
        raise UsageError(f"{name} must be a text of at most {longest} characters")
    _size(value)
    if not is_visible(value) or value != value.strip():
        raise UsageError(f"{name} has characters that cannot be seen: {value[:100]!r}")
    return value


def _size(text: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise not_unicode() from error


def _member(
    kind: Any, fields: Mapping[str, Any], name: str, default: Any, possible: tuple[Any, ...]
) -> Any:
    value = fields.get(name, default)
    if value not in possible:
        hint = f"one of {', '.join(possible)}"
        if name == "sender_type":
            hint += "; whom you know you name with: relay person add"
        raise UsageError(f"{name} cannot be {str(value)[:100]!r}", hint=hint)
    return kind(value)


def _metadata(value: object) -> str | None:
    if value is None or value == {}:
        return None
    if not isinstance(value, dict) or too_deep(value, DEPTH_MAX):
        raise UsageError(f"metadata is an object, nested at most {DEPTH_MAX} deep")
    try:
        check_unicode(value)
        text = json.dumps({"meta": value}, allow_nan=False)
    except (ValueError, TypeError) as error:
        raise UsageError(f"metadata is not JSON: {error}") from error
    if len(text) > META_MAX:
        raise UsageError(f"metadata of more than {META_MAX} bytes", code="too_large")
    return text


def _files(value: object) -> tuple[ContentFile, ...]:
    if not isinstance(value, list) or len(value) > FILES_MAX:
        raise UsageError(f"files is a list of at most {FILES_MAX}")
    found = []
    for one in value:
        if not isinstance(one, dict) or not _SHA256.fullmatch(str(one.get("sha256"))):
            raise UsageError("a file of an event is stored first: relay ingest event --file PATH")
        size = one.get("size")
        if type(size) is not int or not 0 <= size <= CONTENT_MAX:
            raise UsageError(f"a file has at most {CONTENT_MAX} bytes", code="too_large")
        kind = _word(one, "content_type", _CONTENT_TYPE, "application/octet-stream")
        name = _line(one, "name", 255) or "file"
        found.append(ContentFile(str(one["sha256"]), name, kind, size))
    return tuple(found)
