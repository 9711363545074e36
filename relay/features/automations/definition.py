"""What an automation is, as its file says it: ``Automation``, its schedule, and what its handler
returns.

A file has one at its top, called ``automation``; a table with the same keys does as well. The names
and the meaning of each are those of docs/automations.md.

Of a schedule: ``every`` so often, by ``cron``, once ``at`` a time. Times are milliseconds since the
epoch; ``local`` is this machine's time zone, for a schedule that names none. A time that a change
of the clocks leaves out comes right after it; of one that comes twice the first counts. Cron
expressions are those of cronsim, which is imported for one. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

from relay.core import json_text
from relay.core.dispatch import (
    MINUTE,
    AddedContext,
    DeliveryContext,
    Event,
    HookResult,
    HookRouting,
    PermissionSet,
)
from relay.core.dispatch import PersonType as PrincipalType
from relay.core.errors import UsageError, did_you_mean

Json = dict[str, Any]

#: What ``triggers.event.direction`` may say.
DIRECTIONS = ("sent", "received")
#: Seconds of one run: where nothing is said, and at most.
DEADLINE, DEADLINE_MAX = 30.0, 300.0
#: Bytes of the source of one, of its ``config``, and of one result as JSON.
SOURCE_MAX, CONFIG_MAX, RESULT_MAX = 256 * 1024, 64 * 1024, 64 * 1024
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
#: Part, attribute of Triggers, key in a file.
_TRIGGERS = (
    ("principal", "principal_types", "type"),
    ("principal", "names", "name"),
    ("principal", "relationships", "relationship"),
    ("principal", "entities", "entity"),
    ("event", "channels", "channels"),
    ("event", "types", "types"),
    ("event", "directions", "direction"),
)
#: What ``every`` may be, in milliseconds.
EVERY_MIN, EVERY_MAX = 1000, 366 * 86_400_000
#: Characters of a cron expression.
CRON_MAX = 200
#: Ticks that were missed are counted up to so many.
MISSED_MAX = 100
_KINDS = ("every", "cron", "at")
_PARTS = re.compile(r"(?:\d+[smhdw])+")
_PART = re.compile(r"(\d+)([smhdw])")
_UNITS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


@dataclass(frozen=True, slots=True)
class Principal:
    """Who an event comes from: a person, an agent, or a program. ``id`` is the person's."""

    type: PrincipalType
    name: str
    relationship: str | None = None
    id: str | None = None

    def to_json(self) -> Json:
        return {one.name: getattr(self, one.name) for one in fields(self)}


@dataclass(frozen=True, slots=True)
class Triggers:
    """Which events an automation is run for. Of each field one value must be so; None: any."""

    principal_types: frozenset[str] | None = None
    names: frozenset[str] | None = None
    relationships: frozenset[str] | None = None
    entities: frozenset[str] | None = None
    channels: frozenset[str] | None = None
    types: frozenset[str] | None = None
    directions: frozenset[str] | None = None

    def match_event(self, kind: str, channel: str, direction: str) -> bool:
        """Whether such an event is one of them, whoever it comes from."""
        return (
            (self.types is None or kind in self.types)
            and (self.channels is None or channel in self.channels)
            and (self.directions is None or direction in self.directions)
        )

    def match_principal(self, who: Principal) -> bool:
        """Whether it is one of them that comes from ``who``."""
        return (
            (self.principal_types is None or who.type.value in self.principal_types)
            and (self.names is None or who.name.lower() in self.names)
            and (self.relationships is None or (who.relationship or "") in self.relationships)
            and (self.entities is None or (who.id or "") in self.entities)
        )

    def unmet(self, event: Event, who: Principal) -> list[str]:
        """The keys of which an event that comes from ``who`` has none of the values."""
        about = event.kind, event.channel, direction_of(event)
        return [
            f"{part}.{key}"
            for part, name, key in _TRIGGERS
            for alone in (Triggers(**{name: getattr(self, name)}),)
            if not (alone.match_event(*about) and alone.match_principal(who))
        ]

    def to_json(self) -> Json:
        """As a file says them."""
        found: Json = {}
        for part, name, key in _TRIGGERS:
            values = getattr(self, name)
            if values is not None:
                found.setdefault(part, {})[key] = sorted(values)
        return found

    @classmethod
    def from_json(cls, value: object) -> Triggers:
        """Read them; a single text is a list of one. Raises UsageError."""
        parts = _table(value or {}, "triggers", ("principal", "event"))
        given: Json = {}
        for part in ("principal", "event"):
            keys = {key: name for where, name, key in _TRIGGERS if where == part}
            spelled = {"entity_id": "entity"} if part == "principal" else {}
            table = _table(parts.get(part) or {}, f"triggers.{part}", (*keys, *spelled))
            for key, one in table.items():
                what = f"triggers.{part}.{key}"
                given[keys[spelled.get(key, key)]] = frozenset(_texts(one, what))
        found = cls(**given)
        _one_of(found.principal_types, tuple(PrincipalType), "triggers.principal.type")
        _one_of(found.directions, DIRECTIONS, "triggers.event.direction")
        if found.names is not None:
            given["names"] = frozenset(one.lower() for one in found.names)
        return cls(**given)


