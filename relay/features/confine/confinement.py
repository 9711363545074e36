"""What holds a confined program on this system, and how a program is started so.

Linux has Landlock, macOS ``sandbox-exec``. Both hold a program and all that it starts for good.
"""

from __future__ import annotations

import os
import sys

from relay.core.errors import RelayError
from relay.features.confine import landlock

SANDBOX_EXEC = "/usr/bin/sandbox-exec"
#: Seconds that trying it may take.
_TRY_TIMEOUT = 10.0


class CannotConfine(RelayError):
    """Nothing here can hold a program."""

    code = "cannot_confine"


def holder() -> str:
    """What holds programs here, for people; "" where nothing does."""
    if present := landlock.version():
        return f"Landlock, version {present}"
    if sys.platform == "darwin" and os.access(SANDBOX_EXEC, os.X_OK):
        return "sandbox-exec"
    return ""


def check() -> None:
    """Raises CannotConfine where nothing here holds a program."""
    if not holder():
        raise CannotConfine(
            "this system cannot confine a program: its kernel has no Landlock"
            if sys.platform != "darwin"
            else f"this system cannot confine a program: {SANDBOX_EXEC} is missing",
            hint="relay doctor says more; without it nothing is started, rather than unconfined",
        )


def weaknesses() -> list[str]:
    """What this system's way does not hold, in words."""
    present = landlock.version()
    return landlock.weaknesses(present) if present else []


def tell_weaker() -> None:
    """Say to the person what this kernel does not hold that a newer one does."""
    if weaker := weaknesses():
        text = f"{holder()} holds less than a newer kernel: {'; '.join(weaker)}"
        print(f"relay: {text}", file=sys.stderr, flush=True)


def command(places: list[str], program: str, argv: list[str]) -> list[str]:
    """What to execute in order to confine itself to ``places`` and become ``program``."""
    if sys.platform == "darwin":
        return [SANDBOX_EXEC, "-p", profile(places, _terminals()), program, *argv[1:]]
    return [sys.executable, "-I", "-S", landlock.__file__, *places, "--", program, *argv]


def profile(places: list[str], terminals: list[str]) -> str:
    """The profile of ``sandbox-exec``: like Landlock's rules, in its own language."""
    kinds = {place: "subpath" if os.path.isdir(place) else "literal" for place in places}
    kinds |= dict.fromkeys(terminals, "literal")
    allowed = " ".join(f"({kind} {_quoted(place)})" for place, kind in kinds.items())
    rules = ["(version 1)", "(allow default)", "(deny file-write*)"]
    rules += [f"(allow file-write* {allowed})"] if allowed else []
    return "\n".join([*rules, "(deny signal)", "(allow signal (target same-sandbox))"])


def tried() -> str:
    """Why a confined program can write here after all, or cannot run; "" where it is held."""
    import subprocess
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        free, closed = os.path.join(folder, "free"), os.path.join(folder, "closed")
        for path in (free, closed):
            os.mkdir(path)
        line = f'echo > "{free}/a" && ! (echo > "{closed}/a") 2>/dev/null'
        places = [os.path.realpath(free), os.devnull]
        words = command(places, "/bin/sh", ["sh", "-c", line])
        try:
            done = subprocess.run(
                words, stdin=subprocess.DEVNULL, capture_output=True, timeout=_TRY_TIMEOUT
            )
        except (OSError, subprocess.SubprocessError) as error:
            return f"a confined program did not run: {error}"
        if os.path.exists(os.path.join(closed, "a")):
            return "a confined program wrote where it may not"
        said = done.stderr.decode(errors="replace").strip()
        return "" if done.returncode == 0 else f"a confined program did not run: {said}"


def _terminals() -> list[str]:
    return list({os.ttyname(number) for number in (0, 1, 2) if os.isatty(number)})


def _quoted(path: str) -> str:
    escaped = path.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
