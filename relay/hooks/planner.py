"""Chooses the hooks of one event: which run, in which order, and whether one after the other. Pure.

Matchers are read in the manner of the engine they were written for. A matcher is a person's own
text, but what it is matched against may come from anywhere (a tool server chooses the names of its
tools), so no matcher may take long. Where a regular expression could, the hook is selected: it gets
the name and can look itself, and a guard is not evaded by a name that is made to be slow.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from relay.hooks.events import EVENTS, HookEventName
from relay.hooks.hook_types import Callee, Command, Dialect, HookDefinition, OnFailure, Plan, Url
from relay.hooks.registry import Registry

#: A longer name is not searched with a regular expression. In characters.
MATCHED_MAX = 128
#: A longer regular expression is not compiled. In characters.
PATTERN_MAX = 4096
#: How much what can share one text may vary: three unbounded repeats, and three optional parts.
VARIANCE_MAX = 15

_EXACT = re.compile(r"[A-Za-z0-9_|, -]+")
_SPLIT = re.compile(r"[|,]")
#: JavaScript's way to name a group, in which these matchers are written.
_NAMED = re.compile(r"\(\?<(?![=!])")
#: What may be repeated: a class, an escape, a bracket, a bar, a quantifier, any other character.
_PART = re.compile(
    r"(?P<one>\[\^?\]?(?:\\.|[^\]\\])*\]|\\.|[^()|*+?{}\[\]\\]|[\]}])"
    r"|(?P<times>[*+]|\{(?:\d+,?\d*|,\d+)\}|\?)[+?]?"
    r"|(?P<mark>[(|)])"
    r"|.",
    re.DOTALL,
)


class Planner:
    """Plans for the hooks of one registry; what is registered later counts from then on."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        #: The names of hooks that are switched off.
        self.skip: Collection[str] = ()

    def plan(self, event: HookEventName, payload: Mapping[str, Any]) -> Plan:
        """The hooks for ``event`` with this input, in the registry's order.

        Only trusted ones whose matcher selects it. The same program (or URL) under the same name
        runs once however often it was registered; it then blocks on failure if any of them would.
        One sequential hook among those selected makes all of them run one after the other.
        """
        hooks = self.registry.hooks(event)
        hooks = [hook for hook in hooks if hook.trusted and hook.name not in self.skip]
        chosen = [hook for hook in hooks if matches(hook, payload)]
        return Plan(event, tuple(_once(chosen)), any(hook.sequential for hook in chosen))


def _once(hooks: list[HookDefinition]) -> list[HookDefinition]:
    # A key made of parts: ("a:b", "c") and ("a", "b:c") are two hooks.
    kept: dict[tuple[str, Command | Url] | HookDefinition, HookDefinition] = {}
    for hook in hooks:
        # A function that is registered twice runs twice: its closures may differ.
        key = hook if isinstance(hook.action, Callee) else (hook.name, hook.action)
        first = kept.setdefault(key, hook)
        if hook.on_failure is OnFailure.BLOCK and first.on_failure is not OnFailure.BLOCK:
            kept[key] = replace(first, on_failure=OnFailure.BLOCK)
    return list(kept.values())


def matches(definition: HookDefinition, payload: Mapping[str, Any]) -> bool:
    """Whether ``definition`` is for an event with this input. Never raises.

    "" and ``*`` match everything, as does the matcher of an event that has nothing to match. A
    Gemini CLI matcher is a regular expression that may match anywhere in a tool's name, and the
    exact word for every other event. One of Claude Code or relay that has only letters, digits and
    ``_ | , -`` is a list of exact names, and a regular expression otherwise. What is no valid
    regular expression matches exactly its own text.
    """
    field = EVENTS[definition.event].matched
    matcher = definition.matcher.strip()
    if not field or matcher in ("", "*"):
        return True
    found = payload.get(field)
    name = found if isinstance(found, str) else ""
    if definition.dialect is Dialect.GEMINI:
        if EVENTS[definition.event].matched != "tool_name":
            return name == matcher
    elif _EXACT.fullmatch(matcher):
        return name in _names(matcher)
    return _searched(matcher, name)


def slow(matcher: str) -> bool:
    """Whether ``matcher``, as a regular expression, could take long on a name of MATCHED_MAX.

    That is: a repeated group that holds a repeat or an alternative, or more repeats in a row than
    VARIANCE_MAX allows. Such a matcher selects its hook for every name.
    """
    if len(matcher) > PATTERN_MAX:
        return True
    groups = [_Group()]
    varies = False  # whether what was just read can match in more than one way
    for part in _PART.finditer(matcher):
        group, mark, times = groups[-1], part["mark"], part["times"]
        if times is not None:
            least, most = _bounds(times)
            if varies and most > 1:
                return True
            group.here += _variance(most - least)
            varies = False
        elif mark == "(":
            groups.append(_Group())
            varies = False
        elif mark == "|":
            group.most, group.here, group.several = max(group.most, group.here), 0, True
            varies = False
        elif mark == ")" and len(groups) > 1:
            groups.pop()
            groups[-1].here += group.variance
            varies = group.several or group.variance > 0
        else:
            varies = False
    return any(group.variance > VARIANCE_MAX for group in groups)


@dataclass(slots=True)
class _Group:
    """An open group: how much its longest alternative and the present one can vary."""

    most: int = 0
    here: int = 0
    several: bool = False

    @property
    def variance(self) -> int:
        return max(self.most, self.here)


def _bounds(times: str) -> tuple[int, float]:
    """How often a quantifier lets something occur: at least, at most."""
    if times in "*+?":
        return int(times == "+"), 1 if times == "?" else math.inf
    least, comma, most = times.strip("{}").partition(",")
    fewest = int(least or 0)
    return fewest, fewest if not comma else int(most) if most else math.inf


def _variance(freedom: float) -> int:
    """What a quantifier adds: 4 where it is (nearly) free, 1 where something is optional."""
    return 4 if freedom > 3 else int(freedom)


@lru_cache(maxsize=1024)
def _names(matcher: str) -> frozenset[str]:
    return frozenset(name.strip() for name in _SPLIT.split(matcher)) - {""}


def _searched(matcher: str, name: str) -> bool:
    if len(matcher) > PATTERN_MAX:
        return True
    pattern, bounded = _compiled(matcher)
    if pattern is None:
        return name == matcher
    return not bounded or len(name) > MATCHED_MAX or pattern.search(name) is not None


@lru_cache(maxsize=1024)
def _compiled(matcher: str) -> tuple[re.Pattern[str] | None, bool]:
    """The regular expression (None where ``matcher`` is none), and whether it is never slow."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "[[" may mean something else one day
            pattern = re.compile(_NAMED.sub("(?P<", matcher), re.ASCII)
    except (re.error, RecursionError, OverflowError, ValueError, MemoryError):
        return None, True
    return pattern, not slow(matcher)
