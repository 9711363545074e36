"""Checks what is registered, before it is: names, patterns, times, functions. Pure."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Collection

from relay.core.suggest import did_you_mean
from relay.core.visible import is_visible
from relay.hooks.binding import Binding, BindingError, bind
from relay.hooks.events import HookEventName, RegistrationError
from relay.hooks.hook_types import Callee, Command, OnFailure, Url

#: The namespaces for which relay brings a handler; ``"builtin"`` in a configuration names one.
BUILTIN_NAMESPACES = frozenset({"relay", "broadcast", "memory"})
#: The time that a handler has when nothing else is configured, in seconds, and the longest of any
#: that is set: a number beyond what the system can wait for would end the session.
TIMEOUT_DEFAULT = 30.0
TIMEOUT_MAX = 86_400.0

_NAMESPACE = re.compile(r"[a-z][a-z0-9_-]{0,63}")
#: Names of route functions and channel adapters, of event kinds and of channels.
WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")

#: Names of channels that are connected.
CHANNEL = re.compile(r"[a-z][a-z0-9_.-]{0,63}")

HandlerFunction = Callable[..., object]


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
            f"{event.registration}: on_failure is {value!r}", hint='it is "allow" or "block"'
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
            hint="give a function, or an object with __call__",
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
