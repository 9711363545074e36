"""The trace: whatever is acknowledged stays, in one chain, and whoever changes it is found out."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.features.governance.governance_store import GovernanceStore
from relay.features.governance.mutation import compare
from relay.features.governance.trace import Trace, TraceFailed, revision
from relay.features.governance.trace_records import TraceEntry, TraceHead, TraceKind

WRITER = """
import sys
from tests.features.governance.test_trace import FileHeads, entry
from relay.features.governance.trace import Trace

root, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
trace = Trace(root, FileHeads(root + "/head"))
print("ready", flush=True)
for number in range(count):
    print(trace.append(entry(f"{name} {number}")), flush=True)
"""


class FileHeads(GovernanceStore):
    """The heads in a file, as other processes see them; the trace's lock is held meanwhile."""

    def __init__(self, path: str) -> None:
        self.path = path

    def head(self, root: str) -> TraceHead | None:
        if not os.path.exists(self.path):
            return None
        size, digest = Path(self.path).read_text().split()
        return TraceHead(int(size), digest)

    def set_head(self, root: str, head: TraceHead) -> None:
        Path(self.path + ".new").write_text(f"{head.size} {head.hash}")
        os.replace(self.path + ".new", self.path)


def entry(text: str = "", kind: TraceKind = TraceKind.REFUSAL) -> TraceEntry:
    return TraceEntry(kind, agent="Bob", session="run1", intent_id="INT-1", metadata={"text": text})


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    (tmp_path / ".orchestration").mkdir()
    return Trace(str(tmp_path), FileHeads(str(tmp_path / "head")))


def start(root: Path, name: str, count: int) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", WRITER, str(root), name, str(count)]
    writer = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None and writer.stdout.readline() == "ready\n"
    return writer


def said(writer: subprocess.Popen[str]) -> list[str]:
    """The ids that it was told are written; the last line may be torn."""
    assert writer.stdout is not None
    text = writer.stdout.read()
    writer.stdout.close()
    writer.wait()
    return text.split("\n")[:-1]


def test_a_record_has_the_fields_of_agent_trace_and_relays(trace: Trace, tmp_path: Path) -> None:
    changed = compare("src/a.py", b"one\ntwo\n", b"one\n2\nthree\n")
    secret = "ghp_" + "a1B2" * 9
    trace.append(
        TraceEntry(
            TraceKind.MUTATION,
            agent="Bob",
            session="run1",
            intent_id="INT-1",
            tool="Edit",
            model="claude-x",
            files=(changed, compare("gone.txt", b"x\n", None)),
            metadata={
                "command": f"curl -H {secret}",
                "paths": [f"{secret}"],
                "agent_kind": "claude",
            },
        )
    )
    [(number, row)] = trace.records()
    assert number == 1 and row["version"] == "0.1.0" and row["kind"] == "mutation"
    assert (row["agent"], row["session"], row["intent_id"]) == ("Bob", "run1", "INT-1")
    assert (row["tool_name"], row["mutation_class"]) == ("Edit", "INTENT_EVOLUTION")
    edited, gone = row["files"]
    [conversation] = edited["conversations"]
    assert conversation["contributor"] == {"type": "ai", "model_id": "claude-x"}
    assert [(r["start_line"], r["end_line"]) for r in conversation["ranges"]] == [(2, 3)]
    assert [(r["start_line"], r["end_line"]) for r in edited["replaced"]] == [(2, 2)]
    assert edited["before"].startswith("sha256:") and gone["after"] == "absent"
    assert secret not in (tmp_path / ".orchestration/agent_trace.jsonl").read_text()


