"""Which configuration files apply, and whether the person said that they may run.

``relay.config.py`` is code: it runs only when exactly these bytes have been trusted at this place,
and its programs are as they were then. The person's own file and those of the project add up.

What was trusted, and where, stands in one private file. One that is there and cannot be read is not
an empty one: it may have held a guard. This module imports little at first, because ``relay wrap``
asks it before it starts the agent.
"""

from __future__ import annotations

import os
import stat

from relay.core import json_text
from relay.core.errors import ConfigError, RelayError
from relay.core.files import (
    changed_files,
    open_private,
    read_file,
    take_lock,
    write_atomically,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager
    from typing import Any

    from relay.core.paths import Home

CONFIG_NAME = "relay.config.py"
#: A larger file is refused. In bytes.
CONFIG_MAX = 1024 * 1024
#: What can be with a file: it may run; it is not as it was trusted; it was trusted and is not
#: there; it was never trusted. Or the store itself cannot be read.
TRUSTED, CHANGED, GONE, NEW = "trusted", "changed", "gone", "new"
DAMAGED = "damaged"

#: The store is not read beyond this. In bytes.
_STORE_MAX = 16 * 1024 * 1024
#: How long another process may hold the store, in seconds.
LOCK_TIMEOUT = 2.0


class TrustEntry:
    """What the person trusted at one place."""

    __slots__ = ("sha256", "programs", "search", "via")

    def __init__(
        self, sha256: str, programs: Mapping[str, str] | None, search: str, via: str = ""
    ) -> None:
        self.sha256 = sha256
        #: The hash of each file that its commands run, by path. None: a relay that knew of none
        #: has kept this entry.
        self.programs = programs
        #: The person's PATH at that time, without what is relative or the agent's.
        self.search = search
        #: From which terminal, by which process.
        self.via = via


class TrustStore:
    """What the store's file says."""

    __slots__ = ("entries", "problem", "revoked")

    def __init__(
        self, entries: dict[str, TrustEntry], revoked: dict[str, str], problem: str = ""
    ) -> None:
        #: What was trusted, by place.
        self.entries = entries
        #: From where the trust in a place was taken back.
        self.revoked = revoked
        #: Why the file cannot be read, after its name: "is damaged"; "" when it could be.
        self.problem = problem

    def check(self) -> None:
        """Raises RelayError when the file could not be read."""
        if self.problem:
            raise RelayError(
                f"the file of what you trusted {self.problem}",
                hint="put it back, or trust again what is to run: relay trust FILE",
                code="trust_store",
            )


class ConfigFile:
    """The bytes of one configuration file, read once: what is hashed is what is executed."""

    __slots__ = ("data", "path", "sha256")

    def __init__(self, path: str, data: bytes) -> None:
        import hashlib

        self.path = path
        self.data = data
        self.sha256 = hashlib.sha256(data).hexdigest()


class FoundConfig:
    """A configuration file that applies in a folder, or would if it were as it was trusted."""

    __slots__ = ("path", "state", "file", "entry", "problem", "program")

    def __init__(
        self,
        path: str,
        state: str,
        file: ConfigFile | None,
        entry: TrustEntry | None,
        problem: str = "",
    ) -> None:
        self.path = path
        self.state = state
        self.file = file
        self.entry = entry
        #: Why it cannot be read, or is not at its place.
        self.problem = problem
        #: The program of the file that is not as it was trusted; "" when all are.
        self.program = ""

    @property
    def notice(self) -> str:
        """One line for the person about what of it is not applied; "" when all of it is."""
        path = self.path
        if self.state == DAMAGED:
            return (
                f"{path}, which says what you trusted, {self.problem}; nothing that was trusted"
                " runs, and any tool that it guarded stays blocked. Put the file back, or trust"
                " again what is to run, with: relay trust FILE"
            )
        if self.state == NEW:
            if self.problem:
                return f"{self.problem}, so it does not run"
            return f"{path} is not trusted, so it does not run. Read it, then: relay trust " + (
                _quoted(path)
            )
        if self.state == GONE:
            return (
                f"{path}, which you trusted, {self.problem or 'is gone'}; any tool that it guarded"
                " stays blocked. Put it back, or give it up with: relay trust --revoke"
                f" {_quoted(path)}"
            )
        if self.state == CHANGED:
            what = f"{path} has changed since you trusted it, so it"
            if self.program:
                what = f"{self.program} has changed since you trusted {path}, so that file"
            guarded = ", and any tool that it guarded stays blocked"
            if path.endswith(".yaml"):  # a team's file guards none
                guarded = ""
            return f"{what} does not run{guarded}. Read it, then: relay trust {_quoted(path)}"
        return ""


def candidates(home: Home, cwd: str, explicit: str | None = None) -> list[FoundConfig]:
    """The files that apply in ``cwd``, the farthest first: the person's own, then those in the
    folders from the outermost down to ``cwd``, then ``explicit``.

    A file that was trusted counts in every folder below its own, there or not, so that neither a
    nearer file nor a new repository hides it. Any other counts in the project only: up to the
    folder with ``.git``; outside of a project in ``cwd`` itself. A store that cannot be read
    stands first, for what was trusted. Raises ConfigError when ``explicit`` is not there or
    cannot be read.
    """
    store = read_store(home)
    entries = store.entries
    cwd = os.path.realpath(cwd)
    project = _project_folders(cwd)
    found: dict[str, FoundConfig] = {}
    if store.problem:
        # What it held is not known, so it may be a guard: the entry has the hash of no file.
        lost = TrustEntry("", None, "")
        found[home.trust] = FoundConfig(home.trust, DAMAGED, None, lost, store.problem)

    def look(path: str, *, here: bool) -> None:
        if here or path in entries:
            candidate = _found(path, entries)
            if candidate is not None:
                found.setdefault(candidate.path, candidate)

    look(os.path.join(_user_folder(), CONFIG_NAME), here=True)
    for folder in reversed(_named_parents(cwd)):
        look(os.path.join(folder, CONFIG_NAME), here=False)
    for folder in reversed(_parents(cwd)):
        look(os.path.join(folder, CONFIG_NAME), here=folder in project)
    if explicit is not None:
        path = find_config(cwd, explicit)
        assert path is not None
        found.pop(path, None)  # it is the nearest now
        found[path] = _stated(read_config(path), entries.get(path))
    return list(found.values())


def found_at(home: Home, path: str) -> FoundConfig | None:
    """What is to be said of the one file at ``path``; None where there is none and never was."""
    return _found(path, read_store(home).entries)


def _found(path: str, entries: Mapping[str, TrustEntry]) -> FoundConfig | None:
    place, named = place_of(path), os.path.abspath(path)
    entry = entries.get(named)
    if entry is not None and place not in entries:
        # Whoever turned the folder into a link has not given up what it guards.
        why = f"is at another place now: its folder has become a link to {os.path.dirname(place)}"
        return FoundConfig(named, GONE, None, entry, why)
    return _candidate(place, entries.get(place))


def _candidate(path: str, entry: TrustEntry | None) -> FoundConfig | None:
    if not os.path.lexists(path):
        return None if entry is None else FoundConfig(path, GONE, None, entry)
    if entry is None and os.path.isdir(path):
        return None
    try:
        return _stated(read_config(path), entry)
    except ConfigError as error:
        return FoundConfig(path, NEW if entry is None else CHANGED, None, entry, error.message)


def _stated(file: ConfigFile, entry: TrustEntry | None) -> FoundConfig:
    if entry is None:
        return FoundConfig(file.path, NEW, file, entry)
    stated = FoundConfig(file.path, CHANGED, file, entry)
    if entry.sha256 == file.sha256:
        stated.program = next(iter(changed_files(entry.programs or {})), "")
        stated.state = CHANGED if stated.program else TRUSTED
    return stated


def find_config(cwd: str, explicit: str | None = None) -> str | None:
    """The place of the nearest configuration for ``cwd``, trusted or not, or None.

    ``explicit`` wins (ConfigError when it is not there); then ``relay.config.py`` in ``cwd`` or a
    parent, up to the project's root (a folder with ``.git``); then ``$XDG_CONFIG_HOME/relay`` or
    ``~/.config/relay``. Outside of a project only ``cwd`` itself is looked at.
    """
    if explicit is not None:
        path = place_of(os.path.join(cwd, os.path.expanduser(explicit)))
        if not os.path.exists(path):
            raise ConfigError(
                f"there is no configuration file {explicit}",
                hint="check the path, or write one with: relay init",
            )
        return path
    for folder in _project_folders(os.path.realpath(cwd)):
        path = os.path.join(folder, CONFIG_NAME)
        if os.path.isfile(path):
            return path
    path = place_of(os.path.join(_user_folder(), CONFIG_NAME))
    return path if os.path.isfile(path) else None


def place_of(path: str) -> str:
    """Where ``path`` is: its folder without links, and its own name. A link to a file is another
    place than the file: what is beside it is something else."""
    folder, name = os.path.split(os.path.abspath(path))
    return os.path.join(os.path.realpath(folder), name)


def user_config() -> str:
    """The place of the person's own configuration, there or not."""
    return place_of(os.path.join(_user_folder(), CONFIG_NAME))


def trusted_paths(home: Home) -> list[str]:
    """The places of all files that were trusted. Never raises."""
    return list(read_store(home).entries)


def _user_folder() -> str:
    """``$XDG_CONFIG_HOME/relay``, else ``~/.config/relay``."""
    base = os.environ.get("XDG_CONFIG_HOME")
    if not base or not os.path.isabs(base):
        base = os.path.expanduser("~/.config")
    return os.path.join(base, "relay")


def read_config(path: str) -> ConfigFile:
    """The file's bytes and hash. Raises ConfigError when it cannot be read or is not a file."""
    try:
        data = read_file(path, CONFIG_MAX)
    except IsADirectoryError:
        what = "a folder" if os.path.isdir(path) else "not a file"
        raise ConfigError(f"{path} is {what}", hint="name a Python file") from None
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}", hint="check the path and its permissions"
        ) from None
    if len(data) > CONFIG_MAX:
        raise ConfigError(f"{path} is larger than {CONFIG_MAX} bytes", hint="make it smaller")
    return ConfigFile(path, data)