@dataclass(frozen=True, slots=True)
class Automation:
    """A function that is run for events, and says whether an agent is to do something.

    ``schedule``: {"every": "30m"}, {"cron": "0 9 * * 1-5"} or {"at": "2026-02-05T10:00"}, with
    "timezone" where it is not this machine's (relay.features.automations.definition). One with a
    schedule and without triggers is run by it alone. ``blocking``: it runs before what else the
    event leads to, after those of a higher ``priority``; what it enriches travels with what
    follows.
    ``deadline``: seconds.
    """

    name: str
    description: str
    handler: Callable[..., object]
    triggers: Mapping[str, Any] | None = None
    schedule: Mapping[str, Any] | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    blocking: bool = False
    priority: int = 0
    deadline: float = DEADLINE


@dataclass(frozen=True, slots=True)
class Definition:
    """An automation without its handler, checked, as it is stored and travels."""

    name: str
    description: str
    triggers: Triggers | None
    schedule: Json | None
    config: Json
    blocking: bool
    priority: int
    deadline: float

    def wants(self, kind: str, channel: str, direction: str) -> bool:
        """Whether an event is one of its triggers', whoever it comes from. A tick of a schedule is
        its own, and that of nobody else who has one."""
        if self.triggers is None:
            return self.schedule is None
        return self.triggers.match_event(kind, channel, direction)

    def to_json(self) -> Json:
        found = {one.name: getattr(self, one.name) for one in fields(self)}
        return found | {"triggers": None if self.triggers is None else self.triggers.to_json()}

    @classmethod
    def of(cls, value: object) -> Definition:
        """Read an ``Automation``, a table like it, or what ``to_json`` made. Raises UsageError."""
        if isinstance(value, Automation):
            value = {one.name: getattr(value, one.name) for one in fields(value)}
        names = tuple(one.name for one in fields(Automation))
        given = {key: one for key, one in _table(value, "automation", names).items()}
        name, told = given.get("name"), given.get("description")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise UsageError(
                f"an automation's name cannot be {name!r}",
                hint="up to 64 lowercase letters, digits, and . _ -; the first a letter or digit",
            )
        if not isinstance(told, str) or not told.strip() or len(told) > 1000:
            raise UsageError("an automation has a description, a text of up to 1000 characters")
        schedule, config = given.get("schedule"), given.get("config") or {}
        triggers = given.get("triggers")
        for what, one in (("schedule", schedule), ("triggers", triggers), ("config", config)):
            _json({} if one is None else one, what)
        if schedule is not None:
            Schedule.of(schedule)
            if name == MINUTE:
                raise UsageError(f"{MINUTE} is the schedule of every minute: choose another name")
        priority, deadline = given.get("priority", 0), given.get("deadline", DEADLINE)
        if type(priority) is not int or not -1_000_000 <= priority <= 1_000_000:
            raise UsageError(f"priority is a whole number, not {priority!r}")
        if type(deadline) not in (int, float) or not 0 < deadline <= DEADLINE_MAX:
            raise UsageError(
                f"deadline must be a number of seconds, more than 0 and at most {DEADLINE_MAX:g}"
            )
        if not isinstance(given.get("blocking", False), bool):
            raise UsageError(f"blocking must be True or False, not {given['blocking']!r}")
        return cls(
            name,
            told.strip(),
            None if triggers is None else Triggers.from_json(triggers),
            None if schedule is None else dict(schedule),
            dict(config),
            given.get("blocking", False),
            priority,
            float(deadline),
        )


