from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from relay.hooks import runner as module
from relay.hooks.events import HookEventName
from relay.hooks.hook_types import (
    Command,
    Decision,
    Dialect,
    HookOutput,
    HookRun,
    OnFailure,
    Plan,
    Url,
)
from relay.hooks.registry import Registry
from relay.hooks.run_functions import FunctionRunner
from relay.hooks.runner import HookRunner, hook_environment, rewritten
from tests.hooks.programs import all_gone, watched
from tests.support import wait_until

LONG = 30.0
SHORT = 0.05
BEFORE = HookEventName.BEFORE_TOOL
PAYLOAD = {
    "session_id": "RUN1",
    "hook_event_name": "BeforeTool",
    "tool_name": "Bash",
    "tool_input": {"command": "ls", "words": ["a"]},
    "tool_use_id": "T1",
}


@pytest.fixture(autouse=True)
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[bytes]]]:
    with watched(monkeypatch) as processes:
        yield processes


@pytest.fixture
def registry() -> Registry:
    return Registry()


def _plan(registry: Registry, event: HookEventName = BEFORE, *, sequential: bool = False) -> Plan:
    return Plan(event, tuple(registry.hooks(event)), sequential)


def _within(
    registry: Registry, scenario: Callable[[HookRunner], Awaitable[Any]], **options: Any
) -> Any:
    async def whole() -> Any:
        functions = FunctionRunner(registry, grace=SHORT)
        options.setdefault("env", dict(os.environ))
        try:
            return await asyncio.wait_for(
                scenario(HookRunner(functions, **{"cwd": "/", **options})), 2 * LONG
            )
        finally:
            await functions.close()

    return asyncio.run(whole())


def _run(
    registry: Registry,
    event: HookEventName = BEFORE,
    payload: Mapping[str, Any] = PAYLOAD,
    *,
    sequential: bool = False,
    **options: Any,
) -> list[HookRun]:
    async def scenario(runner: HookRunner) -> list[HookRun]:
        return await runner.run(_plan(registry, event, sequential=sequential), payload, "the ctx")

    results: list[HookRun] = _within(registry, scenario, **options)
    return results


def _hook(registry: Registry, action: Any, **options: Any) -> None:
    if isinstance(action, str):
        action = Command(shell=action)
    registry.add_hook(options.pop("event", BEFORE), action, **options)


def _says(**output: Any) -> str:
    """A shell line that prints ``output`` as JSON."""
    return f"cat >/dev/null; printf %s '{json.dumps(output)}'"


# -- what a program says


@pytest.mark.parametrize("dialect", Dialect)
def test_a_program_is_spoken_to_in_its_dialect(
    registry: Registry, tmp_path: Path, dialect: Dialect
) -> None:
    line = 'printf "%s " "$RELAY_HOOK_EVENT" "$CLAUDE_PROJECT_DIR" "$PWD" "$RELAY_TOKEN" >&2; cat'
    _hook(registry, line, dialect=dialect, on_failure="allow")
    env = {"PATH": os.environ["PATH"], "RELAY_TOKEN": "secret"}
    (result,) = _run(registry, cwd=str(tmp_path), env=env)
    name = "PreToolUse" if dialect is Dialect.CLAUDE else "BeforeTool"
    assert f'"hook_event_name": "{name}"' in result.stdout
    project = "" if dialect is Dialect.RELAY else tmp_path
    assert result.stderr == f"BeforeTool {project} {tmp_path}  "