def trusted_entry(home: Home, path: str) -> TrustEntry | None:
    """What was trusted at the place of ``path``. Never raises."""
    return read_store(home).entries.get(place_of(path))


def is_trusted(home: Home, path: str, sha256: str) -> bool:
    """Whether exactly this content of ``path`` has been trusted, and its programs are as they were
    then. Never raises."""
    entry = trusted_entry(home, path)
    if entry is None or entry.sha256 != sha256:
        return False
    return not changed_files(entry.programs or {})


def trusted_before(home: Home, path: str) -> bool:
    """Whether some content of ``path`` is trusted: then the file has changed since."""
    return trusted_entry(home, path) is not None


def trust(
    home: Home,
    path: str,
    sha256: str | None = None,
    programs: Mapping[str, str] | None = None,
    search: str = "",
    via: str = "",
) -> str:
    """Trust ``path`` as it is now, or exactly the content ``sha256``. Returns the hash.

    ``programs``, ``search`` and ``via``: see TrustEntry. Raises ConfigError when it cannot be
    read, and RelayError when the store cannot be written.
    """
    if sha256 is None:
        sha256 = read_config(path).sha256
    home.create()
    place = place_of(path)
    with locked(home):
        store = read_store(home)
        store.entries.pop(place, None)
        store.revoked.pop(place, None)
        store.entries[place] = TrustEntry(sha256, dict(programs or {}), search, via)
        write_store(home, store)
    return sha256


