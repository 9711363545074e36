"""Which configuration file applies, and whether its owner said that it may run.

``relay.config.py`` is code: it runs only when exactly these bytes have been trusted. This module
imports only ``os`` at first, because ``relay wrap`` asks it before it starts the agent.
"""

from __future__ import annotations

import os

from relay.core import json_text
from relay.core.errors import ConfigError, RelayError
from relay.core.files import make_private_folder, take_lock, write_atomically

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from typing import Any

    from relay.core.paths import Home

CONFIG_NAME = "relay.config.py"
#: A larger file is refused. In bytes.
CONFIG_MAX = 1024 * 1024
#: The store keeps at most this many files of each kind; the oldest make room.
ENTRIES_MAX = 1000
#: How long another process may hold the store, in seconds.
LOCK_TIMEOUT = 2.0


class ConfigFile:
    """The bytes of one configuration file, read once: what is hashed is what is executed."""

    __slots__ = ("data", "path", "sha256")

    def __init__(self, path: str, data: bytes) -> None:
        import hashlib

        self.path = path
        self.data = data
        self.sha256 = hashlib.sha256(data).hexdigest()


def find_config(cwd: str, explicit: str | None = None) -> str | None:
    """The absolute path of the configuration that applies in ``cwd``, or None.

    ``explicit`` wins (ConfigError when it is not there); then ``relay.config.py`` in ``cwd`` or a
    parent, up to the project's root (a folder with ``.git``); then ``$XDG_CONFIG_HOME/relay`` or
    ``~/.config/relay``. Outside of a project only ``cwd`` itself is looked at.
    """
    if explicit is not None:
        path = os.path.realpath(os.path.join(cwd, os.path.expanduser(explicit)))
        if not os.path.exists(path):
            raise ConfigError(
                f"there is no configuration file {explicit}",
                hint="check the path, or write one with: relay init",
            )
        return path
    for folder in _project_folders(os.path.realpath(cwd)):
        path = os.path.join(folder, CONFIG_NAME)
        if os.path.isfile(path):
            return os.path.realpath(path)
    path = os.path.join(_user_folder(), CONFIG_NAME)
    return os.path.realpath(path) if os.path.isfile(path) else None


def _user_folder() -> str:
    """``$XDG_CONFIG_HOME/relay``, else ``~/.config/relay``."""
    base = os.environ.get("XDG_CONFIG_HOME")
    if not base or not os.path.isabs(base):
        base = os.path.expanduser("~/.config")
    return os.path.join(base, "relay")


def read_config(path: str) -> ConfigFile:
    """The file's bytes and hash. Raises ConfigError when it cannot be read or is no file."""
    try:
        # Not blocking: a FIFO that lies there must not stop anybody.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            # 0o100000 is stat's S_IFREG: a regular file.
            if os.fstat(fd).st_mode & 0o170000 != 0o100000:
                raise ConfigError(f"{path} is not a file", hint="name a Python file")
            with open(fd, "rb", closefd=False) as file:
                data = file.read(CONFIG_MAX + 1)
        finally:
            os.close(fd)
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}", hint="check the path and its permissions"
        ) from None
    if len(data) > CONFIG_MAX:
        raise ConfigError(f"{path} is larger than {CONFIG_MAX} bytes", hint="make it smaller")
    return ConfigFile(path, data)


def is_trusted(home: Home, path: str, sha256: str) -> bool:
    """Whether exactly this content of ``path`` has been trusted. Never raises."""
    entry = _read(home)["trusted"].get(os.path.realpath(path))
    return isinstance(entry, str) and entry == sha256


def trusted_before(home: Home, path: str) -> bool:
    """Whether some content of ``path`` is trusted: then the file has changed since."""
    return os.path.realpath(path) in _read(home)["trusted"]


def trust(home: Home, path: str, sha256: str | None = None) -> str:
    """Trust ``path`` as it is now, or exactly the content ``sha256``. Returns the hash.

    Raises ConfigError when it cannot be read, RelayError when the store cannot be written.
    """
    if sha256 is None:
        sha256 = read_config(path).sha256
    home.create()
    with _locked(home):
        store = _read(home)
        _put(store["trusted"], os.path.realpath(path), sha256)
        store["told"].pop(os.path.realpath(path), None)
        _write(home, store)
    return sha256


