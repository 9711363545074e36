"""Scripts by which the hooks of an agent ask relay's session, where settings cannot hold them.

Some agents put their environment's values into what their settings say, which would change a
script, and take variables that look like secrets out of a hook's environment. So they stand in the
run's own folder, which nobody else can read, with the port and the token in them.
"""

from __future__ import annotations

import os

from relay.agents.installed import which
from relay.agents.launch import GATE_TIMEOUT
from relay.agents.reporter import asker, reporter
from relay.core.files import make_private_folder

TYPE_CHECKING = False  # typing's own would have to be imported, before the agent starts
if TYPE_CHECKING:
    from relay.agents.launch import Run

FILE, TELL_FILE, TELLER = "ask.sh", "tell.sh", "teller"
#: Seconds that may pass until the session is told.
TOLD_TIMEOUT = 5
#: Seconds that an answer may take: less than the agent waits for the script.
PATIENCE = GATE_TIMEOUT - 5
#: The same where nothing is asked, and messages may come with the answer: without one the agent
#: goes on after so many seconds.
STEERED, STEERED_TIMEOUT = 2, 3


# $1: the process whose hook it is. What the agent's own tools start has its settings too, through
# the environment, but its turns are none of the agent's. The first that tells anything is the agent
# itself; it may start anew, as another process.
_ONLY_ONE = """read -r teller <TELLER
if [ "$teller" != "$1" ]; then
  [ -z "$teller" ] || ! kill -0 "$teller" || exit 0
  echo "$1" >TELLER
fi
"""


def why_not(run: Run, env: dict[str, str]) -> str:
    """Why no script could ask; "" where one can."""
    if run.port is None:
        return "no loopback port could be bound for hooks"
    if which("bash", env) is None:
        return "its hooks need bash, which is missing"
    return ""


def write(run: Run, *, patient: bool = True) -> str:
    """Write the script that asks, and return its path; ``patient``: it waits for hooks.

    Raises OSError.
    """
    ask = asker(PATIENCE if patient else STEERED, "relay could not be asked")
    return _write(run, FILE, ask)


def write_teller(run: Run, *, aside: bool = False) -> str:
    """Write the script that tells, and return its path; ``aside``: nobody waits for the session.

    Raises OSError.
    """
    only_one = _ONLY_ONE.replace("TELLER", quoted(os.path.join(run.folder, TELLER)))
    return _write(run, TELL_FILE, only_one + reporter(aside=aside))


def _write(run: Run, name: str, script: str) -> str:
    make_private_folder(run.folder)
    path = os.path.join(run.folder, name)
    where = (
        f"RELAY_PORT={run.port} RELAY_TOKEN={quoted(run.token)}\nexport RELAY_PORT RELAY_TOKEN\n"
    )
    with open(os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "w") as file:
        file.write(f"{where}{script}\n")
    return path


def command(path: str, refusal: str = "") -> str:
    """The command line for a hook that runs the script.

    ``refusal`` is for a gate: what it prints when there is no answer, whatever the reason, in the
    agent's own words. It holds no ``$``.
    """
    otherwise = f"printf '%s' {quoted(refusal)}" if refusal else ":"
    return f"sh {quoted(path)} 2>/dev/null || {otherwise}"


def telling(path: str) -> str:
    """The command line for a hook that runs the script that tells."""
    return f"sh {quoted(path)} $PPID 2>/dev/null || :"


def quoted(text: str) -> str:
    """``text`` as one word of a shell's."""
    return "'" + text.replace("'", "'\\''") + "'"