@dataclass(frozen=True, slots=True)
class AutomationResult:
    """What a handler says of one event.

    ``context``: {"prompt": what the agent is to do, "data": what it is told beside}. ``enrich``
    counts where ``fire`` is false, and of a blocking automation: it travels with what follows.
    ``permissions``: of the turn; without it the event's own (docs/broker.md).
    ``delivery_context``: where the answer goes; without it back to where the event came from.
    ``quiet_when``: an answer that is exactly this text is recorded, and goes nowhere.
    """

    fire: bool = False
    agent: str | None = None
    context: Mapping[str, Any] | None = None
    enrich: Mapping[str, Any] | None = None
    disable: bool = False
    permissions: PermissionSet | None = None
    delivery_context: DeliveryContext | None = None
    quiet_when: str | None = None

    @classmethod
    def of(cls, value: object) -> AutomationResult:
        """What a handler returned: one of these, a table, a bool, None. Raises UsageError."""
        if isinstance(value, AutomationResult):
            value = {one.name: getattr(value, one.name) for one in fields(value)}
        if value is None or isinstance(value, bool):
            return cls(fire=bool(value))
        given = _table(value, "the result", tuple(one.name for one in fields(cls)))
        for name in ("fire", "disable"):
            if not isinstance(given.get(name, False), bool):
                raise UsageError(f"{name} must be true or false, not {given[name]!r}")
        agent, permissions = given.get("agent"), given.get("permissions")
        if agent is not None and (not isinstance(agent, str) or not agent):
            raise UsageError(f"agent must be a name, not {agent!r}")
        context, enrich = given.get("context"), given.get("enrich")
        if context is not None:
            context = _table(context, "context", ("prompt", "data"))
            if not isinstance(context.get("prompt") or "", str):
                raise UsageError(f"context.prompt must be a text, not {context['prompt']!r}")
        for what, one in (("context", context or {}), ("enrich", enrich or {})):
            _json(one, what, RESULT_MAX)
        if permissions is not None and not isinstance(permissions, PermissionSet):
            permissions = PermissionSet.from_json(permissions)
        delivery = given.get("delivery_context")
        if delivery is not None and not isinstance(delivery, DeliveryContext):
            delivery = DeliveryContext.from_json(delivery)
        quiet = given.get("quiet_when")
        if quiet is not None and (not isinstance(quiet, str) or not 0 < len(quiet.strip()) <= 200):
            raise UsageError(f"quiet_when must be a text of 1 to 200 characters, not {quiet!r}")
        return cls(
            given.get("fire", False),
            agent,
            context,
            None if enrich is None else dict(enrich),
            given.get("disable", False),
            permissions,
            delivery,
            None if quiet is None else quiet.strip(),
        )

    def to_json(self) -> Json:
        """In JSON's types; ``of`` reads it."""
        out: Json = {"fire": self.fire}
        for name in ("agent", "context", "enrich", "quiet_when"):
            if getattr(self, name) is not None:
                out[name] = getattr(self, name)
        for name, value in (
            ("permissions", self.permissions),
            ("delivery_context", self.delivery_context),
        ):
            if value is not None:
                out[name] = value.to_json()
        return out | ({"disable": True} if self.disable else {})

    def hook_result(self, persona: str, enriched: Mapping[str, Any]) -> HookResult:
        """The same as a route function would say it. ``enriched``: by those that ran before."""
        given = self.context or {}
        data = given.get("data")
        own = data if isinstance(data, Mapping) else {} if data is None else {"data": data}
        added = AddedContext(given.get("prompt"), {**enriched, **own} or None)
        routing = HookRouting(self.agent or persona)
        return HookResult(self.fire, routing, self.permissions, self.delivery_context, added)


