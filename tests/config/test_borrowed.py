"""What an agent that writes where it works tries against a person's guards: another file in the
configuration's place, another program in a guard's, another folder to start in."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from relay.cli import config_verbs, hooks_verbs
from relay.config.load import load_for_session
from relay.config.manifest import notices
from relay.config.trust import CONFIG_NAME
from relay.core.paths import Home
from relay.hooks import run_programs
from tests.cli.verbs import Verb, printed_json, verbs_of
from tests.config.trusted import trusted

GOOD = "#!/bin/sh\necho good >&2; exit 2\n"
EVIL = "#!/bin/sh\ntouch EVIL\nexit 0\n"

_START = "from relay.__main__ import main; sys.exit(main(sys.argv[1:]))"

Ask = Callable[..., dict[str, Any]]


@pytest.fixture
def home(isolated_home: Path) -> Home:
    return Home(str(isolated_home))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a program that refuses every tool."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    folder = tmp_path / "project"
    (folder / ".git").mkdir(parents=True)
    script(folder / "check.sh")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Ask:
    """What ``relay hooks test`` says of a tool call, from a folder."""
    verb: Verb = verbs_of(hooks_verbs)

    def run(folder: Path) -> dict[str, Any]:
        capsys.readouterr()
        os.chdir(folder)
        verb("hooks", "test", "before_tool", "--input", '{"tool_name": "Bash"}', "--json")
        assert not list(tmp_path.rglob("EVIL"))
        said: dict[str, Any] = printed_json(capsys)
        return said

    return run


def script(path: Path, text: str = GOOD) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def guard(folder: Path, home: Home, command: object = ["./check.sh"], **options: object) -> Path:
    """A trusted configuration in ``folder`` whose guard is ``command``."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / CONFIG_NAME
    path.write_text(f"hooks = {{'before_tool': { {'command': command, **options}!r}}}\n")
    trusted(home, path)
    return path


def test_a_link_to_a_trusted_file_does_not_lend_it_to_another_folder(
    home: Home, project: Path, tmp_path: Path
) -> None:
    config = guard(project, home)
    other = tmp_path / "other"
    other.mkdir()
    script(other / "check.sh", EVIL)
    (other / CONFIG_NAME).symlink_to(config)
    loaded = load_for_session(home, str(other))
    assert loaded.files == () and loaded.untrusted == str(other / CONFIG_NAME)


@pytest.mark.parametrize("repository", [False, True], ids=["folder", "repository"])
def test_a_program_is_the_one_beside_the_configuration_wherever_the_agent_works(
    home: Home, project: Path, ask: Ask, repository: bool
) -> None:
    guard(project, home)
    vendored = project / "vendor" / "x"
    script(vendored / "check.sh", EVIL)
    if repository:
        (vendored / ".git").mkdir()
    assert ask(vendored)["reason"] == "good"


#: What a list runs that is trusted with its file.
LISTS = [
    pytest.param({"command": ["./check.sh", "--strict"]}, id="program"),
    pytest.param({"command": ["sh", "check.sh"]}, id="script"),
    pytest.param({"command": ["timeout", "9", "./check.sh"]}, id="behind another program"),
    pytest.param({"command": ["env", "sh", "-eu", "-o", "noglob", "check.sh"]}, id="options"),
    pytest.param({"command": ["tools/../check.sh"]}, id="by a detour"),
    pytest.param({"command": ["PROJECT/check.sh"]}, id="absolute"),
    pytest.param({"command": ["../check.sh"], "cwd": "tools"}, id="seen from cwd"),
    pytest.param({"command": "sh PROJECT/check.sh", "files": ["check.sh"]}, id="listed for a line"),
]


def configured(project: Path, hook: object) -> dict[str, Any]:
    options: dict[str, Any] = json.loads(json.dumps(hook).replace("PROJECT", str(project)))
    return options


@pytest.mark.parametrize("hook", LISTS)
@pytest.mark.parametrize("how", ["written", "removed"])
def test_a_changed_program_keeps_the_gate_shut_at_the_next_start(
    home: Home, project: Path, ask: Ask, hook: object, how: str
) -> None:
    deep = project / "tools"
    script(deep / "check.sh", EVIL)
    config = guard(project, home, **configured(project, hook), on_failure="allow")
    assert ask(deep)["reason"] == "good"
    change(project / "check.sh", how)
    loaded = load_for_session(home, str(deep))
    assert loaded.files == () and loaded.untrusted == str(config)
    assert loaded.unguarded.startswith(f"{project / 'check.sh'} has changed since you trusted")
    assert [*loaded.not_applied] == notices(home, str(deep)) == [loaded.unguarded]


