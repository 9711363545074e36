"""The script of a run's folder: what a hook's command prints, whatever becomes of the session."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
from pathlib import Path
from typing import Any

from relay.agents import bridge
from relay.agents.launch import Run
from relay.session.httpd import HookServer

TOKEN = "a 'token'"
REFUSAL = '{"reason": "it\'s refused"}'
EVENT = {"tool_name": "shell", "tool_input": {"command": "echo 'é' \"$HOME\" \\n"}}


def made(folder: Path, port: int | None) -> Run:
    return Run(name="A", run_id="R", token=TOKEN, port=port, folder=str(folder))


async def run(command: str) -> tuple[int, str]:
    """The command as an agent runs it that hides variables which look like secrets."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *("bash", "-c", command), stdin=pipe, stdout=pipe, env={"PATH": os.environ["PATH"]}
    )
    async with asyncio.timeout(30):
        out, _ = await process.communicate(json.dumps(EVENT).encode())
    assert process.returncode is not None
    return process.returncode, out.decode()


def test_the_session_is_asked_and_its_answer_is_printed(tmp_path: Path) -> None:
    asked: list[dict[str, Any]] = []

    async def answer(event: dict[str, Any]) -> dict[str, Any]:
        asked.append(event)
        return {"reason": "é\n'"}

    async def main() -> tuple[int, str]:
        listener = socket.create_server(("127.0.0.1", 0))
        server = HookServer(answer, TOKEN)
        await server.serve(listener)
        try:
            path = bridge.write(made(tmp_path / "a folder", listener.getsockname()[1]))
            return await run(bridge.command(path, REFUSAL))
        finally:
            await server.close()

    status, printed = asyncio.run(main())
    assert (status, json.loads(printed)) == (0, {"reason": "é\n'"})
    assert [{**event, "relay": None} for event in asked] == [{**EVENT, "relay": None}]


def test_without_an_answer_a_gate_refuses_and_a_report_is_left_out(tmp_path: Path) -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))  # bound, but nobody listens
        path = bridge.write(made(tmp_path / "run", unheard.getsockname()[1]))
        assert asyncio.run(run(bridge.command(path, REFUSAL))) == (0, REFUSAL)
        assert asyncio.run(run(bridge.command(path))) == (0, "")
    os.unlink(path)  # also when there is no script any more
    assert asyncio.run(run(bridge.command(path, REFUSAL))) == (0, REFUSAL)


def test_a_handler_that_fails_is_no_answer(tmp_path: Path) -> None:
    async def answer(event: dict[str, Any]) -> dict[str, Any]:
        raise ValueError("broken")

    async def main() -> tuple[int, str]:
        listener = socket.create_server(("127.0.0.1", 0))
        server = HookServer(answer, TOKEN, on_error=lambda error: None)
        await server.serve(listener)
        try:
            path = bridge.write(made(tmp_path, listener.getsockname()[1]))
            return await run(bridge.command(path, REFUSAL))
        finally:
            await server.close()

    assert asyncio.run(main()) == (0, REFUSAL)


def test_only_its_owner_reads_the_script_and_settings_leave_it_as_it_is(tmp_path: Path) -> None:
    path = bridge.write(made(tmp_path / "run", 4321))
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(tmp_path / "run").st_mode) == 0o700
    assert "$" not in bridge.command(path, REFUSAL)
    bridge.write(made(tmp_path / "run", 4322))  # a session that is started again
    assert "4322" in Path(path).read_text()


def test_what_a_script_needs(tmp_path: Path) -> None:
    assert bridge.why_not(made(tmp_path, 1), {"PATH": os.environ["PATH"]}) == ""
    assert "bash" in bridge.why_not(made(tmp_path, 1), {"PATH": str(tmp_path)})
    assert "port" in bridge.why_not(made(tmp_path, None), {"PATH": os.environ["PATH"]})
