"""``relay wrap`` with the session of ``fuzz_session``: ``fuzz_driver.py ARGS…``.

Memory holds little of what waits for it, so that much of that goes through a spool; ``$FAKE/spool``
has a line for each.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from relay.app import wrapped_run
from relay.cli.wrap import main as wrap_main
from relay.pump import output_buffer, run, session_link, spawn

KEPT_MAX = 16_000
SPOOL_FILE_MAX = 5000
SESSION = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fuzz_session.py")


def _session() -> list[str]:
    return [sys.executable, "-S", SESSION]


class SmallLink(session_link.SessionLink):
    def __init__(self, start: Any, hello: Any, size: bytes, give_up: Any, store: Any) -> None:
        super().__init__(start, hello, size, give_up, store, KEPT_MAX)


class NotedSpool(output_buffer.Spool):
    def __init__(self, folder: str, offset: int) -> None:
        super().__init__(folder, offset)
        with open(os.path.join(os.environ["FAKE"], "spool"), "a") as file:
            file.write(f"{offset}\n")


if __name__ == "__main__":
    output_buffer.FILE_MAX = SPOOL_FILE_MAX
    setattr(spawn, "Spool", NotedSpool)  # noqa: B010
    setattr(run, "SessionLink", SmallLink)  # noqa: B010
    wrapped_run.session_command = _session
    sys.exit(wrap_main(sys.argv[1:]))
