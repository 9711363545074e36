"""Stores transcripts of other programs in the agent ledger: the ops ``ingested`` and ``ingest``.

The client reads and parses the files, not the broker: they are large, their authors may be hostile,
and the person who asked can stop it. The broker takes rows of known form, a few hundred in one
commit, with the position up to which the file was read.

Rows and position are written in one transaction, and the position only moves on from where the
client believed it to be: nothing is lost or stored twice, whoever is killed, and when. Turns that
relay has recorded itself are left out: those of a headless persona's conversations, and those of
messages whose turn a wrapped agent's session reports.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from relay.broker.batch import Batch, ClientRequest, Served, serve
from relay.broker.door import BrokerFeature
from relay.broker.kernel import Kernel
from relay.broker.parts import BrokerParts
from relay.core.errors import RelayError, UsageError
from relay.core.ids import new_ulid
from relay.core.message import REPORTED
from relay.features.ingest.ops import (
    INGEST,
    INGESTED,
    Ingest,
    IngestAnswer,
    Ingested,
    IngestedPlace,
)
from relay.ledger.agent_ledger import OWN
from relay.ledger.store import Ledger
from relay.protocol.past_turns import SOURCES, WORD_MAX, PastTurn, PastTurns, past_id

#: Characters of what a reader must know of a file to go on with it.
STATE_MAX = 4 * 1024 * 1024
#: How long before it was read a message was sent, mostly, and at most.
_MOSTLY_MS, _AT_MOST_MS, _AFTER_MS = 3600 * 1000, 7 * 24 * 3600 * 1000, 60 * 1000
#: Messages of one batch that are looked for in all of that time: the broker has others to serve.
_WIDE_MAX = 32


def feature(parts: BrokerParts) -> IngestFeature:
    return IngestFeature(parts.kernel)


class IngestFeature(BrokerFeature):
    """Stores what was read of transcripts, and says how far that is."""

    def __init__(self, kernel: Kernel) -> None:
        self._ledger = kernel.ledger
        self._directory = kernel.directory

    def ops(self) -> list[Served]:
        """Of the person alone."""
        return [serve(INGESTED, self.ingested), serve(INGEST, self.ingest)]

    def ingested(self, request: ClientRequest[Ingested], batch: Batch) -> IngestedPlace:
        self._directory.check_person(request, "ingest transcripts")
        found = place(self._ledger, _word("path", request.fields["path"]))
        if found is None:
            return {"offset": None}
        state = json.loads(found.state)
        return {"offset": found.offset, "inode": found.inode, "state": state}

    def ingest(self, request: ClientRequest[Ingest], batch: Batch) -> IngestAnswer:
        """What was read of a file, and how far that is."""
        self._directory.check_person(request, "ingest transcripts")
        fields = request.fields
        offset = fields["offset"]
        if not 0 <= offset < 1 << 53:
            raise UsageError("offset is a number of bytes")
        if fields["source"] not in SOURCES:
            raise UsageError(f"a source is one of {', '.join(SOURCES)}")
        state = json.dumps(fields["state"], ensure_ascii=False)
        if len(state) > STATE_MAX:
            raise UsageError(f"a state of more than {STATE_MAX} characters", code="too_large")
        path, inode = _word("path", fields["path"]), _word("inode", fields["inode"])
        file = IngestedFile(path, fields["source"], inode, offset, state)
        rows = PastTurns.from_json(fields["rows"])
        self._ledger.begin()
        now = place(self._ledger, file.path)
        if now == file:
            return {"duplicate": True, "turns": 0, "messages": 0, "calls": 0}
        if fields["known"] != (None if now is None else now.offset):
            raise RelayError(
                f"{file.path} is being ingested by another command",
                hint="what that one has read is stored; begin again when it is done",
                code="changed",
            )
        with self._ledger.part(), self._ledger.guard() as db:
            return add(self._ledger, db, file, rows, batch.now_ms)


def _word(name: str, value: str) -> str:
    if not 0 < len(value) <= WORD_MAX:
        raise UsageError(f"{name} is a text of at most {WORD_MAX} characters")
    return value


@dataclass(frozen=True, slots=True)
class IngestedFile:
    """How far a file was read: ``offset`` is in bytes, ``inode`` says which file had this name."""

    path: str
    source: str
    inode: str
    offset: int
    state: str


def place(ledger: Ledger, path: str) -> IngestedFile | None:
    found = ledger.row(
        "SELECT path, source, device_inode, offset, state_json FROM ingested_files WHERE path=?",
        (path,),
    )
    return None if found is None else IngestedFile(*found)


def note_own(ledger: Ledger, conversation: str, session: str, now_ms: int) -> None:
    """A program calls a conversation of relay's own session so."""
    ledger.change(
        "INSERT OR IGNORE INTO own_conversations VALUES (?,?,?)",
        (conversation, session, now_ms),
    )


