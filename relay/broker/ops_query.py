"""The ops that read the ledger: inbox, sent, show, history."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import TypeVar, cast

from relay.agents.interpreters import shows_anything
from relay.broker.batch import AnyRequest, Batch, ClientRequest, Served, serve
from relay.broker.directory import Member
from relay.broker.kernel import Kernel
from relay.broker.ops_ledger import LedgerOps
from relay.core.agent_names import channel_of
from relay.core.errors import NotFound, RelayError, UsageError
from relay.ledger import event_rows, queries
from relay.ledger.agent_ledger import answers_to, with_answers
from relay.ledger.queries import Filter
from relay.ledger.search_index import can_find, snippet
from relay.ledger.store import Ledger
from relay.protocol.broker import LINE_MAX, ROWS_MAX
from relay.protocol.message_ops import (
    HISTORY,
    INBOX,
    SENT,
    SHOW,
    FullMessage,
    HistoryQuery,
    HistoryRow,
    HistoryRows,
    Inbox,
    InboxRows,
    SentQuery,
    SentRows,
    Show,
    Shown,
)

#: The size of the rows in one answer, in bytes, at most.
_ROWS_BYTES = LINE_MAX - 64 * 1024

SomeRow = TypeVar("SomeRow", bound=Mapping[str, object])


class QueryOps:
    """Reads messages, deliveries and turns for clients."""

    def __init__(self, kernel: Kernel, both: LedgerOps) -> None:
        """``both`` searches by text, the agent ledger too."""
        self._features = kernel.features
        self._ledger = kernel.ledger
        self._directory = kernel.directory
        self._rights = kernel.rights
        self._windows = kernel.windows
        self._committer = kernel.committer
        self._both = both

    def ops(self) -> list[Served]:
        return [
            serve(INBOX, self.inbox),
            serve(SENT, self.sent),
            serve(SHOW, self.show),
            serve(HISTORY, self.history),
        ]

    def inbox(self, request: ClientRequest[Inbox], batch: Batch) -> InboxRows:
        """The messages in an inbox; nothing is marked as seen."""
        member, speaker = self._readable(request), self._directory.speaker(request)
        rows = queries.inbox(
            self._ledger,
            member.name,
            everything=request.fields.get("all", False),
            after=request.fields.get("after", 0),
            limit=_limit(request, 1000),
            own=member is (speaker or self._directory.get(self._directory.owner)),
        )
        if request.fields.get("follow"):
            self._windows.follow(request.client, member.name)
        rows, more = fitting(self._directory.with_absence(rows))
        shell = speaker is member and shows_anything(member.record.kind)
        kind = "person" if member.person else "shell" if shell else "agent"
        return {"name": member.name, "kind": kind, "rows": rows, "more": more}

    def show(self, request: ClientRequest[Show], batch: Batch) -> Shown:
        """One message with all its deliveries; or the words of a turn."""
        reader = self._rights.reader(request)
        try:
            id_ = one_id(self._ledger, request.fields["id"])
        except NotFound:
            part = request.fields["id"].upper()
            said = queries.said_in_a_turn(self._ledger, part)
            if said is not None:
                reader.check(reader.reads_turns(said["session"].partition("/")[0]))
                return {"message": said}
            origin = self._features.origin(part)
            if origin is None:
                raise
            id_ = origin
        message = queries.message(self._ledger, id_)
        if message is None:
            raise NotFound(f"there is no message {id_}", hint="relay history lists the ids")
        to = [one["to"] for one in message["deliveries"]]
        reader.check(reader.reads(message["from"], *to))
        self._directory.with_absence(message["deliveries"])
        if message["from_kind"] == event_rows.OUTSIDE:
            message["outside"] = event_rows.shown(self._ledger, id_)
        event = queries.seq_of(self._ledger, id_)
        message["noted"] = event_rows.marks_of(self._ledger, event)
        # The answers of others are not for its receivers.
        answers, asked = answers_to(self._ledger, id_), reader.reads(message["from"])
        message["answers"] = [one for one in answers if asked or reader.reads_turns(one["from"])]
        more = self._features.shown(id_, event)
        return {"message": cast(FullMessage, {**message, **more})}

    def _readable(self, request: AnyRequest) -> Member:
        """The member whose messages are meant, if the client may read all of them."""
        member = self._directory.named(request)
        reader = self._rights.reader(request)
        reader.check(reader.reads(member.name))
        return member

    # -- queries of several steps

    def sent(self, request: ClientRequest[SentQuery], batch: Batch) -> SentRows | None:
        """The newest messages from somebody."""
        member = self._readable(request)
        self._begin_scan(request, batch, Filter(sender=member.name), {"name": member.name})
        return None

    def history(self, request: ClientRequest[HistoryQuery], batch: Batch) -> HistoryRows | None:
        """The newest events that match; or the conversation that a message is ``about``."""
        reader = self._rights.reader(request)
        fields = request.fields
        thread = fields.get("thread")
        if (about := fields.get("about")) is not None:
            id_ = one_id(self._ledger, about)
            thread = queries.origin(self._ledger, id_)[1]
            if thread is None:
                rows, more = queries.conversation(self._ledger, id_)
                rows = [row for row in rows if reader.reads(row["from"], row["to"] or "")]
                if fields.get("answers"):
                    rows = with_answers(self._ledger, rows)
                kept, cut = fitting(self._directory.with_absence(rows[: _limit(request, ROWS_MAX)]))
                return {"rows": kept, "more": more or cut or len(kept) < len(rows)}
        if (agent := fields.get("agent")) is not None:
            agent = self._directory.meant(agent)
            there = self._directory.get(agent) is not None or "@" in agent
            if not there and not queries.is_named(self._ledger, agent):
                nobody = self._directory.nobody(agent)
                if nobody.details["did_you_mean"]:  # else it may be a persona without messages
                    raise nobody
        kind, channel = fields.get("kind") or "message", fields.get("channel")
        wanted = Filter(
            kind=None if kind == "*" else kind,
            agent=agent,
            thread=thread,
            channel=channel_of(channel) if channel else None,
            since_ms=fields.get("since_ms"),
            tag=fields.get("tag"),
            grep=fields.get("grep") or None,
            reader=reader.own or None,
            turns=tuple(reader.turns),
        )
        if wanted.grep is None:
            self._begin_scan(request, batch, wanted, {})
        elif not can_find(wanted.grep):
            self._begin_scan(request, batch, wanted, {"only": "that needs at least 3 characters"})
        else:
            limit = _limit(request, 1000)
            found = partial(self._found, request, wanted, limit)
            self._both.search(request, batch, wanted, limit + 1, found)
        return None

    def _found(
        self,
        request: ClientRequest[HistoryQuery],
        wanted: Filter,
        limit: int,
        rows: list[HistoryRow] | RelayError,
        batch: Batch,
    ) -> HistoryRows | None:
        """The answer with the rows of both ledgers, the newest first; or the events' own search."""
        if isinstance(rows, RelayError):
            self._begin_scan(request, batch, wanted, {"only": rows.message})
            return None
        shown = _with_snippets(self._directory.with_absence(rows[:limit]), wanted.grep or "")
        kept, more = fitting(shown)
        kept.reverse()
        return {"rows": kept, "more": more or len(rows) > limit}

    def _begin_scan(
        self,
        request: ClientRequest[SentQuery] | ClientRequest[HistoryQuery],
        batch: Batch,
        wanted: Filter,
        fields: dict[str, str],
    ) -> None:
        """Search the events, a slice at a time."""
        scan = _Scan(request, wanted, _limit(request, 1000), fields)
        request.client.defer()
        batch.on_failure.append(request.client.undefer)
        self._step(scan, queries.last_event(self._ledger), batch)

    def _go_on(self, scan: _Scan, top: int, batch: Batch) -> None:
        if not scan.request.client.closed:
            batch.owed.append(scan.request)
            batch.on_failure.append(scan.request.client.undefer)
            self._step(scan, top, batch)

    def _step(self, scan: _Scan, top: int, batch: Batch) -> None:
        """Search one slice, from event ``top`` down; then go on, or answer."""
        client = scan.request.client
        room = scan.limit + 1 - len(scan.rows)
        rows, top = queries.slice_of(self._ledger, top, scan.wanted, room)
        scan.rows += self._directory.with_absence(rows)
        if top > 0 and len(scan.rows) <= scan.limit and not scan.is_full():
            following = partial(self._go_on, scan, top)
            batch.after.append(partial(self._committer.submit_job, following))
            return
        rows = scan.rows[: scan.limit]
        if scan.wanted.grep is not None:
            rows = _with_snippets(rows, scan.wanted.grep)
        elif scan.answers:
            rows = with_answers(self._ledger, rows[::-1])[::-1]
        kept, more = fitting(rows)
        kept.reverse()
        more = more or len(scan.rows) > scan.limit
        batch.after.append(client.undefer)
        batch.answer(client, scan.request.n, {**scan.fields, "rows": kept, "more": more})


