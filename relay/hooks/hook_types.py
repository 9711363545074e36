"""The records that the parts of the hook engine hand to each other. No behaviour beyond views.

registry -> planner -> runner -> aggregator: a ``HookDefinition`` is registered, a ``Plan`` holds
those that an event selects, each of them ends as a ``HookResult``, and all results together are
one ``Aggregated``. Times are in seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from relay.hooks.binding import Binding
from relay.hooks.events import HookEventName


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
    """One registered function. Compared by identity: registered twice, it runs twice.

    ``name`` is for people. ``timeout`` is in seconds; None means the configured default.
    """

    name: str
    function: Callable[..., object]
    binding: Binding
    is_async: bool
    timeout: float | None
    source: str


@dataclass(frozen=True, slots=True)
class Command:
    """An external program. ``argv`` is run as it is; ``shell`` is a line for ``sh -c``.

    Exactly one of them is given. ``env`` is added to the environment. It starts in the agent's
    working directory unless ``cwd`` says another one.
    """

    argv: tuple[str, ...] = ()
    shell: str = ""
    cwd: str = ""
    env: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Url:
    """An HTTP endpoint that gets the input as a POST and answers with the output."""

    url: str
    headers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, eq=False, slots=True)
class HookDefinition:
    """One hook: what it runs, for what, and what its failure means.

    A higher ``priority`` runs earlier, then the lower ``order`` (of registration). ``matcher`` is
    in the manner of ``dialect``; "" matches everything. One ``sequential`` hook makes all of its
    plan run one after the other. ``source`` is the file or program that it comes from.
    """

    event: HookEventName
    name: str
    action: Callee | Command | Url
    source: str
    matcher: str = ""
    priority: int = 0
    order: int = 0
    timeout: float | None = None
    on_failure: OnFailure = OnFailure.ALLOW
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


@dataclass(frozen=True, slots=True)
class Plan:
    """The hooks for one event, in order."""

    event: HookEventName
    hooks: tuple[HookDefinition, ...]
    sequential: bool = False


@dataclass(frozen=True, slots=True)
class ToolSelection:
    """What a hook says of the tools that a model may choose. ``names`` None: unrestricted."""

    mode: ToolMode = ToolMode.AUTO
    names: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class HookOutput:
    """What one hook said, whatever language it said it in.

    ``stop`` ends the agent's turn, ``last`` (relay's own ``{"stop": True}``) keeps later hooks of
    a sequence from running. ``context`` is for the model. ``input`` has the keys of a tool's input
    that are replaced; ``response`` replaces what a tool gave back (None: nothing is replaced);
    ``request`` has the keys of a model's request or response that are replaced. ``inject`` are
    texts for the agent, as messages of their own.
    """

    decision: Decision | None = None
    reason: str = ""
    stop: bool = False
    stop_reason: str = ""
    system_message: str | None = None
    suppress_output: bool = False
    context: str = ""
    input: Mapping[str, Any] | None = None
    response: Any = None
    request: Mapping[str, Any] | None = None
    tools: ToolSelection | None = None
    inject: tuple[str, ...] = ()
    last: bool = False


#: What most functions say.
NOTHING_SAID = HookOutput()


@dataclass(frozen=True, slots=True)
class HookResult:
    """How one hook ended. ``error`` is one line for people, "" exactly when ``success``.

    A hook that failed but guards something (``OnFailure.BLOCK``) has an ``output`` that denies.
    ``exit_status`` is None for what is no program (and for one that never ran); ``stdout`` and
    ``stderr`` are cut to a bounded length.
    """

    hook: HookDefinition
    success: bool
    output: HookOutput | None = None
    error: str = ""
    duration: float = 0.0
    exit_status: int | None = None
    stdout: str = ""
    stderr: str = ""
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

    ``success``: every hook succeeded and so did the engine. ``conflicts`` says, a line each, where
    two hooks rewrote the same key to different values, and whose counts.
    """

    success: bool = True
    results: list[HookResult] = field(default_factory=list)
    errors: list[Failure] = field(default_factory=list)
    decision: Decision | None = None
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
    conflicts: list[str] = field(default_factory=list)
    duration: float = 0.0

    @property
    def blocked(self) -> bool:
        """Whether what was about to happen must not."""
        return self.decision is Decision.DENY

    @property
    def explanation(self) -> str:
        """What is said first: why it all stops, else why this is not to happen (or asked about)."""
        return self.stop_reason if self.stop else self.reason

    @property
    def outputs(self) -> list[HookOutput]:
        """What the hooks said, in the order of the plan."""
        return [result.output for result in self.results if result.output is not None]


def empty_success() -> Aggregated:
    """The result of an event that no hook is for: a new one each time."""
    return Aggregated()
