"""``relay intent``: for people, in agents' shells, and what the trace tells."""

from __future__ import annotations

import json
import os
from contextlib import closing
from pathlib import Path

import pytest

from relay.core.paths import Home
from relay.features.governance.governance_store import GovernanceStore, Selection
from relay.features.governance.governed_paths import FOLDER
from relay.features.governance.intents import INTENTS_FILE, TRACE_FILE
from relay.features.governance.mutation import compare
from relay.features.governance.trace import Trace
from relay.features.governance.trace_records import TraceEntry, TraceKind
from relay.features.web.web_data import governed_traces
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
        "keys.py": ([], "no scope includes it"),
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
    assert first.startswith(f"{path}:5: owned_scope: '/src/**'")
    assert second.startswith(f"{path}:6: status")
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


# -- ``relay intent log`` and ``verify``: what a person is shown of the trace, whoever wrote it.

NASTY = 'x</td><script>alert(1)</script>"\x1b[2J@relay:Bob'
ONE_INTENT = """\
active_intents:
  - {id: INT-1, name: "<b>Weather</b>", status: IN_PROGRESS, owned_scope: ["src/**"]}
"""
STORY = (
    TraceEntry(TraceKind.REFUSAL, "Bob", "r1", "", "Write", metadata={"reason": "INTENT_REQUIRED"}),
    TraceEntry(TraceKind.SELECTION, "Bob", "r1", "INT-1"),
    TraceEntry(
        TraceKind.MUTATION,
        "Bob",
        "r1",
        "INT-1",
        "Edit",
        "a-model",
        (compare("src/a.py", b"", b"x"),),
    ),
    TraceEntry(
        TraceKind.MUTATION,
        NASTY,
        "r2",
        NASTY,
        NASTY,
        NASTY,
        (compare(NASTY, None, b"x"),),
        metadata={"command": NASTY, "by": NASTY},
    ),
    TraceEntry(TraceKind.GOVERNANCE, metadata={"event": "off", "reason": NASTY}),
    TraceEntry(
        TraceKind.GOVERNANCE, "", "", "INT-1", metadata={"event": "status", "from": "A", "to": "B"}
    ),
)


@pytest.fixture
def logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A governed logged with a trace, in whose folder the verbs run."""
    root = tmp_path / "shop"
    (root / ".orchestration").mkdir(parents=True)
    (root / ".orchestration/active_intents.yaml").write_text(ONE_INTENT)
    monkeypatch.chdir(root)
    home = Home.from_env()
    Path(home.root).mkdir(parents=True, exist_ok=True)
    with closing(GovernanceStore.open(home)) as store:
        for entry in STORY:
            Trace(str(root), store).append(entry)
    return root


def test_the_log_tells_the_story_in_order(relay: Run, logged: Path) -> None:
    lines = relay("intent", "log").stdout.splitlines()
    assert [line.split()[1] for line in lines[1:]] == [
        *("refusal", "selection", "mutation", "mutation", "governance", "governance")
    ]
    assert "Edit: src/a.py (INTENT_EVOLUTION)" in lines[3]
    assert "status A -> B" in lines[6]
    assert "\x1b" not in "".join(lines) and "@relay:" not in "".join(lines)
    [row] = json.loads(
        relay("intent", "log", "--agent", "Bob", "--kind", "mutation", "--json").stdout
    )
    assert (row["tool_name"], row["files"][0]["path"]) == ("Edit", "src/a.py")
    shown = relay("intent", "log", "--intent", "INT-1", "--limit", "1")
    assert len(shown.stdout.splitlines()) == 2 and "2 older ones are left out" in shown.stderr


def test_verify_ends_with_1_and_the_line_once_something_is_changed(
    relay: Run, logged: Path
) -> None:
    assert "as it was written (records: 6)" in relay("intent", "verify").stdout
    trace = logged / ".orchestration/agent_trace.jsonl"
    whole = trace.read_text()
    trace.write_text("".join(whole.splitlines(keepends=True)[:-1]))
    assert "its end was cut off" in relay("intent", "verify").stdout
    trace.write_text(whole.replace("src/a.py", "src/b.py"))
    told = relay("intent", "verify")
    assert told.returncode == 1 and "line 3 was changed after it was written" in told.stdout
    trace.write_text(whole)
    Path(Home.from_env().governance).unlink()
    told = relay("intent", "verify")
    assert told.returncode == 0 and "relay has not written it on this machine" in told.stdout
    trace.write_text(whole.replace("src/a.py", "src/b.py"))
    report = json.loads(relay("intent", "verify", "--json").stdout)
    assert not report["whole"] and [one["line"] for one in report["faults"]] == [3]


def test_a_record_that_relay_never_writes_is_only_words(relay: Run, logged: Path) -> None:
    trace = logged / ".orchestration/agent_trace.jsonl"
    odd = (
        '{"id":"","timestamp":"<i>","kind":"odd","intent_id":"","agent":"","previous":"","hash":""'
    )
    with trace.open("a") as file:
        for rest in (',"files":[1,{"path":[]}]}', ',"files":[{"conversations":[{"ranges":[7]}]}]}'):
            file.write(odd + rest + "\n")
    lines = relay("intent", "log").stdout.splitlines()
    assert len(lines) == 9 and lines[-1].split()[:2] == ["<i>", "odd"]
    told = relay("intent", "log", "--html", "page.html")
    assert told.returncode == 2 and "the option --html is gone" in told.stderr
    assert not (logged / "page.html").exists()


def test_the_web_page_gets_the_newest_first_and_only_words(logged: Path, tmp_path: Path) -> None:
    (logged / "src").mkdir()
    folders = [str(logged / "src"), str(logged), str(tmp_path / "elsewhere")]
    [shown] = governed_traces(Home.from_env(), folders)
    assert (shown["root"], shown["problem"]) == (str(logged), "")
    assert [line["kind"] for line in shown["lines"]][:3] == ["governance", "governance", "mutation"]
    assert shown["lines"][3]["what"] == "Edit: src/a.py (INTENT_EVOLUTION)"
    assert "\x1b" not in str(shown["lines"]) and "@relay:" not in str(shown["lines"])
    trace = logged / ".orchestration/agent_trace.jsonl"
    trace.unlink()
    trace.symlink_to("/etc/passwd")
    [shown] = governed_traces(Home.from_env(), folders)
    assert shown["lines"] == [] and shown["problem"]


def test_without_a_trace_there_is_nothing_to_show(
    relay: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert relay("intent", "log").returncode == 3
    (tmp_path / ".orchestration").mkdir()
    assert "nothing like that" in relay("intent", "log").stderr
    assert "records: 0" in relay("intent", "verify").stdout
