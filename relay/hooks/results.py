"""What a handler may give back, normalised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from relay.errors import RelayError
from relay.model import BODY_MAX
from relay.suggest import did_you_mean

_ALLOWED = 'None, a string, or {"inject": text or a list of texts, "stop": True}'
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
        return Result(inject=_texts(value, handler))
    if isinstance(value, Mapping):
        return _from_mapping(value, handler)
    raise HandlerError(
        f"{handler} returned {_shown(value)}",
        hint=f"a handler returns {_ALLOWED}",
    )


def _from_mapping(value: Mapping[object, object], handler: str) -> Result:
    inject: tuple[str, ...] = ()
    stop = False
    for key, item in value.items():
        # "Inject" and "STOP" are accepted, like every spelling of the design document.
        word = key.lower() if isinstance(key, str) else ""
        if word == "inject":
            inject = _texts(item, handler)
        elif word == "stop":
            if not isinstance(item, bool | None):
                raise HandlerError(
                    f'{handler} returned "stop": {_shown(item)}', hint="it is True or False"
                )
            stop = bool(item)
        else:
            raise HandlerError(
                f"{handler} returned a mapping with the key {_shown(key)}",
                hint=f"{did_you_mean(str(key)[:80], _KEYS)}; a handler returns {_ALLOWED}",
            )
    return Result(inject, stop)


def _texts(value: object, handler: str) -> tuple[str, ...]:
    if value is None:
        return ()
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list | tuple) or not all(isinstance(item, str) for item in items):
        raise HandlerError(
            f'{handler} returned "inject": {_shown(value)}',
            hint="it is a text or a list of texts",
        )
    texts = tuple(item for item in items if item)
    if sum(len(text.encode("utf-8", "surrogatepass")) for text in texts) > BODY_MAX:
        raise HandlerError(
            f"{handler} returned more than {BODY_MAX} bytes to inject",
            hint="write it to a file and inject the file's name",
        )
    return texts


def _shown(value: object) -> str:
    """A short description; never raises, whatever the value's ``__repr__`` does."""
    kind = type(value).__name__
    try:
        text = repr(value)
    except Exception:
        return kind
    return f"{text if len(text) <= 80 else text[:79] + '…'} ({kind})"
