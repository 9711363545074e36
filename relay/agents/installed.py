"""Which version of an agent is installed, without starting it.

The pump imports this before it starts the agent: nothing heavy may be imported at the top.
"""

from __future__ import annotations

import os

Version = tuple[int, ...]


def which(program: str, env: dict[str, str]) -> str | None:
    """The file that ``program`` names, links followed, looked for in ``env``'s PATH."""
    if os.sep in program:
        return os.path.realpath(program)
    for folder in env.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(folder, program)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return os.path.realpath(path)
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
                return parse_version(str(described.get("version")))
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
                return parse_version(name[len(beginning) : -len(".dist-info")])
    return None


def parse_version(text: str) -> Version | None:
    """``2.1.330-beta`` -> (2, 1, 330); None when it is not three numbers."""
    numbers = text.split("-")[0].split(".")
    if len(numbers) == 3 and all(map(str.isdigit, numbers)):
        return tuple(map(int, numbers))
    return None
