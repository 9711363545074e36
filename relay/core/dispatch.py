"""From an event to a turn: what a route function is given, what it returns, what follows from it.

``Event`` -> ``HookResult`` (of each route function) -> ``BrokerDispatch`` (of each that fires).
Pure. Names and defaults are those of docs/broker.md. Times are milliseconds since the epoch.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

from relay.core.errors import UsageError
from relay.core.ids import derived_ulid
from relay.core.message import QueueMode

#: The channels of what is said and done in relay itself, and of its clock.
RELAY_CHANNEL, TIMER_CHANNEL = "relay", "timer"
TICK_KIND, MINUTE = "timer_tick", "minute"  # of the clock's events, and who sends it every minute
#: The persona, and the owner's and agents' session, where a route function names none.
DEFAULT_PERSONA, MAIN_SESSION = "default", "main"

Json = dict[str, Any]


class PeerKind(StrEnum):
    """Whom an event came from: one other, or a group."""

    DM = "dm"
    GROUP = "group"


class PersonType(StrEnum):
    """Who a sender is; ``known`` and ``unknown`` are people."""

    OWNER = "owner"
    KNOWN = "known"
    UNKNOWN = "unknown"
    SYSTEM = "system"
    WEBHOOK = "webhook"
    AGENT = "agent"


class PermissionLevel(StrEnum):
    """How far a turn is trusted, in one word; ``PermissionSet`` says what it may use."""

    FULL = "full"
    RESTRICTED = "restricted"
    GROUP = "group"
    MINIMAL = "minimal"


#: What a level allows where nothing else is said. Of ``restricted`` and ``group`` each set says it.
_ALLOWED = {PermissionLevel.FULL: ("*",), PermissionLevel.MINIMAL: ("web_search",)}


#: The one form of a permission set, for those who have written another.
_PERMISSIONS_FORM = (
    'permissions are {"level": "restricted", "tools": {"allow": ["read"], "deny": []},'
    ' "credentials": []}, or a PermissionSet with the same names'
)


@dataclass(frozen=True, slots=True)
class ToolRules:
    """Globs of tools' names. ``allow`` is None where the level says it."""

    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, init=False)
class PermissionSet:
    """What one turn may use: tools by globs of their names, credentials by their names.

    A tool that ``tools.deny`` matches is denied; of the others those are allowed that
    ``tools.allow`` matches. As a table it has the same names.
    """

    level: PermissionLevel
    tools: ToolRules
    credentials: tuple[str, ...]

    def __init__(
        self,
        level: str = PermissionLevel.MINIMAL,
        tools: ToolRules | Mapping[str, Any] | None = None,
        credentials: Sequence[str] = (),
        **other: object,
    ) -> None:
        """Raises UsageError for what is not of this form, in whatever way it is given."""
        if other:
            raise UsageError(f"permissions has no {next(iter(other))!r}", hint=_PERMISSIONS_FORM)
        if not isinstance(tools, ToolRules):
            given = _of_permissions("permissions.tools", tools or {}, _names(ToolRules))
            allow = given.get("allow")
            tools = ToolRules(
                None if allow is None else _texts(allow, "permissions.tools.allow"),
                _texts(given.get("deny") or (), "permissions.tools.deny"),
            )
        level = _member(PermissionLevel, level, "permissions.level")
        object.__setattr__(self, "level", level)
        object.__setattr__(self, "tools", tools)
        object.__setattr__(self, "credentials", _texts(credentials, "permissions.credentials"))

    @property
    def allowed(self) -> tuple[str, ...]:
        """The globs that count: those given, else those of the level."""
        return _ALLOWED.get(self.level, ()) if self.tools.allow is None else self.tools.allow

    def intersect(self, other: PermissionSet) -> PermissionSet:
        """What both allow; of two globs that only overlap, neither."""
        mine, theirs = self.allowed, other.allowed
        both = [one for one in mine if _matches(theirs, [one])]
        both += [one for one in theirs if _matches(mine, [one])]
        return PermissionSet(
            max(self.level, other.level, key=list(PermissionLevel).index),
            ToolRules(
                tuple(dict.fromkeys(both)),
                tuple(dict.fromkeys((*self.tools.deny, *other.tools.deny))),
            ),
            tuple(one for one in self.credentials if one in other.credentials),
        )

    def to_json(self) -> Json:
        """As it is stored, and as a program may write it."""
        tools: Json = {"allow": list(self.allowed), "deny": list(self.tools.deny)}
        return {"level": str(self.level), "tools": tools, "credentials": list(self.credentials)}

    @classmethod
    def from_json(cls, value: object) -> PermissionSet:
        """Read it. Raises UsageError."""
        return cls(**_of_permissions("permissions", value, _names(cls)))


def _of_permissions(what: str, value: object, keys: Sequence[str]) -> Json:
    try:
        return read_table(value, what, keys)
    except UsageError as error:
        raise UsageError(error.message, hint=_PERMISSIONS_FORM) from error


