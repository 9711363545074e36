"""Reads from files which version of an agent is installed and what its settings say.

The pump imports this before it starts the agent: nothing heavy may be imported at the top.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False  # typing's own would have to be imported, before the agent starts
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

#: Bytes of a settings file that are looked at.
FILE_MAX = 1024 * 1024
#: Settings may be JSON with comments.
_COMMENT = r'("(?:[^"\\]|\\.)*")|//[^\n]*|/\*.*?\*/'
#: Folders in which versions of what runs an agent lie: not its own.
_RUNTIMES = ("node", "nodejs", "python")
#: What the shims of a version manager start, in its folder: asdf, mise; nodenv, pyenv; Volta.
_SHIMMED = (
    *("installs/*/*", "installs/*/*/bin", "versions/*/bin"),
    *("tools/image/packages/*/bin", "tools/image/packages/*/*/bin"),
)

Version = tuple[int, ...]


def word_set(text: str) -> frozenset[str]:
    """Return the words of ``text``: names of options, programs, subcommands."""
    return frozenset(text.split())


def own_folder_of(env: Mapping[str, str], variable: str, name: str) -> str:
    """An agent's folder in the person's home (``~/.claude``), which a variable may replace."""
    usual = os.path.join(env.get("HOME") or os.path.expanduser("~"), name)
    return os.path.expanduser(env.get(variable) or usual)


def find(program: str, env: dict[str, str]) -> str | None:
    """The file that ``program`` names, looked for in ``env``'s PATH."""
    if os.sep in program:
        return os.path.abspath(program)
    for folder in env.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(folder, program)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return os.path.abspath(path)
    return None


def which(program: str, env: dict[str, str]) -> str | None:
    """The file that ``program`` names, as ``find`` tells, links followed."""
    path = find(program, env)
    return None if path is None else os.path.realpath(path)


def version_of(program: str, env: dict[str, str], package: str) -> Version | None:
    """The version of the installed ``program``, of the package ``package``, if it can be told.

    By the npm or Python package around it, else by its path: ``…/claude/versions/2.1.330``,
    ``…/0.169.0-x86_64-unknown-linux-musl/bin/codex`` (Homebrew, a native installer). Of a version
    manager's shim, the oldest that it may start.
    """
    path = find(program, env)
    if path is None:
        return None
    if started := _behind_shim(path):
        versions = [_version_at(one, package) for one in started]
        # Which of them it starts, the folder and the manager decide: the oldest is safe to assume.
        return None if None in versions else min(filter(None, versions))
    return _version_at(path, package)


def _behind_shim(path: str) -> list[str]:
    """The programs that a version manager may start for ``path``; none where that is no shim."""
    real, (folder, name) = os.path.realpath(path), os.path.split(path)
    if os.path.basename(folder) != "shims" and os.path.basename(real) != "volta-shim":
        return []
    import glob

    root = glob.escape(os.path.dirname(folder))
    found = [
        one for form in _SHIMMED for one in glob.glob(os.path.join(root, form, glob.escape(name)))
    ]
    return [one for one in found if os.path.isfile(one) and os.access(one, os.X_OK)]


def _version_at(path: str, package: str) -> Version | None:
    real = os.path.realpath(path)
    # A virtual environment's own Python is a link that leads out of it; its scripts may be links
    # that lead into it.
    packaged = npm_version(real, package) or pip_version(path, package)
    return packaged or pip_version(real, package) or _version_in_path(real)


def why_unknown(
    title: str, program: str, env: dict[str, str], package: str, oldest: Version
) -> str:
    """Say that this version of the agent is not one that relay knows; "" where it is."""
    version = version_of(program, env, package)
    if version is not None and version >= oldest:
        return ""
    this = "this version is unknown" if version is None else f"this is {dotted(version)}"
    return f"relay supports {title} {dotted(oldest)} and later ({this})"


def _version_in_path(path: str) -> Version | None:
    folders = ["", *path.split(os.sep)]
    for at in range(len(folders) - 1, 0, -1):
        if folders[at - 1] not in _RUNTIMES and (version := parse_version(folders[at])):
            return version
    return None


def npm_version(path: str, package: str) -> Version | None:
    """The version of the npm package ``package`` that the file ``path`` is a part of.

    None where no ``package.json`` of that name lies in one of the six folders above it.
    """
    import json

    for _ in range(6):
        path = os.path.dirname(path)
        try:
            with open(os.path.join(path, "package.json"), encoding="utf-8") as file:
                described = json.load(file)
            if described.get("name") == package:
                return parse_version(str(described.get("version")), 1)
        except (OSError, ValueError, AttributeError):
            continue
    return None


def pip_version(path: str, package: str) -> Version | None:
    """The version of the Python package ``package`` beside the script ``path``, or None.

    ``path`` is ``…/bin/NAME`` of the environment that it was installed into.
    """
    library = os.path.join(os.path.dirname(os.path.dirname(path)), "lib")
    try:
        pythons = sorted(os.listdir(library))
    except OSError:
        return None
    beginning = package.replace("-", "_") + "-"
    for python in pythons:
        try:
            found = os.listdir(os.path.join(library, python, "site-packages"))
        except OSError:
            continue
        for name in found:
            if name.startswith(beginning) and name.endswith(".dist-info"):
                return parse_version(name[len(beginning) : -len(".dist-info")], 1)
    return None


def parse_version(text: str, least: int = 3) -> Version | None:
    """``2.1.330-beta`` -> (2, 1, 330); None when it is not ``least`` to four numbers."""
    numbers = text.split("-")[0].split(".")
    if least <= len(numbers) <= 4 and all(map(str.isdecimal, numbers)):
        return tuple(map(int, numbers))
    return None


def dotted(version: Version) -> str:
    """``(2, 1, 330)`` as people write it."""
    return ".".join(map(str, version))


def read_text(path: str) -> str:
    """The text of a settings file; nothing where there is no such file, or it is none."""
    try:
        if not os.path.isfile(path):
            return ""  # a pipe has only one reader
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(FILE_MAX)
    except OSError:
        return ""


def parse_settings(text: str) -> dict[str, Any] | None:
    """What settings say: {} for none at all, None where they are damaged."""
    import json
    import re

    if not text.strip():
        return {}
    bare = re.sub(_COMMENT, lambda found: found[1] or " ", text, flags=re.DOTALL)
    try:
        found = json.loads(bare)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def read_settings(path: str) -> dict[str, Any] | None:
    """What the file says; {} where there is none, None where it is damaged."""
    return parse_settings(read_text(path))