def change(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    return lambda data: data.replace(old, new)


@pytest.mark.parametrize(
    ("tamper", "line", "told"),
    [
        pytest.param(change(b"text 1", b"text X"), 2, "was changed", id="a word"),
        pytest.param(change(b'"agent":"Bob"', b'"agent": "Bob"'), 1, "was changed", id="a space"),
        pytest.param(lambda d: b"".join(d.splitlines(True)[1:]), 1, "taken out", id="first out"),
        pytest.param(
            lambda d: b"".join(d.splitlines(True)[i] for i in (0, 2)), 2, "taken out", id="mid out"
        ),
        pytest.param(
            lambda d: b"".join(d.splitlines(True)[i] for i in (1, 0, 2)), 1, "moved", id="swapped"
        ),
        pytest.param(lambda d: b"{}\n" + d, 1, "not a record", id="put in"),
        pytest.param(
            lambda d: b"".join(d.splitlines(True)[:2]), 0, "its end was cut off", id="end cut"
        ),
        pytest.param(lambda d: b"", 0, "its end was cut off", id="emptied"),
        pytest.param(lambda d: d[:-9], 3, "not complete", id="torn"),
        pytest.param(lambda d: d + b'{"id": "x"}\n', 4, "not a record", id="appended"),
    ],
)
def test_every_change_is_found_and_stays_known(
    trace: Trace, tamper: Callable[[bytes], bytes], line: int, told: str
) -> None:
    for number in range(3):
        trace.append(entry(f"text {number}"))
    assert trace.verify().faults == () and trace.verify().records == 3
    path = Path(trace.path)
    path.write_bytes(tamper(path.read_bytes()))
    found = trace.verify().faults[0]
    assert found.line == line and told in found.text
    trace.append(entry("goes on"))
    assert trace.verify().faults, "an append must not cover it up"
    assert [row["metadata"]["text"] for _, row in trace.records()][-1] == "goes on"


@given(st.data())
def test_no_other_bytes_are_the_same_trace(data: st.DataObject) -> None:
    with TemporaryDirectory() as root:
        os.mkdir(f"{root}/.orchestration")
        trace = Trace(root, FileHeads(f"{root}/head"))
        for number in range(3):
            trace.append(entry(f"text {number}"))
        whole = Path(trace.path).read_bytes()
        first = data.draw(st.integers(0, len(whole) - 1))
        last = data.draw(st.integers(first, min(first + 3000, len(whole))))
        changed = whole[:first] + data.draw(st.binary(max_size=3)) + whole[last:]
        Path(trace.path).write_bytes(changed)
        torn = changed.startswith(whole) and b"\n" not in changed[len(whole) :]
        assert bool(trace.verify().faults) == (changed != whole and not torn)


def test_a_trace_that_came_with_a_clone_is_gone_on_with(trace: Trace, tmp_path: Path) -> None:
    trace.append(entry("elsewhere"))
    other = Trace(trace.root, FileHeads(str(tmp_path / "other")))
    other.append(entry("here"))
    assert other.verify().records == 2 and other.verify().faults == ()


def test_a_trace_that_was_removed_is_noted_in_the_new_one(trace: Trace) -> None:
    trace.append(entry("first"))
    os.unlink(trace.path)
    assert "its end was cut off" in trace.verify().faults[0].text
    trace.append(entry("second"))
    [(_, noted), _] = trace.records()
    assert noted["kind"] == "governance" and noted["metadata"]["event"] == "trace_broken"


@pytest.mark.parametrize("kind", ["link", "fifo", "folder", "linked folder", "no folder"])
def test_what_is_no_file_of_ours_is_neither_read_nor_written(
    trace: Trace, tmp_path: Path, kind: str
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine\n")
    if kind == "link":
        os.symlink(victim, trace.path)
    elif kind == "fifo":
        os.mkfifo(trace.path)
    elif kind == "folder":
        os.mkdir(trace.path)
    else:
        os.rmdir(tmp_path / ".orchestration")
        if kind == "linked folder":
            (tmp_path / "elsewhere").mkdir()
            os.symlink(tmp_path / "elsewhere", tmp_path / ".orchestration")
    for act in (trace.check, lambda: trace.append(entry())):
        with pytest.raises(TraceFailed, match="cannot be used"):
            act()
    assert victim.read_text() == "mine\n"
    assert not (tmp_path / "elsewhere/agent_trace.jsonl").exists()


def test_a_long_record_is_cut_and_a_full_disk_tears_nothing(trace: Trace) -> None:
    names = [f"{number}-" + "ä" * 2000 for number in range(400)]
    trace.append(TraceEntry(TraceKind.MUTATION, files=tuple(compare(n, b"", b"x") for n in names)))
    [(_, row)] = trace.records()
    assert len(row["files"]) + row["metadata"]["files_left_out"] == 400
    size = os.path.getsize(trace.path)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, before[1]))
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with pytest.raises(TraceFailed):
            trace.append(entry())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert os.path.getsize(trace.path) == size
    trace.append(entry())
    assert trace.verify().records == 2 and trace.verify().faults == ()


@pytest.mark.process
def test_eight_writers_lose_and_tear_nothing(trace: Trace, tmp_path: Path) -> None:
    writers = [start(tmp_path, str(number), 100) for number in range(8)]
    ids = [one for writer in writers for one in said(writer)]
    assert len(ids) == 800
    assert {row["id"] for _, row in trace.records()} == set(ids)
    assert trace.verify().records == 800 and trace.verify().faults == ()


@pytest.mark.process
def test_a_kill_loses_nothing_that_was_acknowledged(trace: Trace, tmp_path: Path) -> None:
    ids: list[str] = []
    for number in range(8):
        writer = start(tmp_path, str(number), 10_000)
        assert writer.stdout is not None
        ids += [writer.stdout.readline().strip() for _ in range(1 + 7 * number)]
        writer.send_signal(signal.SIGKILL)
        ids += said(writer)
    written = {row["id"] for _, row in trace.records()}
    assert set(ids) <= written and len(written) <= len(ids) + 8
    assert trace.verify().faults == () and trace.verify().records == len(written)


def test_the_revision_is_read_without_starting_git(tmp_path: Path) -> None:
    assert revision(str(tmp_path)) == ""
    env = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_SYSTEM": "/dev/null"}
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    repo, other = tmp_path / "repo", tmp_path / "other"

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", repo, *who, *words], env=env, check=True, capture_output=True, text=True
        ).stdout.strip()

    repo.mkdir()
    git("init", "-q")
    git("commit", "-q", "--allow-empty", "-m", "one")
    head = git("rev-parse", "HEAD")
    assert revision(str(repo)) == head
    git("worktree", "add", "-q", str(other))
    assert revision(str(other)) == head
    git("pack-refs", "--all")
    assert revision(str(repo)) == revision(str(other)) == head
    (repo / ".git/HEAD").write_text("ref: refs/../../../secret")
    (tmp_path / "secret").write_text("not a hash")
    assert revision(str(repo)) == ""


def test_json_is_one_line_each_whatever_is_in_it(trace: Trace) -> None:
    trace.append(entry("a\nb\u2028\x1b[31m\udcff"))
    [line] = Path(trace.path).read_text().splitlines()
    assert json.loads(line)["metadata"]["text"] == "a\nb\u2028\x1b[31m\udcff"
