"""The ops about agents: who is there, and what each is doing. See relay.protocol.op."""

from __future__ import annotations

from relay.protocol.op import Any, NotRequired, Op, Record, Request


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
    since_ms: int  # since when it is in this state
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
    memory: NotRequired[dict[str, Any] | None]  # fields of each of its requests about memories
    roles: NotRequired[list[str]]  # what else it is reached by
    join: NotRequired[list[str]]  # channels that it is in from its start on
    version: NotRequired[str]  # the build of the session


class Registered(Record):
    """The agent as it is known from now on."""

    name: str
    waiting: int  # deliveries that are open
    protocol: int


class Choice(Record):
    """One of what an agent, or relay, lets the person choose from."""

    key: str
    label: str


class Question(Record):
    """What an agent asks on its screen."""

    id: str
    what: str
    choices: list[Choice]
    chosen: int | None  # the index of the choice in focus
    since_ms: int


class AgentStateReport(Request):
    """The session of the registered agent says what the agent is doing."""

    state: str  # of relay.core.message.AgentState
    reason: NotRequired[str | None]
    source: NotRequired[str | None]
    notes: NotRequired[list[str]]
    conversation: NotRequired[str | None]
    question: NotRequired[Question | None]
    usage: NotRequired[list[Any]]  # [model, [tokens …]], of the session so far
    retry: NotRequired[float | None]  # seconds until its usage limit ends
    account: NotRequired[str | None]  # who has the same has the same limits


class AgentStateKnown(Record):
    """The state that is stored."""

    state: str
    wants: list[str]  # kinds of events that the session tells of only when it is asked to


class Agents(Record):
    """All known agents, those that run first."""

    agents: list[AgentRow]
    persons: list[str]


REGISTER = Op("register", Register, Registered)
AGENT_STATE = Op("agent_state", AgentStateReport, AgentStateKnown)
AGENTS = Op("agents", Request, Agents)