def test_a_program_starts_where_the_hook_says(registry: Registry, tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    _hook(registry, Command(shell='echo "$PWD" "$WORD"; pwd', cwd="below", env=(("WORD", "own"),)))
    (result,) = _run(registry, cwd=str(tmp_path))
    assert result.stdout == f"{tmp_path}/below own\n{tmp_path}/below\n"


# -- hooks that fail: nothing is raised, and what it means is what was said


def _line(text: str) -> Callable[[Path], Command]:
    return lambda _folder: Command(shell=text)


#: What each kind of bad hook says of itself, in part.
HOSTILE: dict[str, tuple[Callable[[Path], Command], str]] = {
    "missing in a shell": (_line("/no/such/hook"), "it exited with status 127: "),
    "broken JSON": (_line("""printf '{"decision": "allow", '"""), "broken JSON"),
    "half JSON": (_line("""printf '{"decision"'; kill -9 $$"""), "killed by signal 9 (SIGKILL)"),
    "JSON of another kind": (_line("""printf '{"decision": 7}'"""), "decision"),
    "status 3": (_line("exit 3"), "it exited with status 3"),
    "crash": (_line("kill -SEGV $$"), "killed by signal 11 (SIGSEGV)"),
    "sleeps": (_line("exec sleep 600"), "it did not end within 0.5 s"),
    "ignores TERM": (_line("trap '' TERM; sleep 600; sleep 600"), "it did not end within 0.5 s"),
    "1 GB": (_line("exec head -c 1000000000 /dev/zero"), "it printed more than 67108864 bytes"),
    "2 MB": (_line("exec head -c 2000000 /dev/zero"), "it printed more than 1048576 bytes"),
}


@pytest.mark.parametrize("meaning", OnFailure)
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_bad_hook_does_what_was_said_of_its_failure(
    registry: Registry,
    tmp_path: Path,
    kind: str,
    meaning: OnFailure,
    started: list[subprocess.Popen[bytes]],
) -> None:
    make, why = HOSTILE[kind]
    _hook(
        registry,
        make(tmp_path),
        on_failure=meaning,
        name="guard",
        timeout=0.5 if kind in ("sleeps", "ignores TERM") else LONG,
    )
    _hook(registry, _says(decision="allow"))
    bad, fine = _run(registry, grace=SHORT)
    assert not bad.success
    assert why in bad.error
    assert "\n" not in bad.error
    assert len(bad.stdout) <= module.SHOWN_MAX
    decided = None if bad.output is None else bad.output.decision
    assert decided is (Decision.DENY if meaning is OnFailure.BLOCK else None)
    if meaning is OnFailure.BLOCK:
        assert bad.output is not None
        assert "guard" in bad.output.reason
        assert why in bad.output.reason
    assert fine.success
    wait_until(lambda: all_gone(started))


@pytest.mark.parametrize(
    "name", ["$(touch bad)", "`touch bad`", "; touch bad;", "a'\"b *\n", "-rf\n&"]
)
def test_nothing_of_the_event_reaches_a_shell(
    registry: Registry, tmp_path: Path, name: str
) -> None:
    folder = tmp_path / name
    folder.mkdir()
    _hook(registry, "cat >/dev/null; pwd; : $CLAUDE_PROJECT_DIR", dialect=Dialect.CLAUDE)
    payload = {**PAYLOAD, "tool_name": name, "tool_input": {"command": name}, "cwd": str(folder)}
    (result,) = _run(registry, payload=payload, cwd=str(folder))
    assert result.stdout == f"{folder}\n"
    assert list(folder.iterdir()) == []


def test_an_input_that_has_no_json_form_is_a_failure(registry: Registry) -> None:
    _hook(registry, "exit 0")
    for odd in (object(), float("nan")):
        (result,) = _run(registry, payload={"tool_input": odd})
        assert not result.success
        assert result.output is not None
        assert result.output.decision is Decision.DENY


# -- functions


def test_no_function_can_change_what_others_are_given(registry: Registry) -> None:
    seen: list[Any] = []

    def spoil(input: dict[str, Any], event: dict[str, Any]) -> None:
        seen.append(json.loads(json.dumps(event["tool_input"])))
        input["words"].append("b")
        event.clear()

    for _ in range(3):
        _hook(registry, spoil)
    _run(registry)
    _run(registry, sequential=True)
    assert seen == [PAYLOAD["tool_input"]] * 6


def test_a_sequence_hands_on_the_tools_that_are_left(registry: Registry) -> None:
    seen: list[Any] = []

    def choose(mode: str, *names: str) -> Any:
        def hook(request: dict[str, Any]) -> dict[str, Any]:
            seen.append(request.get("toolConfig"))
            return {"tools": {"mode": mode, "names": list(names)}}

        return hook

    event = HookEventName.BEFORE_TOOL_SELECTION
    for hook in (choose("any", "Read", "Bash"), choose("auto", "Bash", "Edit"), choose("none")):
        registry.add_hook(event, hook)
    payload = {**PAYLOAD, "llm_request": {"messages": []}}
    _run(registry, sequential=True, event=event, payload=payload)
    assert seen == [
        None,
        {"mode": "ANY", "allowedFunctionNames": ["Read", "Bash"]},
        {"mode": "ANY", "allowedFunctionNames": ["Bash"]},
    ]


# -- side by side


def test_programs_run_side_by_side(registry: Registry, tmp_path: Path) -> None:
    for name in ("there", "back"):
        os.mkfifo(tmp_path / name)
    # Each needs the other one to go on.
    _hook(registry, f"cd '{tmp_path}'; echo >there; read x <back; echo one")
    _hook(registry, f"cd '{tmp_path}'; read x <there; echo >back; echo two")
    results = _run(registry, pool=2)
    assert [result.stdout for result in results] == ["one\n", "two\n"]


def test_a_hundred_programs_run_in_a_few_places(registry: Registry, tmp_path: Path) -> None:
    log = tmp_path / "log"
    for number in range(100):
        _hook(registry, f"printf + >>'{log}'; printf - >>'{log}'; echo {number}")
    results = _run(registry, pool=3)
    assert [result.stdout for result in results] == [f"{number}\n" for number in range(100)]
    running, most = 0, 0
    for sign in log.read_text():
        running += 1 if sign == "+" else -1
        most = max(most, running)
    assert running == 0
    assert 1 <= most <= 3


@pytest.mark.parametrize("sequential", [False, True])
def test_giving_up_kills_what_runs(
    registry: Registry, tmp_path: Path, sequential: bool, started: list[subprocess.Popen[bytes]]
) -> None:
    for number in range(3):
        _hook(registry, f"touch '{tmp_path}/{number}'; sleep 600 & sleep 600")

    async def scenario(runner: HookRunner) -> None:
        plan = _plan(registry, sequential=sequential)
        run = asyncio.ensure_future(runner.run(plan, PAYLOAD, None))
        wanted = 1 if sequential else 2
        await asyncio.to_thread(wait_until, lambda: len(list(tmp_path.iterdir())) == wanted)
        run.cancel()
        await asyncio.wait({run})
        assert run.cancelled()
        assert len(started) == wanted
        # All places are free again.
        later = Plan(BEFORE, (registry.add_hook(BEFORE, Command(shell="echo fine")),))
        assert (await runner.run(later, PAYLOAD, None))[0].stdout == "fine\n"

    _within(registry, scenario, pool=2)
    wait_until(lambda: all_gone(started))


# -- one after the other


def test_a_sequence_hands_rewrites_on(registry: Registry, tmp_path: Path) -> None:
    log = tmp_path / "log"
    first = {"hookSpecificOutput": {"updatedInput": {"command": "pwd", "new": 1}}}
    _hook(registry, _says(**first))
    _hook(registry, lambda input: {"input": {"command": input["command"] + " -P"}})
    _hook(registry, f"cat >'{log}'")
    results = _run(registry, sequential=True)
    assert [result.error for result in results] == [""] * 3
    assert json.loads(log.read_text())["tool_input"] == {
        "command": "pwd -P",
        "words": ["a"],
        "new": 1,
    }
    assert PAYLOAD["tool_input"] == {"command": "ls", "words": ["a"]}


@pytest.mark.parametrize("meaning", OnFailure)
def test_in_a_sequence_a_failure_changes_nothing_and_later_ones_run(
    registry: Registry, meaning: OnFailure
) -> None:
    seen: list[Any] = []
    rewrite = json.dumps({"input": {"command": "rm"}})
    _hook(registry, f"cat >/dev/null; printf %s '{rewrite}'; exit 1", on_failure=meaning)
    _hook(registry, lambda input: seen.append(input["command"]))
    results = _run(registry, sequential=True)
    assert [result.success for result in results] == [False, True]
    assert seen == ["ls"]


@pytest.mark.parametrize("answer", [{"deny": "no"}, {"stop": True}])
def test_a_denial_or_a_stop_ends_a_sequence(registry: Registry, answer: dict[str, Any]) -> None:
    ran: list[int] = []
    _hook(registry, lambda: {"decision": "ask"})
    _hook(registry, lambda: answer)
    _hook(registry, lambda: ran.append(1))
    results = _run(registry, sequential=True)
    assert len(results) == 2
    assert ran == []


@pytest.mark.parametrize(
    ("event", "payload", "output", "changed"),
    [
        (
            BEFORE,
            {"tool_input": {"a": 1, "b": {"c": 2}}},
            HookOutput(input={"b": {}, "d": 3}),
            {"tool_input": {"a": 1, "b": {}, "d": 3}},
        ),
        (BEFORE, {"tool_input": None}, HookOutput(input={"a": 1}), {"tool_input": {"a": 1}}),
        (BEFORE, {"tool_input": {"a": 1}}, HookOutput(context="x"), {"tool_input": {"a": 1}}),
        (
            HookEventName.AFTER_TOOL,
            {"tool_response": "old"},
            HookOutput(response=""),
            {"tool_response": ""},
        ),
        (
            HookEventName.BEFORE_AGENT,
            {"prompt": "do it"},
            HookOutput(context="well"),
            {"prompt": "do it\n\nwell"},
        ),
        (
            HookEventName.BEFORE_MODEL,
            {"llm_request": {"model": "a", "messages": []}},
            HookOutput(request={"model": "b"}),
            {"llm_request": {"model": "b", "messages": []}},
        ),
        (
            HookEventName.AFTER_MODEL,
            {"llm_request": {}, "llm_response": {"text": "a"}},
            HookOutput(request={"text": "b"}),
            {"llm_request": {}, "llm_response": {"text": "b"}},
        ),
    ],
)
def test_what_is_handed_on_is_what_the_event_is_about(
    event: HookEventName, payload: dict[str, Any], output: HookOutput, changed: dict[str, Any]
) -> None:
    before = json.dumps(payload)
    assert rewritten(event, payload, output) == changed
    assert json.dumps(payload) == before


# -- HTTP


async def _with_endpoint(
    registry: Registry, answer: bytes, asked: list[bytes], runner: HookRunner
) -> HookRun:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        asked.append(await reader.readexactly(size))
        writer.write(answer)
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = Url(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
    hook = registry.add_hook(BEFORE, url, dialect=Dialect.CLAUDE, name="guard")
    (result,) = await runner.run(Plan(BEFORE, (hook,)), PAYLOAD, None)
    server.close()
    return result


def _endpoint(registry: Registry, answer: bytes) -> HookRun:
    asked: list[bytes] = []

    async def scenario(runner: HookRunner) -> HookRun:
        return await _with_endpoint(registry, answer, asked, runner)

    result: HookRun = _within(registry, scenario)
    assert json.loads(asked[0]) == {**PAYLOAD, "hook_event_name": "PreToolUse"}
    return result


def _response(status: str, body: bytes) -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def test_an_endpoint_is_asked_and_decides(registry: Registry) -> None:
    body = b'{"decision": "block", "reason": "no"}'
    result = _endpoint(registry, _response("200 OK", body))
    assert result.output == HookOutput(decision=Decision.DENY, reason="no")
    assert (result.success, result.error, result.exit_status) == (True, "", None)
    assert result.stdout == body.decode()


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (_response("500 Oh", b"it\nbroke"), "HTTP status 500: it broke"),
        (_response("404 Oh", b""), "HTTP status 404"),
        (_response("200 OK", b'{"decision"'), "broken JSON"),
        (b"hello\r\n\r\n", "something else than HTTP"),
    ],
)
def test_an_endpoint_that_fails_is_a_failure(registry: Registry, answer: bytes, error: str) -> None:
    result = _endpoint(registry, answer)
    assert not result.success
    assert error in result.error
    assert result.output is not None
    assert result.output.decision is Decision.DENY
    assert "guard" in result.output.reason