def add(ledger: Ledger, db: Any, file: IngestedFile, rows: PastTurns, now_ms: int) -> IngestAnswer:
    """Store what was read of ``file`` up to its offset."""
    work = _Work(ledger, db, file.source)
    work.own = _own(db, {one.conversation for one in rows.turns})
    sessions = [
        work.session(one.conversation, one.created_ms, one.parent, one.project)
        for one in rows.sessions
        if _base(one.conversation) not in work.own
    ]
    turns, messages, calls = work.turns(rows), work.messages(rows), work.calls(rows)
    work.results(rows)
    work.ends(rows)
    db.execute(
        "INSERT INTO ingested_files (path, source, session, device_inode, offset, state_json,"
        " updated_ms) VALUES (?,?,?,?,?,?,?) ON CONFLICT (path) DO UPDATE SET"
        " source=excluded.source, session=ifnull(excluded.session, session),"
        " device_inode=excluded.device_inode, offset=excluded.offset,"
        " state_json=excluded.state_json, updated_ms=excluded.updated_ms",
        (
            *(file.path, file.source, sessions[-1] if sessions else None),
            *(file.inode, file.offset, file.state, now_ms),
        ),
    )
    return {"duplicate": False, "turns": turns, "messages": messages, "calls": calls}


class _Work:
    """One batch of rows."""

    def __init__(self, ledger: Ledger, db: Any, source: str) -> None:
        self._ledger = ledger
        self._db = db
        self._source = source
        self.own: set[str] = set()
        self._wide = 0
        self._sessions: dict[str, str] = {}
        #: The session of each turn that is there.
        self._of: dict[str, str] = {}

    def session(
        self,
        conversation: str,
        created_ms: int,
        parent: str | None = None,
        project: str | None = None,
    ) -> str:
        """The session of a conversation, which is made when it is missing."""
        known = self._sessions.get(conversation)
        if known is None:
            found = self._db.execute(
                "SELECT id FROM agent_sessions WHERE source=? AND external_id=?",
                (self._source, conversation),
            ).fetchone()
            known = found[0] if found else past_id(self._source, created_ms, conversation)
            if not found:
                self._db.execute(
                    "INSERT INTO agent_sessions (id, source, external_id, created_ms, updated_ms)"
                    " VALUES (?,?,?,?,?)",
                    (known, self._source, conversation, created_ms, created_ms),
                )
            self._sessions[conversation] = known
        above = None if parent is None else self.session(parent, created_ms)
        if parent is not None or project is not None:
            self._db.execute(
                "UPDATE agent_sessions SET project=ifnull(project, ?),"
                " parent_session=ifnull(parent_session, ?) WHERE id=?",
                (project, above, known),
            )
        return known

    def turns(self, rows: PastTurns) -> int:
        """Store the turns that are not relay's own. Those that are named are looked up at once."""
        marked = {one.turn: one for one in rows.messages if one.marks}
        named = {one.id for one in rows.turns} | {one.parent for one in rows.turns if one.parent}
        named |= {one.turn for one in rows.messages} | {one.turn for one in rows.calls}
        named |= {one.turn for one in rows.ends}
        self._of = dict(_found(self._db, "SELECT id, session FROM agent_turns WHERE id", named))
        new = 0
        for one in rows.turns:
            if _base(one.conversation) in self.own or one.id in self._of:
                continue
            said = marked.get(one.id)
            if said is not None and self._reported(said.marks, one.started_ms):
                continue
            session = self.session(one.conversation, one.started_ms)
            parent = self._parent(one, session)
            added = self._db.execute(
                "INSERT INTO agent_turns (id, session, parent_turn, source_id, state, started_ms)"
                " VALUES (?,?,?,?,'running',?) ON CONFLICT DO NOTHING",
                (one.id, session, parent, one.source_id, one.started_ms),
            )
            if added.rowcount == 0:
                continue  # the same program's id with another time
            new += 1
            self._of[one.id] = session
            above = self._of.get(parent) if parent is not None else None
            self._db.execute(
                "UPDATE agent_sessions SET head_turn=?, updated_ms=max(updated_ms, ?),"
                " parent_session=ifnull(parent_session, ?) WHERE id=?",
                (one.id, one.started_ms, None if above == session else above, session),
            )
        return new

    def _parent(self, turn: PastTurn, session: str) -> str | None:
        """The turn from which this one hangs."""
        if turn.parent in self._of:
            return turn.parent
        head, above = self._db.execute(
            "SELECT head_turn, parent_session FROM agent_sessions WHERE id=?", (session,)
        ).fetchone()
        if turn.parent is not None and head is not None:
            return str(head)  # what it hangs from is relay's own, or was too long ago
        if head is not None or above is None or "/" in turn.conversation:
            return None
        found = self._db.execute(
            "SELECT id FROM agent_turns WHERE session=? AND started_ms<=?"
            " ORDER BY started_ms DESC, id DESC LIMIT 1",
            (above, turn.started_ms),
        ).fetchone()
        return None if found is None else str(found[0])

    def messages(self, rows: PastTurns) -> int:
        """Store what was said, numbered on in each session."""
        fresh = [one for one in rows.messages if one.turn in self._of]
        ids = [one.id for one in fresh]
        known = {row[0] for row in _found(self._db, "SELECT id FROM agent_messages WHERE id", ids)}
        numbers: dict[str, int] = {}
        added: list[tuple[Any, ...]] = []
        for one in fresh:
            if one.id in known:
                continue
            known.add(one.id)
            session = self._of[one.turn]
            if session not in numbers:
                numbers[session] = self._db.execute(
                    "SELECT ifnull(max(number),0) FROM agent_messages WHERE session=?", (session,)
                ).fetchone()[0]
            numbers[session] += 1
            event = self._event(one.marks, one.created_ms) if one.marks else None
            head = (one.id, session, one.turn, one.role, self._ledger.shown(one.content))
            added.append((*head, numbers[session], event, one.created_ms))
        self._db.executemany(
            "INSERT INTO agent_messages (id, session, turn, role, content, number, event,"
            " created_ms) VALUES (?,?,?,?,?,?,?,?)",
            added,
        )
        counted = {session: 0 for session in numbers}
        for row in added:
            counted[row[1]] += 1
        self._db.executemany(
            "UPDATE agent_sessions SET message_count=message_count+? WHERE id=?",
            [(number, session) for session, number in counted.items()],
        )
        return len(added)

    def calls(self, rows: PastTurns) -> int:
        fresh = [one for one in rows.calls if one.turn in self._of]
        said = {one.message for one in fresh if one.message}
        there = {row[0] for row in _found(self._db, "SELECT id FROM agent_messages WHERE id", said)}
        before = self._db.total_changes
        self._db.executemany(
            "INSERT INTO agent_tool_calls (id, session, turn, message, name, number, params_json,"
            " state, started_ms) VALUES (?,?,?,?,?,?,?,'running',?) ON CONFLICT DO NOTHING",
            [
                (
                    *(one.id, self._of[one.turn], one.turn),
                    *(one.message if one.message in there else None, one.name, one.number),
                    *(self._ledger.shown(one.params), one.started_ms),
                )
                for one in fresh
            ],
        )
        return int(self._db.total_changes - before)

    def results(self, rows: PastTurns) -> None:
        """Store what came of tool calls; of those that were compacted it stays away."""
        calls = [one.call for one in rows.results]
        there = dict(_found(self._db, "SELECT id, session FROM agent_tool_calls WHERE id", calls))
        children = {}
        for one in rows.results:
            if one.child is not None and one.call in there:
                children[one.call] = self.session(one.child, one.completed_ms)
                self._db.execute(
                    "UPDATE agent_sessions SET parent_session=ifnull(parent_session, ?1)"
                    " WHERE id=?2 AND id<>?1",
                    (there[one.call], children[one.call]),
                )
        self._db.executemany(
            "UPDATE agent_tool_calls SET result_json=?, state=?, completed_ms=?,"
            " child_session=ifnull(?, child_session) WHERE id=? AND params_json IS NOT NULL",
            [
                (
                    self._ledger.shown(one.result),
                    one.state,
                    one.completed_ms,
                    children.get(one.call),
                    one.call,
                )
                for one in rows.results
                if one.call in there
            ],
        )

    def ends(self, rows: PastTurns) -> None:
        """Store how the turns stand; what was copied before a turn went on says nothing of it."""
        self._db.executemany(
            "UPDATE agent_turns SET state=?, reason=?, inferred=?, ended_ms=?, model=?,"
            " tokens_in=?, tokens_out=?, tool_call_count=? WHERE id=? AND ifnull(ended_ms,0)<=?",
            [(*one[1:], one.turn, one.ended_ms) for one in rows.ends if one.turn in self._of],
        )
        latest = {self._of[one.turn]: one for one in rows.ends if one.turn in self._of}
        self._db.executemany(
            "UPDATE agent_sessions SET updated_ms=max(updated_ms, ?), model=ifnull(?, model)"
            " WHERE id=?",
            [(one.ended_ms, one.model, session) for session, one in latest.items()],
        )

    # -- messages of relay's

    def _reported(self, marks: str, at_ms: int) -> bool:
        """Whether one of these messages is one whose turn relay records itself."""
        found = [self._message(mark, at_ms) for mark in marks.split()]
        return any(one is not None and one[1] for one in found)

    def _event(self, marks: str, at_ms: int) -> int | None:
        """The event of the one message that a prompt is."""
        one = self._message(marks, at_ms) if " " not in marks else None
        return None if one is None else one[0]

    def _message(self, mark: str, at_ms: int) -> tuple[int, bool] | None:
        """The message of the ledger that has this mark, and whether its turn is reported."""
        for window_ms in (_MOSTLY_MS, _AT_MOST_MS):
            if window_ms == _AT_MOST_MS:
                self._wide += 1
            if self._wide <= _WIDE_MAX and (found := self._within(mark, at_ms, window_ms)):
                return found
        return None

    def _within(self, mark: str, at_ms: int, window_ms: int) -> tuple[int, bool] | None:
        tail, _, nonce = mark.partition("_")
        first, last = (new_ulid(max(0, ms)) for ms in (at_ms - window_ms, at_ms + _AFTER_MS))
        rows = self._db.execute(
            "SELECT e.seq, e.id, e.meta_json, d.recipient FROM events e JOIN deliveries d"
            " ON d.event=e.seq WHERE e.id BETWEEN ? AND ? AND substr(e.id, -8)=?",
            (first, last, tail),
        ).fetchall()
        for seq, id_, meta, recipient in rows:
            if self._ledger.nonce(id_, recipient) == nonce:
                attributes = json.loads(meta or "{}").get("attributes") or {}
                return seq, attributes.items() >= REPORTED.items()
        return None


def _own(db: Any, conversations: Iterable[str]) -> set[str]:
    """Those of the conversations that relay had itself."""
    bases = {_base(one) for one in conversations}
    own = _found(db, "SELECT id FROM own_conversations WHERE id", bases)
    known = f"SELECT external_id FROM agent_sessions WHERE source='{OWN}' AND external_id"
    return {row[0] for row in own} | {row[0] for row in _found(db, known, bases)}


def _base(conversation: str) -> str:
    """The conversation in which a sub-agent works, or the same."""
    return conversation.partition("/")[0]


def _found(db: Any, select: str, keys: Iterable[str]) -> Sequence[tuple[Any, ...]]:
    given = json.dumps(list(keys))
    found = db.execute(f"{select} IN (SELECT value FROM json_each(?))", (given,))
    rows: Sequence[tuple[Any, ...]] = found.fetchall()
    return rows
