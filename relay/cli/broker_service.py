"""The broker as a service of the person's system: ``relay broker install``.

A file of its own: what systemd and launchd want has nothing to do with what the broker does. It is
shown first, and written when the person agrees; nothing is started.
"""

from __future__ import annotations

import os
import plistlib
import sys
from typing import Any

from relay.broker.client import check_person
from relay.cli import output
from relay.core.errors import RelayError
from relay.core.files import write_atomically
from relay.core.paths import Home

#: The name by which launchd knows it.
LABEL = "relay.broker"
#: Seconds without anybody after which it ends: a service stays.
_IDLE = 10 * 365 * 24 * 3600
#: Seconds until it is started again. One that a client has started keeps it out meanwhile.
_AGAIN = 30


def install_verb(options: Any) -> int:
    """``relay broker install``."""
    home = Home.from_env()
    check_person(home, "install the broker as a service")
    path, text, start = launchd(home) if sys.platform == "darwin" else systemd(home)
    if _is_there(path, text):
        output.note(f"{path} is there already; {start} starts it")
        return 0
    output.data(f"# {path}")
    output.lines(text)
    if os.path.exists(path):
        output.note("it replaces the one that is there")
    if not output.agreed("Write it?", yes=options.yes):
        return 1
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        write_atomically(path, text)
    except OSError as error:
        raise RelayError(f"cannot write {path}: {error.strerror}", code="failed") from error
    output.note(f"written; {start} starts it, now and whenever you log in")
    return 0


def _is_there(path: str, text: str) -> bool:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read() == text
    except (OSError, UnicodeDecodeError):
        return False


def _command(home: Home) -> list[str]:
    # As a module: where a client has started a broker, this one ends without an error.
    return [sys.executable, "-P", "-m", "relay.broker", "--home", home.root]


def systemd(home: Home) -> tuple[str, str, str]:
    """Path and text of the unit, and the command that starts it."""
    base = os.environ.get("XDG_CONFIG_HOME")
    if not base or not os.path.isabs(base):
        base = os.path.expanduser("~/.config")
    words = " ".join(_quoted(word) for word in _command(home))
    text = (
        "[Unit]\n"
        "Description=The broker of relay\n"
        "\n"
        "[Service]\n"
        f"ExecStart={words}\n"
        f"Environment=RELAY_BROKER_IDLE={_IDLE}\n"
        "Restart=always\n"
        f"RestartSec={_AGAIN}\n"
        "\n"
        "[Install]\n"
        "WantedBy=default.target\n"
    )
    start = "systemctl --user enable --now relay-broker"
    return os.path.join(base, "systemd", "user", "relay-broker.service"), text, start


def _quoted(word: str) -> str:
    """A word of a command line as systemd reads it."""
    for char, spelled in (("\\", "\\\\"), ('"', '\\"'), ("%", "%%"), ("$", "$$")):
        word = word.replace(char, spelled)
    return f'"{word}"'


def launchd(home: Home) -> tuple[str, str, str]:
    """Path and text of the property list, and the command that starts it."""
    path = os.path.expanduser(f"~/Library/LaunchAgents/{LABEL}.plist")
    wanted = {
        "Label": LABEL,
        "ProgramArguments": _command(home),
        "EnvironmentVariables": {"RELAY_BROKER_IDLE": str(_IDLE)},
        "RunAtLoad": True,
        "KeepAlive": True,
        "ThrottleInterval": _AGAIN,
    }
    return path, plistlib.dumps(wanted).decode(), f"launchctl load -w {path}"
