"""Which store this session's memories are in, with the secrets that its environment holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from relay.errors import ConfigError, RelayError
from relay.memory.spec import StoreSpec
from relay.session.facts import Broker


@dataclass(frozen=True, slots=True)
class Chosen:
    """``fields``: of every request about memories. ``problem``: why there can be none."""

    fields: dict[str, Any]
    problem: RelayError | None = None

    @property
    def note(self) -> str:
        """One line for the person, or ""."""
        if self.problem is None:
            return ""
        hint = f" ({self.problem.hint})" if self.problem.hint else ""
        return f"memories are neither saved nor found: {self.problem.message}{hint}"


def chosen(store: StoreSpec, environ: Mapping[str, str]) -> Chosen:
    """The fields for ``store``; those of the default store are empty."""
    if store == StoreSpec():
        return Chosen({})
    if store.backend == "custom" and not store.file:
        return Chosen(
            {},
            ConfigError(
                "memory: a custom store is made in a process of its own, by a relay.config.py",
                hint="write it there: a program's own object is not known to that process",
            ),
        )
    try:
        return Chosen({"store": store.resolved(environ).to_json()})
    except ConfigError as error:
        return Chosen({}, error)


class MemoryGate:
    """A broker that is asked nothing about memories while it is not known in which store."""

    def __init__(self, broker: Broker, problem: RelayError) -> None:
        self._broker = broker
        self._problem = problem

    async def request(self, op: str, **fields: Any) -> dict[str, Any]:
        """As the broker does; raises the problem for what is about memories."""
        if op.startswith("memory_"):
            raise self._problem
        return await self._broker.request(op, **fields)