def check_size(path: str, source: str) -> None:
    """Raises UsageError for the text of a file that is empty or too large."""
    if not source.strip():
        raise UsageError(f"{path} is empty")
    if len(source.encode()) > SOURCE_MAX:
        raise UsageError(
            f"{path} has more than {SOURCE_MAX} bytes",
            hint="put what is large into a package",
            code="too_large",
        )


def direction_of(event: Event) -> str:
    """``sent`` by the owner or an agent of relay's; ``received`` from anybody else."""
    ours = event.sender_type in (PrincipalType.OWNER, PrincipalType.AGENT)
    return "sent" if ours else "received"


def _table(value: object, what: str, keys: Sequence[str]) -> Json:
    if not isinstance(value, Mapping):
        raise UsageError(f"{what} must be a dictionary, not {value!r}")
    for key in value:
        if key not in keys:
            raise UsageError(f"{what} has no {key!r}", hint=did_you_mean(str(key)[:80], keys))
    return dict(value)


def _texts(value: object, what: str) -> tuple[str, ...]:
    given = [value] if isinstance(value, str) else value
    if isinstance(given, list | tuple) and given and all(isinstance(one, str) for one in given):
        return tuple(given)
    raise UsageError(f"{what} must be a text, or a list of some, not {value!r}")


def _one_of(values: frozenset[str] | None, known: Sequence[str], what: str) -> None:
    for one in values or ():
        if one not in known:
            raise UsageError(f"{what} cannot be {one!r}", hint=f"one of {', '.join(known)}")


def _json(value: object, what: str, limit: int = CONFIG_MAX) -> None:
    try:
        usable = isinstance(value, Mapping) and json_text.size_of(value) <= limit
        usable = usable and json_text.loads(json_text.dumps(value)) == value
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"{what} is not JSON: {error}") from error
    if not usable:
        raise UsageError(f"{what} must be a dictionary in JSON's types, of at most {limit} bytes")


