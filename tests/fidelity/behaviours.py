"""The registry: what is compared, under which group and sentence of docs/fidelity.md."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.fidelity.wrappers import Wrapper

if TYPE_CHECKING:
    from tests.fidelity.stage import Stage

#: In the order of the table; one module each.
GROUPS = {
    "bytes": "bytes_",
    "line discipline": "lines",
    "job control": "jobs",
    "size": "size",
    "ends": "ends",
    "no terminal": "no_terminal",
    "child": "child",
    "pressure": "pressure",
}
ANY = object()
LIMIT = 20.0

Observation = Any
Observe = Callable[["Stage"], Observation]


@dataclass(frozen=True, eq=False)
class Behaviour:
    """``run`` gives a JSON-like observation; ``expect`` is what it must be without a wrapper.

    ``limit`` seconds is a deadline against hanging. ``proc``: it needs Linux's /proc.
    """

    group: str
    sentence: str
    name: str
    run: Observe
    expect: object
    limit: float
    proc: bool


_registered: dict[str, Behaviour] = {}


def behaviour(
    group: str,
    sentence: str,
    *,
    expect: object = ANY,
    limit: float = LIMIT,
    proc: bool = False,
    name: str = "",
) -> Callable[[Observe], Observe]:
    """Register a behaviour; without ``expect`` it must assert by itself that it saw something.

    Its name, for the test's id, is that of the function unless ``name`` is given.
    """
    assert group in GROUPS, group

    def register(run: Observe) -> Observe:
        key = name or run.__name__
        assert key not in _registered, key
        _registered[key] = Behaviour(group, sentence, key, run, expect, limit, proc)
        return run

    return register


def registered() -> list[Behaviour]:
    """All of them, in the order of the groups."""
    for module in GROUPS.values():
        importlib.import_module(f"tests.fidelity.{module}")
    order = list(GROUPS)
    return sorted(_registered.values(), key=lambda one: order.index(one.group))


def observe(one: Behaviour, wrapper: Wrapper, home: str, limit: float | None = None) -> Observation:
    """What ``one`` sees under ``wrapper``; ``home`` is the RELAY_HOME whose broker serves.

    Raises whatever the behaviour raises, AssertionError when its time is up.
    """
    from tests.fidelity.stage import Stage

    with Stage(wrapper, home, limit or one.limit) as stage:
        return one.run(stage)
