"""Reads the definitions in a hook file one by one, and says why one is left out. Pure.

What each of them may have, and where that is, relay.hooks.hook_files says.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from relay.directive.escape import clean
from relay.hooks.events import EVENTS, HookEventName
from relay.hooks.hook_types import Command, Dialect, OnFailure, Url
from relay.hooks.planner import slow
from relay.hooks.registry import TIMEOUT_MAX

#: The most lines about one file; further ones are only counted.
PROBLEMS_MAX = 50
#: How long a hook may take that says nothing of it, in seconds (the engines' own defaults).
CLAUDE_TIMEOUT, CLAUDE_PROMPT_TIMEOUT, GEMINI_TIMEOUT = 600.0, 30.0, 60.0
#: The most characters of a line, and of a value in it.
_LINE_MAX, _SHOWN_MAX = 300, 80
#: What a hook of Claude Code can say that relay cannot do, and what would be lost.
_NOT_HERE = {
    "if": 'relay does not know rules such as "Bash(git *)"',
    "async": "relay would wait for it",
    "asyncRewake": "relay would wait for it",
}
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_PROJECT = "${CLAUDE_PROJECT_DIR}"


@dataclass(frozen=True, slots=True)
class HookSpec:
    """One hook of a file, as ``Registry.add_hook`` takes it. ``timeout`` in seconds.

    ``name`` is "" where the file gives none.
    """

    event: HookEventName
    action: Command | Url
    matcher: str
    timeout: float | None
    on_failure: OnFailure
    sequential: bool
    name: str
    dialect: Dialect


class _Malformed(Exception):
    """Why a definition is left out."""


class Problems:
    """Lines for people about one file; beyond PROBLEMS_MAX they are only counted."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lines: list[str] = []
        self._more = 0

    def say(self, where: str, what: str) -> None:
        """Note ``what`` of the place ``where`` in the file ("" for all of it)."""
        if len(self._lines) == PROBLEMS_MAX:
            self._more += 1
            return
        line = clean(": ".join(part for part in (self._path, where, what) if part))
        self._lines.append(line if len(line) <= _LINE_MAX else line[: _LINE_MAX - 1] + "…")

    def lines(self) -> list[str]:
        """What was said, fit for a terminal."""
        more = [f"{clean(self._path)}: … and {self._more} more"] if self._more else []
        return self._lines + more


