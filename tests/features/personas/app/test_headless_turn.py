"""A headless turn as the broker starts it: what it answers, and that nothing of it goes on."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from relay.core.child_process import python
from relay.core.dispatch import FULL, MINIMAL, PermissionLevel, PermissionSet
from relay.core.ids import new_ulid
from relay.core.paths import Home
from relay.features.personas.headless_turn import TYPED_MAX
from relay.protocol.turns import TurnCause, TurnRequest
from tests.features.hooked import hooked_agent
from tests.support import wait_until

RUNNER = python("relay.features.personas.headless_turn")


def request(home: Path, prompt: str = "hello there", **more: Any) -> TurnRequest:
    Home(str(home)).create()
    persona = {"mode": "headless", "cwd": str(home), **more.pop("persona", {})}
    given: dict[str, Any] = {"permissions": FULL, "deadline": 30.0, **more}
    return TurnRequest(
        turn=new_ulid(0),
        name="atlas",
        session="main",
        prompt=prompt,
        persona=persona,
        home=str(home),
        **given,
    )


@contextmanager
def running(asked: TurnRequest, **env: str) -> Iterator[socket.socket]:
    """A turn that runs, and the broker's end of its socket."""
    ours, theirs = socket.socketpair()
    ours.settimeout(60)
    process = subprocess.Popen(
        RUNNER, stdin=theirs.fileno(), start_new_session=True, env={**os.environ, **env}
    )
    theirs.close()
    try:
        ours.sendall(json.dumps(asked.to_json()).encode() + b"\n")
        yield ours
    finally:
        ours.close()
        process.wait(60)


def lines(ours: socket.socket) -> list[dict[str, Any]]:
    with ours.makefile() as told:
        return [json.loads(line) for line in told]


def end(asked: TurnRequest, **env: str) -> dict[str, Any]:
    """How the turn ended."""
    with running(asked, **env) as ours:
        *_, last = lines(ours)
    assert last["tell"] == "ended"
    return last


def shell(script: str, **more: Any) -> dict[str, Any]:
    return {"command": ["sh", "-c", script], **more}


def test_what_a_program_prints_is_its_answer(tmp_path: Path) -> None:
    made = end(request(tmp_path, persona=shell("read said; echo you said: $said")))
    assert (made["state"], made["text"]) == ("completed", "you said: hello there")


def test_a_prompt_is_no_option(tmp_path: Path) -> None:
    persona = {"command": ["printf"], "headless": {"args": ["{prompt}"]}}
    assert end(request(tmp_path, "--ver\0sion", persona=persona))["text"] == "Message:\n\n--version"


def test_the_environment_has_what_is_named_and_no_more(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("from-a-file\n")
    credentials = {"here": {"TOKEN": f"file:{tmp_path}/token"}, "not": {"OTHER": "env:OTHER"}}
    persona = shell("env", env={"MINE": "1", "PASSED": None}, credentials=credentials)
    named = PermissionSet(PermissionLevel.FULL, credentials=("here",))
    outside = {"SECRET": "x", "PASSED": "2", "OTHER": "y", "SSH_AUTH_SOCK": "/nowhere"}
    made = end(request(tmp_path, persona=persona, permissions=named), **outside)
    found = dict(line.split("=", 1) for line in made["text"].splitlines())
    assert (found["MINE"], found["PASSED"], found["TOKEN"]) == ("1", "2", "from-a-file")
    assert not found.keys() & {"SECRET", "OTHER", "SSH_AUTH_SOCK", "RELAY_TOKEN"}


def test_a_credential_that_is_not_there_ends_the_turn(tmp_path: Path) -> None:
    persona = shell("echo ran", credentials={"key": {"KEY": "env:NOT_SET_HERE"}})
    named = PermissionSet(PermissionLevel.FULL, credentials=("key",))
    made = end(request(tmp_path, persona=persona, permissions=named))
    assert made["cause"] == TurnCause.CREDENTIAL and made["detail"].startswith("key cannot be had")


def test_limits_need_a_gate(tmp_path: Path) -> None:
    made = end(request(tmp_path, persona=shell("echo ran"), permissions=MINIMAL))
    assert made["cause"] == TurnCause.UNGATED and "no hooks" in made["detail"] and not made["text"]
    toolless = shell("echo ran", tools=False)
    assert end(request(tmp_path, persona=toolless, permissions=MINIMAL))["text"] == "ran"


def test_nothing_goes_on_after_the_turn(tmp_path: Path) -> None:
    left = tmp_path / "left"
    away = (
        f"(setsid sh -c 'echo $$ >{left}; exec sleep 300' &) ; while ! test -s {left}; do :; done"
    )
    made = end(request(tmp_path, persona=shell(f"{away}; echo done")))
    assert made["text"] == "done"
    assert not Path(f"/proc/{left.read_text().strip()}").exists()


@pytest.mark.parametrize("how", ["stop", "hang up"])
def test_a_turn_is_stopped(tmp_path: Path, how: str) -> None:
    begun = tmp_path / "begun"
    with running(request(tmp_path, persona=shell(f"echo $$ >{begun}; exec sleep 300"))) as ours:
        wait_until(lambda: begun.exists() and begun.read_text().strip(), 30)
        if how == "stop":
            ours.sendall(b'{"do": "stop"}\n')
            assert lines(ours)[-1]["state"] == "interrupted"
    wait_until(lambda: not Path(f"/proc/{begun.read_text().strip()}").exists(), 30)


def test_a_turn_has_a_deadline(tmp_path: Path) -> None:
    made = end(request(tmp_path, persona=shell("echo half; sleep 300"), deadline=0.5))
    assert (made["state"], made["text"]) == ("timed_out", "half")


def test_a_failure_says_what_the_program_said(tmp_path: Path) -> None:
    made = end(request(tmp_path, persona=shell("echo no such model >&2; exit 3")))
    assert (made["state"], made["cause"]) == ("failed", TurnCause.STATUS)
    assert made["detail"].endswith("status 3: no such model")
    key = "sk-ant-api03-" + "abc123XYZ" * 8  # others are told the reason
    made = end(request(tmp_path, persona=shell(f"echo 401 bad key {key} $(seq 999) >&2; exit 1")))
    assert "bad key sk-ant-***" in made["detail"] and "abc123XYZ" not in made["detail"]
    assert len(made["detail"]) == 500


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("Not logged in · Please run /login", TurnCause.LOGIN),
        ("Not inside a trusted directory and", TurnCause.TRUST),
        ("it says: Not logged in · Please run /login", TurnCause.STATUS),
    ],
)
def test_a_program_that_needs_the_person_says_so(
    tmp_path: Path, said: str, cause: TurnCause
) -> None:
    form = {"login": "Not logged in · ", "trust": "Not inside a trusted directory"}
    made = end(request(tmp_path, persona=shell(f"echo '{said}' >&2; exit 1", headless=form)))
    assert made["cause"] == cause and made["detail"].endswith(said)


