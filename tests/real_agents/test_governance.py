"""Real agents in a governed repository: no write without an intent, and a trace that tells it all.

Their models are scripted; what a model was told of its call is what the program really sent it.
"""

from __future__ import annotations

import json
from contextlib import ExitStack, chdir
from pathlib import Path
from typing import Any

import pytest

from relay.features.confine import landlock
from relay.features.governance.mutation import content_hash
from tests.agents.installs import documented_hooks
from tests.e2e.wrapped import kill_session, relay, relay_json
from tests.real_agents.conftest import Binary
from tests.real_agents.governed import GREET, GovernedAgent, GovernedProject, governed
from tests.real_agents.model import Read, Say, ScriptedModel, Shell, Step, Tool, Write
from tests.real_agents.people import PATIENCE
from tests.real_agents.recipe import Options
from tests.real_agents.wrapped import Room
from tests.support import wait_until

pytestmark = pytest.mark.usefixtures("stop_broker")

#: The others, and what their recipes give them for a model.
MODELS = {"gemini": "gemini-2.5-pro", "qwen": "mock-model"}
#: What nobody can read beforehand: the kernel holds it to the intent, or it is found afterwards.
HELD = (
    (
        Shell("python3 x.py; echo $0 $PATH"),
        Shell("python3 -c \"open('src/secret.py', 'w')\""),
    )
    if landlock.version()
    else ()
)
HELD_LOG = [
    ("Ann", "mutation", "INT-001", "src/by-python"),
    ("Ann", "mutation", "INT-001"),
    ("Ann", "violation", "INT-001", "src/secret.py"),
]
#: A model whose Codex offers it one tool, JavaScript, by which it calls the others.
CODE_MODE = {"model": "gpt-6.1-sol"}

#: What Ann may do without a dialog of Claude Code's own.
ALLOWED = {"permissions": {"allow": ["Bash", "Write", "Edit", "Read", "Skill"]}}
SKILL = """\
---
name: made
description: Makes a file
allowed-tools: Bash(touch:*)
---
Use the skill so: !`touch by-a-skill`
"""


def js(tool: str, given: object) -> Step:
    """A call of Codex's tool from the JavaScript that its model writes."""
    return Tool("exec", {"input": f"text(await tools.{tool}({json.dumps(given)}))"})


def js_shell(command: str) -> Step:
    given = json.dumps({"cmd": command})
    return Tool("exec", {"input": f"text((await tools.exec_command({given})).output)"})


def patch(*lines: str) -> Step:
    return js("apply_patch", "\n".join(["*** Begin Patch", *lines, "*** End Patch", ""]))


def changed(old: str, new: str) -> Step:
    return patch("*** Update File: src/greet.py", "@@", f"-    return {old}", f"+    return {new}")


def test_a_claude_and_a_codex_work_by_intents(
    claude: Path, codex: Path, tmp_path: Path, model: ScriptedModel
) -> None:
    with governed(tmp_path, model) as project:
        skill = project.root / ".claude" / "skills" / "made" / "SKILL.md"
        skill.parent.mkdir(parents=True)
        skill.write_text(SKILL)
        ann = project.start("Ann", "claude", claude, Options(asks=False, settings=ALLOWED))
        bob = project.start("Bob", "codex", codex, Options(asks=False, settings=CODE_MODE))
        nothing_before_the_handshake(project, ann, bob)
        shaken_hands(project, ann, bob)
        inside_their_scopes(project, ann, bob)
        not_what_the_other_changed(project, ann, bob)
        one_after_the_other(project, ann, bob)
        no_commands_of_a_skill(project, ann)
        no_commands_of_a_folder(bob)
        not_without_its_session(project, bob)
        not_without_the_person(bob)
        the_story(project)