@dataclass(frozen=True, slots=True)
class HookFileReader:
    """Reads the definitions of one event. ``env``: see relay.hooks.hook_files.read_hook_file."""

    event: HookEventName
    dialect: Dialect
    problems: Problems
    env: Mapping[str, str]

    def groups(self, where: str, groups: list[Any]) -> Iterator[HookSpec]:
        """The hooks in ``groups``, which stand in the file at ``where``; others are said."""
        for number, group in enumerate(groups):
            place = f"{where}[{number}]"
            try:
                matcher, sequential, hooks = self._group(group)
            except _Malformed as why:
                self.problems.say(place, f"{why}, so its hooks do not run")
                continue
            if self._slow(matcher):
                self.problems.say(place, "the matcher could take too long: it matches everything")
            for index, hook in enumerate(hooks):
                try:
                    yield self._hook(f"{place}.hooks[{index}]", hook, matcher, sequential)
                except _Malformed as why:
                    self.problems.say(f"{place}.hooks[{index}]", f"{why}, so it does not run")

    def _group(self, group: object) -> tuple[str, bool, list[Any]]:
        if not isinstance(group, dict):
            raise _Malformed(f"must be an object, not {shown(group)}")
        matcher, hooks = group.get("matcher"), group.get("hooks")
        matcher = "" if matcher is None else matcher
        if not isinstance(matcher, str):
            raise _Malformed(f"matcher must be a string, not {shown(matcher)}")
        if not isinstance(hooks, list):
            raise _Malformed(f"hooks must be a list, not {shown(hooks)}")
        # Only Gemini CLI has it.
        sequential = self.dialect is Dialect.GEMINI and group.get("sequential") is True
        return matcher, sequential, hooks

    def _slow(self, matcher: str) -> bool:
        exact = self.dialect is Dialect.GEMINI and EVENTS[self.event].matched != "tool_name"
        return bool(EVENTS[self.event].matched) and not exact and slow(matcher)

    def _hook(self, where: str, hook: object, matcher: str, sequential: bool) -> HookSpec:
        if not isinstance(hook, dict):
            raise _Malformed(f"must be an object, not {shown(hook)}")
        kind = hook.get("type")
        if kind == "http" and self.dialect is Dialect.CLAUDE:
            action: Command | Url = self._url(hook)
        elif kind == "command":
            action = self._command(hook)
        else:
            raise _Malformed(f"relay has no hooks of type {shown(kind)}")
        if self.dialect is Dialect.CLAUDE:
            for key, why in _NOT_HERE.items():
                if hook.get(key):
                    raise _Malformed(f'it has "{key}", and {why}')
        meaning, name = hook.get("onFailure", OnFailure.ALLOW), hook.get("name", "")
        if not isinstance(meaning, str) or meaning not in list(OnFailure):
            raise _Malformed(f'onFailure must be "allow" or "block", not {shown(meaning)}')
        if not isinstance(name, str):
            raise _Malformed(f"name must be a string, not {shown(name)}")
        return HookSpec(
            event=self.event,
            action=action,
            matcher=matcher,
            timeout=self._timeout(where, hook.get("timeout")),
            on_failure=OnFailure(meaning),
            sequential=sequential,
            name=" ".join(clean(name).split()),
            dialect=self.dialect,
        )

    def _command(self, hook: dict[str, Any]) -> Command:
        command, words = hook.get("command"), hook.get("args")
        if not isinstance(command, str) or not command.strip() or "\0" in command:
            raise _Malformed(f"command must be a command line, not {shown(command)}")
        if self.dialect is Dialect.GEMINI:
            return Command(argv=("bash", "-c", command), env=_pairs("env", hook.get("env")))
        if words is not None:
            if not isinstance(words, list) or not all(
                isinstance(word, str) and "\0" not in word for word in words
            ):
                raise _Malformed(f"args must be a list of strings, not {shown(words)}")
            return _program([command, *words])
        shell = hook.get("shell")
        if shell == "bash":
            return Command(argv=("bash", "-c", command))
        if shell is not None:
            raise _Malformed(f"relay has no shell {shown(shell)}")
        return Command(shell=command)

    def _url(self, hook: dict[str, Any]) -> Url:
        url = hook.get("url")
        if not isinstance(url, str) or not url.startswith(("http://", "https://")):
            raise _Malformed(f"url must begin with http:// or https://, not {shown(url)}")
        allowed = hook.get("allowedEnvVars", [])
        if not isinstance(allowed, list):
            raise _Malformed(f"allowedEnvVars must be a list, not {shown(allowed)}")

        def filled(found: re.Match[str]) -> str:
            name = found[1] or found[2]
            return self.env.get(name, "") if name in allowed else ""

        headers = _pairs("headers", hook.get("headers"))
        return Url(url, tuple((key, _VARIABLE.sub(filled, value)) for key, value in headers))

    def _timeout(self, where: str, value: object) -> float | None:
        """In seconds; None leaves it to the event (the end of a session has a limit of its own)."""
        if value is None:
            if self.dialect is Dialect.GEMINI:
                return GEMINI_TIMEOUT
            if self.event is HookEventName.SESSION_END:
                return None
            prompt = self.event is HookEventName.BEFORE_AGENT
            return CLAUDE_PROMPT_TIMEOUT if prompt else CLAUDE_TIMEOUT
        unit = 1000 if self.dialect is Dialect.GEMINI else 1
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _Malformed(f"timeout must be a number, not {shown(value)}")
        if value > TIMEOUT_MAX * unit:
            self.problems.say(where, f"the timeout is cut to {TIMEOUT_MAX:g} seconds")
            return TIMEOUT_MAX
        if not value >= 0.001 * unit:
            raise _Malformed(f"timeout must be a millisecond or more, not {shown(value)}")
        return value / unit


def _program(argv: list[str]) -> Command:
    """A program with its arguments, in which Claude Code fills in the project's folder."""
    if not any(_PROJECT in word for word in argv):
        return Command(argv=tuple(argv))
    # A shell fills it in: what is quoted here stays as it is, the folder is one word.
    words = [f'"{_PROJECT}"'.join(map(_quoted, word.split(_PROJECT))) or "''" for word in argv]
    return Command(shell="exec " + " ".join(words))


def _quoted(text: str) -> str:
    return shlex.quote(text) if text else ""


def _pairs(what: str, value: object) -> tuple[tuple[str, str], ...]:
    if value is None:
        return ()
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise _Malformed(f"{what} must be an object of strings, not {shown(value)}")
    return tuple(value.items())


def shown(value: object) -> str:
    """A value of a file as people are shown it: JSON, on one line and cut."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except RecursionError:
        text = type(value).__name__
    return text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 1] + "…"
