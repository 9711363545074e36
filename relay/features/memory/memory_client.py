"""How ``relay memory`` asks: for the store that this folder's trusted configuration names."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from relay.broker.client import BrokerClient
from relay.cli import output
from relay.config.load import load_for_session
from relay.config.trust import place_of, read_config
from relay.core.errors import ConfigError
from relay.core.paths import Home, working_folder
from relay.features.memory.ops import MEMORY_LIST, MEMORY_SAVE, MEMORY_SEARCH, MemoryRow
from relay.features.memory.settings import MEMORY, MemorySettings
from relay.features.memory.spec import StoreSpec
from relay.protocol.broker import Json

if TYPE_CHECKING:
    from relay.protocol.op import Answer, Fields, Op

#: Seconds for one request.
_DEADLINE = 60.0


@dataclass(frozen=True, slots=True)
class Applying:
    """The settings that apply. ``untrusted``: a file that may say something else, but not run."""

    settings: MemorySettings
    path: str | None = None
    untrusted: str | None = None


def applying(home: Home, explicit: str | None = None) -> Applying:
    """The memory settings of ``explicit``, or of the configuration that applies: in an agent's
    tools the one that it was started with, else that of this folder.

    Raises ConfigError when a trusted one cannot be used, and when ``explicit`` may not run.
    """
    started_with = os.environ.get("RELAY_CONFIG") if os.environ.get("RELAY_RUN") else None
    loaded = load_for_session(home, working_folder(), explicit or started_with or None)
    if loaded.unusable is not None:
        raise loaded.unusable
    if explicit is not None and loaded.untrusted == place_of(explicit):
        raise ConfigError(
            f"{loaded.untrusted} is not trusted, so it does not run",
            hint="read it, then: relay trust",
        )
    path, untrusted = loaded.origins.get("memory"), loaded.untrusted
    with contextlib.suppress(ConfigError):
        if path is None and untrusted is not None and b"memory" in read_config(untrusted).data:
            return Applying(loaded.settings.of(MEMORY), None, untrusted)
    return Applying(loaded.settings.of(MEMORY), path)


def connected(explicit: str | None = None) -> StoreClient:
    """A client whose requests name the store that applies here."""
    home = Home.from_env()
    found = applying(home, explicit)
    if found.untrusted is not None:
        output.note(
            f"{found.untrusted} is not trusted, so it does not choose where"
            " memories are: this is the local store. Read it, then: relay trust"
        )
    return StoreClient(home, found.settings.store.resolved(os.environ), found.settings.secrets)


class StoreClient(BrokerClient):
    """A client that names ``spec`` (which is resolved) in every request, and who asks: the agent in
    whose tools this runs, or the person."""

    def __init__(self, home: Home, spec: StoreSpec, secrets: str) -> None:
        self._spec = spec
        self._secrets = secrets
        super().__init__(home)

    if TYPE_CHECKING:

        def request(
            self, op: Op[Fields, Any, Answer], *args: Fields.args, **fields: Fields.kwargs
        ) -> Answer: ...

    else:

        def request(self, op, *, deadline=_DEADLINE, **fields):  # noqa: ANN001,ANN003,ANN201
            """As any client does."""
            if self._spec != StoreSpec():
                fields["store"] = self._spec.to_json()
            if op == MEMORY_SAVE and fields.get("secrets") is None:
                fields["secrets"] = self._secrets
            answer = super().request(op, deadline=deadline, **fields, **output.speaker())
            if problem := answer.get("problem") if op in (MEMORY_SEARCH, MEMORY_LIST) else None:
                output.note(f"not all could be read: {problem}")
            return answer


def shown(memory: MemoryRow) -> Json:
    """A memory in the shape that scripts rely on."""
    names = ("id", "text", "scope", "owner", "agent", "session", "created_at", "updated_at")
    return output.shaped(memory, (*names, "supersedes", "meta"))