def test_a_claude_works_in_the_turn_in_which_it_selects_and_asks_its_person_once(
    claude: Path, tmp_path: Path, model: ScriptedModel
) -> None:
    with governed(tmp_path, model) as project:
        allowed = {"permissions": {"allow": ["Write"]}}  # for the rest it has a dialog of its own
        ann = project.start("Ann", "claude", claude, Options(asks=True, settings=allowed))
        new = str(project.root / "src" / "new.py")
        selects = Say("I greet people.\n\n@intent:select INT-001\n\n")
        assert not ann.does(selects, Write(new, "x = 1\n")).refusal
        assert project.file("src/new.py") == "x = 1\n"
        wait_until(lambda: ann.heard("<intent_context>"), PATIENCE, "the context")
        ann.rest()
        before = ann.begins(Shell("git push origin main"))
        wait_until(lambda: relay_json("items"), PATIENCE, "the question to the person")
        ann.wrapped.terminal.wait_for("relay is asked")
        [asked] = relay_json("items")
        relay("answer", asked["id"], "always")
        assert "failed to push" in ann.told(before).text  # it ran, without another dialog
        ann.rest()
        assert "failed to push" in ann.does(Shell("git push origin main")).text
        assert '- "git push origin main"' in project.file(".orchestration/active_intents.yaml")


def test_two_claudes_without_intents_are_told_of_each_others_changes(
    claude: Path, tmp_path: Path, model: ScriptedModel
) -> None:
    root = tmp_path / "project"
    (root / "src").mkdir(parents=True)
    (root / "relay.config.py").write_text('config = {"claims": "notice"}\n')
    (root / "src" / "greet.py").write_text(GREET)
    with ExitStack() as stack, chdir(root):
        relay("trust", str(root / "relay.config.py"))
        project = GovernedProject(tmp_path, Room(tmp_path, model, stack), model)
        ann = project.start("Ann", "claude", claude, Options(asks=False, settings=ALLOWED))
        bob = project.start("Bob", "claude", claude, Options(asks=False, settings=ALLOWED))
        append = Shell("echo '# more' >>src/greet.py")
        for agent in (ann, bob):
            agent.does(Read(str(root / "src" / "greet.py")))
        assert "relay: " not in ann.does(append, hold="ann works on").text
        wait_until(lambda: {"holds src/greet.py", None} == {*reasons()}, PATIENCE, "the claim")
        told = bob.does(append).text
        assert "Being changed by another agent" in told and "by Ann, begun" in told
        project.go_on("ann works on")
        ann.rest()
        assert "was changed by Bob" in ann.does(append).text
        assert project.file("src/greet.py") == GREET + "# more\n" * 3


def reasons() -> list[str | None]:
    return [row["reason"] for row in relay_json("agents")]


# opencode is governed in a headless turn: see test_personas.
@pytest.mark.parametrize("agent", MODELS)
def test_each_other_agent_works_by_intents(
    agent: str, binary_of: Binary, tmp_path: Path, model: ScriptedModel
) -> None:
    settings = documented_hooks() if agent == "gemini" else {}
    with governed(tmp_path, model) as project:
        ann = project.start("Ann", agent, binary_of(agent), Options(asks=False, settings=settings))
        src = project.root / "src"
        (project.root / "x.py").write_text(
            "open('src/by-python', 'w').write('x'); print('IN'); open('by-python', 'w')"
        )
        before, selected = ann.does_each(
            Write(str(src / "new.py"), "x = 1\n"), Shell("relay intent select INT-001")
        )
        # In another turn, for only its end tells of Gemini CLI's model.
        secret, new, stale, read, appended, *held = ann.does_each(
            Write(str(src / "secret.py"), "x"),
            Write(str(src / "new.py"), "x = 1\n"),
            Shell("echo '# Ann' >>src/greet.py"),
            Read(str(src / "greet.py")),
            Shell("echo '# Ann' >>src/greet.py"),
            *HELD,
        )
        assert before.reason == "INTENT_REQUIRED" and ann.heard("This project is governed")
        assert "<intent_context>" in selected.text and "<scope>src/**</scope>" in selected.text
        assert (secret.reason, stale.reason) == ("SCOPE_VIOLATION", "STALE_FILE")
        assert "hello" in read.text and not (new.refusal or appended.refusal)
        assert project.file("src/greet.py") == f"{GREET}# Ann\n" and project.file("src/new.py")
        if held:
            python, made = (one.text for one in held)
            assert "IN" in python and "Permission denied: 'by-python'" in python, python
            assert "/shell" not in python, python  # nothing of the script is left
            assert "does not allow: src/secret.py (made)" in made, made
            assert project.file("src/by-python") == "x" and not project.file("by-python")
        ann.wrapped.quit()
        assert [summary(row) for row in project.log()] == [
            ("Ann", "refusal", "INTENT_REQUIRED"),
            ("Ann", "selection", "INT-001"),
            ("Ann", "refusal", "INT-001", "SCOPE_VIOLATION"),
            ("Ann", "mutation", "INT-001", "src/new.py"),
            ("Ann", "refusal", "INT-001", "STALE_FILE"),
            ("Ann", "mutation", "INT-001", "src/greet.py"),
            *(HELD_LOG if held else []),
        ]
        relay("intent", "verify")
        changes = [row for row in project.log("mutation") if row["files"]]
        assert {contributor(row).get("model_id") for row in changes} == {MODELS[agent]}


