"""Names of wrapped agents: each is claimed by a locked file that its owner holds open.

The lock dies with its holder, so no crash leaves a name behind. Nothing heavy is imported:
``relay wrap`` claims its name before it starts the agent.
"""

from __future__ import annotations

import fcntl
import os
import time

from relay.core.agent_names import (
    NAME_CHARACTERS,
    NAME_MAX,
    PERSON_WORDS,
    RESERVED_NAMES,
    owner_name,
    valid_name,
)
from relay.core.errors import NameTaken, RelayError, UsageError
from relay.core.files import lock_open_file, read_file
from relay.core.json_text import dumps, loads
from relay.core.paths import Home

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: How many numbered names are tried for one command before giving up.
_TRIES = 1000


class Claim:
    """A name that is ours for as long as ``fd`` stays open."""

    __slots__ = ("name", "fd", "path")

    def __init__(self, name: str, fd: int, path: str) -> None:
        self.name = name
        self.fd = fd
        self.path = path

    def release(self) -> None:
        """Give the name back. The file stays: removing it would race with the next claim."""
        if self.fd >= 0:
            # A copy of this process that was made a moment ago may not have closed its own yet.
            fcntl.flock(self.fd, fcntl.LOCK_UN)
            os.close(self.fd)
            self.fd = -1


def claim(home: Home, wanted: str | None, command: str, run_id: str = "") -> Claim:
    """Claim ``wanted``, or a free name made from ``command``.

    Raises UsageError for a name that nobody can have, NameTaken (``details``: pid, suggestion)
    when a running agent or the person here has it, RelayError when the file cannot be written.
    """
    person = {owner_name().lower(), *PERSON_WORDS}
    if wanted is not None:
        if not valid_name(wanted):
            raise UsageError(
                f"{wanted!r} cannot be an agent's name",
                hint="use letters, digits, '.', '_' and '-' (at most 64, a letter or digit first, "
                f"no '.' last), and none of: {', '.join(sorted(RESERVED_NAMES))}",
            )
        if wanted.lower() in person:
            raise NameTaken(
                f"{wanted} means you: agents write to you under it",
                hint=f"choose another, for example --name {wanted[: NAME_MAX - 6]}-agent",
                details={"pid": None, "suggestion": f"{wanted[: NAME_MAX - 6]}-agent"},
            )
        got = _try(home, wanted, run_id)
        if got is None:
            raise _taken(home, wanted)
        return got
    for name in _numbered(_from_command(command)):
        got = None if name.lower() in person else _try(home, name, run_id)
        if got is not None:
            return got
    raise RelayError(
        f"no free name for {command!r} after {_TRIES} tries", hint="give one with --name"
    )


