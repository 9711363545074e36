"""The ops of hooks: ask an agent's session, and store and find the runs of hooks.

``ask`` carries a request of one kind ("hooks", "screen") to a session. It gets exactly one answer:
when the session answers, when its time is up, or when the session ends. A later answer is dropped.
Requests are not stored, and the next broker does not repeat them, because they have effects.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from relay.broker.batch import AnyRequest, Batch, Client, ClientRequest, Served, serve
from relay.broker.directory import Member
from relay.broker.kernel import Kernel
from relay.broker.ops_query import fitting
from relay.broker.routing import no_such_name, present, suggestions
from relay.core.agent_names import valid_name
from relay.core.errors import NotFound, RelayError, Timeout, UsageError
from relay.core.ids import new_ulid
from relay.core.visible import visible
from relay.ledger import queries
from relay.ledger.schema import INVOCATION_COLUMNS
from relay.protocol.agent_ops import (
    ANSWER,
    ASK,
    HOOK_LOG,
    HOOKS_RAN,
    AnswerTaken,
    AnswerToAsk,
    AskQuery,
    HookLogQuery,
    HookLogRows,
    HooksRan,
    HooksStored,
)
from relay.protocol.broker import (
    ASK_TIMEOUT_MAX,
    LINE_MAX,
    Json,
    encode,
    error_from,
    refusal,
    too_deep,
)

#: How long a session may take, unless the asker says otherwise. Seconds.
TIMEOUT = 30.0
#: Requests without an answer: to one agent, and in all. The next one is refused at once.
PER_AGENT_MAX = 32
PENDING_MAX = 512
#: Bytes of one request, and of all requests to one agent.
REQUEST_MAX = 1024 * 1024
AGENT_BYTES_MAX = 4 * 1024 * 1024
#: How deep a request or a response may be nested: a JSON reader must be able to read it.
DEPTH_MAX = 120
#: Records of hooks in one request, characters of one text in them, and rows of one answer.
RECORDS_MAX = 200
TEXT_MAX = 8000
ROWS_MAX = 1000
#: Kinds that an agent may ask its own session for.
OWN = frozenset({"governance"})
#: Kinds that an agent may ask of its own session, and with the right to it of others.
_RIGHTS = {"screen": "peek", "transcript": "transcript"}
#: What only the person may do, in the words of the refusal to an agent.
_WHAT = {
    "hooks": "have hooks run in a session",
    "governance": "choose another agent's intent",
    "choose": "answer what an agent asks",
    "interrupt": "interrupt an agent",
    "reload": "reload an agent",
}
_TEXTS = ("event", "hook", "kind", "source", "correlation_id", "decision")
_LONG_TEXTS = ("stdout", "stderr", "error")


#: Gets the session's response, or None and the reason. Returns the answer for the asker.
Ended = Callable[[Json | None, str], Mapping[str, object]]


@dataclass(eq=False, slots=True)
class _Pending:
    """One unanswered request."""

    id: str
    asker: Client
    #: The asker's number for it.
    n: int
    session: Client
    agent: str
    #: Bytes.
    size: int
    ended: Ended | None = None
    timer: asyncio.TimerHandle | None = None


class SessionRequests:
    """Carries requests to sessions and responses back."""

    def __init__(self, kernel: Kernel) -> None:
        self._directory = kernel.directory
        self._rights = kernel.rights
        self._pending: dict[str, _Pending] = {}

    def ops(self) -> list[Served]:
        return [serve(ASK, self.ask), serve(ANSWER, self.answer)]

    # -- the ops

    def ask(self, request: ClientRequest[AskQuery], batch: Batch) -> None:
        """Push a request to the session of ``agent``; it is answered later.

        Refused to agents: the hooks' answer to an input that an agent made up would seem to come
        from relay. But an agent may ask its own session for the kinds of OWN, and other ones for
        what its rights allow.
        """
        kind, asked = request.fields["kind"], request.fields.get("request")
        name, by = request.fields.get("agent"), "person"
        own = self._directory.speaker(request) if kind in OWN else None
        if own is not None and name in (None, own.name):
            name, by = own.name, "agent"
        elif kind in _RIGHTS:
            about = self._directory.get(name) if name else None
            by = "agent" if self._rights.check(request, _RIGHTS[kind], about) else "person"
        else:
            self._directory.check_person(request, _WHAT.get(kind, _WHAT["hooks"]))
        seconds = _seconds(request.fields.get("timeout"))
        self.forward(request, batch, name, kind, asked, seconds, by=by)

    def forward(
        self,
        request: AnyRequest,
        batch: Batch,
        name: str | None,
        kind: str,
        asked: object,
        seconds: float,
        ended: Ended | None = None,
        *,
        by: str = "person",
    ) -> None:
        """Push a request that was checked already."""
        member, session = self._asked(name)
        if too_deep(asked, DEPTH_MAX):
            raise UsageError(f"the request is nested more than {DEPTH_MAX} deep")
        id_ = new_ulid(batch.now_ms)
        push = encode(
            {
                "push": "ask",
                "id": id_,
                "kind": kind,
                "by": by,
                "request": asked,
                "timeout": seconds,
            }
        )
        self._check_room(member, session, len(push))
        request.client.defer()
        pending = _Pending(id_, request.client, request.n, session, member.name, len(push), ended)
        self._pending[id_] = pending
        pending.timer = asyncio.get_running_loop().call_later(seconds, self._late, pending, seconds)
        batch.after.append(partial(session.send, push))
        batch.on_failure.append(partial(self._forget, pending))

    def answer(self, request: ClientRequest[AnswerToAsk], batch: Batch) -> AnswerTaken:
        """Take a session's answer. ``taken``: whether the asker still waited for it."""
        pending = self._pending.get(request.fields["id"])
        if pending is None:
            return {"taken": False}
        if pending.session is not request.client:
            raise RelayError("only the session that was asked may answer", code="forbidden")
        self._end(pending, _line(pending, request.fields))
        return {"taken": True}

    # -- what ends a request otherwise

    def gone(self, client: Client) -> None:
        """A connection closed: drop its requests, and end those that it should have answered."""
        for pending in list(self._pending.values()):
            if pending.asker is client:
                self._forget(pending)
            elif pending.session is client:
                error = RelayError(
                    f"the session of {pending.agent} went away before it answered",
                    hint="its hooks may have run all the same: relay hooks log",
                    code="session_gone",
                )
                self._end(pending, refusal(pending.n, error))

    def forget_all(self) -> None:
        for pending in list(self._pending.values()):
            self._forget(pending)

    def _late(self, pending: _Pending, seconds: float) -> None:
        error = Timeout(
            f"the session of {pending.agent} did not answer within {seconds:g} s",
            hint="its hooks may still run: relay hooks log",
        )
        self._end(pending, refusal(pending.n, error))

    def _end(self, pending: _Pending, line: bytes) -> None:
        if pending.id in self._pending:
            self._forget(pending)
            pending.asker.send(line)

    def _forget(self, pending: _Pending) -> None:
        if self._pending.pop(pending.id, None) is None:
            return
        if pending.ended is not None:
            pending.ended(None, "nobody knows what came of it")
        if pending.timer is not None:
            pending.timer.cancel()
        pending.asker.undefer()

    # -- who is asked

    def _asked(self, name: str | None) -> tuple[Member, Client]:
        if name is None or not valid_name(name):
            raise UsageError(f"{str(name)[:100]!r} cannot be an agent's name")
        member = self._directory.get(name)
        if member is None:
            raise self._unknown(name)
        if member.person:
            raise UsageError(f"{member.name} is a person, and has no session", hint="name an agent")
        if member.client is None:
            raise _no_session(member)
        return member, member.client

    def _unknown(self, name: str) -> NotFound:
        agents = {key: one for key, one in self._directory.members.items() if not one.person}
        what = f"no agent is called {name}"
        return no_such_name(what, suggestions([name], agents), present(agents))

    def _check_room(self, member: Member, session: Client, size: int) -> None:
        if size > REQUEST_MAX:
            raise UsageError(
                f"a request to a session of more than {REQUEST_MAX} bytes", code="too_large"
            )
        theirs = [one for one in self._pending.values() if one.session is session]
        # Requests whose time is up may still wait for a session that does not read.
        held = max(sum(one.size for one in theirs), session.unsent)
        if len(theirs) >= PER_AGENT_MAX or held + size > AGENT_BYTES_MAX:
            raise _busy(f"the session of {member.name} is asked too much already")
        if len(self._pending) >= PENDING_MAX:
            raise _busy(f"{PENDING_MAX} requests to sessions wait for their answers already")


