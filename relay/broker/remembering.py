"""What the thread of the memory does: from a request to the backend, and back to an answer.

Imported by the first request only. Everything here runs in that one thread.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

from relay.broker.protocol import Json
from relay.errors import RelayError, UsageError
from relay.memory.embedding import Embedder
from relay.memory.embedding.numeric import have_numpy
from relay.memory.embedding.setup import installed
from relay.memory.local.store import LocalStore
from relay.memory.model import Outcome, Place, Scope, from_json, to_json
from relay.memory.places import applying, project_root
from relay.memory.policy import Guarded, Secrets
from relay.paths import Home
from relay.suggest import did_you_mean
from relay.text import redact

#: How many memories an answer has when nobody says, and at most.
LIMIT, LIMIT_MAX = 10, 1000
#: Characters of JSON of all memories in one answer: a line of the protocol holds them.
PAGE_MAX = 3 * 1024 * 1024
#: Memories of one page of an import, and vectors that are made before the next look for a request.
IMPORT_MAX = 500
_VECTORS = 16


class Desk:
    """Opens the store at the first request. ``log`` is for what nobody waits for."""

    def __init__(self, home: Home, log: Callable[[str], None]) -> None:
        self._home = home
        self._log = log
        self._store: LocalStore | None = None
        self._hybrid = False
        self._problem: str | None = None  # why there is no embedder, although it is set up
        self._pending = 0  # vectors that are missing, as far as is known
        self._ops: dict[str, Callable[[_Request], Json]] = {
            "memory_save": self._save,
            "memory_search": self._search,
            "memory_get": self._get,
            "memory_list": self._list,
            "memory_forget": self._forget,
            "memory_stats": self._stats,
            "memory_export": self._exported,
            "memory_import": self._import,
        }

    def answer(self, request: Json, agent: str | None, run: str | None, now_ms: int) -> Json:
        """The answer's fields. Raises RelayError."""
        return self._ops[request["op"]](_Request(request, agent, run, now_ms))

    def caught_up(self, now_ms: int) -> bool:
        """Make some of the vectors that are missing; whether there is nothing more to do."""
        if self._store is None or not self._hybrid or not self._pending:
            return True
        before = self._pending
        self._pending = self._store.catch_up(_VECTORS, now_ms=now_ms)
        # No progress: the embedder is away. The next search or save tries again.
        if self._pending >= before:
            self._pending = 0
        return not self._pending

    def close(self) -> None:
        """Close the store, if it is open."""
        store, self._store = self._store, None
        if store is not None:
            store.close()

    def _opened(self) -> LocalStore:
        if self._store is not None and (self._hybrid or self._problem or not self._can_embed()):
            return self._store
        self.close()  # the weights were set up since it was opened
        embedder = self._embedder()
        self._hybrid = embedder is not None
        self._store = LocalStore(self._home.memory, embedder)
        self._pending = 1 if self._hybrid else 0
        return self._store

    def _can_embed(self) -> bool:
        return installed(self._home.models) is not None and have_numpy()

    def _embedder(self) -> Embedder | None:
        folder = installed(self._home.models)
        if folder is None or not have_numpy():
            return None
        from relay.memory.embedding.minilm import MiniLM

        try:
            return MiniLM(folder)
        except RelayError as error:
            self._problem = error.message
            self._log(f"no vectors for the memory: {error.message}")
            return None

    # -- the ops

    def _save(self, ask: _Request) -> Json:
        store = self._opened()
        text, place, policy = ask.text("text"), ask.place(), ask.secrets()
        supersedes = ask.optional("supersedes")
        if supersedes is not None:
            old = store.get(supersedes)
            ask.may_write(old.place)
            supersedes = old.id
        saved = Guarded(store, policy).save(
            text,
            place,
            agent=ask.agent,
            session=ask.run,
            supersedes=supersedes,
            meta=ask.meta(),
            now_ms=ask.now_ms,
        )
        self._pending += 1
        kinds = {kind for _, _, kind in redact.find(text)} if policy is Secrets.REDACT else ()
        fields: Json = {
            "memory": to_json(saved.memory),
            "outcome": saved.outcome.value,
            "redacted": sorted(kinds),
        }
        return fields | ({"former": saved.former} if saved.outcome is Outcome.UPDATED else {})

    def _search(self, ask: _Request) -> Json:
        found = self._opened().search(
            ask.text("query"), ask.places(), ask.limit(), now_ms=ask.now_ms
        )
        rows = [
            {**to_json(hit.memory), "score": round(hit.score, 4), "tier": hit.tier.value}
            for hit in found
        ]
        return {"memories": _fitting(rows)}

    def _get(self, ask: _Request) -> Json:
        return {"memory": to_json(self._opened().get(ask.text("id")))}

    def _list(self, ask: _Request) -> Json:
        before_ms, before_id = ask.number("before_ms"), ask.optional("before_id") or ""
        store, places, limit = self._opened(), ask.places(), ask.limit()
        found = store.list(places, limit, before_ms=before_ms, before_id=before_id)
        rows = _fitting([to_json(memory) for memory in found])
        more = len(rows) < len(found)
        if len(found) == limit:
            last = found[-1]
            more |= bool(store.list(places, 1, before_ms=last.updated_ms, before_id=last.id))
        return {"memories": rows, "more": more}

    def _forget(self, ask: _Request) -> Json:
        store = self._opened()
        memory = store.get(ask.text("id"))
        ask.may_write(memory.place)
        return {"memory": to_json(store.forget(memory.id))}

    def _stats(self, ask: _Request) -> Json:
        stats = self._opened().stats()
        return {
            "backend": stats.backend,
            "tier": stats.tier.value,
            "embedder": stats.embedder,
            "problem": self._problem or stats.problem or None,
            "pending": stats.pending,
            "size": stats.size,
            "folder": self._home.memory,
            "count": sum(stats.counts.values()),
            "places": [
                {"scope": place.scope.value, "owner": place.owner, "count": count}
                for place, count in stats.counts.items()
            ],
        }

    def _exported(self, ask: _Request) -> Json:
        """One page: nothing is kept for the next, so that others may save and forget meanwhile."""
        rows: list[Json] = []
        size = 0
        for memory in islice(self._opened().export(after=ask.after()), LIMIT_MAX):
            rows.append(to_json(memory))
            size += len(memory.text)
            if size > PAGE_MAX // 8:  # as JSON it may be longer, six times at most
                break
        last = {key: rows[-1][key] for key in ("scope", "owner", "id")} if rows else None
        return {"memories": rows, "after": last, "more": bool(rows)}

    def _import(self, ask: _Request) -> Json:
        if ask.agent is not None:
            raise RelayError(
                "an agent may not import memories: they are others' too",
                hint="the person does that: relay memory import FILE",
                code="forbidden",
            )
        rows = ask.fields.get("memories")
        if not isinstance(rows, list) or len(rows) > IMPORT_MAX:
            raise UsageError(f"an import is a list of at most {IMPORT_MAX} memories")
        memories = [from_json(row) for row in rows]
        counts = self._opened().restore(memories)
        self._pending += counts.new
        return {"new": counts.new, "same": counts.same, "conflicting": counts.conflicting}


