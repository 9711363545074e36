"""What the person alone decides in a governed project."""

from __future__ import annotations

import json
import os
import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from relay.broker.server import wall_ms
from relay.core.agent_names import owner_name
from relay.core.errors import StorageError
from relay.core.paths import Home
from relay.features.governance.governance_store import GovernanceStore, Lease, start_of
from relay.features.governance.governed_paths import FOLDER
from relay.features.governance.intents import INTENTS_FILE, TRACE_FILE, TraceKind
from relay.features.governance.mutation import compare
from relay.features.governance.trace import Trace
from relay.features.governance.trace_records import TraceEntry
from tests.broker.support import Json
from tests.cli.fixtures import Run

INTENTS = """\
active_intents:
  - {id: INT-001, name: One, status: IN_PROGRESS, owned_scope: [src]}
  - {id: INT-002, name: Two, status: PENDING, owned_scope: [docs]}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A governed project, which is where the verbs run."""
    folder = tmp_path / "shop"
    (folder / FOLDER).mkdir(parents=True)
    (folder / FOLDER / INTENTS_FILE).write_text(INTENTS)
    monkeypatch.chdir(folder)
    return folder


def trace(project: Path) -> list[Json]:
    return [json.loads(line) for line in (project / FOLDER / TRACE_FILE).read_text().splitlines()]


def test_governance_is_turned_off_and_on_and_the_trace_says_so(project: Path, relay: Run) -> None:
    assert relay("govern").stdout == f"on for {project}: 1 of 2 intents in progress\n"
    off = relay("govern", "off", "--reason", "the intents are \x1b[1mwrong")
    assert re.search(
        rf"^off for .* since .*, by {owner_name()}, .*\(pid {os.getpid()}\)", off.stdout
    )
    assert "the intents are ^[[1mwrong" in off.stdout and "relay govern on" in off.stderr
    assert "it is off already" in relay("govern", "off", "--reason", "again").stderr
    told = json.loads(relay("govern", "--json").stdout)
    assert (told["on"], told["off"]["reason"]) == (False, "the intents are \x1b[1mwrong")
    assert relay("govern", "on").stdout.startswith(f"on for {project}: ")
    first, second = trace(project)
    assert [row["metadata"]["event"] for row in (first, second)] == ["off", "on"]
    assert first["kind"] == "governance" and first["metadata"]["by"].startswith(owner_name())
    assert first["metadata"]["reason"] == "the intents are \x1b[1mwrong"


def test_it_is_turned_off_where_the_trace_does_not_work_and_said_once_it_does(
    project: Path, relay: Run
) -> None:
    (project / FOLDER / TRACE_FILE).mkdir()
    off = relay("govern", "off", "--reason", "nothing works")
    assert off.returncode == 0 and "the trace does not say so" in off.stderr
    (project / FOLDER / TRACE_FILE).rmdir()
    relay("govern", "on")
    [row] = trace(project)
    assert (row["metadata"]["event"], row["metadata"]["reason"]) == ("on", "nothing works")


def test_the_trace_says_so_where_turning_it_off_fails(
    project: Path, relay: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: object) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr(GovernanceStore, "switch_off", full)
    assert "the disk is full" in relay("govern", "off", "--reason", "x").stderr
    assert json.loads(relay("govern", "--json").stdout)["on"]
    rows = json.loads(relay("intent", "log", "--json").stdout)
    assert [one["metadata"]["event"] for one in rows] == ["off", "not turned off"]


def test_an_agent_does_not_turn_governance_off(project: Path, relay: Run) -> None:
    for words in (["off", "--reason", "x"], ["on"]):
        refused = relay("govern", *words, env={"RELAY_RUN": "run-1", "RELAY_TOKEN": "secret"})
        assert refused.returncode == 1 and "only the person may turn governance" in refused.stderr
    assert json.loads(relay("govern", "--json").stdout)["on"]


def test_what_governs_is_shown_with_what_is_wrong(
    project: Path, broker_home: Home, relay: Run
) -> None:
    lease = Lease(str(project), "src/a.py", "run-1", "Bob", os.getpid(), "", "INT-001", 1, 2**62)
    broker_home.create()
    store = GovernanceStore.open(broker_home)
    store.take([replace(lease, start=start_of(os.getpid()))], wall_ms())
    store.close()
    (project / FOLDER / INTENTS_FILE).write_text("active_intents: {")
    shown = relay("govern")
    assert re.search("^Bob has src/a.py since .*, for INT-001$", shown.stdout, re.M)
    assert INTENTS_FILE in shown.stdout and "where no agent can write now" in shown.stdout
    for verb in ("status", "doctor"):
        assert f"on for {project}, where no agent can write now" in relay(verb).stdout
    Path(broker_home.governance).write_bytes(b"damaged" * 1000)
    assert relay("govern", "off", "--reason", "it is damaged").returncode == 0
    assert relay("govern").stdout.startswith(f"off for {project}")


def test_doctor_says_which_command_adds_the_reader_of_a_language_that_agents_write(
    project: Path, broker_home: Home, relay: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker_home.create()
    monkeypatch.setattr("relay.features.governance.mutation._language", lambda ending: None)
    for path, adds in (("src/a.py", False), ("src/a.go", True)):
        with closing(GovernanceStore.open(broker_home)) as store:
            change = compare(path, b"a = 1\n", b"a = 2\n")
            Trace(str(project), store).append(TraceEntry(TraceKind.MUTATION, files=(change,)))
        checks = json.loads(relay("doctor", "--json").stdout)["checks"]
        hints = [one["hint"] for one in checks if "have changed .go files" in one["text"]]
        assert bool(hints) is adds and all("languages" in hint for hint in hints)


def test_what_the_file_lets_pass_beside_is_named(project: Path, relay: Run) -> None:
    file = project / FOLDER / INTENTS_FILE
    file.write_text(file.read_text() + "governance:\n  unknown: allow\n  run_commands: [just *]\n")
    for verb in ("govern", "status", "doctor"):
        shown = relay(verb).stdout
        assert "lets more pass: unknown: allow" in shown
        assert "lets more pass: run_commands: just *" in shown


def test_where_nothing_is_governed_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, relay: Run
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "relay init --governed" in relay("govern").stderr
    assert json.loads(relay("govern", "--json").stdout)["root"] is None
    assert relay("govern", "off", "--reason", "x").returncode == 3
    for words in (["off"], ["off", "--reason", " "], ["on", "--reason", "x"], ["--reason", "x"]):
        assert relay("govern", *words).returncode in (2, 3)
