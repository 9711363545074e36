"""The life of one delivery. Everything that moves a delivery from state to state is in here.

    queued -> delivering -> submitted -> seen
       \\___________\\___________\\______-> held(reason), failed(reason)

``seen`` and ``failed`` are final. ``delivering`` is stored before a byte is typed, so the number
of attempts never understates what may have landed: after a crash the next try is offered with it,
and the session looks before it types.
"""

from __future__ import annotations

from dataclasses import replace

from relay.core.errors import UsageError
from relay.core.message import State
from relay.ledger.schema import Delivery

#: How long a message waits for somebody of an unknown name.
HELD_FOR_MS = 7 * 24 * 3600 * 1000

_ALLOWED: dict[State, frozenset[State]] = {
    State.QUEUED: frozenset({State.DELIVERING, State.SEEN, State.HELD, State.FAILED}),
    # Back to queued: nothing was typed after all. Held: a draft or a dialog came in between.
    State.DELIVERING: frozenset(
        {State.DELIVERING, State.SUBMITTED, State.SEEN, State.QUEUED, State.HELD, State.FAILED}
    ),
    # Back to delivering: it demonstrably did not land, so it is tried again.
    State.SUBMITTED: frozenset(
        {State.DELIVERING, State.SEEN, State.QUEUED, State.HELD, State.FAILED}
    ),
    State.HELD: frozenset({State.QUEUED, State.DELIVERING, State.SEEN, State.FAILED, State.HELD}),
    State.SEEN: frozenset(),
    State.FAILED: frozenset(),
}
_NEED_REASON = frozenset({State.HELD, State.FAILED})


def advance(
    delivery: Delivery,
    state: State,
    now_ms: int,
    *,
    reason: str | None = None,
    proof: str | None = None,
    attempt: int | None = None,
) -> Delivery:
    """The delivery in its next state.

    A report that repeats what is known changes nothing and returns the same object, so that
    requests may be repeated in order after lost answers. For ``delivering``, ``attempt`` is the
    number of the try that begins: one already counted is a repetition, the next one a new try;
    without it every report is a new try. Raises UsageError for a step that does not exist.
    """
    if state in _NEED_REASON and not reason:
        raise UsageError(f"a delivery that is {state} needs a reason")
    if _repeats(delivery, state, reason, attempt):
        return delivery
    if state not in _ALLOWED[delivery.state]:
        raise UsageError(f"a delivery cannot go from {delivery.state} to {state}")
    step = replace(
        delivery,
        state=state,
        reason=reason if state in _NEED_REASON else None,
        proof=proof if proof is not None else delivery.proof,
        updated_ms=now_ms,
    )
    if state is State.DELIVERING:
        if attempt is not None and attempt != delivery.attempts + 1:
            raise UsageError(f"attempt {attempt} cannot follow attempt {delivery.attempts}")
        return replace(step, attempts=delivery.attempts + 1, delivering_ms=now_ms)
    if state is State.SUBMITTED:
        return replace(step, submitted_ms=now_ms)
    return step


def _repeats(delivery: Delivery, state: State, reason: str | None, attempt: int | None) -> bool:
    if state is State.DELIVERING:
        return attempt is not None and 1 <= attempt <= delivery.attempts
    if state is State.SUBMITTED and delivery.state is State.SEEN:
        return True  # seen says so already
    if state is State.HELD and reason != delivery.reason:
        return False
    return state is delivery.state


def nobody(name: str) -> str:
    """Why a message to an unknown name is held."""
    if name.startswith("#"):
        return f"nobody is in {name} yet"
    return f"nobody is called {name} yet"


def expired(name: str) -> str:
    """Why it fails when the name never appeared."""
    days = HELD_FOR_MS // (24 * 3600 * 1000)
    return f"nobody called {name} came within {days} days"
