"""The pump starts before the agent does: what it imports is what a person waits for."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = "import sys; import relay.pump.run; print(*sys.modules)"
ASKED = (  # what is asked before each agent starts, features too
    "import sys; from relay.app import start_door, wrapped_run;"
    "start_door.opened(wrapped_run.Choices(['cat']), '/'); print(*sys.modules)"
)
SLOW = {"asyncio", "dataclasses", "enum", "json", "logging", "re", "signal", "socket", "typing"}


def imported(code: str) -> set[str]:
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_no_feature_makes_a_start_slow() -> None:
    known = {"enum", "re"}  # launch plans match words
    assert not imported(ASKED) & SLOW - known


def test_the_pump_imports_core_and_protocol_and_nothing_slow() -> None:
    modules = imported(PROGRAM)
    ours = {".".join(name.split(".")[:2]) for name in modules if name.startswith("relay.")}
    assert ours == {"relay.core", "relay.protocol", "relay.pump"}
    assert not modules & SLOW