def summary(row: dict[str, Any]) -> tuple[str, ...]:
    """A record of the trace in short: who, what, for which intent, why and where."""
    where = [file["path"] for file in row["files"]]
    why = row["metadata"].get("reason", "")
    return tuple(filter(None, [row["agent"], row["kind"], row["intent_id"], why, *where]))


def contributor(row: dict[str, Any]) -> dict[str, str]:
    """Who made the change that a record tells of, as Agent Trace words it."""
    [file, *_] = row["files"]
    found: dict[str, str] = file["conversations"][0]["contributor"]
    return found


def nothing_before_the_handshake(
    project: GovernedProject, ann: GovernedAgent, bob: GovernedAgent
) -> None:
    new = str(project.root / "src" / "new.py")
    for told in (
        ann.does(Write(new, "x = 1\n")),
        ann.does(Shell("echo 'x = 1' >src/new.py")),
        bob.does(patch("*** Add File: src/new.py", "+x = 1")),
        bob.does(js_shell("echo 'x = 1' >src/new.py")),
    ):
        assert told.reason == "INTENT_REQUIRED"
        assert any("relay intent select" in step for step in told.refusal["recovery"])
    assert not project.file("src/new.py")
    # They were told so at their start, and may read.
    for agent in (ann, bob):
        assert agent.heard("This project is governed")
    assert "hello" in ann.does(Read(str(project.root / "src" / "greet.py"))).text
    assert "hello" in bob.does(js_shell("cat src/greet.py")).text


def shaken_hands(project: GovernedProject, ann: GovernedAgent, bob: GovernedAgent) -> None:
    """One selects its intent in its words, the other in its shell."""
    ann.says("I greet people.\n\n@intent:select INT-001")
    wait_until(lambda: ann.heard("<intent_context>"), PATIENCE, "the context")
    ann.rest()
    assert ann.heard("<constraint>No &lt;b&gt;markup&lt;/b&gt; &amp; no emojis</constraint>")
    assert "status: IN_PROGRESS # nobody has begun" in project.file(
        ".orchestration/active_intents.yaml"
    )
    told = bob.does(js_shell("relay intent select INT-404; relay intent select INT-002"))
    assert "INT-404" in told.text and "INT-001" in told.text
    assert "<intent_context>" in told.text and "<scope>src/greet.py</scope>" in told.text


