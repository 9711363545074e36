"""Which hooks run for one event, in which order, and whether one after the other. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from relay.hooks.events import HookEventName
from relay.hooks.matching import matches
from relay.hooks.model import Callee, Command, HookDefinition, OnFailure, Plan, Url
from relay.hooks.registry import Registry


class Planner:
    """Plans for the hooks of one registry; what is registered later counts from then on."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def plan(self, event: HookEventName, payload: Mapping[str, Any]) -> Plan:
        """The hooks for ``event`` with this input, in the registry's order.

        Only trusted ones whose matcher selects it. The same program (or URL) under the same name
        runs once however often it was registered; it then blocks on failure if any of them would.
        One sequential hook among those selected makes all of them run one after the other.
        """
        hooks = self._registry.hooks(event)
        if not hooks:
            return Plan(event, ())
        chosen = [hook for hook in hooks if hook.trusted and matches(hook, payload)]
        sequential = any(hook.sequential for hook in chosen)
        return Plan(event, tuple(_once(chosen)), sequential)


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
