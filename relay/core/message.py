"""The records and enums that everything shares. No I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any

#: Bodies beyond this are refused with an error, never cut. In bytes of UTF-8.
BODY_MAX = 1024 * 1024


class HeldFor(IntEnum):
    """Why a delivery waits until the person lets it go on. The ledger holds the number."""

    NOTHING = 0  # it does not
    RATE = 1  # these two exchange too much: all that is between them waits
    HOPS = 2  # too many messages followed from one another
    SHOWN = 3  # a shell showed it, and nobody typed it
    CAP = 4  # the recipient has used up what it may cost


class State(StrEnum):
    """The states of one delivery; docs/messages.md says what each means."""

    QUEUED = "queued"
    WAITING = "waiting"
    DELIVERING = "delivering"
    SUBMITTED = "submitted"
    SEEN = "seen"
    HELD = "held"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        return self is State.SEEN or self is State.FAILED or self is State.CANCELLED


#: The attribute of a notice whose words are those of a person's hook or handler.
BY_HOOK = {"by": "hook"}
#: The attribute of a message whose sender waits for the end of the turn that answers it.
REPORTED = {"report": "turn"}
#: The attribute of such a message to which only a message is an answer.
AWAITED = {"await": "message"}


class QueueMode(StrEnum):
    """What a message does when its receiver is busy."""

    FOLLOWUP = "followup"
    STEER = "steer"
    COLLECT = "collect"
    INTERRUPT = "interrupt"


#: What may be asked for.
MODES = tuple(mode.value for mode in QueueMode)


class AgentState(StrEnum):
    """What a wrapped agent is doing, as far as its source can tell.

    ``blocked``: a dialog waits for the person. ``limited``: its model does not answer at present (a
    usage limit, an API error). ``stopped``: by Ctrl-Z. ``ending``: its terminal has gone, and it is
    being told.
    """

    STARTING = "starting"
    IDLE = "idle"
    BUSY = "busy"
    BLOCKED = "blocked"
    LIMITED = "limited"
    STOPPED = "stopped"
    ENDING = "ending"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class Message:
    """One message as its receiver gets it. ``created_at`` is in milliseconds since the epoch.

    ``nonce`` is what its sender cannot know: the broker makes it for this receiver once it has the
    message, the same at each try. Empty where the broker is older than that.
    """

    id: str
    sender: str
    to: str
    body: str
    created_at: int
    mode: QueueMode = QueueMode.FOLLOWUP
    thread: str | None = None
    sender_kind: str = "agent"  # agent | person | relay | channel: somebody outside of relay
    attempt: int = 0  # earlier tries that may have landed
    nonce: str = ""
    attributes: dict[str, str] = field(default_factory=dict)
    #: What the turn that it begins may use (relay.core.dispatch.PermissionSet, as JSON); None where
    #: it was not dispatched. No sender can set it.
    permissions: dict[str, Any] | None = None
    #: The kernel has said that the person whose broker it is wrote it: agents may take it for
    #: their user's word. Nobody can claim it, and what is not known is not proven.
    proven: bool = False
    #: Who has come and gone since the receiver was told last, in the broker's words.
    presence: str = ""
    #: What the person's automations have added to it, as JSON.
    context: str = ""
    #: Its receiver was told at its start what an envelope means (relay.agents.launch.Primer).
    primed: bool = False

    @property
    def wants_turn(self) -> bool:
        """Whether its sender is to be told of the turn that answers it."""
        return self.attributes.items() >= REPORTED.items()