def inside_their_scopes(project: GovernedProject, ann: GovernedAgent, bob: GovernedAgent) -> None:
    root = project.root
    refused = [
        ann.does(Write(str(root / "docs" / "greet.md"), "x")),
        ann.does(Write(str(root / "src" / "secret.py"), "x")),
        ann.does(Shell("echo x >src/../docs/greet.md")),
        bob.does(patch("*** Add File: docs/greet.md", "+x", "*** Add File: src/other.py", "+x")),
    ]
    assert [told.reason for told in refused] == ["SCOPE_VIOLATION"] * len(refused)
    assert 'Intent "INT-001" is not authorized to write to' in refused[0].refusal["error"]
    outside = root.parent / "outside.txt"
    kept = [
        ann.does(Write(str(root / ".orchestration" / "more.md"), "x")),
        ann.does(Shell("echo 'active_intents: []' >.orchestration/active_intents.yaml")),
        bob.does(patch("*** Add File: .git/hooks/pre-commit", "+x")),
        bob.does(js_shell(f"echo x >{outside}")),
    ]
    assert [told.reason for told in kept] == [*["PROTECTED_FILE"] * 3, "SCOPE_VIOLATION"]
    assert not project.file("docs/greet.md") and not outside.exists()
    assert not ann.does(Write(str(root / "src" / "new.py"), "x = 1\n")).refusal
    assert not bob.does(patch("*** Add File: docs/greet.md", "+Hello")).refusal
    assert (project.file("src/new.py"), project.file("docs/greet.md")) == ("x = 1\n", "Hello\n")
    # Codex applies this one itself, and tells of it only beforehand.
    lines = ["*** Begin Patch", "*** Add File: more.md", "+More", "*** End Patch"]
    heredoc = "\n".join(["cd docs && apply_patch <<'EOF'", *lines, "EOF"])
    assert not bob.does(js_shell(heredoc)).refusal
    assert project.file("docs/more.md") == "More\n"


def not_what_the_other_changed(
    project: GovernedProject, ann: GovernedAgent, bob: GovernedAgent
) -> None:
    """Both have read the file. Who changes it first makes the other's reading out of date."""
    assert not bob.does(changed("'hello'", "'ciao'")).refusal
    stale = ann.does(Shell("echo '# Ann' >>src/greet.py"))
    assert stale.reason == "STALE_FILE" and "src/greet.py" in stale.refusal["error"]
    ann.does(Read(str(project.root / "src" / "greet.py")))
    edit = {"file_path": str(project.root / "src" / "greet.py"), "old_string": "ciao"}
    assert not ann.does(Tool("Edit", {**edit, "new_string": "moin"})).refusal
    assert bob.does(changed("'moin'", "'salut'")).reason == "STALE_FILE"
    assert "moin" in project.file("src/greet.py")
    assert "moin" in bob.does(js_shell("cat src/greet.py")).text
    assert not bob.does(changed("'moin'", "'salut'")).refusal
    assert project.file("src/greet.py") == GREET.replace("hello", "salut")


def one_after_the_other(project: GovernedProject, ann: GovernedAgent, bob: GovernedAgent) -> None:
    """What one has changed in a turn that still runs is its own until the turn is over."""
    ann.does(Read(str(project.root / "src" / "greet.py")))
    edit = {"file_path": str(project.root / "src" / "greet.py"), "old_string": "salut"}
    assert not ann.does(Tool("Edit", {**edit, "new_string": "hej"}), hold="ann works on").refusal
    bob.does(js_shell("cat src/greet.py"))
    leased = bob.does(changed("'hej'", "'hola'"))
    assert leased.reason == "FILE_LEASED" and "Ann" in leased.refusal["error"]
    project.go_on("ann works on")
    ann.rest()
    assert not bob.does(changed("'hej'", "'hola'")).refusal
    assert project.file("src/greet.py") == GREET.replace("hello", "hola")


def no_commands_of_a_skill(project: GovernedProject, ann: GovernedAgent) -> None:
    """Claude Code would run them without asking any hook."""
    ann.begins(Tool("Skill", {"skill": "made"}))
    wait_until(lambda: ann.heard("Use the skill so"), PATIENCE, "the skill")
    ann.rest()
    assert not project.file("by-a-skill")


