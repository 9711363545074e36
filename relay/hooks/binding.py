"""Binds a handler's parameters to the arguments that it is offered. Pure.

A parameter that has the name of an offered argument gets that one; a required parameter of
another name gets the first offered argument that no name has claimed; an optional parameter of
another name keeps its default. What is offered behind ``ctx`` is had by its name only, so that a
parameter too many is still noticed.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass

#: Other names for what is offered, as people write them.
_ALIASES = {
    "ctx": ("context",),
    "target": ("action", "to"),
    "message": ("text", "body", "content", "msg"),
    "sender": ("from_", "frm"),
    "body": ("message", "text", "content", "msg"),
    "output": ("text", "line", "chunk"),
    "tool": ("tool_name", "name"),
    "input": ("tool_input", "arguments", "args", "params"),
    "response": ("tool_response", "result"),
    "event": ("payload", "data"),
}

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


class BindingError(ValueError):
    """The function cannot be called with what is offered."""


@dataclass(frozen=True, slots=True)
class Binding:
    """Indexes into the offered arguments: those passed by position, and by keyword."""

    positional: tuple[int, ...]
    keyword: tuple[tuple[str, int], ...]

    def call(self, function: Callable[..., object], arguments: Sequence[object]) -> object:
        """``function`` with its part of ``arguments`` (all that was offered, in order)."""
        if not self.keyword:
            return function(*[arguments[index] for index in self.positional])
        return function(
            *[arguments[index] for index in self.positional],
            **{name: arguments[index] for name, index in self.keyword},
        )


def bind(function: Callable[..., object], offered: Sequence[str]) -> Binding:
    """The binding for ``function``. Raises BindingError when it needs more than is offered."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        # Some built-in functions tell nothing about themselves: they get everything.
        return Binding(tuple(range(_unnamed(offered))), ())
    claims = _claims(parameters, offered)
    rest = _rest(claims, offered)
    positional: list[int] = []
    keyword: list[tuple[str, int]] = []
    skipped = False
    for parameter in parameters:
        index = claims.get(parameter.name)
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            if not skipped:
                positional += [index for index in rest if index < _unnamed(offered)]
                rest = [index for index in rest if index >= _unnamed(offered)]
        elif parameter.kind is inspect.Parameter.VAR_KEYWORD:
            keyword += [(offered[i], i) for i in rest]
        elif index is None:
            skipped = True
        elif parameter.kind in _POSITIONAL and not skipped:
            # By position where possible: a wrapper made without care may take nothing else.
            positional.append(index)
        else:
            keyword.append((parameter.name, index))
    return Binding(tuple(positional), tuple(keyword))


def _claims(parameters: list[inspect.Parameter], offered: Sequence[str]) -> dict[str, int]:
    """Parameter name -> index of the offered argument that it gets."""
    plain = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    claims: dict[str, int] = {}
    # An exact name first, so that an alias never takes what another parameter spells out.
    for name_of in (lambda o: (o,), lambda o: _ALIASES.get(o, ())):
        for parameter in plain:
            if parameter.name in claims:
                continue
            for index, offer in enumerate(offered):
                if index not in claims.values() and parameter.name in name_of(offer):
                    claims[parameter.name] = index
                    break
    for parameter in plain:
        if parameter.name in claims or parameter.default is not parameter.empty:
            continue
        rest = [index for index in _rest(claims, offered) if index < _unnamed(offered)]
        if parameter.kind is parameter.KEYWORD_ONLY or not rest:
            raise BindingError(
                f"it requires {parameter.name!r}, but is offered only "
                + (", ".join(offered) or "nothing")
            )
        claims[parameter.name] = rest[0]
    return claims


def _unnamed(offered: Sequence[str]) -> int:
    """How many of what is offered a parameter of another name may get."""
    return offered.index("ctx") + 1 if "ctx" in offered else len(offered)


def _rest(claims: dict[str, int], offered: Sequence[str]) -> list[int]:
    taken = set(claims.values())
    return [index for index in range(len(offered)) if index not in taken]
