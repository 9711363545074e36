"""``relay agent check``: its words, its table, and a whole conversation with a small program."""

from __future__ import annotations

import io
import os
import signal
import sys
from pathlib import Path

import pytest

from relay.cli import table
from relay.core.errors import RelayError, UsageError
from relay.core.processes import AGENT
from relay.features.agent_check import agent_check, agent_verbs
from relay.features.agent_check.agent_check import Report
from relay.features.agent_check.standard_conversation import AS_TOLD, ROWS, Verdict
from tests.cli.fixtures import Run
from tests.cli.verbs import printed_json, verbs_of
from tests.e2e.wrapped import RELAY, Wrapped
from tests.support import wait_until

PROGRAMS = Path(__file__).parents[3] / "real_agents" / "programs"
PARROT = PROGRAMS / "parrot.py"
agent = verbs_of(agent_verbs)


def test_nothing_is_started_before_somebody_agrees(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    with pytest.raises(UsageError, match="must be confirmed") as refused:
        agent("agent", "check", "aider")
    assert refused.value.hint == "add --yes"
    assert "aider is started here, and its model answers" in capsys.readouterr().err


def test_an_agent_checks_no_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relay.broker.client.own_side", lambda: AGENT)
    with pytest.raises(RelayError, match="only the person may check a program, not an agent"):
        agent("agent", "check", "aider", "--yes")


@pytest.mark.parametrize("option", ["--size=wide", "--patience=0", "--patience=long"])
def test_an_option_that_means_nothing_is_refused(option: str) -> None:
    with pytest.raises(UsageError, match="is not a "):
        agent("agent", "check", "aider", "--yes", option)


def test_who_wants_to_learn_a_program_is_told_what_does_it_now() -> None:
    with pytest.raises(UsageError) as gone:
        agent("agent", "learn", "--", "mine")
    assert gone.value.hint.startswith("relay agent check says what fails")


def test_a_program_that_is_not_there_is_said(spawned: Run) -> None:
    done = spawned("agent", "check", "gone", "--yes", "--", "./no-such-program")
    assert done.returncode == 1
    assert "gone ended before it was ready; it showed: “relay: command not found" in done.stderr


@pytest.mark.parametrize("columns", [None, 40])
def test_the_table_fits(
    columns: int | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "columns", lambda: columns)
    monkeypatch.setattr("relay.features.agent_check.agent_check.check", lambda *_, **__: _report())
    assert agent("agent", "check", "ada", "--yes") == 1
    shown = capsys.readouterr().out.splitlines()
    assert shown[1].split()[:4] == ["sender", "a", "reply", "yes"]
    assert "no" in shown[2].split() and any("not heard" in row for row in shown)
    if columns:
        assert max(map(len, shown)) <= columns


def _report() -> Report:
    rows = [Verdict(side, what, True, "") for what, side in ROWS.items()]
    rows[1] = Verdict(rows[1].side, rows[1].what, False, "not heard")
    rows[3] = Verdict(rows[3].side, rows[3].what, True, AS_TOLD[rows[3].what], True)
    return Report(rows)


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM], ids=["ctrl-c", "sigterm"])
def test_an_end_before_its_time_leaves_nothing(tmp_path: Path, ending: signal.Signals) -> None:
    checked = Wrapped.__new__(Wrapped)
    check = [*RELAY, "agent", "check", "parrot", "--yes", "--", sys.executable, str(PARROT)]
    checked._start(check, (24, 100), tmp_path, {"TMPDIR": str(tmp_path)})
    checked.wait_for("it starts: until it rests")
    [home] = tmp_path.glob("relay-check-*")
    if ending == signal.SIGINT:
        checked.type("\x03")
    else:
        os.kill(checked.pid, ending)
    assert checked.wait(60) == 128 + ending
    checked.close()
    assert not home.exists()
    wait_until(lambda: _processes_of(home) == [], 10, "nothing to be left")


def _processes_of(home: Path) -> list[str]:
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"RELAY_HOME={home}".encode() in (process / "environ").read_bytes().split(b"\0"):
                found.append((process / "cmdline").read_text())
        except OSError:  # it has ended, or is not ours
            continue
    return found


@pytest.mark.agents
def test_a_small_chat_holds_the_conversation(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, seconds in (("QUIET", 2.0), ("SETTLE", 0.2), ("STAYS_AWAY", 1.0)):
        monkeypatch.setattr(agent_check, name, seconds)
    status = agent("agent", "check", "parrot", "--yes", "--json", "--", sys.executable, str(PARROT))
    found = printed_json(capsys)
    assert [row for row in found["rows"] if not row["holds"]] == []
    assert status == 0 and found["source"] == "screen"
