"""``relay wrap`` with the fake session in place of the real one: ``driver.py ARGS…``.

``$SPOOL_MAX``: bytes that may wait on disk. ``$PATIENCE``: seconds that a session may make no
progress. A session that died is started again at once.
"""

from __future__ import annotations

import os
import sys

from relay.app import wrapped_run
from relay.cli.wrap import main
from relay.pump import output_buffer, session_link

FAKE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fake_session.py")


def _fake() -> list[str]:
    return [sys.executable, "-S", FAKE]


if __name__ == "__main__":
    wrapped_run.session_command = _fake
    output_buffer.SPOOL_MAX = int(os.environ.get("SPOOL_MAX", output_buffer.SPOOL_MAX))
    session_link.PATIENCE = float(os.environ.get("PATIENCE", session_link.PATIENCE))
    session_link._PAUSE /= 10
    sys.exit(main(sys.argv[1:]))