#: Says how many characters it has read at its prompt, and which.
DRIVEN = "while True:\n said = input('>>> ')\n print('heard', len(said), said[:40])"


@pytest.mark.parametrize(
    ("prompt", "heard"),
    [
        ("one\ntwo", "heard 7 one two"),
        ("stop\x03 end\x04\x1b[A\x9b1m", "heard 23 stop␃ end␄␛[A<U+009B>1m"),
        ("x" * TYPED_MAX, f"heard {TYPED_MAX} {'x' * 40}"),
    ],
    ids=["lines", "keys", "long"],
)
def test_a_prompt_is_driven(tmp_path: Path, prompt: str, heard: str) -> None:
    persona = {"command": ["python3", "-c", DRIVEN], "headless": {"prompt": ">>> "}}
    told = {"resumed_prompt": prompt, "persona": persona}
    made = end(request(tmp_path, f"the history\n{prompt}", **told))
    assert (made["text"], made["inferred"]) == (heard, True)


def test_what_a_terminal_would_drop_is_not_typed(tmp_path: Path) -> None:
    persona = {"command": ["python3", "-c", DRIVEN], "headless": {"prompt": ">>> "}}
    made = end(request(tmp_path, "x" * (TYPED_MAX + 1), persona=persona))
    assert made["cause"] == TurnCause.TOO_LONG
    assert f"takes {TYPED_MAX} bytes: it has {TYPED_MAX + 1}" in made["detail"]


def test_a_conversation_that_has_gone_is_begun_anew(tmp_path: Path) -> None:
    form = {"args": ["{resume}"], "resume": ["--resume", "{id}"]}
    script = 'test "$1" = --resume && exit 1; cat'
    persona = {"command": ["sh", "-c", script, "sh"], "headless": form}
    given = {"external_id": "gone", "resumed_prompt": "new", "persona": persona}
    assert end(request(tmp_path, "old and new", **given))["text"] == "old and new"


def test_a_turn_in_a_governed_project_is_governed(tmp_path: Path) -> None:
    project, made = tmp_path / "project", tmp_path / "project" / "a.py"
    (project / ".orchestration").mkdir(parents=True)
    (project / ".orchestration" / "active_intents.yaml").write_text(
        'active_intents: [{id: INT-1, name: Docs, status: IN_PROGRESS, owned_scope: ["a.py"]}]\n'
    )
    write = {"tool": "Write", "input": {"file_path": str(made), "content": "x"}}
    select = {"tool": "Bash", "input": {"command": "relay intent select INT-1"}}
    prompt = "\n".join(json.dumps(one) for one in (write, select, write))
    persona = {
        "command": [hooked_agent(tmp_path)],
        "cwd": str(project),
        "headless": {"args": ["-p"]},
    }
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    text = end(request(tmp_path / "home", prompt, persona=persona), PATH=path)["text"]
    before, shown, after = (
        text.split(f"DONE {n}")[0].split(f"DONE {n - 1}")[-1] for n in (1, 2, 3)
    )
    assert "INTENT_REQUIRED" in before
    assert "<id>INT-1</id>" in shown
    assert "written" in after and made.read_text() == "x"
    trace = (project / ".orchestration" / "agent_trace.jsonl").read_text().splitlines()
    kinds = [json.loads(line)["kind"] for line in trace]
    assert kinds == ["refusal", "selection", "mutation"]


def test_a_program_without_hooks_has_no_turn_in_a_governed_project(tmp_path: Path) -> None:
    (tmp_path / ".orchestration").mkdir()
    made = end(request(tmp_path, persona=shell("echo ran")))
    assert made["cause"] == TurnCause.UNGATED and "no hooks" in made["detail"] and not made["text"]
