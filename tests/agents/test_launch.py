"""How agents are started: one table for all that relay knows; profiles and the primer."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import relay
from relay.agents.base import AgentStart
from relay.agents.gemini import launch
from relay.agents.installed import version_of
from relay.agents.known_agents import HOOK_CODECS, answers_once, make_adapter, ungated, untold
from relay.agents.launch import (
    KNOWN_AS_MAX,
    MODULES,
    PLANNERS,
    PRIMER_MAX,
    Primer,
    plan,
    takes_primer,
    wants_tcp,
)
from relay.agents.profile import ProfileError, parse_profile
from relay.hooks.events import TOOL_CALL, HookEventName
from tests.agents.installs import TOKEN, TOLD, everything, install, oldest, run_of, start


@pytest.mark.parametrize(
    ("profile", "words", "started", "headless"),
    [
        ("told_by: '--system {text}'", "-x", ["--system", "TOLD", "-x"], False),
        ("told_by: --read {file}", "", ["--read", "FILE"], False),
        ("told_by: -s {text}\nconverses_with: [chat]", "-m x chat -c", None, False),
        ("told_by: -s {text}\nconverses_with: [chat]", "-m x hello", ["-m", "x", "hello"], True),
        ("told_by: -s {text}\nanswers_once: [-p, '--print']", "--print=x", ["--print=x"], True),
        ("told_by: -s {text}", "-s mine", ["-s", "mine"], False),
        ("answers_once: [ls, -p]", "ls", ["ls"], True),
        ("answers_once: [ls, -p]", "show ls -- -p", ["show", "ls", "--", "-p"], False),
        ("enter: x", "-x", ["-x"], False),
    ],
)
def test_a_profile_says_how_a_program_is_told_and_when_it_is_no_conversation(
    tmp_path: Path, profile: str, words: str, started: list[str] | None, headless: bool
) -> None:
    folder = tmp_path / "profiles"
    folder.mkdir(mode=0o700)
    (folder / "chatty.yaml").write_text(profile)
    (folder / "chatty.yaml").chmod(0o600)
    parse_profile(profile, "chatty.yaml")  # the two readers agree
    run = run_of("Al", token="t", port=None, folder=str(tmp_path / "run"), profiles=str(folder))
    planned = plan(["chatty", *words.split()], {}, run)
    told = [word for word in planned.argv if "Your name here is Al" in word]
    file = str(tmp_path / "run" / "told" / "relay-primer.md")
    shown = ["TOLD" if word in told else word.replace(file, "FILE") for word in planned.argv[1:]]
    assert shown == (started or ["-m", "x", "chat", "-s", "TOLD", "-c"])
    assert answers_once("chatty", planned.data) == headless
    assert ("FILE" in shown) == Path(file).exists()


def test_a_program_that_looks_in_a_folder_for_what_it_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "profiles"
    folder.mkdir(mode=0o700)
    (folder / "chatty.yaml").write_text("told_by: 'LOOK_IN={folder}/.instructions/AGENTS.md'")
    (folder / "chatty.yaml").chmod(0o600)
    run = run_of("Al", token="t", port=None, folder=str(tmp_path), profiles=str(folder))
    planned = plan(["chatty"], {}, run)
    assert planned.argv == ["chatty"] and list(planned.env) == ["LOOK_IN"]
    assert (
        "Your name here is Al"
        in Path(planned.env["LOOK_IN"], ".instructions", "AGENTS.md").read_text()
    )
    parse_profile("told_by: 'LOOK_IN={folder}/.instructions/AGENTS.md'", "chatty.yaml")
    with pytest.raises(ProfileError):
        parse_profile("told_by: 'LOOK_IN={folder}/../AGENTS.md'", "chatty.yaml")
    assert plan(["chatty"], {"LOOK_IN": "/theirs"}, run).env == {}


def test_a_profile_that_others_can_write_to_is_not_asked_at_the_start(tmp_path: Path) -> None:
    folder = tmp_path / "profiles"
    folder.mkdir(mode=0o700)
    (folder / "chatty.yaml").write_text("told_by: --system {text}")
    (folder / "chatty.yaml").chmod(0o666)
    run = run_of("Al", token="t", port=None, profiles=str(folder))
    assert plan(["chatty"], {}, run).argv == ["chatty"]


@pytest.mark.parametrize(
    ("agent", "settings", "words"),
    [
        ("codex", ".codex", ["-C", "below"]),
        ("opencode", "opencode.json", ["below"]),
        ("opencode", ".opencode", ["below"]),
    ],
    ids=["codex", "opencode", "opencode's tools"],
)
def test_where_a_project_can_change_relays_server_its_tools_have_no_name(
    agent: str, settings: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both merge a project's server of that name into ours: its environment, say, PYTHONPATH."""
    package = {"codex": "@openai/codex", "opencode": "opencode-ai"}[agent]
    program = tmp_path / "home" / "installed" / agent
    program.parent.mkdir(parents=True)
    program.write_text("")
    told = {"name": package, "version": "9.0.0"}
    (program.parent / "package.json").write_text(json.dumps(told))
    below = tmp_path / "home" / "project" / "below"
    below.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(below)

    def known(*more: str) -> object:
        run = run_of("Al", token=TOKEN, port=4321, primer=False, mcp=True)
        return plan([str(program), *more], {}, run).data["mcp"]

    (tmp_path / "home" / settings).mkdir()  # the person's own
    assert known() is True
    assert known(*words) is False  # it works in another folder
    (below.parent / settings).mkdir()
    assert known() is False


