"""What finds this session's memories, with the secrets that its environment holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from relay.core.errors import ConfigError, RelayError
from relay.features.memory.memory_spec import StoreSpec


class Requests(Protocol):
    """The way to the broker."""

    async def request(self, op: str, **fields: Any) -> dict[str, Any]:
        """The answer's fields. Raises RelayError."""


class NoStore(ConfigError):
    """Nothing about memories can be asked in this session; the person has been told why."""


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
        return f"memories are neither saved nor found: {self.problem.line}"


def chosen(
    store: StoreSpec, environ: Mapping[str, str], unusable: RelayError | None = None
) -> Chosen:
    """The fields for ``store``; those of the default store are empty.

    ``unusable``: why the configuration is not known. In the default store instead memories would
    be where nobody looks once it is mended; ``relay memory`` does nothing either.
    """
    if unusable is not None:
        return Chosen({}, unusable)
    if store == StoreSpec():
        return Chosen({})
    if store.backend == "searcher" and not store.file:
        return Chosen(
            {},
            ConfigError(
                "memory: a searcher is called in a process of its own, by a relay.config.py",
                hint="write it there: a program's own object is not known to that process",
            ),
        )
    try:
        return Chosen({"store": store.resolved(environ).to_json()})
    except ConfigError as error:
        return Chosen({}, error)


class MemoryGate:
    """A broker that is asked nothing about memories while it is not known in which store."""

    def __init__(self, broker: Requests, problem: RelayError) -> None:
        self._broker = broker
        self._problem = problem

    async def request(self, op: str, **fields: Any) -> dict[str, Any]:
        """As the broker does; raises NoStore for what is about memories."""
        if op.startswith("memory_"):
            raise NoStore(self._problem.message, hint=self._problem.hint)
        return await self._broker.request(op, **fields)
