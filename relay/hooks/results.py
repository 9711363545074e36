"""What a handler may give back, normalised."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from relay.core.errors import RelayError
from relay.core.message import BODY_MAX
from relay.core.suggest import did_you_mean

ALLOWED = 'None, a string, or {"inject": text or a list of texts, "stop": True}'
_KEYS = ("inject", "stop")


class HandlerError(RelayError):
    """A handler gave back something that is no result."""

    code = "handler"


@dataclass(frozen=True, slots=True)
class Result:
    """``inject``: texts for the agent, in order, none empty. ``stop``: no further handlers."""

    inject: tuple[str, ...] = ()
    stop: bool = False


NOTHING = Result()


def normalise(value: object, handler: str) -> Result:
    """The Result for what ``handler`` (a name for people) returned. Raises HandlerError."""
    if value is None:
        return NOTHING
    if isinstance(value, str):
        return Result(inject=texts(value, handler))
    if isinstance(value, Mapping):
        return _from_mapping(value, handler)
    raise no_result(value, handler, ALLOWED)


def _from_mapping(value: Mapping[object, object], handler: str) -> Result:
    inject: tuple[str, ...] = ()
    stop = False
    for key, item in value.items():
        # "Inject" and "STOP" are accepted, like every spelling of the design document.
        word = key.lower() if isinstance(key, str) else ""
        if word == "inject":
            inject = texts(item, handler)
        elif word == "stop":
            stop = flag(item, "stop", handler)
        else:
            raise unknown_key(key, handler, _KEYS, ALLOWED)
    return Result(inject, stop)


def no_result(value: object, handler: str, allowed: str) -> HandlerError:
    """The error for a ``value`` of a type that means nothing; ``allowed`` says what would."""
    return HandlerError(f"{handler} returned {shown(value)}", hint=f"a handler returns {allowed}")


def unknown_key(key: object, handler: str, known: Iterable[str], allowed: str) -> HandlerError:
    """The error for a mapping's ``key`` that is not among ``known``, with the nearest of them."""
    nearest = did_you_mean(key[:80] if isinstance(key, str) else "", known)
    return HandlerError(
        f"{handler} returned a mapping with the key {shown(key)}",
        hint=f"{nearest}; a handler returns {allowed}",
    )


def wrong_value(key: str, value: object, handler: str, expected: str) -> HandlerError:
    """The error for a ``value`` that ``key`` cannot have; ``expected`` says what it can."""
    return HandlerError(f'{handler} returned "{key}": {shown(value)}', hint=expected)


def flag(value: object, key: str, handler: str) -> bool:
    """``value`` as True or False (None is False). Raises HandlerError for anything else."""
    if not isinstance(value, bool | None):
        raise wrong_value(key, value, handler, "it is True or False")
    return bool(value)


def texts(value: object, handler: str) -> tuple[str, ...]:
    """``value`` as texts to inject, none blank. Raises HandlerError."""
    if value is None:
        return ()
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not all(isinstance(item, str) for item in items):
        raise wrong_value("inject", value, handler, "it is a text or a list of texts")
    found = tuple(item for item in items if item.strip())  # a blank one is nothing to say
    if sum(len(text.encode("utf-8", "surrogatepass")) for text in found) > BODY_MAX:
        raise HandlerError(
            f"{handler} returned more than {BODY_MAX} bytes to inject",
            hint="write it to a file and inject the file's name",
        )
    return found


def shown(value: object) -> str:
    """A short description; never raises, whatever the value's ``__repr__`` does."""
    kind = type(value).__name__
    try:
        text = repr(value)
    except Exception:
        return kind
    return f"{text if len(text) <= 80 else text[:79] + '…'} ({kind})"
