"""What lines an agent can write here beside relay's own: asked before the agent starts.

A configuration's patterns are read from its source, which takes longer than a start may, so what
was found is kept beside the state, under the hash of the file. This module imports only ``os``.
"""

from __future__ import annotations

import os

from relay.trust import find_config, is_trusted, read_config

TYPE_CHECKING = False
if TYPE_CHECKING:
    from relay.paths import Home
    from relay.trust import ConfigFile

#: Patterns of one configuration that are kept; a primer has room for far fewer.
PATTERNS_MAX = 100
RELAY = "relay"


def vocabulary(home: Home, cwd: str, explicit: str | None = None) -> tuple[str, ...]:
    """``relay`` and an example for each further namespace: ``deploy:staging``, or only ``who``.

    Those of a configuration that is not trusted are left out, as are those that it computes.
    Never raises.
    """
    from relay.errors import RelayError

    try:
        path = find_config(cwd, explicit)
        if path is None:
            return (RELAY,)
        file = read_config(path)
        if not is_trusted(home, path, file.sha256):
            return (RELAY,)
        patterns = _kept(home, file)
        if patterns is None:
            patterns = _found(file)
            _keep(home, file, patterns)
    except (RelayError, OSError):
        return (RELAY,)
    return examples(patterns)


def examples(patterns: list[str]) -> tuple[str, ...]:
    """One of the patterns for each namespace: the first that names a target, else the first."""
    chosen: dict[str, str] = {RELAY: RELAY}
    for pattern in patterns:
        namespace, _, target = pattern.partition(":")
        if not pattern.isprintable():
            continue  # no command line can hold it
        exact = bool(target) and not set(target) & set("*?[")
        if namespace not in chosen or (exact and ":" not in chosen[namespace]):
            chosen[namespace] = pattern if exact else namespace
    chosen[RELAY] = RELAY
    return tuple(chosen.values())


def _found(file: ConfigFile) -> list[str]:
    from relay.outline import COMPUTED, outline

    return [name for name in outline(file).patterns if name != COMPUTED][:PATTERNS_MAX]


def _kept(home: Home, file: ConfigFile) -> list[str] | None:
    import json

    try:
        with open(_path(home, file), encoding="utf-8") as kept:
            patterns = json.load(kept)
    except (OSError, ValueError):
        return None
    return patterns if isinstance(patterns, list) and all(map(_is_text, patterns)) else None


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _keep(home: Home, file: ConfigFile, patterns: list[str]) -> None:
    import json

    path = _path(home, file)
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    temporary = f"{path}.{os.getpid()}"
    with open(temporary, "w", encoding="utf-8") as kept:
        json.dump(patterns, kept)
    os.replace(temporary, path)


def _path(home: Home, file: ConfigFile) -> str:
    return os.path.join(home.root, "cache", f"patterns-{file.sha256[:32]}.json")
