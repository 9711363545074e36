"""Chooses the hooks of one event: which run, in which order, and whether one after the other. Pure.

Matchers are read in the manner of the engine they were written for. A matcher is a person's own
text, but what it is matched against may come from anywhere (a tool server chooses the names of its
tools), so no matcher may take long. Where a regular expression could, the hook is selected: it gets
the name and can look itself, and a guard is not evaded by a name that is made to be slow.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from relay.hooks.events import EVENTS, HookEventName
from relay.hooks.hook_types import Callee, Command, Dialect, HookDefinition, OnFailure, Plan, Url
from relay.hooks.registry import Registry

#: A longer name is not searched with a regular expression. In characters.
MATCHED_MAX = 128
#: How much what can share one text may vary: three unbounded repeats, and three optional parts.
VARIANCE_MAX = 15

_EXACT = re.compile(r"[A-Za-z0-9_|, -]+")
_SPLIT = re.compile(r"[|,]")
#: JavaScript's way to name a group, in which these matchers are written.
_NAMED = re.compile(r"\(\?<(?![=!])")
#: A group that is repeated, and what varies: repeats count four times as much as options.
_REPEATED_GROUP = re.compile(r"\)[*+{]")
_VARIES = re.compile(r"[*+{?]")


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

    That is: a group that is repeated, or more repeats than VARIANCE_MAX allows; in a plain list of
    alternatives each counts for itself. Such a matcher selects its hook for every name.
    """
    if _REPEATED_GROUP.search(matcher):
        return True
    parts = matcher.split("|") if set("([\\").isdisjoint(matcher) else [matcher]
    return any(
        sum(1 if sign == "?" else 4 for sign in _VARIES.findall(part)) > VARIANCE_MAX
        for part in parts
    )


@lru_cache(maxsize=1024)
def _names(matcher: str) -> frozenset[str]:
    return frozenset(name.strip() for name in _SPLIT.split(matcher)) - {""}


def _searched(matcher: str, name: str) -> bool:
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
