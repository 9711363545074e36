"""When nothing may be typed into an agent: the person comes first. Pure; time comes in.

Typing into a permission dialog would answer it, typing into a draft would submit it, typing beside
a person garbles both. Each rule here names its reason, which the sender of a message can read.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from relay.agents.base import Blocked
from relay.core.message import AgentState, Message, QueueMode
from relay.core.source_events import StateChange
from relay.protocol import frames
from relay.session.agent_questions import OpenQuestions

#: No typing within so many seconds after a key of the person.
KEY_REST = 1.0
#: A full-screen program is left alone until it has written nothing for this long.
OUTPUT_REST = 0.4
#: … or until no row has changed for so many seconds: a cursor may blink for ever.
UNCHANGED_REST = 1.5
#: Text that is typed into a pager is a command.
PAGER = "a pager or an editor is in front of the agent"
#: A model that does not answer is tried again after so many seconds, unless the end is known.
RETRY = 60.0
#: Seconds to wait for the result of such a trial, which decides about the other messages.
TRIAL = 300.0
#: How often to check whether the account's limit has been lifted, in seconds.
SHARED_LOOK = 5.0
#: A program that works draws. One that has drawn nothing for this many seconds rests, whatever
#: it was heard to do.
STALE = 30.0
#: After so many seconds a delivered message has begun its turn: the next one may follow.
ON_ITS_WAY = 5.0


class Cause(StrEnum):
    """The causes of not typing on which decisions depend; the value is the sentence."""

    DRAFT = "a draft stands in the input line"
    DIALOG_WAITS = "a dialog waits for the person"
    TYPING = "the person is typing"


DRAFT, DIALOG_WAITS, TYPING = Cause


class Guards:
    """The facts about the person and the agent, and the verdict whether to type."""

    def __init__(
        self,
        questions: OpenQuestions | None = None,
        pager: PagerWatch | None = None,
        offset: int = 0,
    ) -> None:
        self._questions = questions
        self._pager = pager or PagerWatch()
        self.heard = offset  # the end of the output for which the screen was judged
        self.state = AgentState.STARTING
        self.sequence = 0
        self._draft = False
        self.entered = False  # whether the person's last key was Enter
        self._last_key: float | None = None
        self._last_output: float | None = None
        self._stopped = False
        self._stall = ""  # the reason for the state of a busy agent that stands still
        self._limit: tuple[str, float] | None = None  # why, and when to try again
        self._shared = "", float("-inf")  # the same for another agent with the same account
        self._runs_since: float | None = None  # when the running turn began
        self._answer = False  # the seeming draft is one key that answered a question

    def changed(self, change: StateChange, now: float) -> None:
        """The agent's source reports a state."""
        self.state, self._stall = change.state, ""
        if change.state not in (AgentState.BUSY, AgentState.BLOCKED):
            self._runs_since = None
        elif self._runs_since is None:
            self._runs_since = now
        if change.state is AgentState.LIMITED:
            after = RETRY if change.retry is None else change.retry
            self._limit = change.reason or "its model does not answer", now + after
        elif change.state is AgentState.BUSY and self._limit is not None:
            self._limit = self._limit[0], now + TRIAL  # the beginning of a turn is no answer yet
        else:
            self._limit = None

    def limited(self, now: float) -> Blocked | None:
        """Whether a message would reach a model that does not answer."""
        if self._limit is not None and now < self._limit[1]:
            return Blocked(self._limit[0], self._limit[1] - now)
        if now < self._shared[1]:  # that limit may be lifted at any moment
            return Blocked(self._shared[0], min(self._shared[1] - now, SHARED_LOOK))
        return None

    def account_limited(self, why: str, until: float) -> None:
        """Another agent with the same account has a usage limit, which lasts ``until`` then."""
        self._shared = why, until

    def tried(self, now: float) -> None:
        """A message was delivered. After a limit it is a trial: no other may follow it yet."""
        if self._limit is not None:
            self._limit = self._limit[0], max(self._limit[1], now + RETRY)

    def activity(self, sequence: int, kind: bytes, now: float) -> None:
        """The person pressed keys: one of the ACTIVITY bytes of ``frames``."""
        paged = self._pager.takes_key(kind, now)
        if self._questions is not None:
            self._questions.pressed(sequence, kind, paged=paged)
        self.sequence = sequence
        self._last_key = now
        if not paged:
            self._answer = kind == frames.TYPED and not self._draft and self._asks()
            self._draft = kind == frames.TYPED
            self.entered = kind == frames.ENTERED

    def output(self, now: float, size: int = 0) -> None:
        """The agent wrote ``size`` bytes."""
        self._last_output, self._stall = now, ""
        self.heard += size
        if self._questions is not None:
            self._questions.output()

    def job(self, stopped: bool) -> None:
        """The agent was stopped (Ctrl-Z) or goes on."""
        self._stopped = stopped

    def shown(self, change: StateChange) -> StateChange:
        """The agent's state for others: stopped while it is (Ctrl-Z)."""
        if self._stopped:
            return StateChange(AgentState.STOPPED, "Ctrl-Z; fg in its terminal")
        if self._stall and change.state is AgentState.BUSY:
            return StateChange(AgentState.BUSY, self._stall)
        return change

    def stalled(self, why: str) -> None:
        """The agent is busy and stands still: ``why`` is the reason for its state until it does
        something."""
        self._stall = why

    @property
    def draft(self) -> bool:
        """Whether the person has typed something and not sent it, judging by the keys."""
        return self._draft

    def turn_since(self, now: float) -> float | None:
        """When the running turn began; None if none is known to run."""
        stale = self.state is AgentState.BUSY and self.quiet_for(now) >= STALE
        return None if stale else self._runs_since

    def quiet_for(self, now: float) -> float:
        """Seconds since the agent last wrote something."""
        return now - self._last_output if self._last_output is not None else float("inf")

    def person(self, now: float, *, composer: str = "unknown") -> Blocked | None:
        """Whether the person is at the keyboard, or has a draft standing.

        ``composer`` is what the screen says of the input line (``empty``, ``draft``, ``dialog``,
        ``busy``: there is none now, ``unknown``); where it can tell, it outranks the memory of
        keys.
        """
        if self._stopped:
            return Blocked("the agent is stopped (Ctrl-Z)")
        if self.state is AgentState.BLOCKED or composer == "dialog":
            return Blocked(DIALOG_WAITS)
        if self._pager.there(now):
            return Blocked(PAGER, 0.5)
        if composer == "busy":
            return Blocked("the agent is busy", 0.1)
        if self._last_key is not None and now - self._last_key < KEY_REST:
            return Blocked(TYPING, KEY_REST - (now - self._last_key))
        if self._answer and not self._asks():
            self._draft = self._answer = False  # the question has gone with that key
        if composer == "draft" or (self._draft and not self._answer and composer != "empty"):
            return Blocked(DRAFT, 1.0)
        return None

    def answered(self, rows: list[str], cursor: tuple[int, int]) -> None:
        """relay has typed the person's answer to the question on these rows."""
        if self._questions is not None:
            self._questions.enters(rows, cursor)

    def _asks(self) -> bool:
        asks = self._questions is not None and bool(self._questions.asks())
        return asks or self.state is AgentState.BLOCKED

    def blocked(self) -> bool:
        """Whether the agent itself cannot take Enter now: stopped, or asking for permission."""
        return self._stopped or self.state is AgentState.BLOCKED

    def drawing(self, now: float, changed_at: float) -> Blocked | None:
        """Whether a full-screen program rests; ``changed_at`` is when a row of it last changed."""
        rest = min(OUTPUT_REST - self.quiet_for(now), UNCHANGED_REST - (now - changed_at))
        return Blocked("the agent is busy", max(rest, 0.02)) if rest > 0 else None


