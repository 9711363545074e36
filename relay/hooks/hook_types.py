"""Types that the parts of the hook engine hand to each other. Pure; no behaviour beyond views.

registry -> planner -> runner -> aggregator: a ``HookDefinition`` is registered, a ``Plan`` holds
those that an event selects, each of them ends as a ``HookRun``, and all results together are
one ``Aggregated``. Times are in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar

from relay.core.dispatch import TICK_KIND
from relay.hooks.binding import Binding
from relay.hooks.events import HookEventName

R = TypeVar("R")


class Decision(StrEnum):
    """What a gate's hook says of what is about to happen; a later member beats an earlier one."""

    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"


class OnFailure(StrEnum):
    """What it means that a hook failed to run: the thing it guards goes on, or does not."""

    ALLOW = "allow"
    BLOCK = "block"


class Dialect(StrEnum):
    """Whose conventions a hook was written for: the names of events, matchers and output fields."""

    RELAY = "relay"
    CLAUDE = "claude"
    GEMINI = "gemini"


class ToolMode(StrEnum):
    """Which tools a model may choose from; a later member beats an earlier one."""

    AUTO = "AUTO"
    ANY = "ANY"
    NONE = "NONE"


@dataclass(frozen=True, eq=False, slots=True)
class Callee:
    """One registered function. Compared by identity: registered twice, it runs twice."""

    #: For people.
    name: str
    function: Callable[..., object]
    binding: Binding
    is_async: bool
    #: Seconds; None means the configured default.
    timeout: float | None
    #: The file or program that it comes from.
    source: str


@dataclass(frozen=True, slots=True)
class Command:
    """An external program: either ``argv`` or ``shell``."""

    #: Run as it is.
    argv: tuple[str, ...] = ()
    #: A line for ``sh -c``.
    shell: str = ""
    #: Where it starts; "" means the agent's working directory.
    cwd: str = ""
    #: Added to its environment.
    env: tuple[tuple[str, str], ...] = ()
    #: Further files that it reads or runs, which are trusted with it.
    files: tuple[str, ...] = ()
    #: The path and hash of each file that must still be as it was trusted.
    programs: tuple[tuple[str, str], ...] = ()
    #: Why it may not run at all; "" when it may.
    refusal: str = ""
    #: The file whose trust it runs by, "" for one of a program's own.
    trusted_by: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Url:
    """An HTTP endpoint that gets the input as a POST and answers with the output."""

    url: str
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, eq=False, slots=True)
class HookDefinition:
    """One hook: what it runs, for what, and what its failure means."""

    event: HookEventName
    name: str
    action: Callee | Command | Url
    #: The file or program that it comes from.
    source: str
    #: Chooses by what the event is about, in the manner of ``dialect``; "" matches everything.
    matcher: str = ""
    #: A higher one runs earlier, then the lower ``order`` (of registration).
    priority: int = 0
    order: int = 0
    #: Seconds.
    timeout: float | None = None
    on_failure: OnFailure = OnFailure.ALLOW
    #: One such hook makes all of its plan run one after the other.
    sequential: bool = False
    trusted: bool = True
    dialect: Dialect = Dialect.RELAY

    @property
    def callee(self) -> Callee | None:
        """The function, where it is one."""
        return self.action if isinstance(self.action, Callee) else None

    @property
    def kind(self) -> str:
        """``function``, ``command`` or ``http``."""
        if isinstance(self.action, Callee):
            return "function"
        return "command" if isinstance(self.action, Command) else "http"


@dataclass(frozen=True, eq=False, slots=True)
class RouteFunction:
    """A function that says of an event whether, and how, it becomes a dispatch."""

    #: Its own in its configuration; with the configuration's key before it, the hook id.
    name: str
    callee: Callee
    #: Of which kinds and channels it is asked; None: of all but those of ASKED_KINDS, of all.
    kinds: frozenset[str] | None = None
    channels: frozenset[str] | None = None
    priority: int = 0

    def wants(self, kind: str, channel: str) -> bool:
        """Whether it is asked of such an event."""
        return wants(self.kinds, self.channels, kind, channel)


@dataclass(frozen=True, eq=False, slots=True)
class ChannelAdapter:
    """What connects a channel from Python: ``events`` is a generator function of what comes in,
    ``send(context, text)`` sends what is answered. Without one of them it only does the other."""

    name: str
    events: Callable[..., object] | None
    send: Callable[..., object] | None
    source: str


