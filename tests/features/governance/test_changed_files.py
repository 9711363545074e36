"""What a call has changed that nobody could read beforehand, by real files."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from relay.agents.tool_uses import ToolUse, UseKind
from relay.features.governance import call_plan, changed_files
from relay.features.governance.call_plan import GateCall, read_state, read_states, tree
from relay.features.governance.changed_files import Survey, differences, survey
from relay.features.governance.intents import MAP_FILE
from tests.features.governance.test_gate import Agent, Project


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    """With a scope of src but src/secret, files in and beside it, and an ignored one."""
    made = Project(tmp_path)
    for name in ("docs", "src/secret", ".git"):
        (made.root / name).mkdir()
    made.write("src/a.py", "a = 1\n")
    made.write("docs/x.md", "x\n")
    yield made
    made.store.close()


def shell(agent: Agent, command: str) -> GateCall:
    call = agent.call(ToolUse(UseKind.EXECUTE, command=command), "Bash")
    return replace(call, lasts=command.endswith("&"))


def done(project: Project, agent: Agent, command: str, line: str = "") -> str:
    """Have a call of the gate's go on, and bash do what it does; what is told of it."""
    call = shell(agent, command)
    assert asyncio.run(agent.gate.before(call)) is None
    subprocess.run(["bash", "-c", line or command], cwd=project.root, check=True)
    return asyncio.run(agent.gate.after(call))


def paths(project: Project, kind: str) -> list[list[str]]:
    """The files of each record of a kind."""
    return [[one["path"] for one in row["files"]] for row in project.told if row["kind"] == kind]


def test_what_a_build_makes_is_known(project: Project) -> None:
    bob = project.agent("Bob").select()
    told = done(project, bob, "make", "echo b >src/built.txt; echo 'a = 2' >src/a.py; touch src/c")
    assert told == ""
    assert paths(project, "mutation") == [["src/a.py", "src/built.txt", "src/c"]]
    changed, made, _ = project.told[-1]["files"]
    assert (made["before"], changed["mutation_class"]) == ("absent", "INTENT_EVOLUTION")
    assert changed["conversations"][0]["ranges"][0]["start_line"] == 1
    assert "src/built.txt" in (project.root / ".orchestration" / MAP_FILE).read_text()
    done(project, bob, "make", "touch src/a.py; rm src/c; chmod +x src/built.txt")
    assert paths(project, "mutation")[1] == ["src/built.txt", "src/c"]
    assert project.told[-1]["metadata"]["modes"] == ["src/built.txt"]
    done(project, bob, "make", "true")
    assert paths(project, "mutation")[2] == []


def test_what_the_intent_does_not_allow_is_a_violation(project: Project) -> None:
    bob = project.agent("Bob").select()
    line = "echo y >docs/x.md; echo k >src/secret/k; echo {} >src/.mcp.json; echo b >src/b"
    told = done(project, bob, "make", line)
    for words in ("docs/x.md (changed)", "src/secret/k (made)", "src/.mcp.json (made)"):
        assert words in told
    assert "src/b" not in told and "Authorized scope: [src/**, !src/secret/**]" in told
    assert paths(project, "mutation") == [["src/b"]]
    assert paths(project, "violation") == [["docs/x.md", "src/.mcp.json", "src/secret/k"]]
    assert project.told[-1]["metadata"]["error"] == told
    assert done(project, bob, "make", "true") == ""


def test_what_a_person_has_agreed_to_is_no_violation(project: Project) -> None:
    bob = project.agent("Bob").select()
    assert done(project, bob, "./deploy.sh", "echo q > docs/x.md") == ""
    assert project.person.asked and paths(project, "mutation") == [["docs/x.md"]]
    assert project.told[-1]["metadata"]["outside"] == ["docs/x.md"]


def test_what_another_call_tells_of_is_not_told_again(project: Project) -> None:
    bob, eve = project.agent("Bob").select(), project.agent("Eve").select()
    eve.reads("src/a.py")
    make = shell(bob, "make")
    assert asyncio.run(bob.gate.before(make)) is None
    assert eve.writes("src/a.py") is None  # it holds the file
    project.write("src/a.py", "a = 2\n")
    bob.has_written("src/n.py", "n = 1\n")
    project.write("src/built", "b\n")
    asyncio.run(bob.gate.after(make))
    assert paths(project, "mutation") == [["src/n.py"], ["src/built"]]


