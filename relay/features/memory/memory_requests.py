"""The fields of a request to the memory service, checked, and the places that it means.

An agent's project is where its run was registered, whatever folder it says that it works in; a
person's is that of the folder.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from relay.core.errors import RelayError, UsageError
from relay.core.projects import repository_of
from relay.core.suggest import did_you_mean
from relay.features.memory.backend_rules import check_limit, new_id
from relay.features.memory.policy import Secrets
from relay.features.memory.records import ORIGIN, Memory, Place, Scope, may_replace, origin

Json = dict[str, Any]

#: How many memories an answer has when the request does not say.
LIMIT = 10


class MemoryRequest:
    """One request's fields, checked as they are asked for: UsageError says what is wrong."""

    def __init__(
        self,
        fields: Json,
        agent: str | None,
        run: str | None,
        now_ms: int,
        project: str | None = None,
    ) -> None:
        """``project``: of the agent that asks, where it has one; its root."""
        self.fields = fields
        self.agent = agent
        self.run = run
        self.now_ms = now_ms
        self.own_project = project

    def new_id(self) -> str | None:
        """The id for what is saved, from ``save_token``: the same when the request is repeated."""
        token = self.optional("save_token")
        return None if token is None else new_id(bytes.fromhex(token))

    def text(self, key: str) -> str:
        """A text that must be there."""
        value = self.fields.get(key)
        if not isinstance(value, str):
            raise UsageError(f"the request has no {key}")
        return value

    def optional(self, key: str) -> str | None:
        """A text, or None."""
        return None if self.fields.get(key) is None else self.text(key)

    def number(self, key: str) -> int | None:
        """A whole number from 0 on, or None."""
        value = self.fields.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise UsageError(f"{key} is no number from 0 on")
        return value

    def after(self) -> tuple[Place, str] | None:
        """Where a page of an export begins: the ``after`` of the one before it."""
        value = self.fields.get("after")
        if value is None:
            return None
        try:
            return Place(Scope(value["scope"]), value["owner"]), str(value["id"])
        except (TypeError, KeyError, ValueError, AttributeError):
            raise UsageError("'after' is not what the page before it gave") from None

    def limit(self) -> int:
        """How many memories are wanted."""
        limit = self.number("limit")
        return LIMIT if limit is None else check_limit(limit)

    def meta(self) -> dict[str, Any] | None:
        """What else is to be kept, or None. Where it comes from is written here, and nowhere else:
        what a saver gives under that name is left out."""
        meta = self.fields.get("meta")
        if meta is not None and not isinstance(meta, dict):
            raise UsageError("the meta of a memory is not an object")
        if self.agent is None:
            return meta and {key: value for key, value in meta.items() if key != ORIGIN}
        return {**(meta or {}), ORIGIN: origin(self.own_project)}

    def secrets(self) -> Secrets:
        """What is done with secrets in the text."""
        try:
            return Secrets(self.optional("secrets") or Secrets.REDACT)
        except ValueError:
            raise UsageError(
                f"secrets are not {self.optional('secrets')!r}",
                hint=f"give one of {', '.join(Secrets)}",
            ) from None

    def place(self) -> Place:
        """Where a save goes: the project unless it says otherwise."""
        return self._place(self._scope() or Scope.PROJECT)

    def places(self) -> Sequence[Place]:
        """Where to look: all that apply, or the one scope that is asked for; ``all``: anywhere
        that this one may look."""
        scope = self._scope()
        if scope is not None:
            return [self._place(scope)]
        return applying(self._whose(), self._project())

    def may_read(self, place: Place) -> bool:
        """Whether its searches look there, too."""
        if self.agent is None or place.scope is Scope.USER:
            return True
        own = self.own_project if place.scope is Scope.PROJECT else self.agent.lower()
        return place.owner == own

    def check_change(self, memory: Memory) -> None:
        """Raises RelayError when the agent may not forget or replace ``memory``, which it can read:
        it is everybody's, and this agent has not saved it here."""
        if self.agent is not None and not may_replace(memory, self.agent, origin(self.own_project)):
            raise RelayError(
                "that memory is for every project, and this agent has not saved it here",
                hint="save what is true of this project for the project, or ask the person",
                code="forbidden",
            )

    def only_person(self, what: str, how: str) -> None:
        """Raises RelayError inside of an agent."""
        if self.agent is not None:
            raise RelayError(
                f"an agent may not {what}: memories are others' too",
                hint=f"the person does that: relay memory {how}",
                code="forbidden",
            )

    def _whose(self) -> str | None:
        """Whose own memories are meant: the agent's that asks, or those that a person names."""
        named = self.optional("agent")
        if self.agent is not None and named and named.lower() != self.agent.lower():
            raise RelayError(
                f"{self.agent} cannot see or change what is {named[:80]}'s own",
                hint=f"ask {named[:80]}, or the person",
                code="forbidden",
            )
        return named or self.agent

    def _scope(self) -> Scope | None:
        word = self.optional("scope")
        if word is None:
            return None
        try:
            return Scope(word.lower())
        except ValueError:
            raise UsageError(
                f"there is no scope {word[:40]!r}",
                hint=did_you_mean(word[:40], [scope.value for scope in Scope]),
            ) from None

    def _place(self, scope: Scope) -> Place:
        if scope is Scope.USER:
            return Place(scope)
        if scope is Scope.AGENT:
            name = self._whose()
            if name is None:
                raise UsageError("whose own memories? no agent is named", hint="give --agent NAME")
            return Place(scope, name)
        project = self._project()
        if project is None:
            raise UsageError(
                "there is no project here: the folder's name is missing, or no Unicode",
                hint="give the scope user",
            )
        return Place(scope, project)

    def _project(self) -> str | None:
        if self.agent is not None:
            return self.own_project
        cwd = self.optional("cwd")
        if cwd is not None and (not os.path.isabs(cwd) or "\0" in cwd):
            raise UsageError(f"{cwd[:80]!r} is not an absolute path")
        return None if cwd is None else repository_of(cwd)


def applying(agent: str | None, project: str | None) -> list[Place]:
    """The places in which a search looks, the most specific first: agent, project, user."""
    places = [] if agent is None else [Place(Scope.AGENT, agent)]
    if project is not None:
        places.append(Place(Scope.PROJECT, project))
    return [*places, Place(Scope.USER)]