def untrust(home: Home, path: str) -> bool:
    """Take the trust back. Returns whether there was any."""
    if not os.path.exists(home.trust):
        return False
    with _locked(home):
        store = _read(home)
        had = store["trusted"].pop(os.path.realpath(path), None) is not None
        store["told"].pop(os.path.realpath(path), None)
        _write(home, store)
    return had


def told_once(home: Home, path: str, sha256: str) -> bool:
    """Whether the person has already been told about this content; from now on they have.

    Never raises: where the store cannot be written they are told again.
    """
    real = os.path.realpath(path)
    if _read(home)["told"].get(real) == sha256:
        return True
    try:
        make_private_folder(home.root)
        with _locked(home):
            store = _read(home)
            if store["told"].get(real) == sha256:
                return True
            _put(store["told"], real, sha256)
            _write(home, store)
    except (OSError, RelayError):
        return False
    return False


def untrusted_notice(home: Home, cwd: str, explicit: str | None = None) -> str | None:
    """One line for the person when a configuration applies but may not run, once per content.

    None when there is none, when it is trusted, or when this has been said before. Raises
    ConfigError when ``explicit`` is not there or the file cannot be read.
    """
    path = find_config(cwd, explicit)
    if path is None:
        return None
    file = read_config(path)
    if is_trusted(home, path, file.sha256) or told_once(home, path, file.sha256):
        return None
    what = "has changed since you trusted it" if trusted_before(home, path) else "is not trusted"
    return f"relay: {path} {what}, so it does not run. Read it, then: relay trust {_quoted(path)}"


def _quoted(path: str) -> str:
    import shlex

    return shlex.quote(path)


def _project_folders(cwd: str) -> list[str]:
    """``cwd`` and its parents up to the folder with ``.git``; only ``cwd`` if there is none."""
    folders = [cwd]
    while not os.path.exists(os.path.join(folders[-1], ".git")):
        parent = os.path.dirname(folders[-1])
        if parent == folders[-1]:
            return [cwd]
        folders.append(parent)
    return folders


def _put(table: dict[str, str], path: str, sha256: str) -> None:
    table.pop(path, None)
    table[path] = sha256
    while len(table) > ENTRIES_MAX:
        del table[next(iter(table))]


def _read(home: Home) -> dict[str, dict[str, str]]:
    """The store; empty when it is missing, damaged, or could have been written by others."""
    store: dict[str, dict[str, str]] = {"trusted": {}, "told": {}}
    try:
        with open(home.trust, "rb") as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.getuid() or status.st_mode & 0o022:
                return store
            content: Any = json_text.loads(file.read(4 * CONFIG_MAX).decode())
    except (OSError, ValueError, RecursionError):
        return store
    if not isinstance(content, dict):
        return store
    for kind, table in store.items():
        found = content.get(kind)
        if isinstance(found, dict):
            table.update((k, v) for k, v in found.items() if isinstance(v, str))
    return store


def _write(home: Home, store: dict[str, dict[str, str]]) -> None:
    """Replace the store as a whole, durably, mode 0600."""
    try:
        write_atomically(home.trust, json_text.dumps({"version": 1, **store}))
    except OSError as error:
        raise RelayError(
            f"cannot write {home.trust}: {error.strerror}",
            hint="free some space, or make the state directory writable",
            code="state_dir",
        ) from None


def _locked(home: Home) -> AbstractContextManager[None]:
    """Hold the store's lock. Raises RelayError when another process keeps it too long."""
    import contextlib

    @contextlib.contextmanager
    def held() -> Iterator[None]:
        fd = take_lock(home.trust + ".lock", LOCK_TIMEOUT)
        if fd is None:
            raise RelayError(f"another process holds {home.trust}", hint="try again")
        try:
            yield
        finally:
            os.close(fd)

    return held()
