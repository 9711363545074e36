"""Registers handlers, and selects those of a pattern or an event, in order. Pure.

A handler that could not be called is refused when it is registered, not when an agent
speaks. relay's own handlers are registered the same way, under the source ``BUILTIN``.
"""

from __future__ import annotations

import fnmatch
import inspect
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from relay.core.suggest import did_you_mean
from relay.core.visible import is_visible
from relay.hooks.binding import BindingError, bind
from relay.hooks.events import (
    EVENTS,
    PATTERN_OFFERED,
    HookEventName,
    RegistrationError,
    event_names,
)
from relay.hooks.hook_types import Callee, Command, Dialect, HookDefinition, OnFailure, Url

#: The source of relay's own handlers.
BUILTIN = "built-in"
#: The namespaces for which relay brings a handler; ``"builtin"`` in a configuration names one.
BUILTIN_NAMESPACES = frozenset({"relay", "broadcast", "memory"})
#: The time that a handler has when nothing else is configured, and the longest, in seconds.
TIMEOUT_DEFAULT = 30.0
TIMEOUT_MAX = 3600.0

_NAMESPACE = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_WILDCARD = re.compile(r"[*?\[]")

HandlerFunction = Callable[..., object]


@dataclass(frozen=True, eq=False, slots=True)
class PatternHandler:
    """A handler of ``@namespace:target``; ``target`` is a glob, matched with case."""

    namespace: str
    target: str
    callee: Callee
    override: bool
    order: int

    @property
    def builtin(self) -> bool:
        return self.callee.source == BUILTIN


