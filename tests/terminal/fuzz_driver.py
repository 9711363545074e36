"""``relay wrap`` with the session of ``fuzz_session``: ``fuzz_driver.py ARGS…``."""

from __future__ import annotations

import os
import sys

from relay.cli import wrap

SESSION = os.path.join(os.path.dirname(os.path.abspath(__file__)), "fuzz_session.py")


def _session() -> list[str]:
    return [sys.executable, "-S", SESSION]


if __name__ == "__main__":
    wrap.session_command = _session
    sys.exit(wrap.main(sys.argv[1:]))
