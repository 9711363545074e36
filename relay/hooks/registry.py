"""Registers handlers, and selects those of a pattern or an event, in order. Pure.

A handler that could not be called is refused when it is registered, not when an agent
speaks. relay's own handlers are registered the same way, under the source ``BUILTIN``.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from inspect import isasyncgenfunction, iscoroutinefunction

from relay.core.dispatch import RELAY_CHANNEL
from relay.core.visible import is_visible
from relay.hooks.events import (
    EVENTS,
    PATTERN_OFFERED,
    HookEventName,
    RegistrationError,
    event_names,
)
from relay.hooks.hook_types import (
    Callee,
    ChannelAdapter,
    Command,
    Dialect,
    HookDefinition,
    OnFailure,
    RouteFunction,
    Url,
)
from relay.hooks.registration import (
    CHANNEL,
    WORD,
    HandlerFunction,
    callee_of,
    check_callable,
    checked_matcher,
    checked_on_failure,
    checked_pattern,
    checked_timeout,
    checked_words,
    described,
    source_of,
)

#: The source of relay's own handlers.
BUILTIN = "built-in"
_WILDCARD = re.compile(r"[*?\[]")

#: What a route function may take.
ROUTE_OFFERED = ("event",)
#: What the two functions of a channel adapter may take.
ADAPTER_OFFERED, SEND_OFFERED = ("inlet",), ("context", "text")


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
        self._routes: dict[str, RouteFunction] = {}
        self._adapters: dict[str, ChannelAdapter] = {}

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
        callee = callee_of(label, handler, PATTERN_OFFERED, timeout, source)
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
                action, shown = handler, name or described(handler)
                source = source or "a program"
            else:
                action = callee_of(label, handler, EVENTS[event_].offered, timeout, source)
                shown, source = name or action.name, action.source
            entry = HookDefinition(
                event=event_,
                name=shown,
                action=action,
                source=source,
                matcher=checked_matcher(label, matcher),
                priority=priority,
                order=len(self._hooks) + len(entries),
                timeout=limit,
                on_failure=checked_on_failure(event_, on_failure),
                sequential=bool(sequential),
                trusted=trusted,
                dialect=dialect,
            )
            entries.append(entry)
        for entry in entries:
            self._insert(entry)
        return entries[0]

    def add_route(
        self,
        name: str | None,
        function: HandlerFunction,
        *,
        kinds: Collection[str] | None = None,
        channels: Collection[str] | None = None,
        priority: int = 0,
        timeout: float | None = None,
        source: str | None = None,
    ) -> RouteFunction:
        """Register ``function(event)``, which returns a HookResult, True, False or None.

        ``name`` (default: the function's own) is a part of its hook id. Of several dispatches of
        one event those of a higher ``priority`` come first. Raises RegistrationError, and then
        nothing has been registered.
        """
        given = getattr(function, "__name__", None) if name is None else name
        label = f"the route {given!r}"
        if not isinstance(given, str) or not WORD.fullmatch(given):
            raise RegistrationError(
                f"{given!r} cannot be the name of a route function",
                hint='name it: @relay.route("family"); letters, digits, _ . -, at most 64',
            )
        if given in self._routes:
            raise RegistrationError(f"there are two routes {given!r}", hint="name one otherwise")
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise RegistrationError(
                f"{label}: the priority must be a whole number, not {priority!r}"
            )
        entry = RouteFunction(
            given,
            callee_of(label, function, ROUTE_OFFERED, timeout, source),
            checked_words(label, "kinds", kinds),
            checked_words(label, "channels", channels),
            priority,
        )
        self._routes[given] = entry
        return entry

    def add_channel_adapter(
        self,
        name: str,
        *,
        events: HandlerFunction | None = None,
        send: HandlerFunction | None = None,
        source: str | None = None,
    ) -> ChannelAdapter:
        """Register what connects the channel ``name``, or the other half of it. Raises
        RegistrationError, and then nothing has been registered."""
        if not isinstance(name, str) or not CHANNEL.fullmatch(name) or name == RELAY_CHANNEL:
            raise RegistrationError(
                f"{name!r} cannot be the name of a channel",
                hint="a word of lower-case letters, digits, _ . -; relay is relay's own",
            )
        known = self._adapters.get(name)
        for what, given, there in (
            ("events", events, known and known.events),
            ("send", send, known and known.send),
        ):
            if given is not None and there is not None:
                raise RegistrationError(f"the channel {name} has two functions for {what}")
        for given, offered in ((events, ADAPTER_OFFERED), (send, SEND_OFFERED)):
            if given is not None:
                check_callable(f"the channel {name}", given, offered)
                source = source or source_of(given)
        if events is not None and not (isasyncgenfunction(events) or iscoroutinefunction(events)):
            raise RegistrationError(
                f"the function for events of the channel {name} is not async",
                hint="write it as async def",
            )
        entry = ChannelAdapter(
            name,
            events or (known.events if known else None),
            send or (known.send if known else None),
            source or "",
        )
        self._adapters[name] = entry
        return entry

    def include(self, nearer: Registry) -> None:
        """Add what ``nearer`` holds. Its handlers of a pattern take the place of those that are
        here for the same namespace and target; hooks add up. Route functions are
        only listed together: each worker has those of its own configuration."""
        theirs = {(entry.namespace, entry.target) for entry in nearer._patterns}
        kept = [one for one in self._patterns if (one.namespace, one.target) not in theirs]
        self._patterns = [
            replace(entry, order=number) for number, entry in enumerate(kept + nearer._patterns)
        ]
        for hook in nearer._hooks:
            self._insert(replace(hook, order=len(self._hooks)))
        self._routes.update(nearer._routes)

    def with_commands(self, change: Callable[[HookDefinition, Command], Command]) -> Registry:
        """A copy whose hooks that are programs run what ``change`` makes of them."""
        copy = Registry()
        copy._patterns = list(self._patterns)
        copy._routes = dict(self._routes)
        copy._adapters = dict(self._adapters)
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

    def routes(self) -> list[RouteFunction]:
        """Every route function: those of a higher priority first, then in registration order."""
        return sorted(self._routes.values(), key=lambda one: -one.priority)

    def channel_adapters(self) -> list[ChannelAdapter]:
        """What connects channels, in registration order."""
        return list(self._adapters.values())

    @property
    def holds_something(self) -> bool:
        """Whether anything is registered."""
        return bool(self._patterns or self._hooks or self._routes or self._adapters)

    def all_hooks(self) -> list[HookDefinition]:
        """Every hook handler, in registration order."""
        return list(self._hooks)

    def commands(self, source: str | None = None) -> list[Command]:
        """What its hooks run as programs: all of them, or those of the file ``source``."""
        return [
            hook.action
            for hook in self._hooks
            if isinstance(hook.action, Command) and source in (None, hook.source)
        ]


def _matches(glob: str, target: str) -> bool:
    return glob == target or fnmatch.fnmatchcase(target, glob)


def _specificity(glob: str) -> tuple[int, int, int]:
    """Sorts the most specific first: no wildcard, longest literal start, most literal text."""
    wildcard = _WILDCARD.search(glob)
    if wildcard is None:
        return (0, 0, 0)
    literal = len(_WILDCARD.sub("", glob))
    return (1, -wildcard.start(), -literal)