class _Request:
    """One request's fields, checked as they are asked for: UsageError says what is wrong."""

    def __init__(self, fields: Json, agent: str | None, run: str | None, now_ms: int) -> None:
        self.fields = fields
        self.agent = agent
        self.run = run
        self.now_ms = now_ms

    def text(self, key: str) -> str:
        """A text that must be there."""
        value = self.fields.get(key)
        if not isinstance(value, str):
            raise UsageError(f"the request has no {key}")
        return value

    def optional(self, key: str) -> str | None:
        """A text, or None."""
        return None if self.fields.get(key) is None else self.text(key)

    def number(self, key: str) -> int | None:
        """A whole number from 0 on, or None."""
        value = self.fields.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise UsageError(f"{key} is no number from 0 on")
        return value

    def after(self) -> tuple[Place, str] | None:
        """Where a page of an export begins: the ``after`` of the one before it."""
        value = self.fields.get("after")
        if value is None:
            return None
        try:
            return Place(Scope(value["scope"]), value["owner"]), str(value["id"])
        except (TypeError, KeyError, ValueError, AttributeError):
            raise UsageError("'after' is not what the page before it gave") from None

    def limit(self) -> int:
        """How many memories are wanted."""
        limit = self.number("limit")
        if limit == 0:
            raise UsageError("a limit of 0 asks for nothing", hint="give 1 or more")
        return min(limit or LIMIT, LIMIT_MAX)

    def meta(self) -> dict[str, Any] | None:
        """What else is to be kept, or None."""
        meta = self.fields.get("meta")
        if meta is not None and not isinstance(meta, dict):
            raise UsageError("the meta of a memory is not an object")
        return meta

    def secrets(self) -> Secrets:
        """What is done with secrets in the text."""
        try:
            return Secrets(self.optional("secrets") or Secrets.REDACT)
        except ValueError:
            raise UsageError(
                f"secrets are not {self.optional('secrets')!r}",
                hint=f"give one of {', '.join(Secrets)}",
            ) from None

    def place(self) -> Place:
        """Where a save goes: the project unless it says otherwise."""
        place = self._place(self._scope() or Scope.PROJECT)
        self.may_write(place)
        return place

    def places(self) -> Sequence[Place]:
        """Where to look: all that apply, or the one scope that is asked for; ``all``: anywhere
        that this one may look."""
        scope = self._scope()
        if scope is not None:
            return [self._place(scope)]
        return applying(self._whose(), self._cwd())

    def may_write(self, place: Place) -> None:
        """Raises RelayError when ``place`` is another agent's own, or not the project in which the
        agent works: a short id may be the beginning of something that it has never seen."""
        if self.agent is None or place.scope is Scope.USER:
            return
        if place.scope is Scope.PROJECT:
            cwd = self._cwd()
            if cwd is not None and place.owner != project_root(cwd):
                raise RelayError(
                    f"that memory belongs to another project: {place.owner}",
                    hint="the person can do that: relay memory forget ID",
                    code="forbidden",
                )
        elif place.owner != self.agent.lower():
            raise RelayError(
                f"that memory is {place.owner}'s own; {self.agent} may not change it",
                hint=f"ask {place.owner}, or the person",
                code="forbidden",
            )

    def _whose(self) -> str | None:
        """Whose own memories are meant: the agent's that asks, or those that a person names."""
        return self.optional("agent") or self.agent

    def _scope(self) -> Scope | None:
        word = self.optional("scope")
        if word is None:
            return None
        try:
            return Scope(word.lower())
        except ValueError:
            raise UsageError(
                f"there is no scope {word[:40]!r}", hint=did_you_mean(word[:40], list(Scope))
            ) from None

    def _place(self, scope: Scope) -> Place:
        if scope is Scope.USER:
            return Place(scope)
        if scope is Scope.AGENT:
            name = self._whose()
            if name is None:
                raise UsageError("whose own memories? no agent is named", hint="give --agent NAME")
            return Place(scope, name)
        cwd = self._cwd()
        if cwd is None:
            raise UsageError(
                "there is no project here: the folder's name is missing, or no Unicode",
                hint="give the scope user",
            )
        return Place(scope, project_root(cwd))

    def _cwd(self) -> str | None:
        cwd = self.optional("cwd")
        if cwd is not None and (not os.path.isabs(cwd) or "\0" in cwd):
            raise UsageError(f"{cwd[:80]!r} is not an absolute path")
        return cwd


def _fitting(rows: list[Json]) -> list[Json]:
    """As many of the rows, from the first, as one answer holds."""
    size = 0
    for index, row in enumerate(rows):
        size += len(json.dumps(row))
        if size > PAGE_MAX and index:
            return rows[:index]
    return rows
