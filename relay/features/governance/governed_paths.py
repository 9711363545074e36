"""Which folder is governed, and where a path that an agent names really is.

``relay wrap`` asks before it starts the agent: nothing heavy is imported at the top.
"""

from __future__ import annotations

import os
import stat

from relay.core.paths import is_within

#: The folder that makes a project a governed one.
FOLDER = ".orchestration"
#: Folders that agents write in by no tool, wherever in the project they are: the rules, the
#: repository itself, and what agents take hooks, settings, skills and plugins from, which run
#: without being asked about.
PROTECTED_FOLDERS = frozenset(
    (FOLDER, ".git", ".claude", ".codex", ".gemini", ".qwen", ".opencode", ".agents")
)
#: Files, by name, that are as good as those.
PROTECTED_FILES = (".mcp.json", "opencode.json", "opencode.jsonc")
_SHARED = ("/", "/tmp", "/var/tmp", "/private/tmp", "/private/var/tmp")
_OF_A_PROCESS = ("/proc/", "/dev/fd/")


def governed_root(cwd: str, home: str | None = None) -> str:
    """The outermost folder at or above ``cwd`` that has our own ``.orchestration``; "" for none.

    The home folder and what is above it do not count, nor do folders that everybody shares.
    """
    folder = os.path.realpath(cwd)
    home = os.path.realpath(os.path.expanduser("~") if home is None else home)
    found = ""
    while folder not in _SHARED and not is_within(home, folder):
        if is_governed(folder):
            found = folder
        folder = os.path.dirname(folder)
    return found


def is_governed(root: str) -> bool:
    """Whether ``root`` has a folder ``.orchestration`` of this user's that is no link."""
    try:
        status = os.lstat(os.path.join(root, FOLDER))
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()


def folds_case(root: str) -> bool:
    """Whether the file system of a governed ``root`` takes two cases of a name for one."""
    try:
        other = os.lstat(os.path.join(root, FOLDER.upper()))
        return os.path.samestat(other, os.lstat(os.path.join(root, FOLDER)))
    except OSError:
        return False


def real_places(path: str, cwd: str, *, follow: bool = True) -> tuple[str, ...]:
    """Where ``path`` is: the name itself in its real folder and, to ``follow`` a link, what it
    leads to.

    Parents that do not exist yet are taken as named. Raises ValueError for what is not a path.
    """
    if not path or "\0" in path:
        raise ValueError("it is not a path")
    if path == "~" or path.startswith("~/"):
        path = os.path.expanduser(path)
    whole = os.path.join(cwd, path)
    plain = os.path.normpath(whole)
    if plain.startswith(_OF_A_PROCESS):
        raise ValueError("it means something else for each process")
    # The kernel takes `link/..` for the folder above what it leads to, and so does a shell; most
    # programs take it for the folder of the link.
    places: dict[str, None] = {}
    for spelled in (whole, plain) if ".." in whole else (whole,):
        folder, name = os.path.split(spelled.rstrip("/") or "/")
        if name not in ("", ".", ".."):
            spelled = os.path.join(os.path.realpath(folder), name)
            places[spelled] = None
        if follow or name in ("", ".", ".."):
            places[os.path.realpath(spelled)] = None
    return tuple(places)


def protected(relative: str) -> bool:
    """Whether no agent writes there, whatever its intent. Case never makes a difference."""
    names = relative.casefold().split("/")
    return names[-1] in PROTECTED_FILES or not set(names).isdisjoint(PROTECTED_FOLDERS)
