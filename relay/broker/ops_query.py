"""The ops that read the ledger: inbox, sent, show, history."""

from __future__ import annotations

import json
from functools import partial

from relay.agents.interpreters import shows_anything
from relay.broker.batch import Batch, ClientRequest, Handler
from relay.broker.directory import Member
from relay.broker.kernel import Kernel
from relay.broker.ops_ledger import LedgerOps
from relay.core.agent_names import channel_of
from relay.core.errors import NotFound, RelayError, UsageError
from relay.ledger import event_rows, queries
from relay.ledger.queries import Filter
from relay.ledger.schema import Row
from relay.ledger.search_index import can_find, snippet
from relay.ledger.store import Ledger
from relay.protocol.broker import LINE_MAX, ROWS_MAX, Json

#: The size of the rows in one answer, in bytes, at most.
_ROWS_BYTES = LINE_MAX - 64 * 1024


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

    def handlers(self) -> dict[str, Handler]:
        """The handler of each op."""
        return {
            "inbox": self.inbox,
            "sent": self.sent,
            "show": self.show,
            "history": self.history,
        }

    def inbox(self, request: ClientRequest, batch: Batch) -> Json:
        """The messages in an inbox; nothing is marked as seen."""
        member, speaker = self._readable(request), self._directory.speaker(request)
        after = request.fields.get("after")
        rows = queries.inbox(
            self._ledger,
            member.name,
            everything=bool(request.fields.get("all")),
            after=after if isinstance(after, int) else 0,
            limit=_limit(request, 1000),
            own=member is (speaker or self._directory.get(self._directory.owner)),
        )
        if request.fields.get("follow"):
            self._windows.follow(request.client, member.name)
        rows, more = fitting(self._directory.with_absence(rows))
        shell = speaker is member and shows_anything(member.record.kind)
        kind = "person" if member.person else "shell" if shell else "agent"
        return {"name": member.name, "kind": kind, "rows": rows, "more": more}

    def show(self, request: ClientRequest, batch: Batch) -> Json:
        """One message with all its deliveries; or the words of a turn."""
        reader = self._rights.reader(request)
        try:
            id_ = one_id(self._ledger, request.fields.get("id"))
        except NotFound:
            part = str(request.fields["id"]).upper()
            said = queries.said_in_a_turn(self._ledger, part)
            if said is not None:
                reader.check(reader.reads_turns(str(said["session"]).partition("/")[0]))
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
        message |= self._features.shown(id_, event)
        return {"message": message}

    def _readable(self, request: ClientRequest) -> Member:
        """The member whose messages are meant, if the client may read all of them."""
        member = self._directory.named(request)
        reader = self._rights.reader(request)
        reader.check(reader.reads(member.name))
        return member

    # -- queries of several steps

    def sent(self, request: ClientRequest, batch: Batch) -> None:
        """The newest messages from somebody."""
        member = self._readable(request)
        self._begin_scan(request, batch, Filter(sender=member.name), {"name": member.name})

    def history(self, request: ClientRequest, batch: Batch) -> Json | None:
        """The newest events that match; or the conversation that a message is ``about``."""
        reader = self._rights.reader(request)
        since = request.fields.get("since_ms")
        if since is not None and not isinstance(since, int):
            raise UsageError("since_ms is a number of milliseconds")
        thread = request.fields.get("thread")
        if (about := request.fields.get("about")) is not None:
            id_ = one_id(self._ledger, about)
            thread = queries.origin(self._ledger, id_)[1]
            if thread is None:
                rows, more = queries.conversation(self._ledger, id_)
                rows = [row for row in rows if reader.reads(row["from"], row["to"])]
                kept, cut = fitting(self._directory.with_absence(rows[: _limit(request, ROWS_MAX)]))
                return {"rows": kept, "more": more or cut or len(kept) < len(rows)}
        texts: dict[str, str | None] = {"thread": thread}
        for key in ("agent", "thread", "channel", "grep", "kind", "tag"):
            value = texts.get(key) or request.fields.get(key)
            if value is not None and not isinstance(value, str):
                raise UsageError(f"{key} is a text")
            texts[key] = value
        kind = texts["kind"] or "message"
        wanted = Filter(
            kind=None if kind == "*" else kind,
            agent=texts["agent"],
            thread=texts["thread"],
            channel=channel_of(texts["channel"]) if texts["channel"] else None,
            since_ms=since,
            tag=texts["tag"],
            grep=texts["grep"] or None,
            reader=reader.own or None,
            turns=tuple(reader.turns),
        )
        if wanted.grep is None:
            self._begin_scan(request, batch, wanted, {})
            return None
        if not can_find(wanted.grep):
            self._begin_scan(request, batch, wanted, {"only": "it has fewer than 3 characters"})
            return None

        def scan(batch: Batch, why: RelayError) -> None:
            self._begin_scan(request, batch, wanted, {"only": why.message})

        limit = _limit(request, 1000)
        found = partial(self._found, wanted.grep, limit)
        self._both.search(request, batch, wanted, limit + 1, found, otherwise=scan)
        return None

    def _found(self, text: str, limit: int, rows: list[Row], batch: Batch) -> Json:
        """The answer with the rows of both ledgers, the newest first."""
        kept, more = fitting(_with_snippets(self._directory.with_absence(rows[:limit]), text))
        kept.reverse()
        return {"rows": kept, "more": more or len(rows) > limit}

    def _begin_scan(
        self, request: ClientRequest, batch: Batch, wanted: Filter, fields: Json
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
        kept, more = fitting(rows)
        kept.reverse()
        more = more or len(scan.rows) > scan.limit
        batch.after.append(client.undefer)
        batch.answer(client, scan.request.n, {**scan.fields, "rows": kept, "more": more})


class _Scan:
    """One search through the events, newest first. ``fields`` go into the answer."""

    def __init__(self, request: ClientRequest, wanted: Filter, limit: int, fields: Json) -> None:
        self.request = request
        self.wanted = wanted
        self.limit = limit
        self.rows: list[Row] = []
        self.fields = fields

    def is_full(self) -> bool:
        """Whether the answer is full."""
        return sum(len(row["body"] or "") for row in self.rows) > _ROWS_BYTES


def _with_snippets(rows: list[Row], text: str) -> list[Row]:
    return [{"ledger": "events", **row, "snippet": snippet(row["body"], text)} for row in rows]


def one_id(ledger: Ledger, part: object) -> str:
    """The id of the only message whose id begins or ends with ``part``. Raises UsageError and
    NotFound."""
    wanted = str(part or "")
    if len(wanted) < 4:
        raise UsageError("an id needs at least 4 characters", hint="relay sent lists the ids")
    found = queries.matching_ids(ledger, wanted)
    if len(found) > 1:
        raise UsageError(f"{wanted} could be {', '.join(found[:5])}", hint="give more of the id")
    if not found:
        raise NotFound(f"there is no message {wanted}", hint="relay history lists the ids")
    return found[0]


def fitting(rows: list[Row]) -> tuple[list[Row], bool]:
    """The first rows, as many as one answer holds; and whether any were left out."""
    size = 0
    for index, row in enumerate(rows):
        size += len(json.dumps(row))
        if size > _ROWS_BYTES and index:
            return rows[:index], True
    return list(rows), False


def _limit(request: ClientRequest, default: int) -> int:
    limit = request.fields.get("limit")
    if limit is None:
        return default
    if not isinstance(limit, int) or limit < 1:
        raise UsageError("a limit is a number from 1 on")
    return min(limit, ROWS_MAX)