AGENTS = sorted(PLANNERS)
HOOKED = sorted(HOOK_CODECS)
TOOLS, TURNS = ("BeforeTool", "AfterTool"), ("AfterAgent", "PreCompress")
#: Command lines that start something else than a conversation.
OTHERS = {
    "aider": ["--message hi", "-m hi", "--version", "--commit", "--message-file=x"],
    "claude": ["mcp list", "--version", "--model opus -h", "update"],
    "codex": ["exec fix", "-c model=x e fix", "queue --thread T", "--version", "-h"],
    "gemini": [
        *("mcp list", "--version", "-v", "-p hello", "-yp hello", "--prompt=x", "-- mcp", "--acp"),
        *("-m flash extensions list", "--list-sessions", "-h"),
    ],
    "opencode": ["run hi", "mcp list", "--version", "-h", "serve", "-m x web"],
    "qwen": [
        *("mcp list", "--debug extensions list", "what is this", "-p hello", "-yp hello"),
        *("--outputFormat=json", "--prompt=hello", "-y hello", "-- hello", "--version", "-o json"),
        *("--input-format stream-json --output-format stream-json", "--acp", "-i hello -h"),
    ],
}
#: Command lines that start one, though some look as if they did not.
TALKS = {
    "aider": ["--model x a.py", "-- --message x", "--read --message"],
    "claude": ["", "--model mcp", "-- mcp", "-p hi", "hello"],
    "codex": [
        *("", "fix the tests", "-m exec fix", "--model=gpt-5 resume --last", "fork", "-- exec")
    ],
    "gemini": ["", "-m mcp", "-i -p", "tell me of mcp"],
    "opencode": ["", ".", "--model run --prompt=web", "-c", "-- run", "--prompt -h"],
    "qwen": [
        *("", "--approval-mode yolo -m some-model", "-i hello", "--prompt-interactive=hello"),
        *("-i hello world", "-c", "-yi hello", "--promptInteractive hello", "--resume"),
        *("-r 1234 -y", "--allowed-tools one two three"),
        "--include-directories=/srv/one --yolo",
    ],
}
#: Starts that hooks cannot be put into: the arguments, the environment, and a word of the reason.
UNHOOKED: dict[str, list[tuple[str, dict[str, str], str]]] = {
    "claude": [
        ("--bare", {}, "--bare turns hooks off"),
        ('--settings {"disableAllHooks":true}', {}, "--settings turns off all hooks"),
        ("--settings missing.json", {}, "cannot be extended"),
    ],
    "codex": [
        ("--remote host", {}, "--remote"),
        ("-c hooks=1", {}, "cannot be extended"),
        ("--disable hooks", {}, "--disable turns off all hooks"),
    ],
    "gemini": [
        ("--sandbox", {}, "sandbox"),
        ("", {"GEMINI_SANDBOX": "docker"}, "sandbox"),
        ("", {"PATH": "/nowhere"}, "bash"),
    ],
    "opencode": [
        ("--pure", {}, "--pure"),
        ("", {"OPENCODE_PURE": "1"}, "OPENCODE_PURE"),
        ("--mini", {}, "--mini"),
        ("attach http://127.0.0.1:1", {}, "attached"),
        ("", {"OPENCODE_CONFIG_CONTENT": "{broken"}, "could not be extended"),
        ("", {"OPENCODE_CONFIG_CONTENT": '{"plugin": 1}'}, "could not be extended"),
    ],
    "qwen": [
        ("--bare", {}, "--bare"),
        ("--safe-mode", {}, "--safe-mode"),
        ("", {"QWEN_CODE_SAFE_MODE": "1"}, "QWEN_CODE_SAFE_MODE"),
        ("", {"PATH": "/nowhere"}, "bash"),
    ],
}


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project that is trusted, on a machine on which all folders are root's."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setattr(launch, "_insecure", lambda path: "")
    return folder


