"""Defines ``ctx.memory``: saving and finding memories, in sync and in async handlers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from relay.core.errors import UsageError, did_you_mean
from relay.features.memory.ops import (
    MEMORY_FORGET,
    MEMORY_GET,
    MEMORY_LIST,
    MEMORY_SAVE,
    MEMORY_SEARCH,
)
from relay.hooks.context import Actions, Later, LaterList

if TYPE_CHECKING:
    from relay.protocol.op import Fields, Op

#: How many memories are found or listed by default.
FOUND_MAX, LISTED_MAX = 10, 20
#: What a save answers beside the memory.
EXTRA = ("outcome", "former", "redacted")


class Remembered(dict[str, Any]):
    """One memory: ``id, text, scope, owner, agent, session, created_ms, updated_ms, supersedes,
    meta``; from a search ``score`` too; from an ``add`` ``outcome`` and ``redacted``.

    All of it as attributes as well, and ``content`` for ``text``. As a string it is its text.
    """

    def __getattr__(self, name: str) -> Any:
        key = "text" if name == "content" else re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()
        if key in self:
            return self[key]
        hint = "" if name.startswith("_") else did_you_mean(name, self)
        raise AttributeError(f"a memory has no {name!r}" + (f"; {hint}" if hint else ""))

    def __str__(self) -> str:
        return str(self["text"])


class MemoryList(list[Remembered]):
    """Memories; as a string a line ``- text`` for each."""

    def __str__(self) -> str:
        return "\n".join(f"- {' '.join(str(memory).split())}" for memory in self)


class ContextMemory:
    """``ctx.memory``. Scopes are ``user``, ``project`` and ``agent``.

    Options may also come as one dictionary, in either spelling, as the design document writes
    them: ``ctx.memory.add(text, {"agentId": ctx.agent_id})``. Who saved it is known anyway.
    """

    def __init__(self, actions: Actions) -> None:
        self._actions = actions

    def add(
        self, text: str, options: Mapping[str, Any] | None = None, **more: Any
    ) -> Later[Remembered]:
        """Save ``text``. Options: ``scope`` (project), ``supersedes`` (an id), ``meta``."""
        fields = _options(options, more, ("scope", "supersedes", "meta"))
        return Later(self._ask(MEMORY_SAVE, text=_text(text), **fields), _saved)

    def search(
        self, query: str, options: Mapping[str, Any] | None = None, **more: Any
    ) -> LaterList[Remembered]:
        """The best for ``query``, first. Options: ``scope`` (all that apply), ``limit`` (10)."""
        fields = {"limit": FOUND_MAX} | _options(options, more, ("scope", "limit"))
        return LaterList(self._ask(MEMORY_SEARCH, query=_text(query), **fields), _many)

    def list(self, options: Mapping[str, Any] | None = None, **more: Any) -> LaterList[Remembered]:
        """The newest, first. Options: ``scope`` (all that apply), ``limit`` (20)."""
        fields = {"limit": LISTED_MAX} | _options(options, more, ("scope", "limit"))
        return LaterList(self._ask(MEMORY_LIST, **fields), _many)

    def get(self, id_: str) -> Later[Remembered]:
        """The memory with this id, or whose id begins so. NotFound when there is none."""
        return Later(self._ask(MEMORY_GET, id=_text(id_)), _one)

    def delete(self, id_: str) -> Later[Remembered]:
        """Forget it for good, and return it. NotFound when there is none."""
        return Later(self._ask(MEMORY_FORGET, id=_text(id_)), _one)

    forget = delete

    def command(self, action: str, text: str) -> None:
        """Do what ``@memory:action text`` does, and tell the agent what came of it."""
        self._actions.command("memory", action, text)

    def _ask(
        self, op: Op[Fields, Any, Any], *_: Fields.args, **fields: Fields.kwargs
    ) -> Future[dict[str, Any]]:
        return self._actions.request(op, fields)


def _options(
    options: Mapping[str, Any] | None, more: Mapping[str, Any], known: tuple[str, ...]
) -> dict[str, Any]:
    if options is not None and not isinstance(options, Mapping):
        raise UsageError(f"options are a dictionary, not {options!r}", hint="scope='user', say")
    found: dict[str, Any] = {}
    for key, value in {**(options or {}), **more}.items():
        snake = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", str(key)).lower()
        if snake in ("agent_id", "user_id", "session_id"):
            continue
        if snake not in known:
            raise UsageError(
                f"ctx.memory knows no option {key!r} here", hint=did_you_mean(snake, known)
            )
        if value is not None:
            found[snake] = value
    return found


def _text(text: object) -> str:
    if not isinstance(text, str):
        raise UsageError(f"the text is a {type(text).__name__}", hint="give a string")
    if not text.strip():
        raise UsageError("the text is empty", hint="give at least one visible character")
    return text


def _saved(answer: dict[str, Any]) -> Remembered:
    extra: dict[str, Any] = {key: answer[key] for key in EXTRA if key in answer}
    return Remembered({**answer["memory"], **extra})


def _one(answer: dict[str, Any]) -> Remembered:
    return Remembered(answer["memory"])


def _many(answer: dict[str, Any]) -> MemoryList:
    return MemoryList(Remembered(memory) for memory in answer["memories"])
