"""The demo: its two agents as plain programs, and the whole play."""

from __future__ import annotations

import fcntl
import io
import os
import signal
import sys
from pathlib import Path
from typing import cast

import pytest

from relay.app import throwaway_home
from relay.core.files import is_locked
from relay.core.paths import Home
from relay.demo import agents, stage
from relay.protocol.message_ops import HistoryRow
from tests.cli.verbs import program
from tests.e2e.wrapped import RELAY, Wrapped, relay

HEAD = "Relay message [ABCD1234] from agent"


def lines(monkeypatch: pytest.MonkeyPatch, *read: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(read) + "\n"))


def test_the_answerer_multiplies_and_says_bye(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines(monkeypatch, "noise", f"{HEAD} Ann: what is 6 times 7? (To answer …)", f"{HEAD} Ann: bye")
    assert agents.answerer() == 0
    assert "@relay:Ann 6 times 7 is 42\n\n" in capsys.readouterr().out


@pytest.mark.parametrize(("answer", "status"), [("6 times 7 is 42", 0), ("6 times 7 is 41", 1)])
def test_the_asker_checks_the_answer(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: str,
    status: int,
) -> None:
    lines(monkeypatch, f"{HEAD} Ben: {answer} (To answer, if needed: …).")
    assert agents.asker("Ben", 6, 7) == status
    assert "@relay:Ben what is 6 times 7?\n\n" in capsys.readouterr().out


@pytest.mark.smoke
def test_the_whole_play_ends_with_every_message_seen() -> None:
    shown = relay("demo")
    assert "All 3 messages were seen." in shown
    assert "relay wrap --name Alice -- claude" in shown


def test_what_is_shown_fits_beside_the_names() -> None:
    assert stage.folded("word " * 30, None) == ["word " * 30]
    rows = stage.folded("word " * 30, 80)
    assert len(rows) == 3 and max(len(f"  Ann │ {row}") for row in rows) <= 80
    # How to answer, which stands behind each message, would hide what is said.
    assert stage.shortened("Relay message [1_2] from agent Ann: hi (End of [2]. To answer, …") == (
        "Relay message [1_2] from agent Ann: hi (…)"
    )


@pytest.mark.parametrize("on_path", [True, False])
def test_the_end_says_how_to_reach_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_path: bool
) -> None:
    folder = tmp_path / "a folder"
    program(folder, "relay")
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    monkeypatch.setenv("PATH", str(folder) if on_path else str(tmp_path))
    said: list[str] = []
    receipt = cast(HistoryRow, {"from": "A", "to": "B", "state": "seen", "body": "x"})
    assert stage.conclude([receipt] * 3, [0, 0], said.append) == 0
    assert (f"export PATH='{folder}':\"$PATH\"" in "\n".join(said)) is not on_path


@pytest.mark.parametrize(("sent", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_what_ends_it_early_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent: signal.Signals, status: int
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with Wrapped.directly([*RELAY, "demo"]) as shown:
        shown.wait_for("Ready to multiply")
        os.kill(shown.pid, sent)
        assert shown.wait() == status
        assert "relay:" not in shown.output
    # The folder cannot be removed while a broker or a session writes into it.
    assert list(tmp_path.glob("relay-demo-*")) == []


def test_it_is_cleared_when_nothing_holds_the_lock(tmp_path: Path) -> None:
    home = Home(str(tmp_path))
    home.create()
    assert not throwaway_home.sessions_left(home)
    Path(home.session_socket("0" * 26)).touch()
    assert throwaway_home.sessions_left(home)
    assert not is_locked(home.broker_lock)
    with open(home.broker_lock, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert is_locked(home.broker_lock)
    assert not is_locked(home.broker_lock)
