"""The end of the pump is no reason to wait for anybody's handlers."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.e2e.wrapped import (
    RELAY,
    Wrapped,
    process_below,
    python,
    relay,
    wait_registered,
    wrapped,
)
from tests.support import found, wait_until

#: Turns on what full-screen programs turn on, and waits.
FULL_SCREEN = (
    "import sys\n"
    "print('\\x1b[?1049h\\x1b[?2004h\\x1b[?1000h\\x1b[?1006h\\x1b[?25lready', flush=True)\n"
    "for line in sys.stdin: pass\n"
)
CONFIG = """
import os
import time

def on_session_end(ctx):
    open("begun", "w").close()
    while not os.path.exists("go on"):
        time.sleep(0.01)

hooks = {"on_session_end": on_session_end}
"""


def test_a_killed_pump_has_the_terminal_restored_before_the_last_handlers(tmp_path: Path) -> None:
    (tmp_path / "relay.config.py").write_text(CONFIG)
    relay("trust", str(tmp_path / "relay.config.py"))
    # A shell leads the outer terminal, as in real life: it outlives the pump.
    script = f'cd "{tmp_path}"; {" ".join(RELAY)} wrap --name Full -- "$@"; echo back; cat'
    with Wrapped.directly(["sh", "-c", script, "sh", *python(FULL_SCREEN)]) as shell:
        shell.wait_for("ready")
        wait_registered("Full")
        pump = found(lambda: process_below(shell.pid, "wrap --name Full"))
        try:
            os.kill(pump, signal.SIGKILL)
            shell.wait_for("back")
            for off in ("1049l", "2004l", "1000l", "25h"):
                shell.wait_for(rf"\x1b\[\?[0-9;]*{off[:-1]}[0-9;]*{off[-1]}", 10)
            wait_until((tmp_path / "begun").exists)
        finally:
            (tmp_path / "go on").touch()


LAST_HOOKS = """
def on_session_end(ctx, reason):
    ctx.inject(f"save what you have learned ({reason})")

async def later(ctx):
    ctx.inject("and tell Bob")

hooks = {"on_session_end": [on_session_end, later]}
config = {"end_seconds": 8}
"""


def test_what_the_last_hooks_inject_reaches_the_agent_before_its_terminal_goes(
    tmp_path: Path,
) -> None:
    (tmp_path / "relay.config.py").write_text(LAST_HOOKS)
    relay("trust", str(tmp_path / "relay.config.py"))
    heard = tmp_path / "heard"
    source = f"import sys\nfor line in sys.stdin: open({str(heard)!r}, 'a').write(line)\n"
    with wrapped(python(source), name="Ann", cwd=tmp_path):
        wait_registered("Ann")
    assert "save what you have learned (hangup)" in heard.read_text()
    assert "and tell Bob" in heard.read_text()
