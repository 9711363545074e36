"""``relay intent``: for people, and in agents' shells."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from relay.core.paths import Home
from relay.features.governance.governance_store import GovernanceStore, Selection
from relay.features.governance.governed_paths import FOLDER
from relay.features.governance.intents import INTENTS_FILE, TRACE_FILE
from tests.broker.support import register
from tests.cli.fixtures import Run

TEXT = """\
active_intents:
  - id: INT-001
    name: Weather
    status: IN_PROGRESS # now
    owned_scope: [src/**, "!src/keys.py"]
  - {id: docs, name: "Docs \\u202e@relay:Bob hi", status: PENDING, owned_scope: [docs]}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with intents, in whose folder ``src`` the verbs run."""
    for name in (".git", "src", FOLDER):
        (tmp_path / "shop" / name).mkdir(parents=True)
    (tmp_path / "shop" / FOLDER / INTENTS_FILE).write_text(TEXT)
    monkeypatch.chdir(tmp_path / "shop" / "src")
    return tmp_path / "shop"


def test_the_list_says_who_works_on_what(broker_home: Home, relay: Run, project: Path) -> None:
    shown = relay("intent", "list").stdout.splitlines()
    assert [line.split()[:3] for line in shown] == [
        ["ID", "STATUS", "AGENTS"],
        ["INT-001", "IN_PROGRESS", "-"],
        ["src/**", "!src/keys.py"],
        ["docs", "PENDING", "-"],
        ["docs"],
    ]
    assert "\\u202e@relay\\:Bob" in shown[3]
    os.makedirs(broker_home.root, 0o700, exist_ok=True)
    store = GovernanceStore.open(broker_home)
    for run, agent in (("run-1", "Al"), ("run-2", "Bob"), ("gone", "Eve")):
        store.select(Selection(run, str(project), agent, "INT-001", 1))
    store.close()
    with register(broker_home, "Al"), register(broker_home, "Bob", "run-2"):
        first, second = json.loads(relay("intent", "list", "--json").stdout)
    assert (first["agents"], second["agents"]) == (["Al", "Bob"], [])
    assert first["owned_scope"] == ["src/**", "!src/keys.py"] and first["line"] == 2


def test_check_says_which_intents_allow_a_path(relay: Run, project: Path) -> None:
    paths = ["new/a.py", "keys.py", "../docs/a.md", "../.git/config", "../../x", "link/a"]
    (project / "src" / "link").symlink_to("/")
    found = relay("intent", "check", "--json", *paths)
    rows = {row["path"]: (row["intents"], row["why"]) for row in json.loads(found.stdout)}
    assert rows == {
        "new/a.py": (["INT-001"], ""),
        "keys.py": ([], "no scope has it"),
        "../docs/a.md": (["docs"], ""),
        "../.git/config": ([], "no agent ever writes there"),
        "../../x": ([], f"it is not in {project}"),
        "link/a": ([], f"it is not in {project}"),
    }
    assert found.returncode == 1
    assert relay("intent", "check", "new/a.py").returncode == 0
    pending = relay("intent", "check", "../docs/a.md")
    assert pending.returncode == 1 and "docs (PENDING)" in pending.stdout


def test_check_tells_every_mistake_of_a_broken_file(relay: Run, project: Path) -> None:
    path = project / FOLDER / INTENTS_FILE
    path.write_text(TEXT.replace("PENDING", "DONE").replace("src/**", "/src/**"))
    failed = relay("intent", "check")
    first, second, third = failed.stderr.splitlines()
    assert failed.returncode == 1
    assert first.startswith("line 5: owned_scope: '/src/**'") and second.startswith(
        "line 6: status"
    )
    assert third == f"relay: {path} has 2 mistakes, and no agent writes until they are fixed"
    error = json.loads(relay("intent", "list", "--json").stdout)["error"]
    assert [row["line"] for row in error["mistakes"]] == [5, 6]


def test_the_person_changes_a_status_and_nothing_else(relay: Run, project: Path) -> None:
    assert relay("intent", "status", "docs", "BLOCKED").stdout == "docs is BLOCKED\n"
    path = project / FOLDER / INTENTS_FILE
    assert path.read_text() == TEXT.replace("PENDING", "BLOCKED")
    relay("intent", "status", "docs", "BLOCKED")  # it is
    [line] = (project / FOLDER / TRACE_FILE).read_text().splitlines()
    record = json.loads(line)
    assert (record["kind"], record["agent"], record["intent_id"]) == ("governance", "", "docs")
    assert (record["metadata"]["from"], record["metadata"]["to"]) == ("PENDING", "BLOCKED")
    unknown = relay("intent", "status", "INT-01", "BLOCKED")
    assert unknown.returncode == 3 and "did you mean 'INT-001'?" in unknown.stderr
    assert relay("intent", "status", "docs", "DONE").returncode == 2
    alone = relay("intent", "select", "INT-001")
    assert alone.returncode == 2 and "--agent NAME" in alone.stderr


def test_completions_know_the_intents(relay: Run, project: Path) -> None:
    assert relay("completions", "intents").stdout.split() == ["INT-001", "docs"]
    (project / FOLDER / INTENTS_FILE).write_text("[")
    assert relay("completions", "intents").stdout == ""
