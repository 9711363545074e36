"""Full-text search of both ledgers: an index of every three characters, in a file of its own.

The index is derived from the ledger: no commit waits for it, a damaged one is rebuilt, and it can
be removed at any time. It catches up when somebody searches, or while the broker is idle. It holds
three characters rather than words, so that any part of a text is found; each hit is checked against
the text itself. One thread uses it, except for ``interrupt``; it only reads the ledger, over a
connection of its own.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import count

from relay.core import sqlite
from relay.core.errors import DamagedFile, StorageError, Timeout
from relay.core.files import unlink_if_there
from relay.ledger.agent_ledger import turn_row
from relay.ledger.queries import Filter, conditions
from relay.ledger.schema import COLUMNS, SCHEMA, message_row
from relay.protocol.message_ops import HistoryRow

#: Characters in the smallest text that the index finds.
SHORTEST = 3
#: Rows that are indexed in one transaction.
SLICE = 4096
#: So many such transactions at a time, so that searches take their turn in between.
SLICES = 2
#: An index that lacks more rows than this is not waited for.
BEHIND_MAX = 50_000
#: The longest that one search may take. Seconds.
PATIENCE = 20.0
#: Steps of SQLite between two looks at the clock.
STEPS = 100_000
#: Characters of a snippet before what was found, of that, and after it.
_BEFORE, _FOUND, _AFTER = 30, 60, 50

#: Texts beyond the index that ``find_words`` looks through, and of those that it finds.
SCANNED, CANDIDATES = 5000, 2000

_OPTIONS = "tokenize='trigram', detail=none, columnsize=0, content=''"
#: The index, and the table and column that it is of.
_PARTS = {
    "event_parts": ("events", "body"),
    "message_parts": ("agent_messages", "content"),
}
SEARCH = sqlite.Schema(
    title="the search index {path}",
    noun="a search index",
    application_id=0x72656C78,  # "relx"
    migrations=(
        (
            *(f"CREATE VIRTUAL TABLE {part} USING fts5 (text, {_OPTIONS})" for part in _PARTS),
            # How far each is, and the row with that number: another one means another ledger.
            "CREATE TABLE reached (part TEXT PRIMARY KEY, seq INTEGER NOT NULL, id TEXT NOT NULL)",
            *(f"INSERT INTO reached VALUES ('{part}', 0, '')" for part in _PARTS),
        ),
    ),
)

_TURNS = """SELECT m.seq, m.id, m.role, m.content, m.created_ms,
 ifnull(s.persona, s.source), ifnull(s.label, ifnull(s.external_id, s.id))
 FROM message_parts CROSS JOIN ledger.agent_messages m ON m.seq = message_parts.rowid
 CROSS JOIN ledger.agent_sessions s ON s.id = m.session"""
_EVENTS = f"""SELECT {COLUMNS}
 FROM event_parts CROSS JOIN ledger.events e ON e.seq = event_parts.rowid
 LEFT JOIN ledger.deliveries d ON d.event = e.seq"""


class SearchIndex:
    """The index of one ledger. Raises StorageError wherever SQLite fails."""

    def __init__(self, path: str, ledger_path: str) -> None:
        """Opens nothing: most brokers are never asked."""
        self._path = path
        self._ledger = sqlite.address(ledger_path, read_only=True)
        self._db: sqlite3.Connection | None = None
        self._ends = False
        self._deadline: float | None = None

    def search(self, wanted: Filter, limit: int) -> list[HistoryRow]:
        """The newest ``limit`` rows of both ledgers with ``wanted.grep`` in them, newest first."""
        with self._reading() as db:
            if self._behind(db) > BEHIND_MAX:
                raise StorageError("the search index is being made", hint="try again in a minute")
            self._catch_up(db, None)
            self._deadline = time.monotonic() + PATIENCE
            text = wanted.grep or ""
            match = " ".join(map(_quoted, sorted(_trigrams(text))))
            find = re.compile(re.escape(text), re.IGNORECASE).search
            db.create_function("holds", 1, lambda body: find(body) is not None, deterministic=True)
            rows = _events(db, match, wanted, limit)
            of_messages = wanted.thread or wanted.channel or wanted.tag
            if not of_messages and wanted.kind in (None, "message"):
                rows += _turns(db, match, wanted, limit)
        rows.sort(key=lambda row: (row["created_ms"], row["id"]), reverse=True)
        return rows[:limit]

    def catch_up(self) -> tuple[int, bool]:
        """Index some of what is new: how many texts that was, and whether there is more."""
        with self._reading() as db:
            number = self._catch_up(db, SLICES)
            return number, self._behind(db) > 0

    def make_anew(self) -> tuple[int, bool]:
        """Throw the index away and begin it again, as ``catch_up`` goes on."""
        self._open()  # a file of somebody else's stays
        self._throw_away()
        return self.catch_up()

    def interrupt(self) -> None:
        """End what runs, and whatever is asked later. From any thread."""
        self._ends = True
        if self._db is not None:
            self._db.interrupt()

    def close(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            db.close()

    # -- the file

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """The index, beside the ledger as it is now: another file may have taken its place."""
        try:
            db = self._open()
            with SEARCH.errors(self._path), self._limits(db):
                db.execute("ATTACH ? AS ledger", (self._ledger,))
                yield db
        except DamagedFile:
            self._throw_away()  # nothing is lost with it
            raise
        finally:
            self._deadline = None
            if self._db is not None:
                with suppress(sqlite3.Error):
                    self._db.execute("DETACH ledger")

    @contextmanager
    def _limits(self, db: sqlite3.Connection) -> Iterator[None]:
        db.set_progress_handler(self._is_over, STEPS)
        try:
            yield
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_INTERRUPT:
                raise
            raise Timeout("the search took too long", hint="look for more of the text") from error
        finally:
            db.set_progress_handler(None, 0)

    def _is_over(self) -> bool:
        return self._ends or (self._deadline is not None and time.monotonic() > self._deadline)

    def _open(self) -> sqlite3.Connection:
        if self._db is None:
            try:
                self._db = sqlite.connect(self._path, SEARCH)
            except DamagedFile:
                self._throw_away()
                self._db = sqlite.connect(self._path, SEARCH)
            # Where FTS5 would end.
            self._db.create_function("without_nul", 1, lambda text: text.replace("\0", " "))
        return self._db

    def _throw_away(self) -> None:
        self.close()
        for name in ("", "-wal", "-shm"):
            unlink_if_there(self._path + name)

    # -- what is indexed

    def _behind(self, db: sqlite3.Connection) -> int:
        """How many rows are not indexed yet, about."""
        return sum(
            db.execute(
                f"SELECT max(0, ifnull(max(seq), 0) - (SELECT seq FROM reached WHERE part=?))"
                f" FROM ledger.{table}",
                (part,),
            ).fetchone()[0]
            for part, (table, _) in _PARTS.items()
        )

    def _catch_up(self, db: sqlite3.Connection, slices: int | None) -> int:
        """Index so many slices of each ledger, or all of it; how many texts that was."""
        number = 0
        for part, (table, _) in _PARTS.items():
            seq, id_ = db.execute("SELECT seq, id FROM reached WHERE part=?", (part,)).fetchone()
            there = db.execute(f"SELECT id FROM ledger.{table} WHERE seq=?", (seq,)).fetchone()
            if seq and (there is None or there[0] != id_):
                with sqlite.transaction(db):
                    db.execute(f"INSERT INTO {part} ({part}) VALUES ('delete-all')")
                    db.execute("UPDATE reached SET seq=0, id='' WHERE part=?", (part,))
                seq = 0
            number += self._index(db, part, seq, slices)
        return number

    def _index(self, db: sqlite3.Connection, part: str, seq: int, slices: int | None) -> int:
        table, column = _PARTS[part]
        number = 0
        for _ in count() if slices is None else range(slices):
            if self._ends:
                break
            last = db.execute(
                "SELECT max(seq), id FROM"
                f" (SELECT seq, id FROM ledger.{table} WHERE seq>? ORDER BY seq LIMIT {SLICE})",
                (seq,),
            ).fetchone()
            if last[0] is None:
                break
            with sqlite.transaction(db):
                number += db.execute(
                    f"INSERT INTO {part} (rowid, text) SELECT seq, CASE"
                    f" WHEN instr({column}, char(0)) THEN without_nul({column}) ELSE {column} END"
                    f" FROM ledger.{table}"
                    f" WHERE seq>? AND seq<=? AND {column}<>''",
                    (seq, last[0]),
                ).rowcount
                db.execute("UPDATE reached SET seq=?, id=? WHERE part=?", (*last, part))
            seq = last[0]
        return number


def find_words(
    path: str,
    ledger_path: str,
    words: Sequence[str],
    *,
    channels: Sequence[str] | None = None,
    since_ms: int = 0,
    limit: int = 20,
    seconds: float = PATIENCE,
) -> list[tuple[str, float]]:
    """The events that have most of the words: (id, share of the words), best first, then newest.

    From another process than the index's own: it is read as far as it is there, and the newest
    ``SCANNED`` texts beyond it are looked through. Raises StorageError, Timeout.
    """
    end = time.monotonic() + seconds
    folded = sorted({word.lower() for word in words})
    grams = [sorted(_trigrams(word)) for word in folded if _trigrams(word)]
    all_of = [" AND ".join(map(_quoted, each)) for each in grams]
    where, values = "created_ms>=?", [since_ms, *(channels or ())]
    if channels is not None:
        where += f" AND channel IN ({','.join('?' * len(channels))})"
    found: dict[int, tuple[float, str]] = {}

    def take(rows: Iterator[tuple[int, str, str | None]]) -> None:
        for seq, id_, body in rows:
            text = (body or "").lower()
            if hits := sum(word in text for word in folded):
                found[seq] = (hits / len(folded), id_)

    with SCHEMA.errors(ledger_path), closing(sqlite.connect_read_only(ledger_path, SCHEMA)) as db:
        db.set_progress_handler(lambda: time.monotonic() > end, STEPS)
        try:
            reached = _reached(db, path) if grams else 0
            columns = "e.seq, e.id, e.body"
            take(
                db.execute(
                    f"SELECT {columns} FROM events e WHERE seq>? AND {where}"
                    f" ORDER BY seq DESC LIMIT {SCANNED}",
                    (reached, *values),
                )
            )
            for match in (" AND ".join(all_of), " OR ".join(f"({one})" for one in all_of)):
                if reached:
                    take(
                        db.execute(
                            f"SELECT {columns} FROM found.event_parts"
                            " CROSS JOIN events e ON e.seq = event_parts.rowid"
                            f" WHERE event_parts MATCH ? AND {where}"
                            f" ORDER BY event_parts.rowid DESC LIMIT {CANDIDATES}",
                            (match, *values),
                        )
                    )
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_INTERRUPT:
                raise
            raise Timeout("the search took too long", hint="look for rarer words") from error
    best = sorted(found.items(), key=lambda one: (one[1][0], one[0]), reverse=True)
    return [(id_, score) for _, (score, id_) in best[:limit]]


def _reached(db: sqlite3.Connection, path: str) -> int:
    """How far the index at ``path`` is, which is attached as ``found``; 0 without one."""
    try:
        db.execute("ATTACH ? AS found", (sqlite.address(path, read_only=True),))
        row = db.execute(
            "SELECT r.seq FROM found.reached r JOIN events e ON e.seq=r.seq AND e.id=r.id"
            " WHERE part='event_parts'"
        ).fetchone()
    except sqlite3.DatabaseError:
        return 0  # there is none, or it is just made anew
    return 0 if row is None else int(row[0])


def can_find(text: str) -> bool:
    """Whether the index can find this text: it has three characters side by side."""
    return bool(_trigrams(text))


def _trigrams(text: str) -> set[str]:
    folded = text.lower()
    found = {folded[at : at + SHORTEST] for at in range(len(folded) - SHORTEST + 1)}
    return {one for one in found if "\0" not in one}


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def _events(db: sqlite3.Connection, match: str, wanted: Filter, limit: int) -> list[HistoryRow]:
    where, values = conditions(wanted)
    rows = db.execute(
        f"{_EVENTS} WHERE event_parts MATCH ? AND {' AND '.join(where)} AND holds(e.body)"
        " ORDER BY event_parts.rowid DESC LIMIT ?",
        (match, *values, limit),
    )
    return [{**message_row(row), "ledger": "events"} for row in rows]


def _turns(db: sqlite3.Connection, match: str, wanted: Filter, limit: int) -> list[HistoryRow]:
    where, values = ["message_parts MATCH ?"], list[object]([match])
    if wanted.agent is not None:
        where.append("s.persona=?")
        values.append(wanted.agent)
    if wanted.since_ms is not None:
        where.append("m.created_ms>=?")
        values.append(wanted.since_ms)
    if wanted.reader is not None:
        readable = (wanted.reader, *wanted.turns)
        where.append(f"s.persona COLLATE NOCASE IN ({','.join('?' * len(readable))})")
        values += readable
    rows = db.execute(
        f"{_TURNS} WHERE {' AND '.join(where)} AND holds(m.content)"
        # What came of an event is found with that.
        " AND NOT (m.role='user' AND m.event IS NOT NULL)"
        " ORDER BY message_parts.rowid DESC LIMIT ?",
        (*values, limit),
    )
    return [
        turn_row(id_, role, content, created_ms, persona, f"{persona}/{label}")
        for _, id_, role, content, created_ms, persona, label in rows
    ]


def snippet(body: str, text: str) -> str:
    """Where ``text`` is in ``body``, in brackets, with what stands around it; on one line."""
    found = re.search(re.escape(text), body, re.IGNORECASE)
    if found is None:
        return ""
    begin, end = found.span()
    parts = (
        ("…" if begin > _BEFORE else "") + body[max(0, begin - _BEFORE) : begin],
        body[begin : min(end, begin + _FOUND)] + ("…" if end - begin > _FOUND else ""),
        body[end : end + _AFTER] + ("…" if len(body) > end + _AFTER else ""),
    )
    return " ".join("{}[{}]{}".format(*parts).split())
