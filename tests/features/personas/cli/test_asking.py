"""``relay send`` to a persona that the configuration names."""

from __future__ import annotations

from pathlib import Path

import pytest

from relay.config.trust import CONFIG_NAME
from relay.core.paths import Home
from tests.cli.fixtures import Run
from tests.support import wait_until

_PERSONAS = {
    "tail": {"command": ["tail", "-n1"], "mode": "headless", "tools": False},
    "gone": {"command": ["no-such-program"], "mode": "headless"},
}


def test_a_configured_persona_that_does_not_run_takes_a_turn(
    relay: Run, broker_home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    file = tmp_path / "relay" / CONFIG_NAME
    file.parent.mkdir()
    file.write_text(f"config = {{'personas': {_PERSONAS}}}\n")
    relay("trust", str(file))
    done = relay("send", "--answer=20", "Tail", "what is up?")
    assert (done.returncode, done.stdout) == (0, "what is up?\n"), done.stderr
    assert relay("inbox").stdout == ""  # it was printed
    assert relay("send", "tail", "and now?").stderr == "tail: queued\n"
    wait_until(lambda: "and now?" in relay("inbox", "--peek").stdout, what="the answer")
    failed = relay("send", "--answer=20", "gone", "what is up?")
    why = "no-such-program cannot be started: No such file or directory"
    way_out = "look at command in the persona's configuration"
    assert failed.returncode == 4 and failed.stderr.endswith(f"gone: failed ({why}; {way_out})\n")
