"""``relay wrap`` with the fake session in place of the real one: ``driver.py ARGS…``.

``$SPOOL_MAX``: so many bytes may wait on disk.
"""

from __future__ import annotations

import os
import sys

from relay.app import wrapped_run
from relay.cli.wrap import main
from relay.pump import output_buffer

FAKE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fake_session.py")


def _fake() -> list[str]:
    return [sys.executable, "-S", FAKE]


if __name__ == "__main__":
    wrapped_run.session_command = _fake
    output_buffer.SPOOL_MAX = int(os.environ.get("SPOOL_MAX", output_buffer.SPOOL_MAX))
    sys.exit(main(sys.argv[1:]))