class ChannelInlet(Protocol):
    """What an adapter is given that takes an argument: it puts events in."""

    async def put(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """Store an event; once it is on the disk {"id", "duplicate"}. Raises RelayError."""

    async def failed(self, error: BaseException) -> None:
        """Tell the broker that the adapter has failed, for those who ask."""


#: The kinds of events that exist only where a route function or an automation names them.
ASKED_KINDS = frozenset({"output", TICK_KIND})


def wants(
    kinds: Collection[str] | None, channels: Collection[str] | None, kind: str, channel: str
) -> bool:
    """Whether a route function with these ``kinds`` and ``channels`` is asked of such an event."""
    of_kind = kind not in ASKED_KINDS if kinds is None else kind in kinds
    return of_kind and (channels is None or channel in channels)


@dataclass(frozen=True, slots=True)
class Plan:
    """The hooks for one event, in order."""

    event: HookEventName
    hooks: tuple[HookDefinition, ...]
    sequential: bool = False


@dataclass(frozen=True, slots=True)
class ToolSelection:
    """What a hook says of the tools that a model may choose."""

    mode: ToolMode = ToolMode.AUTO
    #: None: unrestricted.
    names: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class HookOutput:
    """What one hook said, whatever language it said it in."""

    decision: Decision | None = None
    reason: str = ""
    #: The agent's turn ends.
    stop: bool = False
    stop_reason: str = ""
    #: For the person.
    system_message: str | None = None
    suppress_output: bool = False
    #: For the model.
    context: str = ""
    #: The keys of a tool's input that are replaced.
    input: Mapping[str, Any] | None = None
    #: Replaces what a tool gave back; None: nothing is replaced.
    response: Any = None
    #: The keys of a model's request or response that are replaced.
    request: Mapping[str, Any] | None = None
    tools: ToolSelection | None = None
    #: Texts for the agent, as messages of their own.
    inject: tuple[str, ...] = ()
    #: Later hooks of a sequence do not run (relay's own ``{"stop": True}``).
    last: bool = False


#: What most functions say.
NOTHING_SAID = HookOutput()


@dataclass(frozen=True, slots=True)
class HookRun:
    """How one hook ended."""

    hook: HookDefinition
    success: bool
    #: A hook that failed but guards something (``OnFailure.BLOCK``) has one that denies.
    output: HookOutput | None = None
    #: One line for people, "" exactly when ``success``.
    error: str = ""
    #: Seconds.
    duration: float = 0.0
    #: None for what is not a program, and for one that never ran.
    exit_status: int | None = None
    #: Cut to a bounded length.
    stdout: str = ""
    stderr: str = ""
    #: Where in the user's code it was raised.
    trace: str = ""


@dataclass(frozen=True, slots=True)
class Failure:
    """Something of the engine itself, or of a hook, went wrong at ``stage``."""

    stage: str
    message: str
    details: str = ""
    event: str = ""
    correlation_id: str = ""


@dataclass(slots=True)
class Aggregated:
    """All results of one event as one. A new one for each event: the lists are the caller's own.

    What hooks can say is explained at HookOutput.
    """

    #: Every hook succeeded and so did the engine.
    success: bool = True
    results: list[HookRun] = field(default_factory=list)
    errors: list[Failure] = field(default_factory=list)
    decision: Decision | None = None
    #: A person has said yes to this call already, so the agent need not ask them. Never a hook's.
    agreed: bool = False
    reason: str = ""
    stop: bool = False
    stop_reason: str = ""
    system_message: str | None = None
    suppress_output: bool = False
    context: str = ""
    input: dict[str, Any] | None = None
    response: Any = None
    request: dict[str, Any] | None = None
    tools: ToolSelection | None = None
    inject: list[str] = field(default_factory=list)
    #: A line for each key that two hooks set to different values: who did, and whose counts.
    conflicts: list[str] = field(default_factory=list)
    #: Seconds, of all hooks together.
    duration: float = 0.0

    @property
    def blocked(self) -> bool:
        """Whether what was about to happen must not."""
        return self.decision is Decision.DENY

    @property
    def outputs(self) -> list[HookOutput]:
        """What the hooks said, in the order of the plan."""
        return [result.output for result in self.results if result.output is not None]


@dataclass(slots=True)
class Call(Generic[R]):
    """One handler to be called."""

    callee: Callee
    #: Makes all that is offered to the handler; it is called in the handler's thread.
    arguments: Callable[[], Sequence[object]]
    #: What the handler returned, and its name for people, to what that means. Raises HandlerError.
    read: Callable[[object, str], R]
    #: Seconds; None means the handler's own limit, else the configured one.
    timeout: float | None = None

    def begin(self) -> Any:
        """Call the handler, here and now."""
        return self.callee.binding.call(self.callee.function, self.arguments())


class CallEnd(StrEnum):
    """How a call ended."""

    DONE = "done"
    RAISED = "raised"
    TIMEOUT = "timeout"
    NONSENSE = "nonsense"  # it returned what means nothing
    OFF = "off"  # its handler is switched off
    REFUSED = "refused"


@dataclass(slots=True)
class CallOutcome(Generic[R]):
    """What became of one call of one handler."""

    #: The handler's name for people.
    handler: str
    end: CallEnd
    #: What the handler said, read; None unless ``ok``.
    result: R | None = None
    #: One line for people.
    error: str = ""
    #: Seconds.
    duration: float = 0.0
    #: Where in the user's code it was raised.
    trace: str = ""

    @property
    def ok(self) -> bool:
        return self.end is CallEnd.DONE
