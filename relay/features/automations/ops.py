"""The ops about automations. See relay.protocol.op."""

from __future__ import annotations

from relay.protocol.op import Any, NotRequired, Op, Record, Request


class ShownAutomation(Record):
    """An automation, as everybody may see it. What its file says is null before it was loaded."""

    id: str
    name: str
    version: int
    status: str  # active, paused, disabled, deleted
    reason: str | None  # why it has this status, or why it does not run although it is active
    description: str | None
    triggers: dict[str, dict[str, list[str]]] | None
    schedule: dict[str, Any] | None
    blocking: bool | None
    priority: int | None
    deadline: float | None
    folder: str | None  # the project whose events it is limited to
    path: str
    sha256: str
    loaded: bool
    registered_by: str
    created_ms: int
    updated_ms: int
    circuit: str  # closed, open, half-open
    errors: int  # in a row
    opened_ms: int | None  # when its circuit was opened
    skipped: int  # events that it was not run for
    last_fired_ms: int | None
    next_tick_ms: int | None
    over: bool  # the one time of its schedule is past


class AutomationAnswer(Record):
    """The automation as it is now."""

    automation: ShownAutomation
    unchanged: NotRequired[bool]  # true: this very text was registered already
    unknown: NotRequired[list[str]]  # those of ``agents`` that nobody is called


class AutomationRegisterQuery(Request):
    """Register the text of a file. A person's is loaded, and active; an agent's is paused, and
    never loaded before the person enables it."""

    path: str
    source: str  # the file's text
    agents: NotRequired[list[str]]  # to which it dispatches, as far as its text says it


class AutomationUpdateQuery(AutomationRegisterQuery):
    """Take a text as the next version. Not for agents."""

    name: NotRequired[str]  # without it, the name that the file says


class AutomationEnableQuery(Request):
    """Let an automation run. Not for agents."""

    name: str
    sha256: NotRequired[str]  # of the text that was looked at; needed for one never loaded


class AutomationDisableQuery(Request):
    """Stop an automation until it is enabled again. Not for agents."""

    name: str
    reason: NotRequired[str | None]


class AutomationDeleteQuery(Request):
    """Stop an automation for good. Its name is free again, its runs stay. Not for agents."""

    name: str


class AutomationTestQuery(Request):
    """Run an automation for an event, and store nothing of it. Without ``id`` and ``event``, the
    event is a tick of its clock. Not for agents."""

    name: str
    id: NotRequired[str | None]  # of a stored event
    event: NotRequired[dict[str, Any] | None]  # like a ChannelEvent, of any channel and kind


class TestedDispatch(Record):
    """What would be asked of a persona."""

    persona: str
    session: str
    queue_mode: str
    priority: int
    prompt: str | None
    extracted: dict[str, Any] | None
    permissions: dict[str, Any]
    answer_to: dict[str, Any]
    waits: str | None  # why nobody would take it now


class AutomationTestAnswer(Record):
    """How the run ended, and what would follow."""

    automation: ShownAutomation
    event: dict[str, Any]
    principal: dict[str, Any]  # who the event comes from: type, name, relationship, id
    matches: bool  # whether it would be run for this event
    unmet: list[str]  # the triggers that do not match
    result: dict[str, Any] | None
    error: str | None
    log: str
    latency_us: int
    llm_calls: int
    state: dict[str, Any]  # what it would change; null: what it would remove
    dispatch: TestedDispatch | None  # null: it did not fire


class AutomationsQuery(Request):
    """The automations, by name."""

    status: NotRequired[str | None]  # without it, all that are not deleted
    by: NotRequired[str | None]  # a part of who registered them


class AutomationsAnswer(Record):
    """The automations, by name."""

    rows: list[ShownAutomation]
    more: bool


class AutomationInfoQuery(Request):
    """One automation, with all that is known of it."""

    name: str
    source: NotRequired[bool]  # with its text


class RunCounts(Record):
    """How a number of runs went."""

    runs: int
    errors: int
    fires: int
    avg_ms: float | None  # null: there are none
    p95_ms: float | None


class AutomationHealth(Record):
    """How an automation has run."""

    window: RunCounts  # of the last 100 runs
    day: RunCounts  # of the last day
    last_run_ms: int | None
    last_error_ms: int | None
    last_error: str | None


class ShownVersion(Record):
    """One version of an automation."""

    version: int
    path: str
    sha256: str
    registered_by: str
    created_ms: int


class AutomationDetails(ShownAutomation):
    """An automation, with all that is known of it."""

    health: AutomationHealth
    versions: list[ShownVersion]  # the newest first
    config: dict[str, Any]
    source: NotRequired[str]


class AutomationInfoAnswer(Record):
    """The automation that was asked for."""

    automation: AutomationDetails


class AutomationRunsQuery(Request):
    """How an automation has run. Not for agents."""

    name: str
    limit: NotRequired[int]
    errors_only: NotRequired[bool]


class AutomationRunRow(Record):
    """One run."""

    event: str  # its id
    kind: str
    channel: str
    sender: str
    version: int
    started_ms: int
    latency_us: int
    llm_calls: int
    error: str | None
    log: str | None
    fired: bool
    retry: bool  # it was begun before, by a broker that has ended
    result: dict[str, Any] | None
    waits: str | None  # why nobody takes its dispatch


class RunUnderWay(Record):
    """A run that has not ended."""

    event: str  # its id
    started_ms: int


class AutomationRunsAnswer(Record):
    """The newest runs first."""

    rows: list[AutomationRunRow]
    more: bool
    running: RunUnderWay | None


AUTOMATION_REGISTER = Op("automation_register", AutomationRegisterQuery, AutomationAnswer)
AUTOMATION_UPDATE = Op("automation_update", AutomationUpdateQuery, AutomationAnswer)
AUTOMATION_ENABLE = Op("automation_enable", AutomationEnableQuery, AutomationAnswer)
AUTOMATION_DISABLE = Op("automation_disable", AutomationDisableQuery, AutomationAnswer)
AUTOMATION_DELETE = Op("automation_delete", AutomationDeleteQuery, AutomationAnswer)
AUTOMATION_TEST = Op("automation_test", AutomationTestQuery, AutomationTestAnswer)
AUTOMATIONS = Op("automations", AutomationsQuery, AutomationsAnswer)
AUTOMATION_INFO = Op("automation_info", AutomationInfoQuery, AutomationInfoAnswer)
AUTOMATION_RUNS = Op("automation_runs", AutomationRunsQuery, AutomationRunsAnswer)
