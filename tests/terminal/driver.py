"""``relay wrap`` with the fake session in place of the real one: ``driver.py ARGS…``.

``$SPOOL_MAX``: so many bytes may wait on disk.
"""

from __future__ import annotations

import os
import sys

from relay.cli import assembly, wrap
from relay.terminal import spool

FAKE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fake_session.py")


def _fake() -> list[str]:
    return [sys.executable, "-S", FAKE]


if __name__ == "__main__":
    assembly.session_command = _fake
    spool.SPOOL_MAX = int(os.environ.get("SPOOL_MAX", spool.SPOOL_MAX))
    sys.exit(wrap.main(sys.argv[1:]))