def untrust(home: Home, path: str, via: str = "") -> bool:
    """Take the trust back, and keep who did (``via``). Returns whether there was any.

    Raises RelayError when the store cannot be read or written.
    """
    if not os.path.exists(home.trust):
        return False
    with locked(home):
        store = read_store(home)
        store.check()
        places = dict.fromkeys((place_of(path), os.path.abspath(path)))
        had = [one for one in places if store.entries.pop(one, None) is not None]
        for place in had:
            store.revoked.pop(place, None)
            store.revoked[place] = via
        if had:
            write_store(home, store)
    return bool(had)


def revoked_via(home: Home, path: str) -> str:
    """From where the trust in ``path`` was taken back; "" when it was not."""
    return read_store(home).revoked.get(place_of(path), "")


# -- the store


def read_store(home: Home) -> TrustStore:
    """The store; empty when there is none, with a problem when it cannot be read."""
    try:
        fd = open_private(home.trust, os.O_RDONLY | os.O_NONBLOCK)
        with open(fd, "rb") as file:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode):
                return TrustStore({}, {}, "is not a file")
            if status.st_uid != os.getuid() or status.st_mode & 0o022:
                return TrustStore({}, {}, "can be written by others")
            content: Any = json_text.loads(file.read(_STORE_MAX).decode())
    except FileNotFoundError:
        return TrustStore({}, {})
    except OSError as error:
        return TrustStore({}, {}, f"cannot be read ({error.strerror})")
    except (ValueError, RecursionError):
        return TrustStore({}, {}, "is damaged")
    table = content.get("trusted") if isinstance(content, dict) else None
    if not isinstance(table, dict):
        return TrustStore({}, {}, "is damaged")
    revoked = content.get("revoked")
    return TrustStore(
        {path: _entry(found) for path, found in table.items()},
        {path: str(via) for path, via in revoked.items()} if isinstance(revoked, dict) else {},
    )