@dataclass(frozen=True, slots=True)
class DeliveryContext:
    """Where an answer goes."""

    channel: str
    account: str | None = None
    peer: str | None = None
    thread: str | None = None
    reply_to: str | None = None

    def to_json(self) -> Json:
        return _given(self)

    @classmethod
    def from_json(cls, value: object) -> DeliveryContext:
        """Read it, in Python's or in JavaScript's spelling. Raises UsageError."""
        return cls(**_strings(value, "delivery_context", cls, required="channel"))


@dataclass(frozen=True, slots=True)
class AnswerContext(DeliveryContext):
    """Where an answer goes, and what it answers. ``to`` is the peer, else who sent the event;
    ``reply_to`` the channel's own id of that where it has one. ``attempt`` counts earlier tries,
    which may have arrived; ``id`` is the same each time."""

    to: str = ""
    persona: str = ""
    event: str = ""
    id: str = ""
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class HookRouting:
    """Which persona takes it, in which of its sessions, and what it does when that is busy."""

    persona: str | None = None
    session: str | None = None
    queue_mode: QueueMode | None = None

    @classmethod
    def from_json(cls, value: object) -> HookRouting:
        """Read it. Raises UsageError."""
        given = _strings(value, "routing", cls)
        mode = given.get("queue_mode")
        return cls(
            given.get("persona"),
            given.get("session"),
            None if mode is None else _member(QueueMode, mode, "routing.queue_mode"),
        )


@dataclass(frozen=True, slots=True)
class AddedContext:
    """What a persona is told beside the message."""

    system_prompt: str | None = None
    extracted: Mapping[str, Any] | None = None
    include_thread_history: bool | None = None

    @classmethod
    def from_json(cls, value: object) -> AddedContext:
        """Read it. Raises UsageError."""
        given = read_table(value, "context", _names(cls))
        prompt, extracted, history = map(given.get, _names(cls))
        if prompt is not None and not isinstance(prompt, str):
            raise UsageError(f"context.system_prompt must be a text, not {prompt!r}")
        if extracted is not None and not isinstance(extracted, Mapping):
            raise UsageError(f"context.extracted must be a dictionary, not {extracted!r}")
        if history is not None and not isinstance(history, bool):
            raise UsageError(f"context.include_thread_history is true or false, not {history!r}")
        return cls(prompt, extracted, history)


@dataclass(frozen=True, slots=True)
class HookResult:
    """What a route function says of one event; what is None gets its default (``dispatch_of``)."""

    fire: bool = False
    routing: HookRouting | None = None
    permissions: PermissionSet | None = None
    delivery_context: DeliveryContext | None = None
    context: AddedContext | None = None
    disable_hook: bool = False

    @classmethod
    def of(cls, value: object) -> HookResult:
        """What a function returned: one of these, True, False, None, or a table in JSON's types.

        Raises UsageError, which says what is wrong with it.
        """
        if isinstance(value, HookResult):
            value = {one.name: getattr(value, one.name) for one in fields(value)}
        if value is None or isinstance(value, bool):
            return cls(fire=bool(value))
        given = read_table(value, "the result", _names(cls))
        for name in ("fire", "disable_hook"):
            if not isinstance(given.get(name, False), bool):
                raise UsageError(f"{name} must be true or false, not {given[name]!r}")
        return cls(
            given.get("fire", False),
            _part(HookRouting, given.get("routing")),
            _part(PermissionSet, given.get("permissions")),
            _part(DeliveryContext, given.get("delivery_context")),
            _part(AddedContext, given.get("context")),
            given.get("disable_hook", False),
        )

    def to_json(self) -> Json:
        """In JSON's types; ``of`` reads it."""
        out: Json = {"fire": self.fire}
        for name in ("routing", "delivery_context", "context"):
            part = getattr(self, name)
            if part is not None:
                out[name] = _given(part)
        if self.permissions is not None:
            out["permissions"] = self.permissions.to_json()
        return out | ({"disable_hook": True} if self.disable_hook else {})


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened, on whatever channel, as the event ledger has it.

    ``kind`` says what: ``message``, ``match``, ``tool_call``, ``output``, ``idle``,
    ``timer_tick``, ``session_start`` … ``source_id`` is the channel's own id of it, unique there.
    """

    id: str
    channel: str
    kind: str
    sender: str
    content: str
    timestamp: int
    sender_type: PersonType = PersonType.UNKNOWN
    source_id: str | None = None
    account: str | None = None
    peer_kind: PeerKind = PeerKind.DM
    peer: str | None = None
    thread: str | None = None
    reply_to: str | None = None
    content_type: str = "text"
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> Json:
        return _given(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Event:
        who, kind = PersonType(value.get("sender_type", "unknown")), value.get("peer_kind", "dm")
        return cls(**{**value, "sender_type": who, "peer_kind": PeerKind(kind)})

    @property
    def session_key(self) -> str:
        """Its session by default: a group's, the main one here and of the owner, else its sender's
        own, who is to hear nothing of what others have said."""
        if self.peer_kind is PeerKind.GROUP:
            return f"{self.channel}:group:{self.peer or ''}"
        ours = self.channel == RELAY_CHANNEL or self.sender_type is PersonType.OWNER
        return MAIN_SESSION if ours else f"{self.channel}:dm:{self.sender}"

    @property
    def default_permissions(self) -> PermissionSet:
        """Everything for the owner, a search of the web for everybody else."""
        return FULL if self.sender_type is PersonType.OWNER else MINIMAL


@dataclass(frozen=True, slots=True)
class BrokerDispatch:
    """A message on its way to a persona, made from one event and one hook's result."""

    id: str
    hook_id: str
    persona: str
    session: str
    queue_mode: QueueMode
    permissions: PermissionSet
    delivery_context: DeliveryContext
    system_prompt: str | None = None
    extracted: Mapping[str, Any] | None = None
    include_thread_history: bool = True
    priority: int = 0
    quiet_when: str | None = None  # an answer that is exactly this text goes nowhere


