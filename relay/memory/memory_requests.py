"""The fields of a request to the memory service, checked, and the places that it means.

A project is a repository, whatever folder of it somebody works in.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from typing import Any

from relay.core.errors import RelayError, UsageError
from relay.core.suggest import did_you_mean
from relay.memory.backend_rules import check_limit, new_id
from relay.memory.policy import Secrets
from relay.memory.records import Place, Scope

Json = dict[str, Any]

#: How many memories an answer has when the request does not say.
LIMIT = 10
#: What a ``.git`` file and a ``commondir`` hold is one short line.
_GIT_LINE_MAX = 8192


class MemoryRequest:
    """One request's fields, checked as they are asked for: UsageError says what is wrong."""

    def __init__(self, fields: Json, agent: str | None, run: str | None, now_ms: int) -> None:
        self.fields = fields
        self.agent = agent
        self.run = run
        self.now_ms = now_ms

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
        """What else is to be kept, or None."""
        meta = self.fields.get("meta")
        if meta is not None and not isinstance(meta, dict):
            raise UsageError("the meta of a memory is not an object")
        return meta

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
        place = self._place(self._scope() or Scope.PROJECT)
        self.may_write(place)
        return place

    def places(self) -> Sequence[Place]:
        """Where to look: all that apply, or the one scope that is asked for; ``all``: anywhere
        that this one may look."""
        scope = self._scope()
        if scope is not None:
            return [self._place(scope)]
        return applying(self._whose(), self._cwd())

    def may_read(self, place: Place) -> None:
        """Raises RelayError when ``place`` is not the project in which the agent works: nor do its
        searches look there."""
        cwd = self._cwd()
        if self.agent is None or place.scope is not Scope.PROJECT or cwd is None:
            return
        if place.owner != project_root(cwd):
            raise RelayError(
                f"that memory belongs to another project: {place.owner}",
                hint="the person can do that: relay memory show ID, relay memory forget ID",
                code="forbidden",
            )

    def may_write(self, place: Place) -> None:
        """Raises RelayError when ``place`` is another agent's own, or not the project in which the
        agent works: a short id may be the beginning of something that it has never seen."""
        self.may_read(place)
        if self.agent is None or place.scope is not Scope.AGENT:
            return
        if place.owner != self.agent.lower():
            raise RelayError(
                f"that memory is {place.owner}'s own; {self.agent} may not change it",
                hint=f"ask {place.owner}, or the person",
                code="forbidden",
            )

    def _whose(self) -> str | None:
        """Whose own memories are meant: the agent's that asks, or those that a person names."""
        return self.optional("agent") or self.agent

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
        cwd = self._cwd()
        if cwd is None:
            raise UsageError(
                "there is no project here: the folder's name is missing, or no Unicode",
                hint="give the scope user",
            )
        return Place(scope, project_root(cwd))

    def _cwd(self) -> str | None:
        cwd = self.optional("cwd")
        if cwd is not None and (not os.path.isabs(cwd) or "\0" in cwd):
            raise UsageError(f"{cwd[:80]!r} is not an absolute path")
        return cwd


def applying(agent: str | None, cwd: str | None) -> list[Place]:
    """The places in which a search looks, the most specific first: agent, project, user."""
    places = [] if agent is None else [Place(Scope.AGENT, agent)]
    if cwd is not None:
        places.append(Place(Scope.PROJECT, project_root(cwd)))
    return [*places, Place(Scope.USER)]


def project_root(cwd: str) -> str:
    """The root of the repository that holds ``cwd``, else ``cwd`` itself; without symbolic links.

    All linked worktrees of a repository are one project, that of its main worktree; a submodule is
    one of its own.
    """
    start = os.path.realpath(cwd)
    folder = start
    while True:
        git = os.path.join(folder, ".git")
        if os.path.isdir(git):
            return folder
        if os.path.isfile(git):
            return _main_worktree(git) or folder
        parent = os.path.dirname(folder)
        if parent == folder:
            return start
        folder = parent


def _main_worktree(git: str) -> str | None:
    """Where the repository of a linked worktree has its main one; None for what is none."""
    kind, _, where = _line(git).partition(":")
    if kind != "gitdir" or not where.strip():
        return None
    gitdir = os.path.join(os.path.dirname(git), where.strip())
    common = _line(os.path.join(gitdir, "commondir"))
    if not common:
        return None
    shared = os.path.realpath(os.path.join(gitdir, common))
    if not _registered(git, os.path.realpath(gitdir), shared):
        return None
    # A bare repository has no worktree that could stand for all; it is the project itself.
    return os.path.dirname(shared) if os.path.basename(shared) == ".git" else shared


def _registered(git: str, gitdir: str, shared: str) -> bool:
    """Whether the repository itself knows of the worktree, as ``git worktree add`` leaves it.

    Else a folder that came from elsewhere could say that it belongs to any project, and whoever
    works in it would be told what is remembered there.
    """
    if os.path.dirname(gitdir) != os.path.join(shared, "worktrees"):
        return False
    back = _line(os.path.join(gitdir, "gitdir"))  # absolute, or relative to the folder it is in
    return bool(back) and os.path.realpath(os.path.join(gitdir, back)) == os.path.realpath(git)


def _line(path: str) -> str:
    try:
        # To open a pipe of that name would take for ever, and hold up all memories.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return ""
            return os.read(descriptor, _GIT_LINE_MAX).decode(errors="surrogateescape").strip()
        finally:
            os.close(descriptor)
    except OSError:
        return ""
