"""What a trusted configuration registers, as it was found when it last ran.

``relay trust`` runs the file once and keeps this beside the state, under the hash of the file: an
agent is told of the patterns, and asked for the events, before its session runs the file again.
Without one (the file was trusted by another version of relay, or could not be run) everything is
possible. This module is read before an agent starts, so it imports little.
"""

from __future__ import annotations

import os

from relay.config.trust import find_config, is_trusted, read_config
from relay.core import json_text
from relay.core.errors import RelayError
from relay.core.files import make_private_folder, write_atomically

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from relay.config.trust import ConfigFile
    from relay.core.paths import Home

#: Patterns of one configuration that are kept; a primer has room for far fewer.
PATTERNS_MAX = 100
#: The namespaces that relay acts on itself.
OWN = ("relay", "memory")


class Manifest:
    """What one file registers."""

    __slots__ = ("patterns", "hooks", "events", "store", "memory", "problem")

    def __init__(
        self,
        *,
        patterns: list[str],
        hooks: list[str],
        events: list[str],
        store: dict[str, Any] | None = None,
        memory: dict[str, Any] | None = None,
        problem: str = "",
    ) -> None:
        #: ``namespace:target`` of each pattern.
        self.patterns = patterns
        #: The registration's name of each hook: ``before_tool``.
        self.hooks = hooks
        #: The values of HookEventName that it may have hooks for. A file whose hook files may
        #: change by themselves may have any.
        self.events = events
        #: ``StoreSpec.to_json`` of where memories go, and the settings of memory for people; None
        #: where the file says nothing of memory.
        self.store = store
        self.memory = memory
        #: Why the file cannot be used.
        self.problem = problem


class Known:
    """What is known of a configuration before it runs."""

    __slots__ = ("namespaces", "hooks")

    def __init__(self, namespaces: tuple[str, ...] = OWN, hooks: tuple[str, ...] = ()) -> None:
        #: relay's own, and an example of each further one: ``deploy:staging``, or only ``who``.
        self.namespaces = namespaces
        #: The events (values of HookEventName) that it may register hooks for.
        self.hooks = hooks


def known(home: Home, cwd: str, explicit: str | None = None) -> Known:
    """What is known of the configuration that applies in ``cwd``. Never raises.

    Of one that is not trusted: nothing, for it does not run. Of one without a manifest: that it
    may have hooks for every event.
    """
    try:
        path = find_config(cwd, explicit)
        file = None if path is None else read_config(path)
    except RelayError:
        return Known()
    if file is None or not is_trusted(home, file.path, file.sha256):
        return Known()
    found = read_manifest(home, file)
    if found is None:
        return Known(hooks=tuple(every_event()))
    return Known(examples(found.patterns), tuple(found.events))


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


def read_manifest(home: Home, file: ConfigFile) -> Manifest | None:
    """The manifest of exactly this content; None without one, or with a damaged one."""
    try:
        with open(_path(home, file.sha256), encoding="utf-8") as kept:
            found = json_text.loads(kept.read())
        manifest = Manifest(**found)
    except (OSError, ValueError, TypeError, RecursionError):
        return None
    lists = (manifest.patterns, manifest.hooks, manifest.events)
    good = all(isinstance(one, list) and all(isinstance(t, str) for t in one) for one in lists)
    good = good and all(
        one is None or type(one) is dict for one in (manifest.store, manifest.memory)
    )
    return manifest if good and isinstance(manifest.problem, str) else None


def write_manifest(home: Home, sha256: str, manifest: Manifest) -> None:
    """Keep ``manifest`` for the file with this hash. Raises OSError."""
    manifest.patterns = manifest.patterns[:PATTERNS_MAX]
    path = _path(home, sha256)
    make_private_folder(os.path.dirname(path))
    fields = {name: getattr(manifest, name) for name in Manifest.__slots__}
    write_atomically(path, json_text.dumps(fields), durable=False)


def _path(home: Home, sha256: str) -> str:
    from relay import __version__

    # What another version of relay found may not be all that this one would find.
    return os.path.join(home.root, "cache", f"manifest-{__version__}-{sha256[:32]}.json")