class HookRuns:
    """Stores and finds the runs of hooks."""

    def __init__(self, kernel: Kernel) -> None:
        self._ledger = kernel.ledger
        self._directory = kernel.directory
        self._rights = kernel.rights

    def ops(self) -> list[Served]:
        return [serve(HOOKS_RAN, self.hooks_ran), serve(HOOK_LOG, self.hook_log)]

    def hooks_ran(self, request: ClientRequest[HooksRan], batch: Batch) -> HooksStored:
        """Store the hooks that a session has run: ``records`` of relay.hooks.hook_log."""
        member = self._directory.member_of(request.client)
        if member is None:
            raise RelayError("only an agent's session tells of its hooks", code="forbidden")
        run, records = member.record.run or "", request.fields["records"]
        return {"stored": self.store(records, run, member.name, batch.now_ms)}

    def store(self, records: Sequence[Json], run: str, agent: str, now_ms: int) -> int:
        """Append records of hooks. Raises UsageError for anything else."""
        if len(records) > RECORDS_MAX:
            raise UsageError(f"at most {RECORDS_MAX} records at a time")
        rows = [_row(record, run, agent, now_ms) for record in records]
        if rows:
            self._ledger.begin()
            self._ledger.add_invocations(rows)
        return len(rows)

    def hook_log(self, request: ClientRequest[HookLogQuery], batch: Batch) -> HookLogRows:
        """The newest runs of hooks, and of route functions, that match; newest first."""
        fields = request.fields
        limit = fields.get("limit")
        limit = 50 if limit is None else limit
        if not 0 < limit <= ROWS_MAX:
            raise UsageError(f"the limit must be 1 to {ROWS_MAX}, not {limit!r}")
        wanted = {
            "agent": self._rights.reader(request).own or fields.get("agent"),
            "hook": fields.get("hook"),
            "event": fields.get("event"),
            "kind": fields.get("kind"),
        }
        found = queries.hook_log(
            self._ledger,
            {name: text for name, text in wanted.items() if text},
            limit + 1,
            failed=bool(fields.get("failed")),
            quiet=bool(fields.get("quiet")),
        )
        rows, cut = fitting(found[:limit])
        return {"rows": rows, "more": cut or len(found) > limit}