def _entry(found: Any) -> TrustEntry:
    """One entry. What cannot be read is of a file that has changed: no file has its hash."""
    if not isinstance(found, dict):
        return TrustEntry("", None, "")
    sha256, programs, search = found.get("sha256"), found.get("programs"), found.get("search")
    if not isinstance(sha256, str) or not isinstance(search, str):
        return TrustEntry("", None, "")
    texts = isinstance(programs, dict) and all(isinstance(one, str) for one in programs.values())
    return TrustEntry(sha256, programs if texts else None, search, str(found.get("via") or ""))


def write_store(home: Home, store: TrustStore) -> None:
    """Replace the store as a whole, durably, mode 0600. One that could not be read is kept beside
    it. Raises RelayError when it cannot be written.
    """
    table = {
        path: {name: getattr(one, name) for name in TrustEntry.__slots__}
        for path, one in store.entries.items()
    }
    record = {"version": 2, "trusted": table, "revoked": store.revoked}
    try:
        if store.problem:
            os.link(home.trust, _set_aside(home))  # not moved: a kill must not lose it
        write_atomically(home.trust, json_text.dumps(record))
    except OSError as error:
        raise RelayError(
            f"cannot write {home.trust}: {error.strerror}",
            hint="free some space, or make the state directory writable",
            code="state_dir",
        ) from None


def set_aside_notice(home: Home) -> list[str]:
    """What is to be said when the store is written, if it cannot be read now."""
    if not (problem := read_store(home).problem):
        return []
    return [
        f"{home.trust} {problem}: it is kept as {_set_aside(home)}, and a new one begins. Trust"
        " again all else that is to run and to guard; until then it does not"
    ]


def _set_aside(home: Home) -> str:
    """Where a store that cannot be read is kept: a name that nothing has yet."""
    name, number = home.trust + ".damaged", 1
    while os.path.lexists(name):
        number += 1
        name = f"{home.trust}.damaged-{number}"
    return name


def locked(home: Home) -> AbstractContextManager[None]:
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


# -- folders


def _quoted(path: str) -> str:
    import shlex

    return shlex.quote(path)


def _parents(cwd: str) -> list[str]:
    """``cwd`` and all folders that it is in."""
    folders = [cwd]
    while os.path.dirname(folders[-1]) != folders[-1]:
        folders.append(os.path.dirname(folders[-1]))
    return folders


def _named_parents(cwd: str) -> list[str]:
    """The same as the person's shell names them, which may be through links."""
    named = os.environ.get("PWD", "")
    here = os.path.isabs(named) and os.path.realpath(named) == cwd
    return _parents(os.path.normpath(named)) if here else []


def _project_folders(cwd: str) -> list[str]:
    """``cwd`` and its parents up to the folder with ``.git``; only ``cwd`` if there is none."""
    folders = _parents(cwd)
    for number, folder in enumerate(folders):
        if os.path.exists(os.path.join(folder, ".git")):
            return folders[: number + 1]
    return [cwd]


def project_root(cwd: str) -> str:
    """The folder of the project that ``cwd`` is in."""
    return _project_folders(os.path.realpath(cwd))[-1]