@pytest.mark.parametrize("hook", LISTS)
@pytest.mark.parametrize("how", ["written", "removed"])
def test_a_program_that_is_changed_while_the_agent_runs_is_not_run(
    home: Home, project: Path, hook: object, how: str
) -> None:
    deep = project / "tools"
    script(deep / "check.sh", EVIL)
    config = guard(project, home, **configured(project, hook), on_failure="allow")
    loaded = load_for_session(home, str(deep))
    change(project / "check.sh", how)
    [command] = loaded.registry.commands()
    assert run_programs.refused(command) == (
        f"{project / 'check.sh'} is not as it was when {config} was trusted. Read it, then:"
        f" relay trust {config}, and start this agent again"
    )


def change(path: Path, how: str) -> None:
    if how == "written":
        path.write_text(EVIL)
    else:
        path.unlink()


@pytest.mark.parametrize("command", [["./none.sh"], ["sh", "none.sh"], ["sh", "-e", "./none.sh"]])
@pytest.mark.parametrize("where", [".", "vendored"])
def test_a_program_that_appears_later_is_not_run(
    home: Home, project: Path, ask: Ask, command: object, where: str
) -> None:
    guard(project, home, command)
    script(project / where / "none.sh", EVIL)
    said = ask(project / where)
    assert said["decision"] == "deny" and "was not there" in said["reason"]


def test_what_a_command_works_on_is_no_program(home: Home, project: Path, ask: Ask) -> None:
    deep = project / "deep"
    for folder in (project, deep):
        folder.mkdir(exist_ok=True)
        (folder / "notes.md").write_text(f"of {folder.name}")
    script(project / "check.sh", '#!/bin/sh\ncat "$1" >&2; exit 2\n')
    guard(project, home, ["./check.sh", "notes.md"])
    (project / "notes.md").write_text("changed")
    assert ask(deep)["reason"] == "of deep"


@pytest.mark.parametrize("hook", [{"command": "./check.sh"}, {"command": ["sh", "-c", "./a b"]}])
def test_a_line_for_a_shell_is_not_read_and_relay_trust_says_so(
    home: Home, project: Path, hook: object, capsys: pytest.CaptureFixture[str]
) -> None:
    config = project / CONFIG_NAME
    config.write_text(f"hooks = {{'before_tool': {hook!r}}}\n")
    assert verbs_of(config_verbs)("trust", "--json") == 0
    record = printed_json(capsys)
    assert record["programs"] == {}
    assert "does not notice when the files that it runs change" in record["problems"][-1]


