"""Reads the hook files that users of Claude Code and Gemini CLI already have. Pure.

Both are a ``settings.json`` with ``"hooks": {EVENT: [{"matcher": …, "hooks": [{…}]}]}``. What a
hook means is what it means to its own engine: its matcher, its unit of time, its default time
limit, and that its failure lets the agent go on, also before a tool runs, unless it says
``"onFailure": "block"``. A hook that cannot have its meaning here is left out and said, never run
with another one.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relay.core.errors import RelayError
from relay.directive.escape import clean
from relay.hooks.definitions import HookFileReader, HookSpec, Problems, shown
from relay.hooks.dialects import event_in
from relay.hooks.events import HookEventName
from relay.hooks.hook_types import Command, Dialect
from relay.hooks.registry import Registry

#: Hooks of one file that are loaded.
HOOKS_MAX = 1000
#: Of a text with comments: a string, which stays, or a comment. Neither form can backtrack.
_COMMENT = re.compile(r'("(?:\\.|[^"\\])*+"?)|//[^\n]*|/\*(?:.*?\*/|.*)', re.DOTALL)
#: What Gemini CLI keeps among its events.
_GEMINI_SETTINGS = ("enabled", "disabled", "notifications")


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
    problems = Problems(path)
    settings = _settings(data, problems)
    table = settings.get("hooks", {})
    if not isinstance(table, dict):
        problems.say("hooks", f"must be an object, not {shown(table)}")
        return [], problems.lines()
    off = _Off.of(settings, table)
    shared = _dialect_of_shared(table, path)
    specs: list[HookSpec] = []
    for name, groups in table.items():
        if name in _GEMINI_SETTINGS:
            continue
        where = f"hooks.{name}"
        dialect, event = _event(name, shared)
        if event is None:
            problems.say(where, "relay has no such event, so these hooks do not run")
        elif dialect in off.dialects:
            problems.say(where, f"{off.dialects[dialect]} is set in the file, so they do not run")
        elif not isinstance(groups, list):
            problems.say(where, f"must be a list, not {shown(groups)}")
        else:
            reader = HookFileReader(event, dialect, problems, env or {})
            found = (spec for spec in reader.groups(where, groups) if not off.covers(spec))
            for spec in found:
                if len(specs) == HOOKS_MAX:
                    problems.say("", f"more than {HOOKS_MAX} hooks; the others do not run")
                    return specs, problems.lines()
                specs.append(spec)
    return specs, problems.lines()


def register_hook_files(
    registry: Registry,
    paths: Sequence[str],
    read_file: Callable[[str], bytes],
    is_trusted: Callable[[str, bytes], bool],
    *,
    env: Mapping[str, str] | None = None,
) -> list[str]:
    """Register the hooks of the files at ``paths`` (absolute), each file once, in order.

    ``is_trusted(path, data)`` says whether exactly this content may run. The hooks of a file that
    may not are registered as untrusted, so that they are listed and never planned; nothing here
    gives trust. ``read_file`` raises RelayError or OSError. Returns lines for people.
    """
    problems: list[str] = []
    for path in dict.fromkeys(paths):
        try:
            data = read_file(path)
        except (RelayError, OSError, ValueError) as error:
            why = error.message if isinstance(error, RelayError) else f"{path}: {error}"
            problems.append(clean(f"{why}, so its hooks do not run"))
            continue
        specs, found = read_hook_file(data, path, env=env)
        trusted = is_trusted(path, data)
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


def _settings(data: bytes, problems: Problems) -> dict[str, Any]:
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
        problems.say(f"line {error.lineno}", f"it is not JSON ({error.msg}), so it has no hooks")
    except (ValueError, RecursionError):
        problems.say("", "it cannot be read as JSON, so it has no hooks")
    else:
        if isinstance(found, dict):
            return found
        problems.say("", f"must be an object, not {shown(found)}")
    return {}


@dataclass(frozen=True, slots=True)
class _Off:
    """What a file itself turns off: whole dialects (and by which switch), single names."""

    dialects: dict[Dialect, str]
    names: frozenset[str]

    @classmethod
    def of(cls, settings: dict[str, Any], table: dict[str, Any]) -> _Off:
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
        return cls(dialects, frozenset(names))

    def covers(self, spec: HookSpec) -> bool:
        command = spec.action.argv[-1:] if isinstance(spec.action, Command) else ()
        called = {spec.name} if spec.name else set(command)
        return spec.dialect is Dialect.GEMINI and not called.isdisjoint(self.names)


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
