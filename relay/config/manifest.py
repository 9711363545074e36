"""What a trusted configuration registers, as it was found when it last ran.

``relay trust`` runs the file once and keeps this beside the state, under the hash of the file: an
agent is told of the patterns, and asked for the events, before its session runs the file again.
Without one (the file was trusted by another version of relay, or could not be run) everything is
possible. This module is read before an agent starts, so it imports little.
"""

from __future__ import annotations

import os

from relay.config.trust import (
    CONFIG_NAME,
    TRUSTED,
    candidates,
    found_at,
    project_root,
    trusted_before,
)
from relay.core import json_text
from relay.core.errors import RelayError
from relay.core.files import make_private_folder, write_atomically
from relay.core.paths import repository_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypedDict

    from relay.core.paths import Home

    class FileSettings(TypedDict):
        """What one file sets, and what else than patterns and hooks it brings."""

        #: Its route functions: name, kinds and channels (lists or null), priority.
        routes: list[dict[str, Any]]
        #: Its hooks of the broker's events, by name.
        observers: list[str]
        #: What becomes of several dispatches of one event: see docs/broker.md.
        merge: str
        #: The channels that it connects, by name.
        channel_adapters: list[str]
        #: What agents may do, by globs of their names.
        may: dict[str, list[str]]
        #: Whether agents get relay's tools as an MCP server; None: nothing is said of it.
        mcp: bool | None
        #: Whether secrets are masked in what is stored; it counts in the person's own file alone.
        redact: bool
        #: Its other settings of relay's own, for people: see ``settings.plain_values``.
        values: dict[str, Any]
        #: What it sets of features: see ``Manifest.features``.
        features: dict[str, Any]


#: The namespaces that relay acts on itself.
OWN = ("relay", "memory")
#: The event of a tool that is about to run.
_GUARD = "BeforeTool"
#: The event of one that has run: to be told of it holds up nothing.
_TOLD = "AfterTool"


class Manifest:
    """What one file registers."""

    __slots__ = ("patterns", "hooks", "events", "hook_files", "problem", "settings")

    def __init__(
        self,
        patterns: list[str],
        hooks: list[str],
        events: list[str],
        hook_files: list[str] | None = None,
        problem: str = "",
        settings: FileSettings | None = None,
    ) -> None:
        #: ``namespace:target`` of each pattern.
        self.patterns = patterns
        #: The registration's name of each hook: ``before_tool``.
        self.hooks = hooks
        #: The values of HookEventName that it may have hooks for. A file whose hook files may
        #: change by themselves may have any.
        self.events = events
        #: The hook files that it names, as it names them.
        self.hook_files = hook_files or []
        #: Why the file cannot be used.
        self.problem = problem
        self.settings = settings or no_settings()

    @property
    def features(self) -> dict[str, Any]:
        """What it sets of features, by key: ``Setting.kept``, a table or None."""
        return self.settings["features"]

    @property
    def more(self) -> dict[str, list[str] | dict[str, Any]]:
        """The names of its route functions and of the channels that it connects, what it lets
        agents do, and what it sets."""
        given = self.settings
        return {
            "routes": [one["name"] for one in given["routes"]],
            "channels": given["channel_adapters"],
            "may": [f"{name} ({' '.join(rights)})" for name, rights in given["may"].items()],
            "settings": given["values"],
        }

    def fields(self) -> dict[str, Any]:
        """As it is kept."""
        registered = {name: getattr(self, name) for name in Manifest.__slots__}
        del registered["settings"]
        return {**registered, **self.settings}


def of_fields(fields: dict[str, Any]) -> Manifest:
    """What ``fields`` has kept. Raises TypeError."""
    settings: Any = no_settings()
    settings |= {name: fields.pop(name) for name in settings if name in fields}
    registered = {name: fields.pop(name) for name in Manifest.__slots__ if name in fields}
    return Manifest(**registered, settings=settings)


def no_settings() -> FileSettings:
    """Those of a file that sets nothing."""
    return {
        "routes": [],
        "observers": [],
        "merge": "",
        "channel_adapters": [],
        "may": {},
        "mcp": None,
        "redact": True,
        "values": {},
        "features": {},
    }


class Known:
    """What is known of a configuration before it runs."""

    __slots__ = ("namespaces", "hooks", "without", "mcp")

    def __init__(
        self,
        namespaces: tuple[str, ...] = OWN,
        hooks: tuple[str, ...] = (),
        without: tuple[str, ...] = (),
        mcp: bool = False,
    ) -> None:
        #: relay's own, and an example of each further one: ``deploy:staging``, or only ``who``.
        self.namespaces = namespaces
        #: The events (values of HookEventName) that it may register hooks for.
        self.hooks = hooks
        #: What the agent is started without (relay.agents.launch.Run).
        self.without = without
        #: The agent gets relay's tools as an MCP server.
        self.mcp = mcp