def test_relay_trust_says_what_has_changed(
    home: Home, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = guard(project, home)
    script(project / "check.sh", EVIL)
    relay = verbs_of(config_verbs)
    for words, trusted_now in (("--show",), False), ((), True), ((), True):
        assert relay("trust", *words, "--json") == 0
        record = printed_json(capsys)
        assert record["trusted"] is trusted_now
    assert record["changed"] == []
    config.write_text(config.read_text() + "\n")
    script(project / "check.sh")
    assert relay("trust") == 0
    changed = re.findall("^changed +(.*)$", capsys.readouterr().out, re.M)
    assert changed == [str(config), str(project / "check.sh")]


def test_programs_are_found_by_the_persons_path_and_never_where_agents_work(
    home: Home, project: Path, ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script(tmp_path / "bin" / "guard")
    for folder in (project, project / "node_modules" / ".bin", tmp_path / "late"):
        script(folder / "guard", EVIL)
    usual = os.environ["PATH"]
    mine = f".::{project}/node_modules/.bin:{tmp_path / 'bin'}:{usual}"
    monkeypatch.setenv("PATH", mine)
    guard(project, home, ["guard"])
    assert ask(project)["reason"] == "good"
    monkeypatch.setenv("PATH", f"{tmp_path / 'late'}:{mine}")  # as an agent starts relay
    assert ask(project)["reason"] == "good"


@pytest.mark.parametrize("command", ["~/bin/mine.sh", "../home/bin/mine.sh"])
def test_a_program_outside_of_the_project_is_seen_from_the_configuration(
    home: Home,
    project: Path,
    ask: Ask,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    script(tmp_path / "home" / "bin" / "mine.sh")
    script(project / "home" / "bin" / "mine.sh", EVIL)
    guard(project, home, [command])
    assert ask(project / "home")["reason"] == "good"


def test_a_link_to_a_program_of_the_system_cannot_be_turned_elsewhere(
    home: Home, project: Path, ask: Ask
) -> None:
    (project / "sh").symlink_to("/bin/sh")
    guard(project, home, ["./sh", "check.sh"])
    assert ask(project)["reason"] == "good"
    script(project / "sh", EVIL)
    assert ask(project)["decision"] == "deny"


def test_no_nearer_file_hides_a_trusted_one(
    home: Home, project: Path, ask: Ask, tmp_path: Path
) -> None:
    own = tmp_path / "xdg" / "relay"
    script(own / "mine.sh", "#!/bin/sh\necho mine >&2; exit 2\n")
    guard(own, home, ["./mine.sh"])
    (project / CONFIG_NAME).write_text("patterns = {}\n")
    assert ask(project)["reason"] == "mine"  # a clone's own file is not trusted
    guard(project, home)
    assert ask(project)["reason"] == "mine\ngood"  # both apply
    deep = project / "a"
    (deep / ".git").mkdir(parents=True)
    (deep / CONFIG_NAME).write_text("patterns = {}\n")
    assert ask(deep)["reason"] == "mine\ngood"
    other = tmp_path / "other.py"
    other.write_text("patterns = {}\n")
    trusted(home, other)
    loaded = load_for_session(home, str(deep), str(other))
    assert loaded.files == (str(own / CONFIG_NAME), str(project / CONFIG_NAME), str(other))


def test_a_nearer_file_cannot_end_the_sequence_before_another_ones_guard(
    home: Home, project: Path, ask: Ask, tmp_path: Path
) -> None:
    own = tmp_path / "xdg" / "relay"
    script(own / "mine.sh")
    guard(own, home, ["./mine.sh"])
    config = project / CONFIG_NAME
    config.write_text(
        "hooks = {'before_tool': [{'handler': lambda: {'stop': True}, 'sequential': True,"
        " 'priority': 9}, lambda: {'deny': 'ended by the first'}]}\n"
    )
    trusted(home, config)
    assert ask(project)["reason"] == "good"


def test_the_nearest_handlers_of_a_pattern_and_settings_count(
    home: Home, project: Path, tmp_path: Path
) -> None:
    own = tmp_path / "xdg" / "relay" / CONFIG_NAME
    own.parent.mkdir(parents=True)
    own.write_text(
        "def far(): ...\n"
        "config = {'timeout': 7, 'idle_seconds': 8}\n"
        "patterns = {'deploy': far, 'deploy:prod': far, 'who': far}\n"
        "hooks = {'idle': far}\n"
    )
    near = project / CONFIG_NAME
    near.write_text(
        "def near(): ...\n"
        "config = {'timeout': 9}\npatterns = {'deploy': near}\nhooks = {'idle': near}\n"
    )
    for path in (own, near):
        trusted(home, path)
    loaded = load_for_session(home, str(project))
    found = {f"{p.namespace}:{p.target}": p.callee.name for p in loaded.registry.patterns()}
    assert {key: name.split()[1] for key, name in found.items()} == {
        "deploy:*": "near",
        "deploy:prod": "far",
        "who:*": "far",
    }
    assert len(loaded.registry.all_hooks()) == 2
    assert (loaded.settings.handler_timeout, loaded.settings.idle_seconds) == (9.0, 8.0)
    assert loaded.origins == {"timeout": str(near), "idle_seconds": str(own)}


def test_a_trusted_hook_file_that_is_changed_keeps_its_gate_shut(
    home: Home, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = project / ".claude" / "settings.json"
    settings.parent.mkdir()
    hook = {"type": "command", "command": "${CLAUDE_PROJECT_DIR}/check.sh", "args": []}
    settings.write_text(json.dumps({"hooks": {"PreToolUse": [{"hooks": [hook]}]}}))
    (project / CONFIG_NAME).write_text("config = {'hook_files': ['.claude/settings.json']}\n")
    trusted(home, project / CONFIG_NAME)
    trust = verbs_of(config_verbs)
    assert trust("trust", str(settings), "--json") == 0
    assert list(printed_json(capsys)["programs"]) == [str(project / "check.sh")]
    (project / "check.sh").write_text(EVIL)
    assert str(settings) in load_for_session(home, str(project)).unguarded
    script(project / "check.sh")
    assert not load_for_session(home, str(project)).unguarded
    settings.write_text("{}")
    assert str(settings) in load_for_session(home, str(project)).unguarded
    settings.unlink()
    assert str(settings) in load_for_session(home, str(project)).unguarded


@pytest.mark.parametrize("which", ["own", "project", "hook file"])
def test_turning_the_folder_of_a_trusted_file_into_a_link_opens_no_gate(
    home: Home, project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    folder = {"own": tmp_path / "xdg" / "relay", "project": project, "hook file": project / "h"}
    turned = folder[which]
    file = turned / CONFIG_NAME
    if which == "hook file":
        (project / CONFIG_NAME).write_text("config = {'hook_files': ['h/hooks.json']}\n")
        trusted(home, project / CONFIG_NAME)
        turned.mkdir()
        file = turned / "hooks.json"
        hook = {"type": "command", "command": "../check.sh"}
        file.write_text(json.dumps({"hooks": {"PreToolUse": [{"hooks": [hook]}]}}))
        assert verbs_of(config_verbs)("trust", str(file)) == 0
    else:
        script(turned / "check.sh")
        guard(turned, home)
    # As a shell that was started there names it.
    monkeypatch.setenv("PWD", str(project))
    where = Path(shutil.move(turned, tmp_path / "moved"))
    turned.symlink_to(where)
    assert str(file) in load_for_session(home, os.path.realpath(project)).unguarded
    assert any(f"revoke {file}" in one for one in notices(home, os.path.realpath(project)))
    assert verbs_of(config_verbs)("trust", "--revoke", str(file)) == 0
    assert not load_for_session(home, os.path.realpath(project)).unguarded


def test_the_project_of_a_hook_file_is_its_own_wherever_the_agent_works(
    home: Home, project: Path, ask: Ask
) -> None:
    settings = project / ".claude" / "settings.json"
    settings.parent.mkdir()
    hook = {"type": "command", "command": "$CLAUDE_PROJECT_DIR/check.sh"}
    settings.write_text(json.dumps({"hooks": {"PreToolUse": [{"hooks": [hook]}]}}))
    (project / CONFIG_NAME).write_text("config = {'hook_files': ['.claude/settings.json']}\n")
    trusted(home, project / CONFIG_NAME)
    assert verbs_of(config_verbs)("trust", str(settings)) == 0
    script(project / "vendored" / "check.sh", EVIL)
    assert ask(project / "vendored")["reason"] == "good"


@pytest.mark.parametrize("path", [".", "/nowhere:", "PROJECT", "PROJECT/src"])
def test_relay_imports_nothing_from_where_agents_work(
    home: Home, project: Path, tmp_path: Path, path: str
) -> None:
    evil = f"open({str(tmp_path / 'EVIL')!r}, 'w')\nraise SystemExit\n"
    for folder in (project, project / "src"):
        folder.mkdir(exist_ok=True)
        for name in ("json", "asyncio", "sitecustomize", "guards"):
            (folder / f"{name}.py").write_text(evil)
    config = project / CONFIG_NAME
    config.write_text("import guards\n")
    run = [sys.executable, "-S", "-P", "-c", f"import sys; sys.path[1:1] = {sys.path!r}; {_START}"]
    env = {**os.environ, "PYTHONPATH": path.replace("PROJECT", str(project))}
    for verb in (["trust"], ["wrap", "--", "sh", "-c", "exec sleep 1"]):
        done = subprocess.run([*run, *verb], cwd=project, env=env, capture_output=True, text=True)
        assert "Traceback" not in done.stderr
        assert done.returncode == (2 if verb == ["trust"] else 0)
        if verb == ["trust"]:
            assert "it imports 'guards', which is not installed here" in done.stderr
        assert not (tmp_path / "EVIL").exists()


def test_every_start_says_what_is_not_applied(home: Home, project: Path, tmp_path: Path) -> None:
    guard(project, home)
    deep = project / "clone"
    (deep / ".git").mkdir(parents=True)
    (deep / CONFIG_NAME).write_text("x = 1\n")
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-P", "-m", "relay", "wrap", "--", "true"],
            cwd=deep,
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        )
        [line] = done.stderr.splitlines()
        assert line.startswith(f"relay: {deep / CONFIG_NAME} is not trusted")
        assert done.returncode == 0
