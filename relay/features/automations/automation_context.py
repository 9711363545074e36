"""What a handler of an automation gets: ``ctx``, with its services (docs/automations.md).

The services are plain calls, in an async handler too: the worker does one run at a time.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any

from relay.core.dispatch import Event, PermissionSet
from relay.core.dispatch import PersonType as PrincipalType
from relay.core.errors import UsageError
from relay.core.paths import Home
from relay.features.automations.automation_llm import LanguageModel
from relay.features.automations.definition import Principal
from relay.features.personas.worker import LOG_MAX, STATE_MAX
from relay.ledger import search_index, sql_query

Json = dict[str, Any]

#: Rows of one answer of the ledger, and seconds for it.
ROWS_MAX, QUERY_DEADLINE = 1000, 10.0
#: Words of a search; further ones do not count.
WORDS_MAX = 16
#: Characters of one of the state's keys.
KEY_MAX = 256


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """The session of the event: its label, and the persona that answers there."""

    key: str
    persona: str


@dataclass(frozen=True, slots=True)
class AutomationInfo:
    """The automation itself; ``last_triggered`` is None before it has fired."""

    id: str
    name: str
    created_at: datetime
    last_triggered: datetime | None
    config: Mapping[str, Any]


class AutomationContext:
    """One run's. ``log`` is an ordinary logger, ``state`` a table in JSON's types that is kept."""

    def __init__(self, asked: Json, home: Home) -> None:
        given = asked["event"]
        self.event = Event.from_json({**given, "metadata": _frozen(given.get("metadata"))})
        who = asked["principal"]
        self.principal = Principal(**{**who, "type": PrincipalType(who["type"])})
        self.permissions = PermissionSet.from_json(asked["permissions"])
        self.session = SessionInfo(**asked["session"])
        about = asked["about"]
        last = about["last_triggered"]
        self.automation = AutomationInfo(
            about["id"],
            about["name"],
            _moment(about["created_at"]),
            None if last is None else _moment(last),
            about["config"],
        )
        now_ms = asked.get("now_ms")
        self.now = datetime.now().astimezone() if now_ms is None else _moment(now_ms)
        #: Whether this is a test: nothing that comes of it will be stored or done.
        self.dry = bool(asked.get("dry"))
        self.state: Json = asked["state"]
        end = time.monotonic() + asked["deadline"]
        self.ledger = LedgerReader(home, end)
        self._home = home
        self.llm = LanguageModel(asked["llm"], home, end)
        lines = LogLines()
        self.log = logging.Logger(self.automation.name)
        self.log.addHandler(lines)
        self._lines = lines
        self._before = {key: json.dumps(one) for key, one in self.state.items()}

    @property
    def told(self) -> str:
        """What was logged."""
        return self._lines.text

    def search(
        self,
        query: str,
        channels: Sequence[str] | None = None,
        since: datetime | int | None = None,
        limit: int = 20,
    ) -> list[Json]:
        """Other events that have words of ``query``: {"event_id", "score"}, the share of the words,
        the best first, then the newest. ``since``: a time, or milliseconds. Raises RelayError."""
        words = query.split()[:WORDS_MAX] if isinstance(query, str) else []
        if not words or not 1 <= limit <= ROWS_MAX:
            raise UsageError(f"a search has words, and a limit from 1 to {ROWS_MAX}")
        if isinstance(channels, str):
            channels = [channels]
        if isinstance(since, datetime):
            since = int(since.timestamp() * 1000)
        found = search_index.find_words(
            self._home.search,
            self._home.ledger,
            words,
            channels=channels,
            since_ms=since or 0,
            limit=limit + 1,
            seconds=self.ledger.seconds,
        )
        others = [one for one in found if one[0] != self.event.id]
        return [{"event_id": id_, "score": score} for id_, score in others[:limit]]

    def changed_state(self) -> Json:
        """What is another value than before by its key; None where there is none any more.

        Raises UsageError for what cannot be kept.
        """
        if not isinstance(self.state, dict):
            raise UsageError("ctx.state was replaced", hint='write: ctx.state["key"] = value')
        now = {key: one for key, one in self.state.items() if one is not None}
        for key in now:
            if not isinstance(key, str) or not 0 < len(key) <= KEY_MAX:
                raise UsageError(
                    f"a key of ctx.state is a text of up to {KEY_MAX} characters, not {key!r:.80}"
                )
        try:
            told = {key: json.dumps(one, allow_nan=False) for key, one in now.items()}
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(f"ctx.state holds what is no JSON: {error}") from error
        size = sum(len(key.encode()) + len(text) for key, text in told.items())
        if size > STATE_MAX:
            raise UsageError(
                f"ctx.state has {size} bytes; at most {STATE_MAX} are kept",
                hint="put what is large in a file",
            )
        gone = dict.fromkeys(self._before.keys() - now.keys())
        return gone | {key: now[key] for key in now if told[key] != self._before.get(key)}


class LedgerReader:
    """``ctx.ledger``: what is stored, to be read."""

    def __init__(self, home: Home, end: float) -> None:
        self._path = home.ledger
        self._end = end

    @property
    def seconds(self) -> float:
        """How long a question may take now."""
        return max(0.1, min(QUERY_DEADLINE, self._end - time.monotonic()))

    def query(self, sql: str, params: Sequence[object] = ()) -> list[Json]:
        """The rows that a SELECT finds, as tables by their columns; at most ROWS_MAX.

        Raises UsageError where there are more, or where it is no SELECT; Timeout.
        """
        found = sql_query.query(self._path, sql, ROWS_MAX, self.seconds, params)
        if found.more:
            raise UsageError(
                f"the query finds more than {ROWS_MAX} rows", hint="narrow it down, or add a LIMIT"
            )
        return [dict(zip(found.columns, row, strict=True)) for row in found.rows]


class LogLines(logging.Handler):
    """Keeps what is logged as text, up to LOG_MAX characters, and says where more was."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""
        self._full = False
        self.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record) + "\n"
        except Exception:
            self.handleError(record)
            return
        if not self._full:
            self.text += line[: LOG_MAX - len(self.text)]
        if not self._full and len(self.text) >= LOG_MAX:
            self._full = True
            self.text += "…\n(more was logged than is kept)\n"


def _moment(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000).astimezone()


def _frozen(value: Mapping[str, Any] | None) -> Mapping[str, Any]:
    return MappingProxyType(dict(value or {}))
