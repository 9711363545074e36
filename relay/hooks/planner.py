"""Which hooks run for one event, in which order, and whether one after the other. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from relay.hooks.events import HookEventName
from relay.hooks.hook_types import Callee, Command, HookDefinition, OnFailure, Plan, Url
from relay.hooks.matching import MATCHED_FIELD, MATCHED_MAX, matches
from relay.hooks.registry import Registry

#: Plans that are remembered; when there are more, all are forgotten.
KNOWN_MAX = 256


class Planner:
    """Plans for the hooks of one registry; what is registered later counts from then on."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        #: By event and by what its matchers are about, with the hooks that there were then.
        self._known: dict[tuple[HookEventName, str], tuple[Sequence[HookDefinition], Plan]] = {}

    def plan(self, event: HookEventName, payload: Mapping[str, Any]) -> Plan:
        """The hooks for ``event`` with this input, in the registry's order.

        Only trusted ones whose matcher selects it. The same program (or URL) under the same name
        runs once however often it was registered; it then blocks on failure if any of them would.
        One sequential hook among those selected makes all of them run one after the other.
        """
        hooks = self._registry.hooks(event)
        if not hooks:
            return Plan(event, ())
        # Nothing else of the input is looked at (see matches), and to look takes longest.
        field = MATCHED_FIELD.get(event)
        found = payload.get(field) if field is not None else None
        name = found if isinstance(found, str) else ""
        then, plan = self._known.get((event, name), ((), None))
        if plan is None or then is not hooks:
            plan = _plan(event, payload, hooks)
            if len(name) <= MATCHED_MAX:
                if len(self._known) >= KNOWN_MAX:
                    self._known.clear()
                self._known[event, name] = (hooks, plan)
        return plan


def _plan(
    event: HookEventName, payload: Mapping[str, Any], hooks: Sequence[HookDefinition]
) -> Plan:
    chosen = [hook for hook in hooks if hook.trusted and matches(hook, payload)]
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
