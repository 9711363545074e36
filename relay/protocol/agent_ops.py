"""The ops about agents: who is there, and what each is doing. See relay.protocol.op."""

from __future__ import annotations

from relay.protocol.item_ops import ItemChoice
from relay.protocol.op import Any, Done, NotRequired, Op, Record, Request


class AgentRow(Record):
    """An agent, as everybody may see it."""

    name: str
    state: str  # of relay.core.message.AgentState
    reason: str | None
    kind: str
    pid: int | None  # null: it does not run
    cwd: str | None
    command: str | None
    unread: int
    since_ms: int  # when it came into this state
    last_seen_ms: int
    source: str | None  # what tells of it
    notes: list[str]
    version: str | None  # the build of its session
    run: str | None
    conversation: str  # its own id of the one that it is in
    roles: list[str]
    channels: list[str]


class Register(Request):
    """Bind the connection to an agent. What is open for its name is pushed again, in order."""

    name: str
    run: str
    token: str
    kind: NotRequired[str]
    pid: NotRequired[int | None]
    cwd: NotRequired[str | None]
    command: NotRequired[str | list[str] | None]
    resume: NotRequired[bool]  # keep the state that the broker knew of the same run
    memory: NotRequired[dict[str, Any] | None]  # what each of its requests about memories carries
    roles: NotRequired[list[str]]  # what else it is reached by
    join: NotRequired[list[str]]  # channels that it joins at its start
    version: NotRequired[str]  # the build of the session


class Registered(Record):
    """The agent as it is known from now on."""

    name: str
    waiting: int  # deliveries that are open
    protocol: int


class ShownQuestion(Record):
    """What an agent asks on its screen."""

    id: str
    what: str
    choices: list[ItemChoice]
    chosen: int | None  # the index of the choice in focus
    since_ms: int


class AgentStateReport(Request):
    """The session of the registered agent says what the agent is doing."""

    state: str  # of relay.core.message.AgentState
    reason: NotRequired[str | None]
    source: NotRequired[str | None]
    notes: NotRequired[list[str]]
    remark: NotRequired[str]  # the reason of a state that has none of its own
    conversation: NotRequired[str | None]
    question: NotRequired[ShownQuestion | None]
    usage: NotRequired[list[Any]]  # [model, [tokens …]], of the session so far
    retry: NotRequired[float | None]  # seconds until its usage limit ends
    cause: NotRequired[str | None]  # why it is limited: relay.core.source_events.LimitCause
    account: NotRequired[str | None]  # agents with the same account share its limits


class AgentStateKnown(Record):
    """The state that is stored."""

    state: str
    wants: list[str]  # kinds of events that the session reports only because it is asked to


class AgentElsewhere(Record):
    """An agent on another machine."""

    name: str  # as messages are sent to it: NAME@MACHINE
    here: bool  # its machine is connected now
    seen_ms: int | None  # when its machine was heard of last


class Agents(Record):
    """All known agents, those that run first."""

    agents: list[AgentRow]
    persons: list[str]
    elsewhere: list[AgentElsewhere]  # none where a feature knows of no other machine


class PersonSpoke(Request):
    """The person has spoken to the registered agent: what it says next follows from no message."""


class SpawnQuery(Request):
    """May whoever asks start this agent without a terminal? It is written down. Agents need the
    right ``spawn``, and have a limited number of helpers, of a limited depth."""

    name: str
    command: list[str]
    cwd: NotRequired[str | None]
    options: NotRequired[list[str] | None]
    team: NotRequired[str | None]
    conversation: NotRequired[str | None]


class SpawnGranted(Record):
    """It may."""

    parent: str  # the agent whose helper it is; "": the person's


class SpawnedQuery(Request):
    """The agent that was last started as ``name``. For the person."""

    name: str


class SpawnedRecord(Record):
    """What ``spawn`` was told, with ``parent``; null where nothing was."""

    spawned: dict[str, Any] | None


class Release(Request):
    """May whoever asks end this agent? The person may end any, an agent its helpers."""

    name: str


class ReleaseGranted(Record):
    """It may."""

    by: str  # the agent that asks; "": the person


