"""Set-up from a fresh clone with nothing but Python: ``python3 -m relay.bootstrap demo``.

Makes ``.venv`` beside ``pyproject.toml``, installs relay there and runs the command. Only the
standard library is used. Debian's Python comes without pip and without ensurepip: then pip itself
is fetched from the package index and run from its wheel.
"""

from __future__ import annotations

import configparser
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

USAGE = """\
usage: python3 -m relay.bootstrap demo    set relay up in .venv and run its demo
       python3 -m relay.bootstrap test    set up with what the tests need, and run them
       python3 -m relay.bootstrap setup   only set up; then: .venv/bin/relay
"""
ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
TIMEOUT = 60.0


class SetupError(Exception):
    """Set-up cannot go on; the message says what to do."""


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns its exit status."""
    args = sys.argv[1:] if argv is None else argv
    if not args or args[0] not in ("demo", "test", "setup"):
        print(USAGE, end="", file=sys.stderr)
        return 0 if args in (["-h"], ["--help"]) else 2
    try:
        check_python()
        set_up(extra="test" if args[0] == "test" else "")
    except SetupError as error:
        print(f"relay: {error}", file=sys.stderr)
        return 1
    commands = {
        "demo": [str(VENV / "bin" / "relay"), "demo"],
        "test": [str(VENV / "bin" / "python"), "-m", "pytest"],
        "setup": [str(VENV / "bin" / "relay"), "--version"],
    }
    return subprocess.run([*commands[args[0]], *args[1:]], cwd=ROOT).returncode


def check_python() -> None:
    """relay needs Python 3.11 and a clone of its source."""
    if sys.version_info < (3, 11):  # noqa: UP036 - this file is what an older one meets first
        raise SetupError(
            f"Python 3.11 or newer is needed, this is {sys.version.split()[0]} ({sys.executable});"
            " run this line with a newer one, for example python3.12"
        )
    if not (ROOT / "pyproject.toml").is_file():
        raise SetupError(f"{ROOT} is not a clone of relay: there is no pyproject.toml")


def set_up(extra: str) -> None:
    """Make .venv and install relay there, unless the last set-up was for the same files."""
    stamp = VENV / ".relay-setup"
    wanted = hashlib.sha256((ROOT / "pyproject.toml").read_bytes() + b"1").hexdigest()
    # What the tests need includes what the demo needs, not the other way round.
    done = stamp.read_text().split() if stamp.is_file() else []
    if done[:1] == [wanted] and (not extra or extra in done):
        return
    print("setting up .venv (once) …", file=sys.stderr)
    python = VENV / "bin" / "python"
    if not python.exists():
        run([sys.executable, "-m", "venv", "--without-pip", str(VENV)])
    with tempfile.TemporaryDirectory() as scratch:
        pip = pip_for(python, Path(scratch))
        target = f"{ROOT}[{extra}]" if extra else str(ROOT)
        # compat: a plain path entry; setuptools' import hook would cost 15 ms at every start.
        editable = ["--config-settings", "editable_mode=compat", "-e", target]
        run([*pip, "install", "--quiet", "--disable-pip-version-check", *editable])
    stamp.write_text(f"{wanted} {extra}\n")


def pip_for(python: Path, scratch: Path) -> list[str]:
    """A command that runs pip for ``python``: its own, or one from the package index."""
    if importlib.util.find_spec("ensurepip") is not None:
        run([str(python), "-m", "ensurepip"])
        return [str(python), "-m", "pip"]
    wheel = fetch_pip(scratch)
    return [str(python), str(wheel / "pip")]


def fetch_pip(scratch: Path) -> Path:
    """Download pip's newest wheel from the index, checked against the index's own hash."""
    index = index_url()
    page = f"{index.rstrip('/')}/pip/"
    request = urllib.request.Request(
        page, headers={"Accept": "application/vnd.pypi.simple.v1+json, text/html;q=0.1"}
    )
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            listing = json.loads(answer.read())
        wheels: list[dict[str, Any]] = [f for f in listing["files"] if usable(f)]
        chosen = max(wheels, key=lambda f: version_key(f["filename"]))
        with urllib.request.urlopen(urljoin(page, chosen["url"]), timeout=TIMEOUT) as answer:
            data = answer.read()
    except (OSError, ValueError, KeyError) as error:
        raise SetupError(
            f"there is no pip here, and it cannot be fetched from {index}: {error};"
            " install your system's pip and venv packages (Debian: python3-pip python3-venv)"
        ) from error
    expected = chosen.get("hashes", {}).get("sha256")
    if expected and hashlib.sha256(data).hexdigest() != expected:
        raise SetupError(f"{chosen['filename']} from {index} does not have the hash it should have")
    wheel = scratch / str(chosen["filename"])
    wheel.write_bytes(data)
    return wheel


def usable(file: dict[str, object]) -> bool:
    """Whether a file of the index is a released wheel of pip."""
    name = str(file["filename"])
    return name.endswith("-py3-none-any.whl") and not file.get("yanked") and bool(version_key(name))


def version_key(filename: str) -> tuple[int, ...]:
    """``pip-26.0.1-py3-none-any.whl`` -> (26, 0, 1); () for anything but a release."""
    parts = filename.split("-")[1].split(".")
    return tuple(int(part) for part in parts) if all(p.isdigit() for p in parts) else ()


def index_url() -> str:
    """The index that pip would use: PIP_INDEX_URL, pip's configuration, else PyPI."""
    if url := os.environ.get("PIP_INDEX_URL"):
        return url
    places = [Path("/etc/pip.conf"), Path.home() / ".config/pip/pip.conf"]
    if named := os.environ.get("PIP_CONFIG_FILE"):
        places.append(Path(named))
    found = "https://index.example/simple"
    for place in places:
        parser = configparser.ConfigParser(interpolation=None)
        try:
            parser.read(place)
        except configparser.Error:
            continue
        found = parser.get("global", "index-url", fallback=found)
    return found


def run(command: list[str]) -> None:
    """Run a step of the set-up; its output is shown only when it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        print(done.stdout, file=sys.stderr)
        raise SetupError(f"this step failed: {' '.join(command)}")


if __name__ == "__main__":
    sys.exit(main())