class _Scan:
    """One search through the events, newest first. ``fields`` go into the answer."""

    def __init__(
        self, request: AnyRequest, wanted: Filter, limit: int, fields: dict[str, str]
    ) -> None:
        self.request = request
        self.wanted = wanted
        self.limit = limit
        self.rows: list[HistoryRow] = []
        self.fields = fields
        #: Whether what answers the messages is wanted, too.
        self.answers = bool(request.fields.get("answers"))

    def is_full(self) -> bool:
        return sum(len(row["body"] or "") for row in self.rows) > _ROWS_BYTES


def _with_snippets(rows: list[HistoryRow], text: str) -> list[HistoryRow]:
    for row in rows:
        row.setdefault("ledger", "events")
        row["snippet"] = snippet(row["body"] or "", text)
    return rows


def one_id(ledger: Ledger, wanted: str) -> str:
    """The id of the only message whose id begins or ends with ``wanted``. Raises UsageError and
    NotFound."""
    if len(wanted) < 4:
        raise UsageError("give at least 4 characters of the id", hint="relay sent lists the ids")
    found = queries.matching_ids(ledger, wanted)
    if len(found) > 1:
        raise UsageError(f"{wanted} could be {', '.join(found[:5])}", hint="give more of the id")
    if not found:
        raise NotFound(f"there is no message {wanted}", hint="relay history lists the ids")
    return found[0]


def fitting(rows: list[SomeRow]) -> tuple[list[SomeRow], bool]:
    """The first rows, as many as one answer holds; and whether any were left out."""
    size = 0
    for index, row in enumerate(rows):
        size += len(json.dumps(row))
        if size > _ROWS_BYTES and index:
            return rows[:index], True
    return list(rows), False


def _limit(request: AnyRequest, default: int) -> int:
    limit = request.fields.get("limit")
    if limit is None:
        return default
    if limit < 1:
        raise UsageError("a limit is a number from 1 on")
    return min(int(limit), ROWS_MAX)
