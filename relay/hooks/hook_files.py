"""Reads the hook files that users of Claude Code and Gemini CLI already have. Pure.

Both are a ``settings.json`` with ``"hooks": {EVENT: [{"matcher": …, "hooks": [{…}]}]}``. What a
hook means is what it means to its own engine: its matcher, its unit of time, its default time
limit, and that its failure lets the agent go on, also before a tool runs, unless it says
``"onFailure": "block"``. A hook that cannot have its meaning here is left out, and a line says so.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from relay.core.paths import config_base
from relay.directive.escape import clean
from relay.hooks.dialects import event_in
from relay.hooks.events import EVENTS, HookEventName
from relay.hooks.hook_types import Command, Dialect, OnFailure, Url
from relay.hooks.planner import slow
from relay.hooks.registry import TIMEOUT_MAX, Registry

#: Of a text with comments: a string, which stays, or a comment. Neither form can backtrack.
_COMMENT = re.compile(r'("(?:\\.|[^"\\])*+"?)|//[^\n]*|/\*(?:.*?\*/|.*)', re.DOTALL)
#: What Gemini CLI keeps among its events.
_GEMINI_SETTINGS = ("enabled", "disabled", "notifications")
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
    """One hook of a file, as ``Registry.add_hook`` takes it."""

    event: HookEventName
    action: Command | Url
    matcher: str
    timeout: float | None  # seconds
    on_failure: OnFailure
    sequential: bool
    name: str  # "" where the file gives none
    dialect: Dialect


def is_hook_file(path: str, data: bytes) -> bool:
    """Whether a file is meant as a hook file rather than as Python: by its name or beginning."""
    start = data.removeprefix(b"\xef\xbb\xbf").lstrip()
    return path.lower().endswith(".json") or start.startswith((b"{", b"//", b"/*"))


def read_hook_file(
    data: bytes, path: str, *, env: Mapping[str, str] | None = None
) -> tuple[list[HookSpec], list[str]]:
    """The hooks in ``data``, in the file's order, and what people should know about the others.

    The dialect follows from the events' names; for those that both engines have, from the other
    events in the file, then from the folder's name (``.gemini``), and it is Claude Code's at last.
    Malformed definitions, unknown events and kinds of hooks that relay has not are left out; those
    beside them load. Switches in the file that turn its hooks off do so here. ``env`` has the
    variables that headers of HTTP hooks may name. Never raises.
    """
    problems = _Problems(path)
    settings = _settings(data, problems)
    table = settings.get("hooks", {})
    if not isinstance(table, dict):
        problems.say("hooks", f"must be an object, not {_shown(table)}")
        return [], problems.lines
    off, disabled = _switched_off(settings, table)
    shared = _dialect_of_shared(table, path)
    specs: list[HookSpec] = []
    for name, groups in table.items():
        if name in _GEMINI_SETTINGS:
            continue
        where = f"hooks.{name}"
        dialect, event = _event(name, shared)
        if event is None:
            problems.say(where, "relay has no such event, so these hooks do not run")
        elif dialect in off:
            problems.say(where, f"{off[dialect]} is set in the file, so they do not run")
        elif not isinstance(groups, list):
            problems.say(where, f"must be a list, not {_shown(groups)}")
        else:
            reader = _Reader(event, dialect, problems, env or {}, config_base(path))
            found = reader.groups(where, groups)
            specs += [spec for spec in found if not _is_named(spec, disabled)]
    return specs, problems.lines


def register_hook_files(
    registry: Registry,
    files: Iterable[tuple[str, bytes, bool]],
    *,
    env: Mapping[str, str] | None = None,
) -> list[str]:
    """Register the hooks of ``files``: path (absolute), content, whether this content is trusted.

    The hooks of a file that is not trusted are registered as untrusted, so that they are listed
    and never planned; nothing here gives trust. Returns lines for people.
    """
    problems: list[str] = []
    for path, data, trusted in files:
        specs, found = read_hook_file(data, path, env=env)
        if not trusted and specs:
            problems.append(
                clean(f"{path} is not trusted as it is now, so its {len(specs)} hooks do not run. ")
                + clean(f"Read it, then: relay trust {shlex.quote(path)}")
            )
        problems += found
        for spec in specs:
            registry.add_hook(
                spec.event,
                spec.action,
                timeout=spec.timeout,
                matcher=spec.matcher,
                on_failure=spec.on_failure,
                sequential=spec.sequential,
                name=spec.name or None,
                source=path,
                dialect=spec.dialect,
                trusted=trusted,
            )
    return problems


class _Malformed(Exception):
    """Why a definition is left out."""


class _Problems:
    """Lines for people about one file, fit for a terminal."""

    def __init__(self, path: str) -> None:
        self._path = path
        self.lines: list[str] = []

    def say(self, where: str, what: str, *, line: int = 0) -> None:
        """Note ``what`` of the place ``where`` in the file ("" for all of it)."""
        path = f"{self._path}:{line}" if line else self._path
        said = clean(": ".join(part for part in (path, where, what) if part))
        self.lines.append(said if len(said) <= _LINE_MAX else said[: _LINE_MAX - 1] + "…")


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads the definitions of one event. ``env``: see read_hook_file."""

    event: HookEventName
    dialect: Dialect
    problems: _Problems
    env: Mapping[str, str]
    #: What stands for ${CLAUDE_PROJECT_DIR} in lists.
    project: str

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
            raise _Malformed(f"must be an object, not {_shown(group)}")
        matcher, hooks = group.get("matcher"), group.get("hooks")
        matcher = "" if matcher is None else matcher
        if not isinstance(matcher, str):
            raise _Malformed(f"matcher must be a string, not {_shown(matcher)}")
        if not isinstance(hooks, list):
            raise _Malformed(f"hooks must be a list, not {_shown(hooks)}")
        # Only Gemini CLI has it.
        sequential = self.dialect is Dialect.GEMINI and group.get("sequential") is True
        return matcher, sequential, hooks

    def _slow(self, matcher: str) -> bool:
        exact = self.dialect is Dialect.GEMINI and EVENTS[self.event].matched != "tool_name"
        return bool(EVENTS[self.event].matched) and not exact and slow(matcher)

    def _hook(self, where: str, hook: object, matcher: str, sequential: bool) -> HookSpec:
        if not isinstance(hook, dict):
            raise _Malformed(f"must be an object, not {_shown(hook)}")
        kind = hook.get("type")
        if kind == "http" and self.dialect is Dialect.CLAUDE:
            action: Command | Url = self._url(hook)
        elif kind == "command":
            action = self._command(hook)
        else:
            raise _Malformed(f"relay has no hooks of type {_shown(kind)}")
        if self.dialect is Dialect.CLAUDE:
            for key, why in _NOT_HERE.items():
                if hook.get(key):
                    raise _Malformed(f'it has "{key}", and {why}')
        meaning, name = hook.get("onFailure", OnFailure.ALLOW), hook.get("name", "")
        if not isinstance(meaning, str) or meaning not in list(OnFailure):
            raise _Malformed(f'onFailure must be "allow" or "block", not {_shown(meaning)}')
        if not isinstance(name, str):
            raise _Malformed(f"name must be a string, not {_shown(name)}")
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
            raise _Malformed(f"command must be a command line, not {_shown(command)}")
        if self.dialect is Dialect.GEMINI:
            return Command(argv=("bash", "-c", command), env=_pairs("env", hook.get("env")))
        if words is not None:
            if not isinstance(words, list) or not all(
                isinstance(word, str) and "\0" not in word for word in words
            ):
                raise _Malformed(f"args must be a list of strings, not {_shown(words)}")
            argv = tuple(word.replace(_PROJECT, self.project) for word in [command, *words])
            return Command(argv=argv)
        shell = hook.get("shell")
        if shell == "bash":
            return Command(argv=("bash", "-c", command))
        if shell is not None:
            raise _Malformed(f"relay has no shell {_shown(shell)}")
        return Command(shell=command)

    def _url(self, hook: dict[str, Any]) -> Url:
        url = hook.get("url")
        if not isinstance(url, str) or not url.startswith(("http://", "https://")):
            raise _Malformed(f"url must begin with http:// or https://, not {_shown(url)}")
        allowed = hook.get("allowedEnvVars", [])
        if not isinstance(allowed, list):
            raise _Malformed(f"allowedEnvVars must be a list, not {_shown(allowed)}")

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
            raise _Malformed(f"timeout must be a number, not {_shown(value)}")
        if value > TIMEOUT_MAX * unit:
            self.problems.say(where, f"the timeout is cut to {TIMEOUT_MAX:g} seconds")
            return TIMEOUT_MAX
        if not value >= 0.001 * unit:
            raise _Malformed(f"timeout must be a millisecond or more, not {_shown(value)}")
        return value / unit