def test_what_goes_on_in_the_background_is_told_at_the_turns_end(project: Project) -> None:
    bob = project.agent("Bob").select()
    done(project, bob, "make &", "true")
    project.write("docs/x.md", "later\n")
    assert "docs/x.md (changed)" in asyncio.run(bob.gate.turn_ended())
    assert paths(project, "violation") == [["docs/x.md"]]
    project.write("docs/x.md", "by a person\n")
    assert asyncio.run(bob.gate.turn_ended()) == ""


def test_what_git_ignores_is_named_alone(project: Project) -> None:
    subprocess.run(["git", "init", "-q", "."], cwd=project.root, check=True)
    project.write(".gitignore", "*.o\n")
    bob = project.agent("Bob").select()
    assert done(project, bob, "make", "touch src/a.o docs/x.o; mkdir target; touch target/t") == ""
    assert paths(project, "mutation") == [[]]
    assert project.told[-1]["metadata"]["ignored_by_git"] == ["docs/x.o", "src/a.o"]


def test_a_file_that_a_script_has_changed_is_to_be_read_again(project: Project) -> None:
    bob = project.agent("Bob").select()
    bob.reads("src/a.py")
    done(project, bob, "make", "echo 'a = 3' >src/a.py")
    refusal = bob.writes("src/a.py")
    assert refusal is not None and refusal.reason == "STALE_FILE"
    asyncio.run(bob.gate.turn_ended())
    assert len(paths(project, "mutation")) == 1


def test_too_many_files_are_said_and_not_compared(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changed_files, "FILES_MAX", 1)
    bob = project.agent("Bob").select()
    assert done(project, bob, "make", "echo y >docs/x.md") == ""
    assert project.told[-1]["metadata"]["text"] == "too many files to compare"


def changed(before: Survey) -> list[str]:
    after = before.again()
    assert after is not None
    return [os.path.relpath(one.path, before.root) for one in differences(before, after)]


def test_beside_the_places_of_a_held_call_only_modes_count(project: Project) -> None:
    root = str(project.root)
    before = survey(root, [f"{root}/src", f"{root}/src/secret"])
    assert before is not None and f"{root}/src/a.py" in before.states
    project.write("docs/x.md", "by the person\n")
    project.write("src/a.py", "a = 1\n\n")
    assert changed(before) == ["src/a.py"]
    (project.root / "docs" / "x.md").chmod(0o755)
    assert changed(before) == ["docs/x.md", "src/a.py"]


def test_a_time_that_was_set_back_hides_nothing(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changed_files, "_READ_FILES", 0)
    root, path = str(project.root), project.root / "src" / "a.py"
    before, times = survey(root, [f"{root}/src"]), path.stat()
    assert before is not None and not before.states
    path.write_text("a = 9\n")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert changed(before) == ["src/a.py"]


# -- What a file is now.


def test_what_is_no_file_is_told_apart(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    os.mkfifo(tmp_path / "fifo")
    assert read_state(str(tmp_path / "nothing")).is_absent
    assert read_state(str(tmp_path)).is_folder
    assert read_state(str(tmp_path / "fifo")).odd == "it is not a regular file"
    first = read_state(str(tmp_path / "link"))
    assert first.hash and first.data is None
    (tmp_path / "link").unlink()
    (tmp_path / "link").symlink_to("elsewhere")
    assert read_state(str(tmp_path / "link")).hash != first.hash


def test_a_large_file_is_told_by_its_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "large"
    file.write_bytes(b"a" * 3000)
    whole = read_state(str(file))
    assert whole.data == b"a" * 3000
    monkeypatch.setattr(call_plan, "LINES_MAX", 1000)
    hashed = read_state(str(file))
    assert hashed.hash == whole.hash and hashed.data is None
    monkeypatch.setattr(call_plan, "HASHED_MAX", 2000)
    monkeypatch.setattr(call_plan, "_END", 100)
    before = read_state(str(file))
    with open(file, "r+b") as out:
        out.write(b"b")
    os.utime(file, ns=(0, 0))
    assert read_state(str(file)).hash != before.hash


def test_one_call_has_only_so_much_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        (tmp_path / name).write_text("text")
    monkeypatch.setattr(call_plan, "CALL_MAX", 8)
    states = read_states(str(tmp_path / name) for name in "abc")
    assert [bool(one.odd) for one in states.values()] == [False, False, True]


def test_a_folder_is_listed_without_following_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in/side").mkdir(parents=True)
    (tmp_path / "in/side/file").write_text("")
    (tmp_path / "in/up").symlink_to("..")
    assert sorted(tree(str(tmp_path / "in")) or ()) == ["side", "side/file", "up"]
    monkeypatch.setattr(call_plan, "TREE_MAX", 2)
    assert tree(str(tmp_path / "in")) is None