def dispatch_of(event: Event, hook_id: str, result: HookResult, priority: int) -> BrokerDispatch:
    """The dispatch of a hook that fired. Evaluated again after a kill, it has the same id."""
    routing = result.routing or HookRouting()
    added = result.context or AddedContext()
    return BrokerDispatch(
        id=derived_ulid(event.timestamp, "dispatch", event.id, hook_id),
        hook_id=hook_id,
        persona=routing.persona or DEFAULT_PERSONA,
        session=routing.session or event.session_key,
        queue_mode=routing.queue_mode or QueueMode.FOLLOWUP,
        permissions=result.permissions or event.default_permissions,
        delivery_context=result.delivery_context
        or DeliveryContext(event.channel, event.account, event.peer, event.thread, event.id),
        system_prompt=added.system_prompt,
        extracted=added.extracted,
        include_thread_history=added.include_thread_history is not False,
        priority=priority,
    )


def merged(dispatches: Sequence[BrokerDispatch]) -> list[BrokerDispatch]:
    """``merge: same_session``: one for each persona's session, with what all of its permit.

    Of one event; the first of each keeps its identity, and gets the others' prompts and data.
    """
    found: dict[tuple[str, str], BrokerDispatch] = {}
    for one in dispatches:
        first = found.setdefault(key := (one.persona, one.session), one)
        if first is one:
            continue
        prompts = dict.fromkeys(filter(None, (first.system_prompt, one.system_prompt)))
        found[key] = replace(
            first,
            permissions=first.permissions.intersect(one.permissions),
            system_prompt="\n\n".join(prompts) or None,
            extracted={**(one.extracted or {}), **(first.extracted or {})} or None,
            include_thread_history=first.include_thread_history or one.include_thread_history,
        )
    return list(found.values())


# -- reading what people and programs write


def read_event(value: object) -> Json:
    """The fields of an event of another channel, in one spelling. Raises UsageError."""
    keys = (*_names(Event), "sender_name", "files")
    return read_table(value, "an event", keys, **{"from": "sender", "timestamp_ms": "timestamp"})


def _matches(patterns: Sequence[str], names: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns for name in names)


def _names(kind: type) -> tuple[str, ...]:
    return tuple(one.name for one in fields(kind))


def read_table(value: object, what: str, keys: Sequence[str], **other: str) -> Json:
    """``value`` with its keys in Python's spelling (``queueMode``, ``accountId`` are known too), or
    as ``other`` says (by spelling); without what is None. Raises UsageError."""
    if not isinstance(value, Mapping):
        raise UsageError(f"{what} must be a dictionary, not {str(value)[:100]!r}")
    found: Json = {}
    for key, one in value.items():
        name = re.sub(r"(?<=[a-z])([A-Z])", r"_\1", str(key)).lower()
        name = other.get(name, name)
        if name not in keys:
            name = name.removesuffix("_id")
        if name not in keys:
            raise UsageError(f"{what} has no {str(key)[:64]!r}", hint=f"it has {', '.join(keys)}")
        if name in found:
            raise UsageError(f"{what} has {name} twice")
        if one is not None:
            found[name] = one
    return found


def _strings(value: object, what: str, kind: type, required: str = "") -> Json:
    given = read_table(value, what, _names(kind))
    for key, one in given.items():
        if not isinstance(one, str) or not one:
            raise UsageError(f"{what}.{key} must be a text, not {one!r}")
    if required and required not in given:
        raise UsageError(f"{what} needs {required}")
    return given


def _texts(value: object, what: str) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        raise UsageError(f"{what} must be a list of texts, not {value!r}")
    return tuple(value)


def _member(kind: type[StrEnum], value: Any, what: str) -> Any:
    try:
        return kind(value)
    except ValueError as error:
        raise UsageError(f"{what} cannot be {value!r}", hint=f"one of {', '.join(kind)}") from error


def _part(kind: Any, value: object) -> Any:
    return value if value is None or isinstance(value, kind) else kind.from_json(value)


def _given(record: Any) -> Json:
    """What is set in ``record``, in JSON's types."""
    found = {one.name: getattr(record, one.name) for one in fields(record)}
    return {
        name: value.value if isinstance(value, StrEnum) else value
        for name, value in found.items()
        if value is not None
    }


FULL, MINIMAL = PermissionSet(PermissionLevel.FULL), PermissionSet(PermissionLevel.MINIMAL)
