"""A terminal that nobody sits at, for a persona's program: what it asks its terminal is answered.

A process of its own, started by the broker (relay.broker.known_personas); it ends with its program.
What is to be run comes on standard input, as JSON: name, argv, cwd, env.
"""

from __future__ import annotations

import json
import os
import sys
import time

from relay.app.driven_program import DrivenProgram
from relay.directive.redact import redact

COLUMNS, ROWS = 120, 40
#: Seconds between two looks whether it still runs.
_LOOK = 1.0
#: Of a program that ends within so many seconds the log has as many rows as it showed last.
_EARLY, _ROWS_SHOWN = 30.0, 5


def main() -> None:
    """Run it to its end."""
    wanted = json.loads(sys.stdin.read())
    env = {**os.environ, "TERM": "xterm-256color"}
    env |= {name: one for name, one in wanted["env"].items() if one is not None}
    try:
        os.chdir(wanted["cwd"] or os.path.expanduser("~"))
    except OSError as error:
        raise SystemExit(f"{wanted['name']} cannot work in its folder: {error}") from error
    began = time.monotonic()
    with DrivenProgram(wanted["argv"], env, COLUMNS, ROWS) as program:
        while program.runs:
            time.sleep(_LOOK)
        if time.monotonic() - began < _EARLY:
            rows = [row for row in program.rows() if row][-_ROWS_SHOWN:]
            print(redact("\n  ".join([f"{wanted['name']} ended at once:", *rows])), flush=True)