def holder(home: Home, name: str) -> int | None:
    """The pid in the file of ``name`` (0 when it says none) if it is held now, else None."""
    try:
        fd = os.open(_path(home, name), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        if lock_open_file(fd, shared=True):
            return None
    except OSError:
        return None
    finally:
        os.close(fd)
    pid = _told(home, name).get("pid")
    return pid if type(pid) is int else 0


def folder_of(home: Home, name: str) -> str:
    """The folder in which the holder of ``name`` was started, "" when its claim says none."""
    folder = _told(home, name).get("folder")
    return folder if isinstance(folder, str) else ""


def spawned_folder(home: Home) -> str:
    """The folder of the files that ``record_path`` names."""
    return os.path.join(home.root, "spawned")


def record_path(home: Home, name: str) -> str:
    """The file that says how it was spawned: see relay.config.spawned_agents."""
    return os.path.join(spawned_folder(home), f"{name.lower()}.json")


def has_lost_terminal(home: Home, name: str) -> bool:
    """Whether it was spawned, and has gone without an end, as when the machine goes down."""
    try:
        record = loads(read_file(record_path(home, name), 1 << 20).decode())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(record, dict) and not record.get("ended") and holder(home, name) is None


def run_of(home: Home, name: str) -> str | None:
    """The id of the run that holds ``name`` now, "" when its claim says none; None: it is free."""
    if holder(home, name) is None:
        return None
    run = _told(home, name).get("run_id")
    return run if isinstance(run, str) else ""


def is_elsewhere(home: Home) -> bool:
    """Whether an agent runs whose processes have other numbers than ours: it has a sandbox, or we
    are in one, so that it cannot be seen from here whether we belong to it."""
    try:
        names = [name for name in os.listdir(home.names) if name.endswith(".lock")]
    except OSError:
        return False
    held = (name[:-5] for name in names if holder(home, name[:-5]) is not None)
    return any(has_other_numbers(home, name) for name in held)


def has_other_numbers(home: Home, name: str) -> bool:
    """Whether the pid that ``holder`` tells is of another namespace, and of nobody's here."""
    return bool(_told(home, name).get("pids", _pids()) != _pids())


def _told(home: Home, name: str) -> dict[str, Any]:
    """What the claim of ``name`` says; nothing where it is half written."""
    try:
        with open(_path(home, name), encoding="utf-8", errors="replace") as file:
            told = loads(file.read(65536))
    except (OSError, ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


def _pids() -> int:
    """The pid namespace in which this process is; 0 where there is none."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def _path(home: Home, name: str) -> str:
    return os.path.join(home.names, name.lower() + ".lock")


def _try(home: Home, name: str, run_id: str) -> Claim | None:
    path = _path(home, name)
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise RelayError(
            f"cannot claim the name {name}: {path}: {error.strerror}",
            hint="make the state directory writable, or set RELAY_HOME to one that is",
            code="state_dir",
        ) from error
    try:
        if not lock_open_file(fd):
            os.close(fd)
            return None
        os.ftruncate(fd, 0)
        text = dumps({"name": name, "run_id": run_id, "pid": os.getpid(), **_whereabouts()})
        os.pwrite(fd, text.encode(), 0)
    except OSError as error:
        os.close(fd)
        raise RelayError(
            f"cannot claim the name {name}: {path}: {error.strerror}",
            hint="free some space, or set RELAY_HOME to another file system",
            code="state_dir",
        ) from error
    return Claim(name, fd, path)


def _taken(home: Home, name: str) -> NameTaken:
    told = _told(home, name)
    free = next((n for n in _numbered(name) if holder(home, n) is None), "")
    return NameTaken(
        f"the name {name} is in use by {_who(told)}",
        hint=f"choose another, for example --name {free}" if free else "choose another with --name",
        details={"pid": told.get("pid", 0), "suggestion": free},
    )


def _whereabouts() -> dict[str, object]:
    """Where this process runs, for a person who looks for the holder of a name."""
    terminal = folder = ""
    for fd in (0, 1, 2):
        try:
            terminal = terminal or os.ttyname(fd)
        except OSError:
            continue
    try:
        folder = os.getcwd()
    except OSError:
        folder = ""  # it was removed
    since = int(time.time())
    return {"terminal": terminal, "folder": folder, "since": since, "pids": _pids()}


def _who(told: dict[str, Any]) -> str:
    """The holder of a name, by what its claim has told."""
    if not told:
        return "a running agent"
    who = f"process {told['pid']}"
    for key, words in (("terminal", "on"), ("folder", "in")):
        who += f" {words} {told[key]}" if told[key] else ""
    return who + time.strftime(", since %H:%M on %Y-%m-%d", time.localtime(told["since"]))


def _numbered(base: str) -> list[str]:
    names = [base]
    for number in range(2, _TRIES + 1):
        tail = f"-{number}"
        names.append(base[: NAME_MAX - len(tail)] + tail)
    return [name for name in names if valid_name(name)]


def _from_command(command: str) -> str:
    kept = "".join(c if c in NAME_CHARACTERS else "-" for c in os.path.basename(command))
    return kept.lstrip("_.-")[:NAME_MAX].rstrip(".-") or "agent"
