import functools
from collections.abc import Callable
from typing import Any

import pytest

from relay.hooks.binding import BindingError, bind

OFFERED = ("target", "message", "ctx")
VALUES = ("T", "M", "C")


def _with_default(target: object, retries: int = 3) -> object:
    return target, retries


def _default_in_between(target: object, retries: int = 3, ctx: object = None) -> object:
    return target, retries, ctx


def _keyword_only(*, message: object, ctx: object) -> object:
    return message, ctx


def _positional_only(a: object, b: object, /) -> object:
    return a, b


def _rest(message: object, *rest: object) -> object:
    return message, rest


def _keywords(target: object, **rest: object) -> object:
    return target, rest


class _Object:
    def __call__(self, ctx: object, target: object) -> object:
        return ctx, target

    def method(self, message: object) -> object:
        return message


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda: "none", "none"),
        (lambda target, message, ctx: (target, message, ctx), ("T", "M", "C")),
        (lambda t, m, c: (t, m, c), ("T", "M", "C")),
        (lambda t: t, "T"),
        (lambda ctx: ctx, "C"),
        (lambda context: context, "C"),
        (lambda who, ctx: (who, ctx), ("T", "C")),
        (lambda message, target: (message, target), ("M", "T")),
        (lambda action, content, ctx: (action, content, ctx), ("T", "M", "C")),
        (lambda *args: args, ("T", "M", "C")),
        (lambda **kw: kw, {"target": "T", "message": "M", "ctx": "C"}),
        (lambda *args, **kw: (args, kw), (("T", "M", "C"), {})),
        (_with_default, ("T", 3)),
        (_default_in_between, ("T", 3, "C")),
        (_keyword_only, ("M", "C")),
        (_positional_only, ("T", "M")),
        (_rest, ("M", ("T", "C"))),
        (_keywords, ("T", {"message": "M", "ctx": "C"})),
        (_Object(), ("C", "T")),
        (_Object().method, "M"),
        (functools.partial(_default_in_between, retries=1), ("T", 1, "C")),
    ],
)
def test_a_function_gets_what_it_takes(function: Callable[..., Any], expected: object) -> None:
    assert bind(function, OFFERED).call(function, VALUES) == expected


def test_an_exact_name_wins_over_an_alias() -> None:
    def function(text: object, output: object) -> object:
        return text, output

    with pytest.raises(BindingError):
        bind(function, ("output",))
    assert bind(function, ("output", "ctx")).call(function, ("O", "C")) == ("C", "O")


def test_a_wrapper_that_only_takes_positions_is_called_by_position() -> None:
    def inner(target: object, message: object) -> object:
        return target, message

    @functools.wraps(inner)
    def wrapper(*args: object) -> object:
        return inner(*args)

    assert bind(wrapper, OFFERED).call(wrapper, VALUES) == ("T", "M")


def test_a_function_that_tells_nothing_about_itself_gets_everything() -> None:
    assert bind(max, OFFERED).call(max, VALUES) == "T"


@pytest.mark.parametrize(
    "function",
    [lambda a, b, c, d: None, lambda target, message, ctx, more: None, lambda *, other: None],
)
def test_more_than_is_offered_is_refused(function: Callable[..., Any]) -> None:
    with pytest.raises(BindingError, match="target, message, ctx"):
        bind(function, OFFERED)
