"""Which trusted configurations evaluate an event, and which of their route functions are asked.

An agent's event is evaluated by the configurations that apply where the agent runs, any other by
the person's own alone. What is found is kept, and looked at again when the trust store or one of
the files is another than it was; that is checked at most every ``FRESH`` seconds.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from relay.config.manifest import Manifest, read_manifest
from relay.config.trust import (
    TRUSTED,
    FoundConfig,
    candidates,
    found_at,
    trusted_paths,
    user_config,
)
from relay.core.bounded import BoundedDict
from relay.core.errors import RelayError
from relay.core.paths import Home
from relay.hooks.hook_types import wants
from relay.protocol.broker import Json

#: The key of the person's own configuration.
USER = "user"
#: Seconds for which what was found counts.
FRESH = 0.05
#: Folders of agents for which it is kept.
_FOLDERS_MAX = 4096


@dataclass(frozen=True, slots=True)
class TrustedConfig:
    """One configuration that may run, as it is now. ``key`` is what its hook ids begin with."""

    key: str
    path: str
    sha256: str
    #: What it registers; None where that is not known before it runs.
    manifest: Manifest | None

    def wants(self, kind: str, channel: str, disabled: Json) -> bool:
        """Whether a route function of it is asked of such an event."""
        if self.manifest is None:
            return wants(None, None, kind, channel)
        return any(
            wants(one.get("kinds"), one.get("channels"), kind, channel)
            and f"{self.key}/{one.get('name')}" not in disabled
            for one in self.manifest.routes
        )


@dataclass(frozen=True, slots=True)
class _Found:
    """What applies in a folder, and the state of the files that say so."""

    paths: tuple[str, ...]
    state: object
    configs: tuple[TrustedConfig, ...]


class TrustedConfigs:
    """All of them. Belongs to the broker's loop."""

    def __init__(self, home: Home, clock: Callable[[], float] = time.monotonic) -> None:
        self._home = home
        self._clock = clock
        self._checked = clock()
        self._found: BoundedDict[str | None, _Found] = BoundedDict(_FOLDERS_MAX)
        self._keyed: BoundedDict[str, _Found] = BoundedDict(_FOLDERS_MAX)
        self._keyed_fresh: set[str] = set()
        self._fresh: set[str | None] = set()
        self._wanted: dict[tuple[str | None, str, str], tuple[str, ...]] = {}

    def wanted(self, cwd: str | None, kind: str, channel: str, disabled: Json) -> tuple[str, ...]:
        """The keys of those that evaluate such an event of an agent in ``cwd``; None: of nobody's.

        Asked of every message: it costs a look-up.
        """
        if self._clock() - self._checked > FRESH:
            self.look_again()
        key = (cwd, kind, channel)
        found = self._wanted.get(key)
        if found is None:
            configs = self.applying(cwd)
            found = tuple(one.key for one in configs if one.wants(kind, channel, disabled))
            if len(self._wanted) >= _FOLDERS_MAX:
                self._wanted.clear()
            self._wanted[key] = found
        return found

    def look_again(self) -> None:
        """What was found may be no more so."""
        self._checked = self._clock()
        self._fresh.clear()
        self._keyed_fresh.clear()
        self._wanted.clear()

    def applying(self, cwd: str | None) -> tuple[TrustedConfig, ...]:
        """Those that apply in ``cwd``, the person's own first; without a folder that one alone."""
        known = self._found.get(cwd)
        if known is not None and (cwd in self._fresh or self._state(known.paths) == known.state):
            self._fresh.add(cwd)
            return known.configs
        # Before it is read: what is trusted meanwhile is then found next time.
        store = _stat(self._home.trust)
        try:
            if cwd is None:
                own = found_at(self._home, user_config())
                files = [] if own is None else [own]
            else:
                files = candidates(self._home, cwd)
        except (RelayError, OSError):
            files = []
        configs = tuple(filter(None, map(self._trusted, files)))
        # A configuration without a manifest gets one when its worker has loaded it.
        if all(one.manifest is not None for one in configs):
            # What was never trusted evaluates nothing, whatever becomes of it.
            paths = tuple(one.path for one in files if one.entry is not None)
            self._found[cwd] = _Found(paths, [store, *map(_stat, paths)], configs)
            self._fresh.add(cwd)
        return configs

    def by_key(self, key: str) -> TrustedConfig | None:
        """The one with this key, wherever it is; None when it may not run any more."""
        if self._clock() - self._checked > FRESH:
            self.look_again()
        known = self._keyed.get(key)
        fresh = key in self._keyed_fresh
        if known is not None and (fresh or self._state(known.paths) == known.state):
            self._keyed_fresh.add(key)
            return known.configs[0]
        store = _stat(self._home.trust)
        paths = tuple(path for path in trusted_paths(self._home) if _key(path) == key)[:1]
        found = found_at(self._home, paths[0]) if paths else None
        config = None if found is None else self._trusted(found)
        # One that is not there may be a moment later: an event may wait for it already.
        if config is not None and config.manifest is not None:
            self._keyed[key] = _Found(paths, [store, *map(_stat, paths)], (config,))
            self._keyed_fresh.add(key)
        return config

    def all(self) -> list[TrustedConfig]:
        """Every configuration that was trusted and still is what it was."""
        keys = [_key(path) for path in trusted_paths(self._home)]
        return [one for one in map(self.by_key, keys) if one is not None]

    def _trusted(self, one: FoundConfig) -> TrustedConfig | None:
        if one.state != TRUSTED or one.file is None or one.problem:
            return None
        sha256 = one.file.sha256
        return TrustedConfig(_key(one.path), one.path, sha256, read_manifest(self._home, sha256))

    def _state(self, paths: tuple[str, ...]) -> object:
        return [_stat(self._home.trust), *map(_stat, paths)]


def _key(path: str) -> str:
    if path == user_config():
        return USER
    folder = re.sub(r"[^A-Za-z0-9_.-]+", "-", os.path.basename(os.path.dirname(path)))[:40]
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:4]
    return f"{folder.strip('-') or 'root'}-{digest}"


def _stat(path: str) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
