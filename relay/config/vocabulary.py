"""What an agent can write here beside relay's own lines, and which hooks wait for what it does.

It is asked before the agent starts, and before the configuration runs. Reading it from the source
takes longer than a start may, so what was found is kept beside the state, under the hash of the
file. This module imports only ``os``.
"""

from __future__ import annotations

import os

from relay.config.trust import find_config, is_trusted, read_config
from relay.core.files import make_private_folder, write_atomically

TYPE_CHECKING = False
if TYPE_CHECKING:
    from relay.config.trust import ConfigFile
    from relay.core.paths import Home

#: Patterns of one configuration that are kept; a primer has room for far fewer.
PATTERNS_MAX = 100
RELAY = "relay"
#: The namespaces that relay acts on itself.
OWN = (RELAY, "memory")


class Known:
    """What is known of a configuration before it runs.

    ``namespaces``: relay's own and an example for each further one: ``deploy:staging``, or only
    ``who``. ``hooks``: the events (values of HookEventName) that it may register hooks for.
    """

    __slots__ = ("namespaces", "hooks")

    def __init__(self, namespaces: tuple[str, ...] = OWN, hooks: tuple[str, ...] = ()) -> None:
        self.namespaces = namespaces
        self.hooks = hooks


def vocabulary(home: Home, cwd: str, explicit: str | None = None) -> Known:
    """What is known of the configuration that applies in ``cwd``.

    Of one that is not trusted nothing is, and patterns that it computes are left out. Never raises.
    """
    from relay.core.errors import RelayError

    try:
        path = find_config(cwd, explicit)
        if path is None:
            return Known()
        file = read_config(path)
        if not is_trusted(home, path, file.sha256):
            return Known()
        found = _kept(home, file)
        if found is None:
            found = _found(file)
            _keep(home, file, found)
    except (RelayError, OSError):
        return Known()
    return Known(examples(found["patterns"]), tuple(found["hooks"]))


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


def _found(file: ConfigFile) -> dict[str, list[str]]:
    from relay.config.foresight import foreseen
    from relay.config.outline import COMPUTED, outline

    patterns = [name for name in outline(file).patterns if name != COMPUTED]
    hooks = [event.value for event in foreseen(file)]
    return {"patterns": patterns[:PATTERNS_MAX], "hooks": hooks}


def _kept(home: Home, file: ConfigFile) -> dict[str, list[str]] | None:
    import json

    try:
        with open(_path(home, file), encoding="utf-8") as kept:
            found = json.load(kept)
    except (OSError, ValueError):
        return None
    wanted = {"patterns", "hooks"}
    return found if isinstance(found, dict) and _texts_in(found) == wanted else None


def _texts_in(table: dict[str, object]) -> set[str]:
    """The keys of ``table`` under which there is a list of texts."""
    return {
        key
        for key, value in table.items()
        if isinstance(value, list) and all(isinstance(item, str) for item in value)
    }


def _keep(home: Home, file: ConfigFile, found: dict[str, list[str]]) -> None:
    import json

    path = _path(home, file)
    make_private_folder(os.path.dirname(path))
    write_atomically(path, json.dumps(found), durable=False)


def _path(home: Home, file: ConfigFile) -> str:
    from relay import __version__

    # What another version of relay found there may not be all that this one would find.
    name = f"outline-{__version__}-{file.sha256[:32]}.json"
    return os.path.join(home.root, "cache", name)
