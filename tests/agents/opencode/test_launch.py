"""The plan for starting opencode: what is put in, what is left alone."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from relay.agents.launch import Launch, plan
from relay.agents.opencode.launch import FIRST_PORT, PORTS
from tests.agents.installs import install, run_of


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


@pytest.mark.parametrize(
    "rest",
    [[], ["."], ["--model", "run", "--prompt=web"], ["-c"], ["--", "run"], ["--prompt", "-h"]],
)
def test_a_conversation_gets_a_server_that_only_relay_can_use(
    opencode: str, rest: list[str]
) -> None:
    launch = make([opencode, *rest])
    assert launch.argv[3:] == rest
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


def test_the_persons_own_password_is_used(opencode: str) -> None:
    env = {"OPENCODE_SERVER_PASSWORD": "theirs", "OPENCODE_SERVER_USERNAME": "me"}
    launch = make([opencode], env)
    assert launch.env == {}
    assert (launch.data["username"], launch.data["password"]) == ("me", "theirs")


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
    program.write_bytes(b"\x7fELF" + b"\x00" * 4000 + b"\x00Go\x00\x00build id")
    launch = make([str(program)])
    assert launch.argv == [str(program)] and "degraded" in launch.data


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


def test_without_a_primer_nothing_is_written(opencode: str, tmp_path: Path) -> None:
    launch = make([opencode], {}, str(tmp_path / "run"))
    assert "OPENCODE_CONFIG_CONTENT" not in launch.env
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("given", ["{not json", "[1]", '{"instructions": 3}', "// a comment\n{}"])
def test_a_configuration_that_cannot_be_extended_stays(
    opencode: str, tmp_path: Path, given: str
) -> None:
    launch = make([opencode], {"OPENCODE_CONFIG_CONTENT": given}, str(tmp_path / "run"), True)
    assert "OPENCODE_CONFIG_CONTENT" not in launch.env
    assert "degraded" in launch.data or "untaught" in launch.data
