"""Registers handlers, and selects those of a pattern or an event, in order. Pure.

Names, patterns, times and signatures are checked here: a handler that could not be called is
refused when it is registered, not when an agent speaks. relay's own handlers are registered the
same way, under the source ``BUILTIN``.
"""

from __future__ import annotations

import fnmatch
import inspect
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import isasyncgenfunction, iscoroutinefunction

from relay.core.dispatch import RELAY_CHANNEL
from relay.core.errors import did_you_mean
from relay.core.visible import is_visible
from relay.hooks.binding import Binding, BindingError, bind
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

#: The namespaces for which relay brings a handler; ``"builtin"`` in a configuration names one.
BUILTIN_NAMESPACES = frozenset({"relay", "broadcast", "memory"})
#: The time that a handler has when nothing else is configured, in seconds, and the longest of any
#: that is set: a number beyond what the system can wait for would end the session.
TIMEOUT_DEFAULT = 30.0
TIMEOUT_MAX = 86_400.0
#: The source of relay's own handlers.
BUILTIN = "built-in"
#: What a route function may take.
ROUTE_OFFERED = ("event",)
#: What the two functions of a channel adapter may take.
ADAPTER_OFFERED, SEND_OFFERED = ("inlet",), ("context", "text")
#: Names of route functions and channel adapters, of event kinds and of channels.
WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
#: Names of channels that are connected.
CHANNEL = re.compile(r"[a-z][a-z0-9_.-]{0,63}")
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
                priority=checked_priority(label, priority),
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
            raise RegistrationError(f"there are two routes {given!r}", hint="rename one of them")
        entry = RouteFunction(
            given,
            callee_of(label, function, ROUTE_OFFERED, timeout, source),
            checked_words(label, "kinds", kinds),
            checked_words(label, "channels", channels),
            checked_priority(label, priority),
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

    def with_commands(self, commands: Mapping[HookDefinition, Command]) -> Registry:
        """A copy whose hooks run these programs in place of theirs."""
        copy = Registry()
        copy._patterns = list(self._patterns)
        copy._routes = dict(self._routes)
        copy._adapters = dict(self._adapters)
        for hook in self._hooks:
            copy._insert(replace(hook, action=commands[hook]) if hook in commands else hook)
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

    def programs(self) -> Iterator[tuple[HookDefinition, Command]]:
        """Its hooks that are programs, and what they run."""
        return ((hook, hook.action) for hook in self._hooks if isinstance(hook.action, Command))

    def commands(self) -> list[Command]:
        """What its hooks run as programs."""
        return [command for _, command in self.programs()]


def _matches(glob: str, target: str) -> bool:
    return glob == target or fnmatch.fnmatchcase(target, glob)


def _specificity(glob: str) -> tuple[int, int, int]:
    """Sorts the most specific first: no wildcard, longest literal start, most literal text."""
    wildcard = _WILDCARD.search(glob)
    if wildcard is None:
        return (0, 0, 0)
    literal = len(_WILDCARD.sub("", glob))
    return (1, -wildcard.start(), -literal)


def split_pattern(key: str) -> tuple[str, str]:
    """``deploy`` -> (deploy, *); ``deploy:prod-*`` -> (deploy, prod-*). Unchecked."""
    if not isinstance(key, str):  # a file has whatever its author writes
        return key, "*"
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


def checked_priority(label: str, priority: int) -> int:
    """``priority``. Raises RegistrationError."""
    if isinstance(priority, bool) or not isinstance(priority, int):
        raise RegistrationError(f"{label}: the priority must be a whole number, not {priority!r}")
    return priority


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
            f"{label}: the timeout must be a number of seconds, more than 0 and at most"
            f" {TIMEOUT_MAX:g}, not {timeout!r}"
        )
    return float(timeout)


def checked_words(label: str, what: str, given: object) -> frozenset[str] | None:
    if given is None:
        return None
    words = [given] if isinstance(given, str) else given
    if (
        not isinstance(words, Collection)
        or not words
        or not all(isinstance(one, str) and WORD.fullmatch(one) for one in words)
    ):
        raise RegistrationError(f"{label}: {what} must be a list of words, not {given!r}")
    return frozenset(words)


def checked_matcher(label: str, matcher: object) -> str:
    if not isinstance(matcher, str):
        raise RegistrationError(f"{label}: the matcher must be a string, not {matcher!r}")
    return matcher


def checked_on_failure(event: HookEventName, value: object) -> OnFailure:
    if value is None:
        return OnFailure.BLOCK if event is HookEventName.BEFORE_TOOL else OnFailure.ALLOW
    if value not in (OnFailure.ALLOW, OnFailure.BLOCK):
        raise RegistrationError(
            f'{event.registration}: on_failure must be "allow" or "block", not {value!r}'
        )
    return OnFailure(str(value))


def described(action: Command | Url) -> str:
    if isinstance(action, Url):
        return action.url
    return action.shell or " ".join(action.argv)


def callee_of(
    label: str,
    function: HandlerFunction,
    arguments: tuple[str, ...],
    timeout: float | None,
    source: str | None,
) -> Callee:
    binding = check_callable(label, function, arguments)
    bodies = _bodies(function)
    if any(inspect.isgeneratorfunction(b) or inspect.isasyncgenfunction(b) for b in bodies):
        raise RegistrationError(
            f"the handler of {label} is a generator, so calling it would run nothing",
            hint="use return instead of yield",
        )
    is_async = any(inspect.iscoroutinefunction(body) for body in bodies)
    called = getattr(function, "__qualname__", None) or type(function).__name__
    source = source_of(function) if source is None else source
    name = f"{label} {called.rpartition('<locals>.')[2]} [{source.rpartition('/')[2]}]"
    return Callee(name, function, binding, is_async, checked_timeout(label, timeout), source)


def check_callable(label: str, function: HandlerFunction, arguments: tuple[str, ...]) -> Binding:
    """How ``function`` is called with some of ``arguments``. Raises RegistrationError."""
    if not callable(function):
        raise RegistrationError(
            f"the handler of {label} cannot be called: it is {type(function).__name__}",
            hint='give a function; for a program write {"command": ["program", "argument"]}'
            if isinstance(function, str | list)
            else "give a function, or an object with __call__",
        )
    try:
        return bind(function, arguments)
    except BindingError as error:
        raise RegistrationError(
            f"the handler of {label} cannot be called: {error}",
            hint=f"write it as def handler({', '.join(arguments)}), or with fewer of these",
        ) from None


def source_of(function: HandlerFunction) -> str:
    """The file that ``function`` stands in, for people."""
    return str(getattr(getattr(function, "__code__", None), "co_filename", "a program"))


def _bodies(function: HandlerFunction) -> list[HandlerFunction]:
    """What runs when ``function`` is called: itself, or its class's ``__call__``."""
    if inspect.isroutine(function) or inspect.isclass(function):
        return [function]
    return [function, type(function).__call__]
