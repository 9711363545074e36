"""How opencode is started: its server, what it is told, and relay's plugin."""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

import relay.agents.opencode
from relay.agents.launch import Launch, plan
from relay.agents.opencode.launch import FIRST_PORT, PORTS
from tests.agents.installs import install, run_of
from tests.e2e.test_programs import node


@pytest.fixture
def opencode(tmp_path: Path) -> str:
    return install(tmp_path, "opencode")


def make(
    argv: list[str], env: dict[str, str] | None = None, folder: str = "", primer: bool = False
) -> Launch:
    run = run_of("Alice", token="t", port=1, folder=folder, primer=primer)
    return plan(argv, env or {}, run)


def server(launch: Launch) -> tuple[Any, Any]:
    return launch.data.get("host"), launch.data.get("port")


def test_a_conversation_gets_a_server_that_only_relay_can_use(opencode: str) -> None:
    launch = make([opencode, "-c"])
    assert launch.argv[3:] == ["-c"]
    assert launch.argv[:2] == [opencode, "--port"]
    port = int(launch.argv[2])
    assert FIRST_PORT <= port < FIRST_PORT + PORTS
    assert server(launch) == ("127.0.0.1", port)
    password = launch.env["OPENCODE_SERVER_PASSWORD"]
    assert len(password) == 32 and launch.data["password"] == password
    assert password not in " ".join(launch.argv)
    assert make([opencode]).env["OPENCODE_SERVER_PASSWORD"] != password
    assert "degraded" not in launch.data


def test_the_persons_own_server_stays_as_it_is(opencode: str) -> None:
    launch = make([opencode, "--port", "4100", "--hostname=0.0.0.0"])
    assert launch.argv == [opencode, "--port", "4100", "--hostname=0.0.0.0"]
    assert launch.env == {} and launch.data["password"] == ""
    assert server(launch) == ("127.0.0.1", 4100)
    named = make([opencode, "--port=4100", "--hostname", "192.0.2.1"])
    assert server(named) == ("192.0.2.1", 4100)


def test_a_server_opened_without_a_port_keeps_its_usual_one(opencode: str) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", 4096))
            free = True
        except OSError:
            free = False
    launch = make([opencode, "--mdns"])
    assert (launch.argv[2] == "4096") is free
    assert launch.argv[3:] == ["--mdns"] and launch.env == {}