class Registry:
    """All handlers of one configuration."""

    def __init__(self) -> None:
        self._patterns: list[PatternHandler] = []
        self._hooks: list[HookDefinition] = []
        self._by_event: dict[HookEventName, tuple[HookDefinition, ...]] = {}

    def add_pattern(
        self,
        namespace: str,
        target_glob: str,
        handler: HandlerFunction,
        *,
        override: bool = False,
        timeout: float | None = None,
        source: str | None = None,
    ) -> PatternHandler:
        """Register ``handler(target, message, ctx)``; it may take fewer of these.

        With ``override`` relay's own handlers do not run for what this one matches. ``source``
        is where it comes from, for people (default: the file of the function). Raises
        RegistrationError, and then nothing has been registered.
        """
        namespace, target_glob = checked_pattern(namespace, target_glob)
        label = f"@{namespace}:{target_glob}"
        callee = _callee(label, handler, PATTERN_OFFERED, timeout, source)
        entry = PatternHandler(namespace, target_glob, callee, bool(override), len(self._patterns))
        self._patterns.append(entry)
        return entry

    def add_hook(
        self,
        event: str | HookEventName,
        handler: HandlerFunction | Command | Url,
        *,
        priority: int = 0,
        timeout: float | None = None,
        matcher: str = "",
        on_failure: str | OnFailure | None = None,
        sequential: bool = False,
        name: str | None = None,
        source: str | None = None,
        dialect: Dialect = Dialect.RELAY,
        trusted: bool = True,
    ) -> HookDefinition:
        """Register ``handler`` for ``event`` (any accepted spelling; ``tool_call`` is two events).

        A higher ``priority`` runs earlier. ``matcher`` chooses by the tool's name (or by what else
        the event is about, see relay.hooks.planner). ``on_failure``: "allow" or "block", what its
        own failure means; "block" unless said otherwise where a tool is about to run. Returns the
        (first) definition. Raises RegistrationError, and then nothing has been registered.
        """
        entries: list[HookDefinition] = []
        for event_ in event_names(event):
            label = event_.registration
            if isinstance(priority, bool) or not isinstance(priority, int):
                raise RegistrationError(
                    f"{label}: the priority must be a whole number, not {priority!r}"
                )
            limit = checked_timeout(label, timeout)
            if name is not None and not is_visible(name):
                raise RegistrationError(
                    f"{label}: the name {name!r} has characters that cannot be seen"
                )
            action: Callee | Command | Url
            if isinstance(handler, Command | Url):
                action, shown = handler, name or _described(handler)
                source = source or "a program"
            else:
                action = _callee(label, handler, EVENTS[event_].offered, timeout, source)
                shown, source = name or action.name, action.source
            entry = HookDefinition(
                event=event_,
                name=shown,
                action=action,
                source=source,
                matcher=_checked_matcher(label, matcher),
                priority=priority,
                order=len(self._hooks) + len(entries),
                timeout=limit,
                on_failure=_checked_on_failure(event_, on_failure),
                sequential=bool(sequential),
                trusted=trusted,
                dialect=dialect,
            )
            entries.append(entry)
        for entry in entries:
            self._insert(entry)
        return entries[0]

    def include(self, nearer: Registry) -> None:
        """Add what ``nearer`` holds. Its handlers of a pattern take the place of those that are
        here for the same namespace and target; hooks add up."""
        theirs = {(entry.namespace, entry.target) for entry in nearer._patterns}
        kept = [one for one in self._patterns if (one.namespace, one.target) not in theirs]
        self._patterns = [
            replace(entry, order=number) for number, entry in enumerate(kept + nearer._patterns)
        ]
        for hook in nearer._hooks:
            self._insert(replace(hook, order=len(self._hooks)))

    def with_commands(self, change: Callable[[HookDefinition, Command], Command]) -> Registry:
        """A copy whose hooks that are programs run what ``change`` makes of them."""
        copy = Registry()
        copy._patterns = list(self._patterns)
        for hook in self._hooks:
            action = hook.action
            if isinstance(action, Command):
                hook = replace(hook, action=change(hook, action))
            copy._insert(hook)
        return copy

    def _insert(self, entry: HookDefinition) -> None:
        self._hooks.append(entry)
        self._by_event[entry.event] = tuple(
            sorted(
                (*self._by_event.get(entry.event, ()), entry),
                key=lambda one: (-one.priority, one.order),
            )
        )

    def namespaces(self) -> frozenset[str]:
        """The namespaces that are patterns; every other ``@word:`` is ordinary text."""
        return frozenset(entry.namespace for entry in self._patterns)

    def select(self, namespace: str, target: str) -> list[PatternHandler]:
        """The handlers for one match, in the order in which they run.

        The most specific first (an exact target, then the glob with the longest literal start),
        relay's own before the user's, then by registration. An overriding handler of the user's
        removes relay's own.
        """
        found = [
            entry
            for entry in self._patterns
            if entry.namespace == namespace and _matches(entry.target, target)
        ]
        if any(entry.override and not entry.builtin for entry in found):
            found = [entry for entry in found if not entry.builtin]
        return sorted(found, key=lambda e: (*_specificity(e.target), not e.builtin, e.order))

    def hooks(self, event: HookEventName) -> Sequence[HookDefinition]:
        """The hooks of ``event``, in the order in which they run. Costs a dictionary look-up."""
        return self._by_event.get(event, ())

    def patterns(self) -> list[PatternHandler]:
        """Every pattern handler, in registration order."""
        return list(self._patterns)

    def all_hooks(self) -> list[HookDefinition]:
        """Every hook handler, in registration order."""
        return list(self._hooks)


def split_pattern(key: str) -> tuple[str, str]:
    """``deploy`` -> (deploy, *); ``deploy:prod-*`` -> (deploy, prod-*). Unchecked."""
    namespace, colon, target = key.removeprefix("@").partition(":")
    return namespace, target if colon else "*"


def checked_pattern(namespace: str, target_glob: str) -> tuple[str, str]:
    """Both parts if they can be a pattern. Raises RegistrationError."""
    if not isinstance(namespace, str) or not _NAMESPACE.fullmatch(namespace):
        lower = namespace.lower() if isinstance(namespace, str) else ""
        raise RegistrationError(
            f"{namespace!r} cannot be a namespace",
            hint=f"did you mean {lower!r}?"
            if _NAMESPACE.fullmatch(lower)
            else "a namespace has lower case letters, digits, '-' and '_', at most 64, "
            "and starts with a letter",
        )
    if namespace == "broadcast":
        raise RegistrationError(
            "broadcast is another way to write relay:*", hint="register 'relay:*' instead"
        )
    word = isinstance(target_glob, str) and is_visible(target_glob)
    if not word or not target_glob or re.search(r"\s", target_glob):
        raise RegistrationError(
            f"{target_glob!r} cannot be the target of @{namespace}:",
            hint="a target is a word such as 'staging', or a glob such as 'prod-*'",
        )
    return namespace, target_glob