class AskQuery(Request):
    """Ask an agent's session for something. Nothing of it is stored.

    Refused as ``no_session``, ``session_gone``, ``timeout`` or ``busy``, or with the session's own
    error. By ``kind``, with the fields of ``request`` and of the response:

    - ``hooks`` {correlation_id?, event_name, input}: run the hooks of an event. The response is an
      aggregated_record of relay.hooks.hook_log, with the event and the correlation id. For the
      person.
    - ``screen`` {styled?}: lines, cols, rows, cursor ([x, y]; null: hidden), title, spans? (see
      relay.screen.styled_rows). Agents need the right ``peek``, but for their own.
    - ``transcript`` {count?}: turns [{prompt, text, tools?, state?, model?, started_ms?,
      ended_ms?}], the oldest first. Agents need the right ``transcript``, but for their own.
    - ``choose`` {id, choice (from 0)}: chosen, gone. For the person.
    - ``interrupt`` {}: stopped. For the person.
    - ``reload`` {}: none, for the session ends (``session_gone``), and the next one has the
      configuration and the relay of then. For the person.
    - what features answer, such as ``governance``, for which an agent may ask its own session.
    """

    agent: NotRequired[str | None]  # left out: the agent's own session
    kind: str
    request: NotRequired[Any]
    timeout: NotRequired[float | None]  # seconds that the session has


class Asked(Record):
    """What the session answered."""

    response: dict[str, Any]


class AskPush(Record):
    """Somebody asks the session, which answers once, with the op ``answer``."""

    push: str  # ask
    id: str
    kind: str
    by: str  # person, or agent: its own
    request: Any
    timeout: float  # seconds for the answer


class AnswerToAsk(Request):
    """A session answers what it was asked. Only from the session that was asked."""

    id: str
    response: NotRequired[Any]
    error: NotRequired[Any]  # instead: the fields of an error


class AnswerTaken(Record):
    """Whether the asker still waited for it."""

    taken: bool


class HooksRan(Request):
    """The hooks that the session of an agent has run: records of relay.hooks.hook_log."""

    records: list[dict[str, Any]]


class HooksStored(Record):
    """How many of them are in the ledger now."""

    stored: int


class ElsewhereQuery(Request):
    """Ask another machine's broker, which answers if that machine allows it (a feature knows of
    other machines: docs/many-machines.md). Nothing of it is stored. For the person.

    ``asked`` is an op: ``ask`` of the kinds ``screen``, ``transcript`` and ``interrupt``, ``items``
    or ``item_answer``, with its ``fields``.
    """

    machine: str
    asked: str
    fields: dict[str, Any]
    timeout: float  # seconds that the other machine has


class ElsewhereAnswer(Record):
    """What it answers."""

    answer: dict[str, Any]


class HookLogQuery(Request):
    """How hooks ran, and what route functions said (kind ``route``; ``correlation_id`` is the
    event's)."""

    agent: NotRequired[str | None]
    hook: NotRequired[str | None]  # a part of its name
    event: NotRequired[str | None]  # of hooks
    kind: NotRequired[str | None]  # of events
    failed: NotRequired[bool]  # only those that failed
    quiet: NotRequired[bool]  # route functions, too, that said nothing
    limit: NotRequired[int | None]


class HookLogRows(Record):
    """The newest first."""

    rows: list[dict[str, Any]]
    more: bool


REGISTER = Op("register", Register, Registered)
AGENT_STATE = Op("agent_state", AgentStateReport, AgentStateKnown)
AGENTS = Op("agents", Request, Agents)
PERSON = Op("person", PersonSpoke, Done)
SPAWN = Op("spawn", SpawnQuery, SpawnGranted)
SPAWNED = Op("spawned", SpawnedQuery, SpawnedRecord)
RELEASE = Op("release", Release, ReleaseGranted)
ASK = Op("ask", AskQuery, Asked)
ANSWER = Op("answer", AnswerToAsk, AnswerTaken)
HOOKS_RAN = Op("hooks_ran", HooksRan, HooksStored)
ELSEWHERE = Op("elsewhere", ElsewhereQuery, ElsewhereAnswer)
HOOK_LOG = Op("hook_log", HookLogQuery, HookLogRows)
