"""Which trusted configurations evaluate an event, and which of their route functions are asked.

An agent's event is evaluated by the configurations that apply where the agent runs, any other event
by the person's own alone. Results are cached until the trust store or a trusted file changes. The
broker checks that in each turn of its loop: what is sent after a trust was revoked meets no cache.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from relay.config.manifest import Manifest, read_manifest
from relay.config.trust import (
    TRUSTED,
    FoundConfig,
    candidates,
    found_at,
    read_store,
    user_config,
)
from relay.core.errors import RelayError
from relay.core.paths import Home
from relay.hooks.hook_types import wants
from relay.protocol.broker import Json

#: The key of the person's own configuration.
USER = "user"
#: Cached results, by the folders of agents.
_KEPT_MAX = 10_000


@dataclass(frozen=True, slots=True)
class TrustedConfig:
    """One configuration that may run, as it is now. ``key`` is what its hook ids begin with."""

    key: str
    path: str
    sha256: str
    #: Its manifest; None if that is unknown before it has run.
    manifest: Manifest | None

    def wants(self, kind: str, channel: str, disabled: Json) -> bool:
        """Whether it has a route function for such an event."""
        if self.manifest is None:
            return wants(None, None, kind, channel)
        return any(
            wants(one.get("kinds"), one.get("channels"), kind, channel)
            and f"{self.key}/{one.get('name')}" not in disabled
            for one in self.manifest.settings["routes"]
        )


class TrustedConfigs:
    """All of them. Belongs to the broker's loop."""

    def __init__(
        self, home: Home, call_soon: Callable[[Callable[[], None]], object] | None = None
    ) -> None:
        """``call_soon`` of the loop: the files are looked at once in each of its turns; without it,
        for each question."""
        self._home = home
        self._call_soon = call_soon
        self._is_fresh = False  # the files were looked at in this turn
        self._paths: list[str] = []  # of all trusted files
        self._watched: list[str] = []  # these, and the programs that they name
        self._state: list[object] = []  # of the trust store, and of what is watched
        #: Whether all could be read and have a manifest (a worker makes it when it loads the file).
        self._whole = True
        # Caches that hold for this state:
        self._applying: dict[str | None, tuple[TrustedConfig, ...]] = {}
        self._keyed: dict[str, TrustedConfig | None] = {}
        self._wanted: dict[tuple[str | None, str, str], tuple[str, ...]] = {}

    def wanted(self, cwd: str | None, kind: str, channel: str, disabled: Json) -> tuple[str, ...]:
        """The keys of the configurations that evaluate such an event of an agent in ``cwd`` (None:
        of no agent). Called for every message, so it is a look-up.
        """
        self._check()
        key = (cwd, kind, channel)
        found = self._wanted.get(key)
        if found is None:
            configs = self.applying(cwd)
            found = tuple(one.key for one in configs if one.wants(kind, channel, disabled))
            self._wanted[key] = found
        return found

    def look_again(self) -> None:
        """Drop the caches: hooks were switched, or something was trusted."""
        self._wanted.clear()
        self._is_fresh = False

    def _turn_ended(self) -> None:
        self._is_fresh = False

    def _check(self) -> None:
        if self._is_fresh:
            return
        if self._call_soon is not None:
            self._is_fresh = True
            self._call_soon(self._turn_ended)
        state: list[object] = [_stat(self._home.trust), *map(_stat, self._watched)]
        kept = len(self._applying) + len(self._wanted) + len(self._keyed)
        if state == self._state and self._whole and kept <= _KEPT_MAX:
            return
        # Before anything is read, so that a change meanwhile is noticed next time.
        entries = read_store(self._home).entries
        self._paths = list(entries)
        programs = {path for entry in entries.values() for path in entry.programs or ()}
        self._watched = [*self._paths, *sorted(programs)]
        self._state = [state[0], *map(_stat, self._watched)]
        self._whole = True
        self._applying.clear()
        self._keyed.clear()
        self._wanted.clear()

    def applying(self, cwd: str | None) -> tuple[TrustedConfig, ...]:
        """The configurations that apply in ``cwd``, the person's own first; None: only that one."""
        self._check()
        known = self._applying.get(cwd)
        if known is not None:
            return known
        try:
            if cwd is None:
                own = found_at(self._home, user_config())
                files = [] if own is None else [own]
            else:
                files = candidates(self._home, cwd)
        except (RelayError, OSError):
            files, self._whole = [], False  # perhaps they can be read next time
        configs = tuple(filter(None, map(self._trusted, files)))
        self._applying[cwd] = configs
        return configs

    def own_setting(self, key: str) -> Any:
        """What the person's own configuration keeps of a feature's setting; None: nothing."""
        own = self.by_key(USER)
        return own.manifest.features.get(key) if own is not None and own.manifest else None

    def by_key(self, key: str) -> TrustedConfig | None:
        """The configuration with this key; None if it may not run any more."""
        self._check()
        if key not in self._keyed:
            path = next((one for one in self._paths if _key(one) == key), None)
            found = None if path is None else found_at(self._home, path)
            self._keyed[key] = None if found is None else self._trusted(found)
        return self._keyed[key]

    def all(self) -> list[TrustedConfig]:
        """Every configuration that is trusted and unchanged."""
        self._check()
        return [one for one in map(self.by_key, map(_key, self._paths)) if one is not None]

    def _trusted(self, one: FoundConfig) -> TrustedConfig | None:
        if one.state != TRUSTED or one.file is None or one.problem:
            return None
        manifest = read_manifest(self._home, one.file.sha256)
        self._whole = self._whole and manifest is not None
        return TrustedConfig(_key(one.path), one.path, one.file.sha256, manifest)


def _key(path: str) -> str:
    if path == user_config():
        return USER
    folder = re.sub(r"[^A-Za-z0-9_.-]+", "-", os.path.basename(os.path.dirname(path)))[:40]
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    return f"{folder.strip('-') or 'root'}-{digest}"


def _stat(path: str) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
