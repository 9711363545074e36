"""The pump starts before the agent does: what it imports is what a person waits for."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = "import sys; import relay.pump.run; print(*sys.modules)"
SLOW = {"asyncio", "dataclasses", "enum", "json", "logging", "re", "signal", "socket", "typing"}


def test_the_pump_imports_core_and_protocol_and_nothing_slow() -> None:
    done = subprocess.run(
        [sys.executable, "-S", "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    modules = set(done.stdout.split())
    ours = {".".join(name.split(".")[:2]) for name in modules if name.startswith("relay.")}
    assert ours == {"relay.core", "relay.protocol", "relay.pump"}
    assert not modules & SLOW