def waits(message: Message, guards: Guards, now: float, underway: float | None) -> Blocked | None:
    """Why ``message`` must not go to an agent that would take it into the running turn.

    ``underway``: for this many seconds another one has been on its way, None where none is.
    """
    if message.mode is QueueMode.STEER or message.sender_kind == "relay":
        return None
    if underway is not None and underway < ON_ITS_WAY:
        return Blocked("another message is on its way", 0.1)
    if guards.state is AgentState.BLOCKED:
        return Blocked(DIALOG_WAITS, 1.0)
    if guards.turn_since(now) is not None:
        return Blocked("the agent is busy", 1.0)
    return None


#: The kernel is asked at most this often, and exactly this often while a pager is there. Seconds.
LOOK_GAP, LOOK_AGAIN = 0.01, 0.25
#: A key within so many seconds after a pager was there may be the one that ended it, though output
#: has come since.
KEY_LATE = 0.5


class PagerWatch:
    """Whether a pager or an editor has the agent's terminal: it shows text, and says nothing.

    A directive on a page in a pager was said by nobody. Keys pressed there are no draft, and typed
    text would be commands (``!`` runs a program in less, more and vi). The kernel knows which
    program is in front; the screen does not show it.

    Caches the answer of ``in_front`` for the agent, the process ``pid``; None: unknown.
    """

    def __init__(
        self, in_front: Callable[[int], bool | None] = lambda pid: None, pid: int = 0
    ) -> None:
        self._in_front, self._pid = in_front, pid
        self._looked_at = self._seen_at = float("-inf")
        self._there = False
        self._wrote = False  # it was there when the terminal was last written to

    def there(self, now: float, *, gap: float = LOOK_GAP) -> bool:
        """Whether a pager is there; looks again if the answer is older than ``gap`` seconds."""
        if now - self._looked_at >= gap:
            self._looked_at = now
            found = self._in_front(self._pid)
            self._there = self._there if found is None else found
            self._seen_at = now if self._there else self._seen_at
        return self._there

    def output(self, now: float) -> bool:
        """The agent's terminal was written to. Returns whether a pager is there."""
        self._wrote = self.there(now)
        return self._wrote

    def takes_key(self, kind: bytes, now: float) -> bool:
        """Whether a key is for a pager: one of the ACTIVITY bytes of ``frames``.

        Keys are read in their order with the output, however late. So a key after a pager's output
        is its own, even if it has ended it; and Enter before that is of the line that has started
        it, even if it is there by now.
        """
        if self._wrote:
            return True
        if self.there(now, gap=0.0):
            return kind != frames.ENTERED
        return now - self._seen_at < KEY_LATE

    def deadline(self) -> float | None:
        """When to look again without output: a pager may end silently."""
        return self._looked_at + LOOK_AGAIN if self._there else None