TRUSTED = {"GEMINI_CLI_TRUST_WORKSPACE": "true"}


def lines(table: dict[str, list[str]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("agent", "line"), [(agent, line) for agent in AGENTS for line in table[agent]]
    )


@lines(OTHERS)
def test_what_is_no_conversation_is_left_alone(agent: str, line: str, tmp_path: Path) -> None:
    words = [install(tmp_path, agent), *line.split()]
    launch = start(tmp_path, words, primer=True, hooks=TOOLS, mcp=True)
    assert (launch.argv, launch.env, launch.profile, launch.data) == (words, {}, "command", {})
    assert not wants_tcp(words, TOOLS) and not (tmp_path / "run").exists()
    if agent in HOOKED:
        [note] = ungated(launch.profile, launch.data, TOOL_CALL)
        assert "not a conversation" in note


@lines(TALKS)
def test_a_conversation_is_known(agent: str, line: str, tmp_path: Path) -> None:
    words = [install(tmp_path, agent), *line.split()]
    assert start(tmp_path, words).profile == agent
    assert wants_tcp(words, TOOLS) is (agent in HOOKED)


@pytest.mark.parametrize("agent", AGENTS)
def test_an_agent_without_a_terminal_gets_nothing_of_relays(agent: str) -> None:
    launch = start(Path("/nowhere"), [agent], primer=True, terminal=False)
    assert launch.argv == [agent] and launch.env == {}
    assert answers_once(launch.profile, launch.data)


@pytest.mark.parametrize("version", ["0.0.1", "unknown"])
@pytest.mark.parametrize("agent", AGENTS)
def test_another_version_is_started_as_it_is(agent: str, version: str, tmp_path: Path) -> None:
    words = [install(tmp_path, agent, version)]
    launch = start(tmp_path, words, hooks=TOOLS)
    assert launch.profile == agent
    if agent == "opencode" and version == "unknown":
        assert "--port" in launch.argv  # its server will tell the version
        return
    assert launch.argv == words
    assert oldest(agent) in str(launch.data["degraded"])
    assert launch.data.get("heard", False) is False
    if agent in HOOKED:
        [note] = ungated(agent, launch.data, TOOL_CALL)
        assert "nothing is blocked" in note


@pytest.mark.parametrize("agent", AGENTS)
def test_the_version_stands_in_the_path_where_no_package_does(agent: str, tmp_path: Path) -> None:
    package = import_module(PLANNERS[agent]).PACKAGE
    program = install(tmp_path, agent, "9.0.1")
    assert version_of(program, {}, package) == (9, 0, 1)
    folder = tmp_path / "nodejs" / "20.11.0" / "releases" / "9.0.2-x86_64-unknown-linux" / "bin"
    folder.mkdir(parents=True)
    (folder / agent).write_text("")
    (folder / agent).chmod(0o755)
    assert version_of(agent, {"PATH": f"/no:{folder}"}, package) == (9, 0, 2)
    (folder.parents[2] / agent).write_text("")
    (folder.parents[2] / agent).chmod(0o755)
    assert version_of(str(folder.parents[2] / agent), {}, package) is None  # that is Node.js's
    assert version_of(agent, {"PATH": str(tmp_path)}, package) is None


SHIMS = {
    "asdf": ("shims", "installs/nodejs/20.11.0"),
    "mise": ("shims", "installs/npm-agent/9.0.1"),
    "pyenv": ("shims", "versions/3.12.1"),
    "Volta": ("bin", "tools/image/packages/@maker/agent"),
}


@pytest.mark.parametrize("agent", ["claude", "aider"])
@pytest.mark.parametrize("manager", SHIMS)
def test_a_version_managers_shim_has_the_oldest_version_that_it_may_start(
    manager: str, agent: str, tmp_path: Path
) -> None:
    package = import_module(PLANNERS[agent]).PACKAGE
    shims, place = SHIMS[manager]
    shim = tmp_path / shims / agent
    shim.parent.mkdir()
    if manager == "Volta":
        (shim.parent / "volta-shim").write_text("")
        shim.symlink_to("volta-shim")
    else:
        shim.write_text(f'#!/bin/sh\nexec {manager} exec {agent} "$@"\n')
    shim.chmod(0o755)
    assert version_of(str(shim), {}, package) is None
    for version, name in (("9.0.2", "agent"), ("9.0.1", "other")):
        program = Path(install(tmp_path / version, agent, version))
        folder = (tmp_path / place).with_name(name) / "bin"
        folder.mkdir(parents=True)
        (folder / agent).symlink_to(program)
    assert version_of(agent, {"PATH": str(shim.parent)}, package) == (9, 0, 1)
    (program.parent / agent).unlink()
    assert version_of(str(shim), {}, package) == (9, 0, 2)


@pytest.mark.parametrize("agent", AGENTS)
def test_the_model_is_told_how_to_talk_unless_it_is_not_to_be(agent: str, tmp_path: Path) -> None:
    words = [install(tmp_path, agent), "--model", "x"]
    assert TOLD not in everything(start(tmp_path, words, primer=False), tmp_path)
    file = tmp_path / "home" / ".gemini" / "settings.json"
    file.parent.mkdir(parents=True)
    file.write_text('{"security": {"folderTrust": {"enabled": false}}}')
    launch = start(tmp_path, words, primer=True)
    assert TOLD in everything(launch, tmp_path)
    assert launch.argv[-2:] == words[-2:]


@pytest.mark.parametrize("agent", AGENTS)
def test_what_is_secret_stands_in_closed_files_only(agent: str, tmp_path: Path) -> None:
    launch = start(tmp_path, [install(tmp_path, agent)], primer=True, hooks=TOOLS + TURNS, mcp=True)
    assert TOKEN not in " ".join(launch.argv)
    assert str(launch.data.get("password", TOKEN)) not in " ".join(launch.argv)
    if (tmp_path / "run").exists():
        assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700
        for path in (tmp_path / "run").iterdir():
            assert path.is_dir() or path.stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("agent", HOOKED)
def test_hooks_are_put_in_for_what_has_been_asked_for(agent: str, tmp_path: Path) -> None:
    words = [install(tmp_path, agent)]
    launch = start(tmp_path, words, TRUSTED, hooks=(*TOOLS, *TURNS, "Output"))
    assert (launch.data["gates"], launch.data["tells"]) == ([*TOOLS], [*TURNS])
    assert ungated(agent, launch.data, TOOL_CALL) == []
    assert untold(agent, launch.data, list(map(HookEventName, TURNS))) == []
    for hooks in ((), ("Output", "SessionStart")):
        data = start(tmp_path, words, TRUSTED, hooks=hooks).data
        assert not {"gates", "ungated", "tells", "untold"} & data.keys()
    data = start(tmp_path, words, TRUSTED, hooks=("BeforeTool", "AfterAgent")).data
    assert (data["gates"], data["tells"]) == (["BeforeTool"], ["AfterAgent"])


@pytest.mark.parametrize(
    ("agent", "line", "env", "why"),
    [
        *((agent, *case) for agent in HOOKED for case in UNHOOKED[agent]),
        *((agent, "", {}, "no loopback port") for agent in HOOKED),
    ],
)
def test_who_cannot_be_gated_is_said_with_the_reason(
    agent: str, line: str, env: dict[str, str], why: str, tmp_path: Path
) -> None:
    words = [install(tmp_path, agent), *line.split()]
    port = None if "port" in why else 4321
    launch = start(tmp_path, words, {**TRUSTED, **env}, hooks=TOOLS, port=port)
    assert "gates" not in launch.data
    assert not [name for name in launch.env if "GATES" in name or "DEFAULTS" in name]
    [note] = ungated(agent, launch.data, TOOL_CALL)
    assert why in note and "nothing is blocked" in note
    launch = start(tmp_path, words, {**TRUSTED, **env}, hooks=("AfterAgent",), port=port)
    [note] = untold(agent, launch.data, [HookEventName.AFTER_AGENT])
    assert why in note and note.endswith(": on_after_agent")


@pytest.mark.parametrize("agent", AGENTS)
def test_whatever_a_planner_stumbles_over_the_agent_is_started(
    agent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stumble(*about: object) -> None:
        raise ValueError("embedded null byte")

    module = import_module(PLANNERS[agent])
    monkeypatch.setattr(module, "plan", stumble)
    monkeypatch.setattr(module.READER, "converses", stumble)
    launch = start(Path("/nowhere"), [agent, "-x", "words"])
    assert (launch.argv, launch.env, launch.profile) == ([agent, "-x", "words"], {}, agent)
    assert "embedded null byte" in str(launch.data["degraded"])
    assert not wants_tcp([agent])
    facts = AgentStart(
        started_ms=0,
        pid=1,
        cwd="/",
        folder="/nowhere",
        launch=launch.data,
        env={},
        checkpoint={},
        clock=lambda: 0.0,
    )
    assert make_adapter(agent, facts) is not None


@pytest.mark.parametrize("agent", AGENTS)
def test_the_pump_loads_nothing_heavy(agent: str, tmp_path: Path) -> None:
    code = (
        "import sys; from relay.agents.launch import Endpoint, Folders, Run, LaunchTerms, plan;"
        f"plan([{install(tmp_path, agent)!r}], {{}}, "
        f" Run('a', 'r', Endpoint('t', 1), Folders({str(tmp_path / 'run')!r}), LaunchTerms()));"
        "print([m for m in ('dataclasses', 'asyncio', 'typing', 'h11') if m in sys.modules])"
    )
    root = Path(relay.__file__).parents[1]
    command = [sys.executable, "-S", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root)
    assert (done.stderr, done.stdout.strip()) == ("", "[]")


@pytest.mark.parametrize("agent", sorted(set(PLANNERS) - MODULES))
def test_a_python_module_of_an_agents_name_is_not_that_agent(agent: str, tmp_path: Path) -> None:
    command = ["python3", "-m", agent, "x"]
    launch = start(tmp_path, command)
    assert launch.argv == command and launch.env == {}
    assert not takes_primer(command, "") and not (tmp_path / "run").exists()


def test_it_says_what_the_agent_is_for_and_where_it_belongs() -> None:
    text = Primer("Bob", roles=["reviewer"], join=["build", "#docs"]).text()
    assert "name here is Bob, your role reviewer, and you are in #build, #docs.\n" in text
    for roles in ((), ("r" * 64, "s" * 64)):
        assert Primer("Bob", roles=roles).known_as == "Bob"


def test_one_who_is_heard_on_the_screen_is_told_what_survives_there() -> None:
    text = Primer("A" * 64, ("relay", "memory")).text(on_screen=True)
    assert "\\>>>" in text
    assert "backslash before the @" not in text
    assert len(text) <= PRIMER_MAX


def test_namespaces_are_added_while_they_fit() -> None:
    assert "@memory:save" in Primer("Al", ("relay", "memory")).text()
    text = Primer("Al", ("relay", "deploy:staging", "ci")).text()
    assert "@deploy:staging TEXT; @ci:TARGET TEXT" in text
    many = tuple(f"namespace{number}" for number in range(200))
    assert len(Primer("Al", many).text()) <= PRIMER_MAX
    assert "@namespace0:TARGET" in Primer("Al", many).text()


def test_the_rule_of_a_governed_project_stays_where_others_have_no_room() -> None:
    for name in ("Al", "A" * KNOWN_AS_MAX):
        text = Primer(name, ("relay", "intent", "memory", *(f"space{n}" for n in range(9)))).text()
        assert "@intent:select ID" in text and len(text) <= PRIMER_MAX