def test_a_session_pays_for_http_only_when_it_is_used() -> None:
    code = "import sys, relay.hooks.runner; print('h11' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"


def _environment(
    base: dict[str, str], dialect: Dialect = Dialect.RELAY, **own: str
) -> dict[str, str]:
    return hook_environment(
        base,
        Command(shell="true", env=tuple(own.items())),
        event=HookEventName.BEFORE_TOOL,
        dialect=dialect,
        project="/project",
        cwd="/project/below",
    )


def test_it_is_the_agents_and_says_which_event_it_is() -> None:
    base = {"PATH": "/bin", "HOME": "/home/alice", "PWD": "/elsewhere"}
    assert _environment(base) == {
        "PATH": "/bin",
        "HOME": "/home/alice",
        "PWD": "/project/below",
        "RELAY_CALLED": "1",
        "RELAY_HOOK_EVENT": "BeforeTool",
    }
    assert base["PWD"] == "/elsewhere"


@pytest.mark.parametrize("name", ["TOKEN", "RUN", "PORT", "SOCKET", "SESSION_FDS", "SOME_NEW_ONE"])
def test_what_is_for_relay_only_stays_behind(name: str) -> None:
    assert f"RELAY_{name}" not in _environment({f"RELAY_{name}": "secret"})


@pytest.mark.parametrize(
    ("dialect", "names"),
    [
        (Dialect.RELAY, set()),
        (Dialect.CLAUDE, {"CLAUDE_PROJECT_DIR"}),
        (Dialect.GEMINI, {"CLAUDE_PROJECT_DIR", "GEMINI_PROJECT_DIR"}),
    ],
)
def test_a_dialects_hooks_find_the_project_as_ever(dialect: Dialect, names: set[str]) -> None:
    env = _environment({}, dialect)
    assert {name: env[name] for name in names} == dict.fromkeys(names, "/project")
    assert len([name for name in env if name.endswith("_PROJECT_DIR")]) == len(names)


def test_what_the_hook_itself_sets_wins() -> None:
    env = _environment({"A": "1", "B": "2"}, A="own", PWD="/own")
    assert (env["A"], env["B"], env["PWD"]) == ("own", "2", "/own")