def checked_builtin(namespace: str) -> str:
    """``namespace`` if relay brings a handler for it. Raises RegistrationError."""
    if namespace not in BUILTIN_NAMESPACES:
        raise RegistrationError(
            f"relay has no built-in handler for {namespace!r}",
            hint=did_you_mean(namespace, BUILTIN_NAMESPACES),
        )
    return namespace


def checked_timeout(label: str, timeout: object) -> float | None:
    """``timeout`` in seconds, or None for the default. Raises RegistrationError."""
    if timeout is None:
        return None
    if (
        isinstance(timeout, bool)
        or not isinstance(timeout, int | float)
        or not math.isfinite(timeout)
        or not 0 < timeout <= TIMEOUT_MAX
    ):
        raise RegistrationError(
            f"{label}: the timeout must be seconds, more than 0 and at most {TIMEOUT_MAX:g}, "
            f"not {timeout!r}"
        )
    return float(timeout)


def _checked_matcher(label: str, matcher: object) -> str:
    if not isinstance(matcher, str):
        raise RegistrationError(f"{label}: the matcher must be a string, not {matcher!r}")
    return matcher


def _checked_on_failure(event: HookEventName, value: object) -> OnFailure:
    if value is None:
        return OnFailure.BLOCK if event is HookEventName.BEFORE_TOOL else OnFailure.ALLOW
    if value not in (OnFailure.ALLOW, OnFailure.BLOCK):
        raise RegistrationError(
            f"{event.registration}: on_failure is {value!r}", hint='it is "allow" or "block"'
        )
    return OnFailure(str(value))


def _described(action: Command | Url) -> str:
    if isinstance(action, Url):
        return action.url
    return action.shell or " ".join(action.argv)


def _callee(
    label: str,
    function: HandlerFunction,
    arguments: tuple[str, ...],
    timeout: float | None,
    source: str | None,
) -> Callee:
    if not callable(function):
        raise RegistrationError(
            f"the handler of {label} cannot be called: it is {type(function).__name__}",
            hint="give a function, or an object with __call__",
        )
    bodies = _bodies(function)
    if any(inspect.isgeneratorfunction(b) or inspect.isasyncgenfunction(b) for b in bodies):
        raise RegistrationError(
            f"the handler of {label} is a generator, so calling it would run nothing",
            hint="use return instead of yield",
        )
    try:
        binding = bind(function, arguments)
    except BindingError as error:
        raise RegistrationError(
            f"the handler of {label} cannot be called: {error}",
            hint=f"write it as def handler({', '.join(arguments)}), or with fewer of these",
        ) from None
    is_async = any(inspect.iscoroutinefunction(body) for body in bodies)
    called = getattr(function, "__qualname__", None) or type(function).__name__
    if source is None:
        source = str(getattr(getattr(function, "__code__", None), "co_filename", "a program"))
    name = f"{label} {called.rpartition('<locals>.')[2]} [{source.rpartition('/')[2]}]"
    return Callee(name, function, binding, is_async, checked_timeout(label, timeout), source)


def _bodies(function: HandlerFunction) -> list[HandlerFunction]:
    """What runs when ``function`` is called: itself, or its class's ``__call__``."""
    if inspect.isroutine(function) or inspect.isclass(function):
        return [function]
    return [function, type(function).__call__]


def _matches(glob: str, target: str) -> bool:
    return glob == target or fnmatch.fnmatchcase(target, glob)


def _specificity(glob: str) -> tuple[int, int, int]:
    """Sorts the most specific first: no wildcard, longest literal start, most literal text."""
    wildcard = _WILDCARD.search(glob)
    if wildcard is None:
        return (0, 0, 0)
    literal = len(_WILDCARD.sub("", glob))
    return (1, -wildcard.start(), -literal)