def _no_session(member: Member) -> RelayError:
    if member.live:
        why, hint = (
            f"the session of {member.name} cannot be reached at the moment",
            "try again in a moment",
        )
    else:
        why = f"{member.name} is not running"
        hint = f"relay resume {member.name} starts it again"
    return RelayError(why, hint=hint, code="no_session")


def _busy(why: str) -> RelayError:
    return RelayError(why, hint="try again in a moment", code="busy")


def _seconds(given: float | None) -> float:
    if given is None:
        return TIMEOUT
    if not 0 < given <= ASK_TIMEOUT_MAX:
        raise UsageError(f"a timeout is a number of seconds up to {ASK_TIMEOUT_MAX:g}")
    return given


def _line(pending: _Pending, answer: AnswerToAsk) -> bytes:
    """The line for the asker: the session's response or error, or why there is none."""
    n, response, error = pending.n, answer.get("response"), answer.get("error")
    ended, pending.ended = pending.ended, None
    problem = "the session's response makes no sense"
    try:
        if isinstance(error, dict) and not too_deep(error, DEPTH_MAX):
            failed = error_from(error)
            if ended is not None:
                ended(None, failed.message)
            return refusal(n, failed)
        if isinstance(response, dict) and not too_deep(response, DEPTH_MAX):
            said = {"response": response} if ended is None else ended(response, "")
            line = encode({"n": n, "ok": True, **said})
            if len(line) <= LINE_MAX:
                return line
            problem = f"the response has more than {LINE_MAX} bytes"
    except RelayError as failed:
        problem = f"the response cannot be sent: {failed.message}"
    if ended is not None and not isinstance(response, dict):
        ended(None, problem)
    return refusal(n, RelayError(problem, code="internal_error"))


def _row(record: Json, run: str, agent: str, now_ms: int) -> tuple[Any, ...]:
    duration = record.get("duration")
    seconds = float(duration) if isinstance(duration, int | float) else 0.0
    status = record.get("exit_status")
    values: dict[str, Any] = {
        "created_ms": now_ms,
        "run": run,
        "agent": agent,
        "success": int(bool(record.get("success"))),
        "duration": seconds if math.isfinite(seconds) else 0.0,
        "exit_status": status if isinstance(status, int) else None,
    }
    for name in _TEXTS:
        values[name] = visible(str(record.get(name) or "")[:500])
    for name in _LONG_TEXTS:
        values[name] = str(record.get(name) or "")[:TEXT_MAX]
    return tuple(values[name] for name in INVOCATION_COLUMNS[1:])
