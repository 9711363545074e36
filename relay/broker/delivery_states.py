"""The life of one delivery. Everything that moves a delivery from state to state is in here.

    held, waiting -> queued <-> delivering -> submitted -> seen
         \\____________\\________________________________-> failed, cancelled

``held`` waits for the person's decision, ``waiting`` for somebody of that name; neither is offered
to a session. ``queued`` may say in its reason what stands in the way. The last three are final.
``submitted`` may say why nothing has proven it yet.
``delivering`` is stored before the first byte is typed, so the number of attempts never understates
how often the message may have arrived. After a crash the delivery is offered with that number, and
the session checks whether the message has arrived before it types again.
"""

from __future__ import annotations

from dataclasses import replace

from relay.core.errors import UsageError
from relay.core.message import State
from relay.ledger.schema import Delivery

#: How long a message to an unknown name waits.
WAITING_FOR_MS = 7 * 24 * 3600 * 1000

_ALLOWED: dict[State, frozenset[State]] = {
    State.QUEUED: frozenset(
        {State.DELIVERING, State.SEEN, State.QUEUED, State.FAILED, State.CANCELLED}
    ),
    # Back to queued: a draft or a dialog came in between, so nothing was typed.
    State.DELIVERING: frozenset(
        {State.DELIVERING, State.SUBMITTED, State.SEEN, State.QUEUED, State.FAILED}
    ),
    # Back to delivering: it is proven not to have arrived, so it is tried again.
    State.SUBMITTED: frozenset(
        {State.DELIVERING, State.SUBMITTED, State.SEEN, State.QUEUED, State.FAILED}
    ),
    State.WAITING: frozenset({State.QUEUED, State.FAILED, State.CANCELLED}),
    State.HELD: frozenset({State.QUEUED, State.FAILED, State.CANCELLED}),
    State.SEEN: frozenset(),
    State.FAILED: frozenset(),
    State.CANCELLED: frozenset(),
}
#: The states that a session may report of its agent's deliveries; the broker sets the others.
REPORTED = frozenset({State.QUEUED, State.DELIVERING, State.SUBMITTED, State.SEEN, State.FAILED})
_NEED_REASON = frozenset({State.HELD, State.WAITING, State.FAILED, State.CANCELLED})
#: ``seen`` may say that the message went in another mode than the sender asked for.
_REASONED = _NEED_REASON | {State.QUEUED, State.DELIVERING, State.SUBMITTED, State.SEEN}


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

    A repeated report changes nothing and returns the same object, so that requests may be
    repeated in order after lost answers. For ``delivering``, ``attempt`` is the
    number of the try that begins: one already counted is a repetition, the next one a new try;
    without it every report is a new try, but for one that tells why the try takes long. Raises
    UsageError for a step that does not exist.
    """
    if state in _NEED_REASON and not reason:
        raise UsageError(f"a delivery that is {state} needs a reason")
    if _repeats(delivery, state, reason, attempt):
        return delivery
    if delivery.state is State.CANCELLED:
        # By this code the session that holds it knows that it must drop it.
        raise UsageError(f"it is cancelled: {delivery.reason}", code=State.CANCELLED.value)
    if state not in _ALLOWED[delivery.state]:
        raise UsageError(f"a delivery cannot go from {delivery.state} to {state}")
    step = replace(
        delivery,
        state=state,
        reason=reason if state in _REASONED else None,
        proof=proof if proof is not None else delivery.proof,
        updated_ms=now_ms,
    )
    if state is State.DELIVERING and not _goes_on(delivery, state, reason):
        if attempt is not None and attempt != delivery.attempts + 1:
            raise UsageError(f"attempt {attempt} cannot follow attempt {delivery.attempts}")
        return replace(step, attempts=delivery.attempts + 1, delivering_ms=now_ms)
    if state is State.SUBMITTED and delivery.state is not State.SUBMITTED:
        return replace(step, submitted_ms=now_ms)
    return step


def _goes_on(delivery: Delivery, state: State, reason: str | None) -> bool:
    return bool(reason) and state is delivery.state is State.DELIVERING


def _repeats(delivery: Delivery, state: State, reason: str | None, attempt: int | None) -> bool:
    if _goes_on(delivery, state, reason):
        return reason == delivery.reason
    if state is State.DELIVERING:
        return attempt is not None and 1 <= attempt <= delivery.attempts
    if state is State.SUBMITTED and delivery.state is State.SEEN:
        return True  # ``seen`` says it already
    if state is State.QUEUED and reason != delivery.reason:
        return False
    if state is State.SUBMITTED and reason and reason != delivery.reason:
        return False  # why nothing has proven it yet
    return state is delivery.state


def nobody(name: str) -> str:
    """Why a message to an unknown name waits."""
    return f"nobody is called {name} yet"


def expired(name: str) -> str:
    """Why a message fails for a name that never appeared."""
    days = WAITING_FOR_MS // (24 * 3600 * 1000)
    return f"nobody called {name} came within {days} days"


def absent(name: str) -> str:
    """Why a message to an agent that has ended is queued."""
    return f"{name} is not running"


def can_cancel(delivery: Delivery) -> bool:
    """Whether it can be withdrawn: nothing of it can have reached the recipient."""
    return State.CANCELLED in _ALLOWED[delivery.state]
