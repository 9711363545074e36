"""Where a confined program may write: what everybody needs, and what the caller names.

Read before the program starts, so nothing heavy is imported.
"""

from __future__ import annotations

import os

from relay.core.errors import UsageError
from relay.core.paths import is_within
from relay.core.visible import is_visible, visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from relay.core.paths import Home

#: Programs write to these, and nothing stays there. No ``/dev/pts``: the terminals of all other
#: programs are there, and a program's own it has.
DEVICES = (
    *("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"),
    *("/dev/ptmx", "/dev/shm"),
)
#: What builds and package managers keep for the next time; nothing in them is on a search path.
CACHES = (
    "${XDG_CACHE_HOME:-~/.cache}",
    "~/Library/Caches",
    "${npm_config_cache:-~/.npm}",
    "${CARGO_HOME:-~/.cargo}/registry",
    "${CARGO_HOME:-~/.cargo}/git",
    "${GOPATH:-~/go}/pkg",
    "~/.gradle/caches",
    "~/.gradle/daemon",
    "~/.m2/repository",
    "~/.local/share/pnpm/store",
    "~/.yarn/berry/cache",
    "~/.bun/install/cache",
    "~/.nuget/packages",
    "~/.ccache",
)
#: What runs, or opens doors, by itself: in the person's home folder.
_OWN_FILES = (
    *(".bashrc", ".bash_profile", ".bash_login", ".profile", ".zshrc", ".zshenv", ".zprofile"),
    *(".config", ".ssh", ".gitconfig", ".local/bin"),
)
_WILD = "*?["


def usual(home: Home, env: Mapping[str, str], more: Iterable[str] = ()) -> list[str]:
    """Devices and caches, and what ``more`` names in the same form, as far as it is there.

    None of the defaults holds what ``exposed`` tells of; ``more`` is the person's own choice.
    """
    defaults = [os.path.realpath(expanded(form, env)) for form in (*DEVICES, *CACHES)]
    places = [place for place in defaults if not exposed(place, home, env)]
    places += [os.path.realpath(expanded(form, env)) for form in more]
    return [place for place in dict.fromkeys(places) if os.path.exists(place)]


def expanded(form: str, env: Mapping[str, str]) -> str:
    """``~`` and ``${NAME:-otherwise}`` at the beginning of a path, replaced."""
    if form.startswith("${"):
        name, _, rest = form[2:].partition(":-")
        otherwise, _, rest = rest.partition("}")
        form = (env.get(name) or otherwise) + rest
    if form == "~" or form.startswith("~/"):
        form = _home(env) + form[1:]
    return form


def exposed(place: str, home: Home, env: Mapping[str, str]) -> str:
    """What must not be written by accident, and would be, were ``place`` writable; "" for nothing.

    relay's state, the folder of everybody's terminals, the person's home folder, and the files
    there that shells and programs run.
    """
    person = os.path.realpath(_home(env))
    states = [os.path.realpath(path) for path in (home.root, home.run)]
    for state in states:
        if is_within(place, state):
            return state
    for path in (*states, "/dev/pts", person):
        if is_within(path, place):
            return path
    for name in _OWN_FILES:
        path = os.path.join(person, name)
        if is_within(os.path.realpath(path), place):
            return path
    return ""


def state(program: str, profiles: str, env: Mapping[str, str], folder: str) -> list[str]:
    """Where an agent that works in the project ``folder`` keeps what is its own, as its profile
    says.

    Folders (which end with ``/``), and files of the project (``./NAME``), are made where they are
    missing. A name alone is one beside the first.
    """
    from relay.agents.arguments import start_facts

    found: list[str] = []
    beside = ""
    for form in start_facts(program, profiles).state:
        in_project = form.startswith("./")
        path = os.path.join(
            folder if in_project else beside, expanded(form.removeprefix("./"), env)
        )
        beside = beside or os.path.dirname(path.rstrip("/"))
        if form.endswith("/"):
            os.makedirs(path, mode=0o700, exist_ok=True)
        elif in_project and not os.path.lexists(path):
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
        place = os.path.realpath(path)
        # A repository may bring a link to somewhere else in its place.
        if os.path.exists(place) and not (in_project and place != os.path.normpath(path)):
            found.append(place)
    return found


def named(path: str, cwd: str) -> str:
    """The real place that the caller names. Raises UsageError where there is none."""
    if not path:
        raise UsageError("an empty path names no place", hint="name a folder or a file")
    if not is_visible(path):
        raise UsageError(
            f"{visible(path)} has a character that cannot be shown, so nobody could check it",
            hint="rename it, or name a folder above it",
        )
    place = os.path.realpath(os.path.join(cwd, expanded(path, os.environ)))
    if not os.path.exists(place):
        if any(char in path for char in _WILD):
            raise UsageError(
                f"{path} does not exist; a pattern cannot be used here",
                hint="leave its quotes out, or name the folder in which such files are",
            )
        raise UsageError(
            f"{path} is not there yet, and only what is there can be made writable",
            hint=f"make it first (mkdir -p {path}), or name a folder above it",
        )
    if path.endswith("/") and not os.path.isdir(place):
        raise UsageError(f"{path} is a file, not a folder", hint=f"write {path.rstrip('/')}")
    return place


def scratch(cwd: str) -> str:
    """A private folder for temporary files of what works in ``cwd``; made where it is not there.

    Raises OSError where it is somebody else's.
    """
    from relay.core.files import own_folder

    base = os.path.join(os.environ.get("TMPDIR") or "/tmp", f"relay-confined-{os.getuid()}")
    folder = os.path.join(base, os.path.realpath(cwd).replace("/", "-")[-100:])
    own_folder(base)
    own_folder(folder)
    return os.path.realpath(folder)


def environment(folder: str) -> dict[str, str]:
    """The variables by which programs put their temporary files into ``folder``."""
    also = [name for name in ("TMP", "TEMP") if name in os.environ]
    return dict.fromkeys(("TMPDIR", *also), folder)


def _home(env: Mapping[str, str]) -> str:
    return env.get("HOME") or os.path.expanduser("~")
