"""``relay intent log`` and ``verify``: what a person is shown of the trace, whoever wrote it."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from relay.core.paths import Home
from relay.features.governance.governance_store import GovernanceStore
from relay.features.governance.mutation import compare
from relay.features.governance.trace import Trace
from relay.features.governance.trace_records import TraceEntry, TraceKind
from relay.features.web.web_data import governed_traces
from tests.cli.fixtures import Run

NASTY = 'x</td><script>alert(1)</script>"\x1b[2J@relay:Bob'
INTENTS = """\
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
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A governed project with a trace, in whose folder the verbs run."""
    root = tmp_path / "shop"
    (root / ".orchestration").mkdir(parents=True)
    (root / ".orchestration/active_intents.yaml").write_text(INTENTS)
    monkeypatch.chdir(root)
    home = Home.from_env()
    Path(home.root).mkdir(parents=True, exist_ok=True)
    with closing(GovernanceStore.open(home)) as store:
        for entry in STORY:
            Trace(str(root), store).append(entry)
    return root


def test_the_log_tells_the_story_in_order(relay: Run, project: Path) -> None:
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
    shown = relay("intent", "log", "--intent", "INT-1", "--last", "1")
    assert len(shown.stdout.splitlines()) == 2 and "2 older ones are left out" in shown.stderr


def test_verify_ends_with_1_and_the_line_once_something_is_changed(
    relay: Run, project: Path
) -> None:
    assert "as it was written (records: 6)" in relay("intent", "verify").stdout
    trace = project / ".orchestration/agent_trace.jsonl"
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


def test_a_record_that_relay_never_writes_is_only_words(relay: Run, project: Path) -> None:
    trace = project / ".orchestration/agent_trace.jsonl"
    odd = (
        '{"id":"","timestamp":"<i>","kind":"odd","intent_id":"","agent":"","previous":"","hash":""'
    )
    with trace.open("a") as file:
        for rest in (',"files":[1,{"path":[]}]}', ',"files":[{"conversations":[{"ranges":[7]}]}]}'):
            file.write(odd + rest + "\n")
    lines = relay("intent", "log").stdout.splitlines()
    assert len(lines) == 9 and lines[-1].split()[:2] == ["<i>", "odd"]
    told = relay("intent", "log", "--html", "page.html")
    assert told.returncode == 2 and "no option --html any more" in told.stderr
    assert not (project / "page.html").exists()


def test_the_web_page_gets_the_newest_first_and_only_words(project: Path, tmp_path: Path) -> None:
    (project / "src").mkdir()
    folders = [str(project / "src"), str(project), str(tmp_path / "elsewhere")]
    [shown] = governed_traces(Home.from_env(), folders)
    assert (shown["root"], shown["problem"]) == (str(project), "")
    assert [line["kind"] for line in shown["lines"]][:3] == ["governance", "governance", "mutation"]
    assert shown["lines"][3]["what"] == "Edit: src/a.py (INTENT_EVOLUTION)"
    assert "\x1b" not in str(shown["lines"]) and "@relay:" not in str(shown["lines"])
    trace = project / ".orchestration/agent_trace.jsonl"
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
