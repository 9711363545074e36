"""What relay is installed with: the extras of its package, and the command that adds one.

All is read from the metadata that the installer wrote. It is imported only where an extra is
missing, and by ``relay doctor``.
"""

from __future__ import annotations

import importlib.metadata as metadata
import importlib.util
import json
import os
import re
import shlex
import sys
from collections.abc import Iterable
from typing import Any

#: The name of the package in an index; that of the command is ``relay``.
PACKAGE = "relay-wrap"
#: What ``relay.bootstrap`` leaves in the environment that it makes beside a clone.
BOOTSTRAP_STAMP = ".relay-setup"
_REQUIREMENT = re.compile(r"([\w.-]+).*; *extra *== *[\"']([\w-]+)[\"']")


def extras() -> dict[str, bool]:
    """The extras by name, and whether all packages of each are installed. Those that only join
    others are left out. Empty where relay runs without having been installed."""
    packages: dict[str, list[str]] = {}
    for requirement in _requirements():
        if match := _REQUIREMENT.match(requirement):
            packages.setdefault(match[2], []).append(match[1])
    return {
        extra: all(map(_is_installed, names))
        for extra, names in packages.items()
        if PACKAGE not in names
    }


def _requirements() -> list[str]:
    try:
        return metadata.requires(PACKAGE) or []
    except metadata.PackageNotFoundError:
        return []


def _is_installed(package: str) -> bool:
    try:
        metadata.distribution(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def adding(extra: str) -> str:
    """The hint of an error: which one command adds an extra to the relay that runs here."""
    return f"add it: {command(extra)}"


def command(*names: str) -> str:
    """That command, for one extra or several. Tools that make an environment anew are told of the
    extras that are there."""
    if os.path.exists(os.path.join(sys.prefix, BOOTSTRAP_STAMP)):
        clone = shlex.quote(os.path.dirname(sys.prefix))
        return f"(cd {clone} && python3 -m relay.bootstrap setup {' '.join(names)})"
    for file, tool in (
        ("uv-receipt.toml", "uv tool install"),
        ("pipx_metadata.json", "pipx install --force"),
    ):
        if os.path.exists(os.path.join(sys.prefix, file)):
            here = {name for name, is_here in extras().items() if is_here}
            origin = f" @ {url}" if (url := _url(_origin())) else ""
            return f"{tool} {shlex.quote(_with_extras({*here, *names}) + origin)}"
    requirement = shlex.quote(_with_extras(names))
    if importlib.util.find_spec("pip") is not None:
        return f"{shlex.quote(sys.executable)} -m pip install {requirement}"
    return f"uv pip install --python {shlex.quote(sys.executable)} {requirement}"


def _with_extras(names: Iterable[str]) -> str:
    return f"{PACKAGE}[{','.join(sorted(names))}]"


def _origin() -> dict[str, Any]:
    """Where the package came from, as PEP 610 has it; empty for an index."""
    try:
        text = metadata.distribution(PACKAGE).read_text("direct_url.json")
        return dict(json.loads(text or "{}"))
    except (metadata.PackageNotFoundError, ValueError):
        return {}


def _url(origin: dict[str, Any]) -> str:
    system = origin.get("vcs_info", {}).get("vcs", "")
    return f"{system}{system and '+'}{origin.get('url', '')}"
