"""The ops ``hook`` and ``hook_answer``: another process asks the hooks of an agent's session.

A request is pushed to the session and answered when the session answers, when its time is up or
when the session goes away: exactly once. What comes later is dropped. Nothing of it is stored, and
a broker that stops forgets it: hooks do things, so nobody may ask again in the asker's name.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from relay.broker.batch import Batch, Client, ClientRequest
from relay.broker.directory import Directory, Member
from relay.broker.routing import present, suggestions
from relay.core.errors import NotFound, RelayError, Timeout, UsageError
from relay.core.ids import new_ulid
from relay.core.message import valid_name
from relay.protocol.broker import HOOK_TIMEOUT_MAX, LINE_MAX, Json, encode, refusal, too_deep

#: How long a session may take, unless the asker says otherwise. Seconds.
TIMEOUT = 30.0
#: Requests without an answer: to one agent, and in all. A further one is refused at once.
PER_AGENT_MAX = 32
PENDING_MAX = 512
#: Bytes of one request, and of all that one agent has in hand.
REQUEST_MAX = 1024 * 1024
AGENT_BYTES_MAX = 4 * 1024 * 1024
#: How deep a request or a response may be nested: whoever reads it must be able to.
DEPTH_MAX = 120
#: As many characters of a correlation id stand in the ledger's records of hooks.
CORRELATION_MAX = 500
#: relay.hooks.mediator.Code.INTERNAL_ERROR: the engine itself is none of the broker's business.
INTERNAL_ERROR = "internal_error"


class _Pending:
    """One request that has no answer yet."""

    __slots__ = ("id", "asker", "n", "session", "agent", "size", "correlation_id", "timer")

    def __init__(
        self, id_: str, asker: Client, n: int, session: Client, agent: str, size: int
    ) -> None:
        self.id = id_
        self.asker = asker
        self.n = n
        self.session = session
        self.agent = agent
        self.size = size
        self.correlation_id = id_
        self.timer: asyncio.TimerHandle | None = None


class Asking:
    """Carries requests to sessions and responses back."""

    def __init__(
        self,
        directory: Directory,
    ) -> None:
        self._directory = directory
        self._pending: dict[str, _Pending] = {}

    # -- the ops

    def hook(self, request: ClientRequest, batch: Batch) -> None:
        """Push a request to the session of ``agent``; it is answered later."""
        self._directory.speaker(request)
        seconds = _seconds(request.fields.get("timeout"))
        member, session = self._asked(request.fields.get("agent"))
        asked = request.fields.get("request")
        if too_deep(asked, DEPTH_MAX):
            raise UsageError(f"the request is nested more than {DEPTH_MAX} deep")
        correlation_id = _correlation_id(asked)
        id_ = new_ulid(batch.now_ms)
        push = encode({"push": "hook", "id": id_, "request": asked, "timeout": seconds})
        self._check_room(member, session, len(push))
        request.client.defer()
        pending = _Pending(id_, request.client, request.n, session, member.name, len(push))
        pending.correlation_id = correlation_id or id_
        self._pending[id_] = pending
        pending.timer = asyncio.get_running_loop().call_later(seconds, self._late, pending, seconds)
        batch.after.append(partial(session.send, push))
        batch.on_failure.append(partial(self._forget, pending))

    def hook_answer(self, request: ClientRequest, batch: Batch) -> Json:
        """The session that was asked answers. ``taken``: whether anybody still waited for it."""
        pending = self._pending.get(str(request.fields.get("id")))
        if pending is None:
            return {"taken": False}
        if pending.session is not request.client:
            raise RelayError("only the session that was asked may answer", code="forbidden")
        self._end(pending, _answer(pending, request.fields.get("response")))
        return {"taken": True}

    # -- what ends a request otherwise

    def gone(self, client: Client) -> None:
        """A connection closed: nobody waits for what it asked, and it answers nothing more."""
        for pending in list(self._pending.values()):
            if pending.asker is client:
                self._forget(pending)
            elif pending.session is client:
                error = RelayError(
                    f"the session of {pending.agent} went away before it answered",
                    hint="its hooks may have run all the same: relay hooks log",
                    code="session_gone",
                    details={"correlation_id": pending.correlation_id},
                )
                self._end(pending, refusal(pending.n, error))

    def forget_all(self) -> None:
        """The broker stops."""
        for pending in list(self._pending.values()):
            self._forget(pending)

    def _late(self, pending: _Pending, seconds: float) -> None:
        error = Timeout(
            f"the hooks of {pending.agent} did not answer within {seconds:g} s",
            hint="they may still run: relay hooks log",
            details={"correlation_id": pending.correlation_id},
        )
        self._end(pending, refusal(pending.n, error))

    def _end(self, pending: _Pending, line: bytes) -> None:
        if pending.id in self._pending:
            self._forget(pending)
            pending.asker.send(line)

    def _forget(self, pending: _Pending) -> None:
        if self._pending.pop(pending.id, None) is None:
            return
        if pending.timer is not None:
            pending.timer.cancel()
        pending.asker.undefer()

    # -- who is asked

    def _asked(self, name: Any) -> tuple[Member, Client]:
        if not isinstance(name, str) or not valid_name(name):
            raise UsageError(f"{str(name)[:100]!r} cannot be an agent's name")
        member = self._directory.get(name)
        if member is None:
            raise self._unknown(name)
        if member.person:
            raise UsageError(f"{member.name} is a person, and has no hooks", hint="name an agent")
        if member.client is None:
            raise _no_session(member)
        return member, member.client

    def _unknown(self, name: str) -> NotFound:
        agents = {key: one for key, one in self._directory.members.items() if not one.person}
        guesses, here = suggestions([name], agents), present(agents)
        if guesses:
            hint = f"did you mean {' or '.join(guesses)}?"
        elif here:
            hint = f"there now: {', '.join(here)}"
        else:
            hint = "no agent runs now; relay wrap --name NAME COMMAND starts one"
        return NotFound(
            f"no agent is called {name}",
            hint=hint,
            details={"did_you_mean": guesses, "present": here},
        )

    def _check_room(self, member: Member, session: Client, size: int) -> None:
        if size > REQUEST_MAX:
            raise UsageError(
                f"a request to hooks of more than {REQUEST_MAX} bytes", code="too_large"
            )
        theirs = [one for one in self._pending.values() if one.session is session]
        # What was asked in vain may still stand before a session that does not read.
        held = max(sum(one.size for one in theirs), session.unsent)
        if len(theirs) >= PER_AGENT_MAX or held + size > AGENT_BYTES_MAX:
            raise _busy(f"the hooks of {member.name} are asked too much already")
        if len(self._pending) >= PENDING_MAX:
            raise _busy(f"{PENDING_MAX} requests to hooks wait for their answers already")


def _no_session(member: Member) -> RelayError:
    if member.live:
        why, hint = f"the session of {member.name} is away at the moment", "try again in a moment"
    else:
        why = f"{member.name} does not run now, so nobody could run its hooks"
        hint = f"relay wrap --name {member.name} COMMAND starts it"
    return RelayError(why, hint=hint, code="no_session")


def _busy(why: str) -> RelayError:
    return RelayError(why, hint="try again in a moment", code="busy")


def _seconds(given: Any) -> float:
    if given is None:
        return TIMEOUT
    number = isinstance(given, int | float) and not isinstance(given, bool)
    if not number or not 0 < given <= HOOK_TIMEOUT_MAX:
        raise UsageError(f"a timeout is a number of seconds up to {HOOK_TIMEOUT_MAX:g}")
    return float(given)


def _correlation_id(asked: Any) -> str:
    """As relay.hooks.bus.correlation_id, bounded. Raises UsageError."""
    fields = asked if isinstance(asked, dict) else {}
    both = (fields.get(key) for key in ("correlation_id", "correlationId"))
    found = next((one for one in both if isinstance(one, str) and one), "")
    if len(found) > CORRELATION_MAX:
        raise UsageError(f"a correlation id has at most {CORRELATION_MAX} characters")
    return found


def _answer(pending: _Pending, response: Any) -> bytes:
    """The line for the asker: the session's response, or why there is none."""
    problem = "the session's response is no response"
    if _is_response(response):
        try:
            line = encode({"n": pending.n, "ok": True, "response": response})
            if len(line) <= LINE_MAX:
                return line
            problem = f"the response has more than {LINE_MAX} bytes"
        except RelayError as error:
            problem = f"the response cannot be sent: {error.message}"
    made = {
        "correlation_id": pending.correlation_id,
        "success": False,
        "error": {"code": INTERNAL_ERROR, "message": problem, "details": {}},
    }
    return encode({"n": pending.n, "ok": True, "response": made})


def _is_response(response: Any) -> bool:
    if not isinstance(response, dict) or too_deep(response, DEPTH_MAX):
        return False
    if not isinstance(response.get("correlation_id"), str):
        return False
    if response.get("success") is True:
        return isinstance(response.get("output"), dict)
    error = response.get("error")
    return (
        response.get("success") is False
        and isinstance(error, dict)
        and isinstance(error.get("code"), str)
        and isinstance(error.get("message"), str)
        and isinstance(error.get("details", {}), dict)
    )