def known(home: Home, cwd: str, explicit: str | None = None) -> Known:
    """What is known of the configurations that apply in ``cwd``. Never raises.

    Of one that is not trusted: nothing, for it does not run. Of one without a manifest: that it
    may have hooks for every event. One that is not as it was trusted may still guard tools.
    """
    try:
        files = candidates(home, cwd, explicit)
    except RelayError:
        return Known()
    patterns: list[str] = []
    events: list[str] = []
    mcp: bool | None = None
    for one in reversed(files):  # the nearest counts first
        if one.entry is None:
            continue
        found = read_manifest(home, one.entry.sha256)
        if one.state == TRUSTED:
            patterns += found.patterns if found is not None else []
            events += found.events if found is not None else every_event()
            if found is not None and (found.settings["routes"] or found.features.get("personas")):
                events.append(_GUARD)  # a turn of the agent's may have limits
            claims = found is not None and found.features.get("claims")
            if claims and claims.get("mode") != "off":
                events += [_GUARD, _TOLD]
            if found is not None and mcp is None:
                mcp = found.settings["mcp"]
            if found is not None and _routes_tool_calls(found):
                events.append(_TOLD)
        elif found is None or _GUARD in found.events:
            events.append(_GUARD)
    return Known(examples(patterns), tuple(dict.fromkeys(events)), mcp=mcp is True)


def notices(home: Home, cwd: str, explicit: str | None = None) -> list[str]:
    """A line for each file that does not apply in ``cwd`` as it stands there, at each start.

    Raises ConfigError when ``explicit`` is not there or cannot be read.
    """
    lines = []
    for one in candidates(home, cwd, explicit):
        found = read_manifest(home, one.entry.sha256) if one.entry is not None else None
        if one.state != TRUSTED:
            lines.append(one.notice)
        elif found is not None and found.problem:
            lines.append(f"{found.problem}; until it is fixed, no tool that it may guard runs")
        if one.state == TRUSTED and found is not None:
            folder = os.path.dirname(one.path)
            for name in found.hook_files:
                file = found_at(home, os.path.join(folder, os.path.expanduser(name)))
                if file is not None and file.notice:
                    lines.append(file.notice)
    main = repository_of(cwd)
    path = os.path.join(main, CONFIG_NAME)
    if main != project_root(cwd) and trusted_before(home, path):
        lines.append(f"this is another worktree of {main}: {path}, which you trusted, counts there")
    return lines


def _routes_tool_calls(found: Manifest) -> bool:
    """Whether a route function is asked of tool calls, which the agent's own hooks tell of."""
    routes = found.settings["routes"]
    return any(one.get("kinds") is None or "tool_call" in one["kinds"] for one in routes)


def may_guard(home: Home, sha256: str) -> bool:
    """Whether the file with this hash guards tools, as far as is known."""
    found = read_manifest(home, sha256)
    return found is None or _GUARD in found.events


def every_event() -> list[str]:
    """The values of HookEventName."""
    # Imported on use: a file with a manifest does not need it.
    from relay.hooks.events import HookEventName

    return [event.value for event in HookEventName]


def examples(patterns: list[str]) -> tuple[str, ...]:
    """One of the patterns for each namespace: the first that names a target, else the first."""
    chosen: dict[str, str] = {name: name for name in OWN}
    for pattern in patterns:
        namespace, _, target = pattern.partition(":")
        if not pattern.isprintable():
            continue  # no command line can hold it
        exact = bool(target) and not set(target) & set("*?[")
        if namespace not in chosen or (exact and ":" not in chosen[namespace]):
            chosen[namespace] = pattern if exact else namespace
    chosen.update({name: name for name in OWN})
    return tuple(chosen.values())


def read_manifest(home: Home, sha256: str) -> Manifest | None:
    """The manifest of the content with this hash; None without one, or with a damaged one."""
    try:
        with open(_path(home, sha256), encoding="utf-8") as kept:
            manifest = of_fields(json_text.loads(kept.read()))
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return None
    given = manifest.settings
    lists = [manifest.patterns, manifest.hooks, manifest.events, manifest.hook_files]
    lists.append(given["observers"])
    good = all(isinstance(one, list) and all(isinstance(t, str) for t in one) for one in lists)
    good = good and all(type(one) is dict for one in given["routes"])
    tables = (given["may"], given["values"], *manifest.features.values())
    good = good and all(one is None or type(one) is dict for one in tables)
    good = good and given["mcp"] in (None, True, False) and type(given["redact"]) is bool
    return manifest if good and isinstance(manifest.problem, str) else None


def write_manifest(home: Home, sha256: str, manifest: Manifest) -> None:
    """Keep ``manifest`` for the file with this hash. Raises OSError."""
    path = _path(home, sha256)
    make_private_folder(os.path.dirname(path))
    write_atomically(path, json_text.dumps(manifest.fields()), durable=False)


def _path(home: Home, sha256: str) -> str:
    from relay import __version__

    # What another version of relay found may not be all that this one would find.
    return os.path.join(home.root, "cache", f"manifest-{__version__}-{sha256[:32]}.json")
