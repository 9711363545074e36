"""A session put together: what it goes on from, gates whose configuration is lost, no hello."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from relay.app import session_main
from relay.app.session_broker import RegisteredBroker
from relay.app.session_main import _configuration
from relay.app.session_parts import SessionParts, Start
from relay.config.load import LoadedConfig
from relay.config.settings import Settings
from relay.config.trust import CONFIG_NAME, read_config, trust
from relay.core.paths import Home
from relay.hooks.events import HookEventName
from relay.hooks.hook_types import Aggregated
from relay.hooks.registry import Registry
from relay.hooks.run_functions import FunctionRunner
from relay.session.handler_lanes import register
from relay.session.pump_link import PumpLink
from relay.session.session_events import AgentWrote, EventQueue, PumpCheckpoint, PumpHello
from relay.session.session_hooks import SessionConfig, make_engine
from tests.broker.support import message_id
from tests.hooks.fakes import IDENTITY, FakeActions, context

GUARD = 'hooks = {"before_tool": lambda tool: None}\n'


def trusted(folder: Path, home: Home, text: str) -> Path:
    path = folder / CONFIG_NAME
    path.write_text(text)
    file = read_config(str(path))
    trust(home, file.path, file.sha256)
    return path


def loaded(
    folder: Path, home: Home, gates: list[str], config: LoadedConfig | None = None
) -> tuple[Registry, str]:
    args = {"cwd": str(folder), "launch": {"gates": gates}}
    start = Start(-1, {}, args, config)
    found = asyncio.run(_configuration(start, home))
    return found.registry, "; ".join(found.not_applied)


def asked(registry: Registry) -> Aggregated:
    """What is said of a tool call."""

    async def fire() -> Aggregated:
        functions = FunctionRunner(registry)
        config = SessionConfig(IDENTITY, context(FakeActions()), None)
        engine = make_engine(config, registry, functions, env={})
        fields = {"tool_name": "Bash", "tool_input": {}}
        result = await engine.fire(HookEventName.BEFORE_TOOL, fields)
        await functions.close()
        return result

    return asyncio.run(fire())


@pytest.mark.parametrize(
    ("happens", "why"),
    [
        (lambda path: path.write_text(GUARD + "# by the agent\n"), "has changed"),
        (lambda path: path.unlink(), "is gone"),
    ],
    ids=["changed", "removed"],
)
def test_a_gate_stays_shut_when_its_configuration_is_lost(
    happens: Callable[[Path], object], why: str, tmp_path: Path, isolated_home: Path
) -> None:
    home = Home(str(isolated_home))
    path = trusted(tmp_path, home, GUARD)
    registry, problem = loaded(tmp_path, home, ["BeforeTool"])
    assert not problem and not asked(registry).blocked
    happens(path)
    registry, problem = loaded(tmp_path, home, ["BeforeTool"])
    result = asked(registry)
    assert result.blocked and why in result.reason and why in problem


def test_a_gate_stays_shut_when_its_configuration_does_not_run(
    tmp_path: Path, isolated_home: Path
) -> None:
    home = Home(str(isolated_home))
    trusted(tmp_path, home, "import there_is_no_such_module\n" + GUARD)
    registry, _ = loaded(tmp_path, home, ["BeforeTool", "AfterTool"])
    assert "there_is_no_such_module" in asked(registry).reason
    registry, _ = loaded(tmp_path, home, [])
    assert not registry.hooks(HookEventName.BEFORE_TOOL)


def test_a_session_knows_that_its_configuration_is_not_known(
    tmp_path: Path, isolated_home: Path
) -> None:
    home = Home(str(isolated_home))
    start = Start(-1, {}, {"cwd": str(tmp_path)})
    trusted(tmp_path, home, "config = {'merge': 'never'}\n")
    found = asyncio.run(_configuration(start, home))
    assert found.unusable is not None and "merge must be" in found.not_applied[0]
    trusted(tmp_path, home, "config = {'merge': 'apart'}\n")
    found = asyncio.run(_configuration(start, home))
    assert found.unusable is None and not found.not_applied


def test_a_program_of_ones_own_needs_no_file(tmp_path: Path, isolated_home: Path) -> None:
    own = LoadedConfig(None, Registry(), Settings(), None)
    registry, problem = loaded(tmp_path, Home(str(isolated_home)), ["BeforeTool"], own)
    assert not problem and not registry.hooks(HookEventName.BEFORE_TOOL)


def test_what_was_said_before_a_kill_leaves_before_what_comes_after_it(
    tmp_path: Path, isolated_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []

    async def request(broker: RegisteredBroker, op: str, **fields: Any) -> dict[str, Any]:
        if op == "send":
            sent.append(fields["body"])
        return {}

    monkeypatch.setattr(RegisteredBroker, "start", lambda broker, **registration: None)
    monkeypatch.setattr(RegisteredBroker, "request", request)
    hello = {"started_ms": 1, "offset": 0, "restarts": 1, "pid": 1, "cols": 80, "rows": 24}
    pending = [{"id": f"01K{1:023d}", "to": ["Bob"], "body": "before"}]
    hearing = {"scanners": {}, "counts": {}, "forgotten": 0}
    checkpoint = PumpCheckpoint({"hearing": hearing, "pending": pending})

    async def scenario() -> None:
        queue = EventQueue()
        queue.post(AgentWrote(b"@relay:Bob after\r\n\r\n"))  # while the session was starting
        config = LoadedConfig(None, Registry(), Settings(), None)
        register(config.registry)
        args = {"run_id": "run", "name": "Ben", "token": "t", "cwd": str(tmp_path), "argv": ["x"]}
        args["home"] = str(isolated_home)
        hooks = socket.create_server(("127.0.0.1", 0))
        start = Start(-1, {"tcp": hooks.detach()}, args, config)
        parts = SessionParts(start, PumpHello(hello), checkpoint, config, PumpLink(queue), queue)
        running = asyncio.ensure_future(parts.driver.run())
        await parts.begin()
        async with asyncio.timeout(10):
            while len(sent) < 2:
                await asyncio.sleep(0)
        running.cancel()
        await parts.close(over=False)

    asyncio.run(scenario())
    assert sent == ["before", "after"]


@pytest.mark.parametrize("gone", [True, False], ids=["pump gone", "another session takes over"])
def test_a_pump_that_hangs_up_before_its_hello_leaves_a_socket_only_to_another_session(
    isolated_home: Path, monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    async def found(_: int) -> bool:
        return gone

    monkeypatch.setattr(session_main, "_gone", found)
    home = Home(str(isolated_home))
    home.create()
    address = Path(home.session_socket("run"))
    address.touch()
    ours, theirs = socket.socketpair()
    ours.close()
    start = Start(theirs.detach(), {}, {"home": home.root, "run_id": "run"})
    asyncio.run(session_main.serve(start))
    assert address.exists() is not gone


def test_the_logs_of_the_latest_runs_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_main, "RUN_LOGS_MAX", 2)
    home = Home(str(tmp_path))
    home.create()
    names = [f"{message_id(number)}.log" for number in (1, 2, 3)]
    for name in [*names, "broker.log", "mine.log"]:
        Path(home.logs, name).write_text("x")
    session_main.drop_old_logs(home)
    kept = {path.name for path in Path(home.logs).iterdir()}
    assert kept == {*names[1:], "broker.log", "mine.log"}
