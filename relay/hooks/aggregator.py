"""Merges what all hooks of one event said into one result. Pure.

Everything is merged in the order of the plan, never in the order in which the hooks ended, so that
the same hooks that say the same have the same effect each time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from relay.hooks.events import HookEventName
from relay.hooks.hook_types import (
    NOTHING_SAID,
    Aggregated,
    Decision,
    Failure,
    HookOutput,
    HookRun,
    Plan,
    ToolMode,
    ToolSelection,
)

#: The most characters of a value in a line about a conflict.
SHOWN_MAX = 60
#: After these there is nothing left to forbid: what a hook makes of the past stays.
_PAST = (HookEventName.AFTER_TOOL, HookEventName.AFTER_AGENT, HookEventName.AFTER_MODEL)
_DECISIONS = list(Decision)
_MODES = list(ToolMode)


def aggregate(event: HookEventName, results: Sequence[HookRun], plan: Plan) -> Aggregated:
    """``results`` of ``plan``, in whatever order they came, as one.

    The strongest decision counts (deny, ask, allow), with the different reasons of those who made
    it, a line each. The first stop counts, the last system message; ``suppress_output`` counts
    with a system message only. Contexts are joined by line ends, texts to inject one after the
    other. Rewrites are merged key by key, the later hook's value counts, and ``conflicts`` names
    each key that got different values from hooks that did not see each other's. What a hook that
    failed would have changed is left out: only its decision counts. A denial of what is still to
    come drops the rewrites of it (``input``, ``request``). Of the tools that a model may choose,
    the strictest mode counts and only names that all allow.
    """
    ordered = _in_order(results, plan)
    said = [
        (result, result.output)
        for result in ordered
        if result.output is not None and result.output is not NOTHING_SAID
    ]
    # A hook that failed changes nothing.
    sound = [(result.hook.name, output) for result, output in said if result.success]
    whole = Aggregated(
        success=all(result.success for result in ordered),
        results=ordered,
        errors=[_failure(event, result) for result in ordered if not result.success],
        suppress_output=any(o.suppress_output and o.system_message is not None for _, o in said),
        context="\n".join(output.context for _, output in sound if output.context),
        inject=[text for _, output in sound for text in output.inject],
        tools=narrowed([output.tools for _, output in sound if output.tools is not None]),
        duration=sum(result.duration for result in ordered),
    )
    _decide(whole, [output for _, output in said])
    _stop(whole, said)
    for _, output in said:
        whole.system_message = output.system_message or whole.system_message
    dropped = whole.blocked and event not in _PAST
    _rewrite(whole, sound, dropped=dropped, sequential=plan.sequential)
    return whole


def _in_order(results: Sequence[HookRun], plan: Plan) -> list[HookRun]:
    place = {hook: number for number, hook in enumerate(plan.hooks)}
    return sorted(results, key=lambda result: place.get(result.hook, len(place)))


def _failure(event: HookEventName, result: HookRun) -> Failure:
    why = result.error or "it failed without saying why"
    return Failure(
        stage="hook",
        message=f"{result.hook.name}: {why}",
        details=result.trace or result.stderr,
        event=event.value,
    )


def _decide(whole: Aggregated, outputs: list[HookOutput]) -> None:
    decisions = [output.decision for output in outputs if output.decision is not None]
    if decisions:
        whole.decision = max(decisions, key=_DECISIONS.index)
        reasons = [o.reason.strip() for o in outputs if o.decision is whole.decision]
        whole.reason = "\n".join(dict.fromkeys(reason for reason in reasons if reason))


def _stop(whole: Aggregated, said: list[tuple[HookRun, HookOutput]]) -> None:
    for result, output in said:
        if output.stop:
            whole.stop = True
            given = output.stop_reason.strip() or output.reason.strip()
            whole.stop_reason = given or f"stopped by {result.hook.name}"
            return


def narrowed(selections: list[ToolSelection]) -> ToolSelection | None:
    """All of ``selections`` as one: the strictest mode, and only names that all allow."""
    if not selections:
        return None
    mode = max((selection.mode for selection in selections), key=_MODES.index)
    names: tuple[str, ...] | None = None
    for selection in selections:
        if selection.names is None:
            continue
        allowed = tuple(dict.fromkeys(selection.names))
        names = allowed if names is None else tuple(name for name in names if name in allowed)
    return ToolSelection(mode, names)


@dataclass(slots=True)
class _Rewrites:
    """Values by what they replace, with the names of those who set them, in the plan's order."""

    what: str
    values: dict[str, Any] = field(default_factory=dict)
    setters: dict[str, list[tuple[str, Any]]] = field(default_factory=dict)

    def add(self, hook: str, changed: Mapping[str, Any]) -> None:
        for key, value in changed.items():
            self.values[key] = value
            self.setters.setdefault(key, []).append((hook, value))

    def conflicts(self) -> list[str]:
        """A line for each key that got different values: who set which, and whose counts."""
        lines = []
        for key, setters in self.setters.items():
            last, counted = setters[-1]
            if any(not _same(value, counted) for _, value in setters):
                who = ", ".join(f"{name} sets {_shown(value)}" for name, value in setters)
                lines.append(f"{self.what}{key}: {who}; the last counts, of {last}")
        return lines


def _rewrite(
    whole: Aggregated, sound: list[tuple[str, HookOutput]], *, dropped: bool, sequential: bool
) -> None:
    if not sound:
        return
    coming = () if dropped else sound
    given, request, response = _Rewrites("input."), _Rewrites("request."), _Rewrites("")
    for name, output in coming:
        given.add(name, output.input or {})
        request.add(name, output.request or {})
    for name, output in sound:
        response.add(name, {} if output.response is None else {"response": output.response})
    # None is "nothing was said", an empty rewrite is one that changes nothing.
    whole.input = given.values or None
    whole.request = request.values or None
    whole.response = response.values.get("response")
    if not sequential:  # there each has built on what those before it said
        whole.conflicts = [*given.conflicts(), *request.conflicts(), *response.conflicts()]


def _same(one: object, other: object) -> bool:
    # Whatever a Python handler gave: neither a comparison nor a repr may break the engine.
    if one is other:
        return True
    try:
        # In JSON, true is not 1.
        return isinstance(one, bool) is isinstance(other, bool) and bool(one == other)
    except Exception:
        return False


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except Exception:
        text = type(value).__name__
    return text if len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 1] + "…"