def _pairs(what: str, value: object) -> tuple[tuple[str, str], ...]:
    if value is None:
        return ()
    if not isinstance(value, dict) or not all(isinstance(item, str) for item in value.values()):
        raise _Malformed(f"{what} must be an object of strings, not {_shown(value)}")
    return tuple(value.items())


def _shown(value: object) -> str:
    """A value of a file as people are shown it: JSON, on one line and cut."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except RecursionError:
        text = type(value).__name__
    return text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 1] + "…"


def _settings(data: bytes, problems: _Problems) -> dict[str, Any]:
    try:
        text = data.decode("utf-8-sig")
        try:
            found = json.loads(text)
        except ValueError:
            # Gemini CLI's settings may hold comments.
            found = json.loads(_COMMENT.sub(lambda match: match[1] or " ", text))
    except UnicodeDecodeError:
        problems.say("", "it is not UTF-8 text, so it has no hooks")
    except json.JSONDecodeError as error:
        why = f"it is not JSON ({error.msg}), so it has no hooks"
        problems.say("", why, line=error.lineno)
    except (ValueError, RecursionError):
        problems.say("", "it cannot be read as JSON, so it has no hooks")
    else:
        if isinstance(found, dict):
            return found
        problems.say("", f"must be an object, not {_shown(found)}")
    return {}


def _switched_off(
    settings: dict[str, Any], table: dict[str, Any]
) -> tuple[dict[Dialect, str], set[str]]:
    """What a file itself turns off: whole dialects (and by which switch), single names."""
    dialects = {}
    if settings.get("disableAllHooks") is True:
        dialects[Dialect.CLAUDE] = "disableAllHooks"
    names: set[str] = set()
    # Where Gemini CLI has them now, and where they were.
    for where, switches in (("hooksConfig", settings.get("hooksConfig")), ("hooks", table)):
        if not isinstance(switches, dict):
            continue
        if switches.get("enabled") is False:
            dialects[Dialect.GEMINI] = f"{where}.enabled false"
        disabled = switches.get("disabled")
        if isinstance(disabled, list):
            names |= {name for name in disabled if isinstance(name, str)}
    return dialects, names


def _is_named(spec: HookSpec, names: set[str]) -> bool:
    command = spec.action.argv[-1:] if isinstance(spec.action, Command) else ()
    called = {spec.name} if spec.name else set(command)
    return spec.dialect is Dialect.GEMINI and not called.isdisjoint(names)


def _event(name: str, shared: Dialect) -> tuple[Dialect, HookEventName | None]:
    claude, gemini = (event_in(name, dialect) for dialect in (Dialect.CLAUDE, Dialect.GEMINI))
    if claude is not None and gemini is not None:
        return shared, claude
    return (Dialect.CLAUDE, claude) if claude is not None else (Dialect.GEMINI, gemini)


def _dialect_of_shared(table: dict[str, Any], path: str) -> Dialect:
    """Whose SessionStart and so on a file's are."""
    own: set[Dialect] = set()
    for name in table:
        found = {d for d in (Dialect.CLAUDE, Dialect.GEMINI) if event_in(name, d) is not None}
        if len(found) == 1:
            own |= found
    if len(own) == 1:
        return own.pop()
    return Dialect.GEMINI if ".gemini" in path.split("/") else Dialect.CLAUDE