def no_commands_of_a_folder(bob: GovernedAgent) -> None:
    """Git would take one that is laid out so for a repository, and run what it names."""
    told = bob.does(js_shell('git status --short; echo "$GIT_CONFIG_PARAMETERS"')).text
    assert "safe.bareRepository=explicit" in told and "src/" in told


def not_without_its_session(project: GovernedProject, bob: GovernedAgent) -> None:
    """Killed while the person is asked, it lets nothing through; the next one knows the intent."""
    before = bob.begins(js_shell("sudo touch docs/sudo.md"))
    wait_until(lambda: relay_json("items"), PATIENCE, "the question to the person")
    kill_session(bob.wrapped.terminal)
    assert "was not run" in bob.told(before).text
    bob.rest()
    assert not relay_json("items") and not project.file("docs/sudo.md")
    assert not bob.does(js_shell("echo Last >docs/last.md")).refusal


def not_without_the_person(bob: GovernedAgent) -> None:
    before = bob.begins(js_shell("git push --force origin main"))
    wait_until(lambda: relay_json("items"), PATIENCE, "the question to the person")
    [asked] = relay_json("items")
    relay("answer", asked["id"], "no", "--note", "not on a Monday")
    told = bob.told(before)
    assert told.reason == "HUMAN_REJECTED" and "not on a Monday" in told.refusal["error"]
    bob.rest()


def the_story(project: GovernedProject) -> None:
    """The trace tells all of it in order, and nothing else."""
    assert [summary(row) for row in project.log()] == [
        *[("Ann", "refusal", "INTENT_REQUIRED")] * 2,
        *[("Bob", "refusal", "INTENT_REQUIRED")] * 2,
        ("Ann", "selection", "INT-001"),
        ("Bob", "selection", "INT-002"),
        *[("Ann", "refusal", "INT-001", "SCOPE_VIOLATION")] * 3,
        ("Bob", "refusal", "INT-002", "SCOPE_VIOLATION"),
        *[("Ann", "refusal", "INT-001", "PROTECTED_FILE")] * 2,
        ("Bob", "refusal", "INT-002", "PROTECTED_FILE"),
        ("Bob", "refusal", "INT-002", "SCOPE_VIOLATION"),
        ("Ann", "mutation", "INT-001", "src/new.py"),
        ("Bob", "mutation", "INT-002", "docs/greet.md"),
        ("Bob", "mutation", "INT-002", "docs/more.md"),
        ("Bob", "mutation", "INT-002", "src/greet.py"),
        ("Ann", "refusal", "INT-001", "STALE_FILE"),
        ("Ann", "mutation", "INT-001", "src/greet.py"),
        ("Bob", "refusal", "INT-002", "STALE_FILE"),
        ("Bob", "mutation", "INT-002", "src/greet.py"),
        ("Ann", "mutation", "INT-001", "src/greet.py"),
        ("Bob", "refusal", "INT-002", "FILE_LEASED"),
        ("Bob", "mutation", "INT-002", "src/greet.py"),
        ("Bob", "mutation", "INT-002", "docs/last.md"),
        ("Bob", "approval", "INT-002"),
        ("Bob", "refusal", "INT-002", "HUMAN_REJECTED"),
    ]
    relay("intent", "verify")
    models = {(row["agent"], contributor(row)["model_id"]) for row in project.log("mutation")}
    assert models == {("Ann", "claude-sonnet-4-5"), ("Bob", CODE_MODE["model"])}
    # What one change left is what the next one found.
    changes = [
        file
        for row in project.log("mutation")
        for file in row["files"]
        if file["path"] == "src/greet.py"
    ]
    assert [one["before"] for one in changes[1:]] == [one["after"] for one in changes[:-1]]
    assert changes[-1]["after"] == content_hash(project.file("src/greet.py").encode())
    assert "`src/greet.py`" in project.file(".orchestration/intent_map.md")
