"""The host of an agent: a terminal that nobody sits at, whose program is answered what it asks it.

A process of its own, started for ``relay spawn`` (relay.app.spawning) or by the broker for a
persona (relay.features.personas.known_personas); it ends with its program. What is to be run comes
on standard input, as JSON: name, argv, cwd, env. Its pid is printed first."""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress

from relay.app.attach_server import AttachServer
from relay.app.driven_program import DrivenProgram
from relay.config.spawned_agents import ended
from relay.core.paths import Home
from relay.directive.redact import redact

COLUMNS, ROWS = 120, 40
#: When the machine goes down everything is told to end: who goes on for so many seconds after its
#: program has only lost that, and the program is not brought back by itself.
_SHUTDOWN = 1.0
#: Of a program that ends within so many seconds the log has as many rows as it showed last.
_EARLY, _ROWS_SHOWN = 30.0, 5


def main() -> None:
    """Run it to its end, in a child of the process that was started, which nobody has to reap."""
    wanted = json.loads(sys.stdin.read())
    if os.fork():
        os._exit(0)
    print(os.getpid(), flush=True)
    taken = wanted["env"]
    env = {name: one for name, one in {**os.environ, **taken}.items() if one is not None}
    try:
        os.chdir(wanted["cwd"] or os.path.expanduser("~"))
    except OSError as error:
        raise SystemExit(f"{wanted['name']} cannot work in its folder: {error}") from error
    home = Home(env["RELAY_HOME"])
    server = AttachServer(home, wanted["name"], (COLUMNS, ROWS))
    server.listen()
    began = time.monotonic()
    with DrivenProgram(wanted["argv"], env, COLUMNS, ROWS, server.wake) as program:
        server.serve(program)
        if time.monotonic() - began < _EARLY:
            _tell(wanted["name"], program)
        server.close(program)
        time.sleep(_SHUTDOWN)
        ended(home, wanted["name"], _how(program), os.getpid())


def _how(program: DrivenProgram) -> str:
    status = program.exit_status or 0
    return f"by signal {-status}" if status < 0 else f"with status {status}"


def _tell(name: str, program: DrivenProgram) -> None:
    """Print why it has ended so early."""
    rows = [row for row in program.rows() if row][-_ROWS_SHOWN:]
    with suppress(BrokenPipeError):  # who has started it has seen enough
        print(redact("\n  ".join([f"{name} has ended {_how(program)}", *rows])), flush=True)