@dataclass(frozen=True, slots=True)
class Schedule:
    """One of ``every`` (milliseconds), ``cron`` and ``at``; ``zone``: None for the local one."""

    every: int | None = None
    cron: str | None = None
    at: datetime | None = None
    zone: ZoneInfo | None = None

    @classmethod
    def of(cls, value: object) -> Schedule:
        """Read what a file says. Raises UsageError, which says what is wrong with it."""
        if not isinstance(value, Mapping):
            raise UsageError(f"schedule must be a dictionary, not {value!r}")
        for key in value:
            if key not in (*_KINDS, "timezone"):
                raise UsageError(
                    f"schedule has no {key!r}", hint=f"it has {', '.join(_KINDS)}, timezone"
                )
        given = {key: one for key, one in value.items() if one is not None}
        zone = None if "timezone" not in given else _zone(given.pop("timezone"))
        if len(given) != 1:
            raise UsageError("a schedule has one of every, cron and at")
        [(kind, text)] = given.items()
        if not isinstance(text, str):
            raise UsageError(f"schedule.{kind} must be a text, not {text!r}")
        if kind == "every":
            return cls(every=_every(text), zone=zone)
        if kind == "at":
            return cls(at=_at(text), zone=zone)
        _check_cron(text)
        return cls(cron=text, zone=zone)

    def next_after(self, now_ms: int, local: tzinfo) -> int | None:
        """When it strikes next, counted from now on; None: never again."""
        if self.every is not None:
            return now_ms + self.every
        zone = self.zone or local
        if self.at is not None:
            at = self.at if self.at.tzinfo else self.at.replace(tzinfo=zone)
            at_ms = _ms(at)
            return at_ms if at_ms > now_ms else None
        return next(self._cron_after(now_ms, zone), None)

    def after_tick(self, due_ms: int, now_ms: int, local: tzinfo) -> tuple[int | None, int]:
        """When it strikes next after the one of ``due_ms`` that strikes now, and how many others
        were due meanwhile: those are missed."""
        if self.every is not None:
            missed = (now_ms - due_ms) // self.every
            return due_ms + (missed + 1) * self.every, min(missed, MISSED_MAX)
        missed = 0
        strikes = iter(()) if self.cron is None else self._cron_after(due_ms, self.zone or local)
        for found in strikes:
            if found > now_ms:
                return found, missed
            if missed == MISSED_MAX:
                return self.next_after(now_ms, local), missed
            missed += 1
        return None, missed

    def _cron_after(self, after_ms: int, zone: tzinfo) -> Iterator[int]:
        from cronsim import CronSim  # on use: most have none

        start = datetime.fromtimestamp(after_ms / 1000, UTC).astimezone(zone)
        with suppress(OverflowError):  # beyond the year 9999
            for at in CronSim(self.cron or "", start):
                if (found := _ms(at)) > after_ms:
                    yield found


@lru_cache(4096)  # it takes up to 2 ms, and what is stored is read again and again
def _check_cron(text: str) -> None:
    """Raises UsageError for what is no cron expression, or never comes."""
    from cronsim import CronSim, CronSimError

    hint = "minute hour day-of-month month day-of-week, such as: 0 9 * * 1-5"
    if len(text) > CRON_MAX:
        raise UsageError(f"schedule.cron has more than {CRON_MAX} characters", hint=hint)
    try:
        CronSim(text, datetime(2026, 1, 1))
    except (CronSimError, ValueError, AssertionError) as error:
        raise UsageError(f"schedule.cron cannot be {text!r}: {error}", hint=hint) from error
    if Schedule(cron=text).next_after(0, UTC) is None:
        raise UsageError(f"schedule.cron {text!r} never comes", hint=hint)


def _every(text: str) -> int:
    whole = text[:41].replace(" ", "")
    found = sum(int(n) * _UNITS[unit] for n, unit in _PART.findall(whole))
    if not _PARTS.fullmatch(whole) or len(text) > 40:
        raise UsageError(
            f"schedule.every cannot be {text[:40]!r}", hint="such as 30s, 15m, 1h30m, 2d, 1w"
        )
    if not EVERY_MIN <= found <= EVERY_MAX:
        raise UsageError("schedule.every is from 1s to 366d")
    return found


def _at(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
        _ms(found.replace(tzinfo=found.tzinfo or UTC))
    except (ValueError, OverflowError) as error:
        raise UsageError(
            f"schedule.at cannot be {text[:40]!r}",
            hint='such as "2026-02-05T10:00", or with an offset "2026-02-05T10:00+01:00"',
        ) from error
    return found


def _zone(name: object) -> ZoneInfo:
    try:
        return ZoneInfo(name)  # type: ignore[arg-type]
    except (ValueError, TypeError, OSError, KeyError, AttributeError) as error:
        raise UsageError(
            f"schedule.timezone cannot be {str(name)[:40]!r}",
            hint='a name of the time zone database, such as "Europe/Berlin"',
        ) from error


def _ms(at: datetime) -> int:
    return (at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