def test_a_port_that_is_in_use_is_not_chosen(
    opencode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr("relay.agents.opencode.launch.FIRST_PORT", port)
        monkeypatch.setattr("relay.agents.opencode.launch.PORTS", 1)
        launch = make([opencode, "-c"])
    assert launch.argv == [opencode, "-c"]
    assert "port" in str(launch.data["degraded"]) and launch.env == {}


@pytest.mark.parametrize(
    ("rest", "why"),
    [
        (["--mini"], "--mini"),
        (["attach", "http://127.0.0.1:4096"], "another program"),
        (["--port", "0"], "--port"),
        (["--port"], "--port"),
    ],
)
def test_where_no_server_can_be_had_the_screen_is_heard(
    opencode: str, rest: list[str], why: str
) -> None:
    launch = make([opencode, *rest])
    assert (launch.argv, launch.env) == ([opencode, *rest], {})
    assert launch.profile == "opencode"
    assert why in str(launch.data["degraded"])


def test_where_the_version_cannot_be_told_the_server_will_tell_it(tmp_path: Path) -> None:
    program = tmp_path / "opencode"
    program.write_bytes(b"\x7fELF a program of Bun's")
    program.chmod(0o755)
    assert "--port" in make([str(program)]).argv


@pytest.mark.parametrize(
    ("rest", "session", "continues"),
    [
        ([], "", False),
        (["-c"], "", True),
        (["--session", "ses_1"], "ses_1", False),
        (["-s=ses_1", "--fork"], "", False),
    ],
)
def test_the_session_is_told(opencode: str, rest: list[str], session: str, continues: bool) -> None:
    data = make([opencode, *rest]).data
    assert (data["session"], data["continues"]) == (session, continues)


def test_the_primer_is_one_more_instruction(opencode: str, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    theirs = {"model": "m/x", "instructions": ["mine.md"]}
    env = {"OPENCODE_CONFIG_CONTENT": json.dumps(theirs)}
    launch = make([opencode], env, str(folder), primer=True)
    told = json.loads(launch.env["OPENCODE_CONFIG_CONTENT"])
    assert told["model"] == "m/x" and told["instructions"][0] == "mine.md"
    assert "Your name here is Alice" in Path(told["instructions"][1]).read_text()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert list(tmp_path.glob("run/*")) == [Path(told["instructions"][1])]


@pytest.mark.parametrize("given", ["{not json", "[1]", '{"instructions": 3}', "// a comment\n{}"])
def test_a_configuration_that_cannot_be_extended_stays(
    opencode: str, tmp_path: Path, given: str
) -> None:
    launch = make([opencode], {"OPENCODE_CONFIG_CONTENT": given}, str(tmp_path / "run"), True)
    assert "OPENCODE_CONFIG_CONTENT" not in launch.env
    assert "degraded" in launch.data or "untaught" in launch.data


def start(
    argv: list[str],
    env: dict[str, str] | None = None,
    *,
    hooks: tuple[str, ...] = ("BeforeTool", "AfterTool"),
    port: int | None = 4321,
) -> Launch:
    run = run_of("A", token="t", port=port, primer=False, hooks=hooks)
    return plan(argv, env or {}, run)


def plugins(launch: Launch) -> list[str]:
    found: list[str] = json.loads(launch.env["OPENCODE_CONFIG_CONTENT"])["plugin"]
    return found


def test_the_plugin_is_named_behind_the_person_s(tmp_path: Path) -> None:
    opencode = install(tmp_path, "opencode")
    launch = start([opencode])
    assert launch.data["gates"] == ["BeforeTool", "AfterTool"]
    assert launch.env["RELAY_GATES"] == "BeforeTool,AfterTool"
    [address] = plugins(launch)
    assert Path(unquote(urlsplit(address).path)).read_text().startswith("// Asks relay")
    theirs = {"OPENCODE_CONFIG_CONTENT": '{"plugin": ["theirs"], "theme": "x"}'}
    both = start([opencode], theirs)
    assert plugins(both) == ["theirs", address]
    assert json.loads(both.env["OPENCODE_CONFIG_CONTENT"])["theme"] == "x"


#: A rejected promise that nobody takes ends Node.js.
ODD = """
const { RelayGate } = await import(process.argv[1])
const session = {
  get: async () => { throw new Error("gone") },
  messages: async () => ({}),
}
const { event, ...hooks } = await RelayGate({ client: { session } })
const happened = (type, properties) => event({ event: { type, properties } })
await hooks["chat.message"]({ sessionID: "a" }, {})
await hooks["chat.message"]({ sessionID: "a" }, { parts: [{ type: "text", text: "hi" }] })
await hooks["experimental.session.compacting"]()
await happened("session.idle", { sessionID: "a" })
await happened("session.idle")
await happened("message.part.updated")
await happened("message.part.updated", { part: { type: "tool", callID: "c" } })
await event({})
await new Promise((resolve) => setImmediate(resolve))
console.log("as ever")
"""


def test_events_that_are_not_as_they_should_be_leave_nothing_behind() -> None:
    plugin = Path(relay.agents.opencode.__file__).with_name("gate.js")
    env = {
        "RELAY_PORT": "1",
        "RELAY_TOKEN": "t",
        "RELAY_GATES": "BeforeTool,AfterTool,BeforeAgent,AfterAgent,PreCompress",
    }
    line = [node(), "--no-warnings", "--input-type=module", "-e", ODD, str(plugin)]
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == ("as ever\n", "", 0)
