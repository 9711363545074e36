"""What the broker's side of a connection does before a request is handled."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from relay.broker.client import connect
from relay.broker.connection import ClientConnection
from relay.core.paths import Home
from relay.core.processes import MARKS
from relay.protocol.agent_ops import AGENT_STATE
from relay.protocol.broker import decode
from relay.protocol.broker_ops import STATUS
from relay.protocol.message_ops import SEND, STATE, WAIT
from tests.broker.support import broker_thread, register, registration, stop_broker

pytestmark = pytest.mark.usefixtures("served")


def first_words(**broker: Any) -> bytes:
    """All that a client gets from a broker that takes no requests."""

    async def talk() -> bytes:
        loop = asyncio.get_running_loop()
        near, far = socket.socketpair()
        gone = asyncio.Event()
        stub: Any = SimpleNamespace(disconnected=lambda _: gone.set(), **broker)
        accept = partial(ClientConnection, stub, {}, stub)
        await loop.connect_accepted_socket(accept, far)
        async with asyncio.timeout(20):
            await gone.wait()
        with near:
            return near.recv(4096)

    return asyncio.run(talk())


def test_a_broker_that_is_full_says_so() -> None:
    answer = decode(first_words(stopping=False, has_room=lambda: False))
    assert answer["error"]["code"] == "busy"


def test_a_broker_that_ends_closes_without_a_word() -> None:
    assert first_words(stopping=True, has_room=lambda: True) == b""


def test_silent_connections_lock_nobody_out(home: Home) -> None:
    stop_broker(home)
    with broker_thread(home, connections_max=8), ExitStack() as stack:
        # A session, one who waits, and then more silent ones than there is room for.
        al = stack.enter_context(register(home, "Al"))
        waiting = stack.enter_context(connect(home))
        id_ = waiting.request(SEND, to="Al", body="x")["id"]
        answer = stack.enter_context(ThreadPoolExecutor()).submit(
            lambda: waiting.request(WAIT, id=id_, timeout=60)
        )
        silent = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(20)]
        for one in silent:
            one.connect(home.broker_socket)
            one.settimeout(20)
        with connect(home) as person:
            assert person.request(STATUS)["connections"] == 8
        assert silent[0].recv(100) == b""  # the oldest had to go
        for state in ("delivering", "submitted", "seen"):
            al.request(STATE, id=id_, state=state)
        assert answer.result(20)["done"]


#: Registers agents from below a monitor, one connection each, until it is told to end.
FLOOD = """import os, sys
from relay.broker.client import connect
from relay.core.paths import Home
from relay.core.processes import MARK
open("/proc/self/comm", "w").write(MARK + "0")
if not os.fork():
    held = []
    for number in range(20):
        held.append(connect(Home(sys.argv[1]), start=False))
        me = {"name": f"A{number}", "run": f"r{number}", "token": "t", "kind": "x"}
        held[-1].request("register", **me)
    print("FULL", flush=True)
    sys.stdin.read()
    os._exit(0)
os.wait()
"""


@pytest.mark.skipif(not MARKS, reason="runs are marked on Linux only")
def test_agents_that_an_agent_registers_lock_nobody_out(home: Home) -> None:
    stop_broker(home)
    with broker_thread(home, connections_max=8), register(home, "Al") as al:
        words = [sys.executable, "-c", FLOOD, home.root]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as agent:
            assert agent.stdin is not None and agent.stdout is not None
            assert agent.stdout.readline() == b"FULL\n"
            with connect(home) as person:
                assert person.request(STATUS)["connections"] == 8
            al.request(AGENT_STATE, state="idle")
            agent.stdin.close()


HALF = "\ud800"
HALVES: list[dict[str, Any]] = [
    {"op": "wait", "id": HALF, "timeout": 0},
    {"op": "show", "id": "abcd" + HALF},
    {"op": "inbox", "name": HALF},
    {"op": "sent", "name": HALF},
    {"op": "history", "grep": HALF},
    {"op": "read", "ids": ["x", HALF]},
    {"op": "register", **registration("Ann"), "run": HALF},
    {"op": "register", **registration("Ann"), "notes": {HALF: 1}},
    {"op": "decide", "which": [HALF]},
    {"op": "hook_log", "agent": HALF},
    {"op": "send", "to": "Bob", "body": "x", "attributes": {"a": [HALF]}},
]


@pytest.mark.parametrize("request_", HALVES, ids=lambda request: str(request["op"]))
def test_half_a_character_is_refused_whatever_is_asked(
    home: Home, request_: dict[str, Any]
) -> None:
    whole = {"n": 2, "op": "show", "id": "no such \U0001f600"}
    with connect(home) as client:
        raw = client._socket
        assert raw is not None
        for half in (json.dumps(HALF)[1:-1], json.dumps(HALF)[1:-1].upper().replace("U", "u")):
            line = json.dumps({"n": 1, **request_}).replace(r"\ud800", half)
            raw.sendall(f"{line}\n{json.dumps(whole)}\n".encode())
            raw.setblocking(True)
            with open(raw.fileno(), "rb", closefd=False) as lines:
                refused, other = decode(lines.readline()), decode(lines.readline())
            assert (refused["n"], refused["error"]["code"]) == (1, "usage")
            assert "surrogate" in refused["error"]["message"]
            # A whole character in escapes is one, and its request is as good as any.
            assert (other["n"], other["error"]["code"]) == (2, "not_found")
        assert "Traceback" not in Path(home.broker_log).read_text()


def test_bytes_that_are_no_text_are_refused_and_the_line_beside_them_is_not(home: Home) -> None:
    with connect(home) as client:
        raw = client._socket
        assert raw is not None
        raw.sendall(b'{"n":1,"op":"wait","id":"\xff","timeout":0}\n{"n":2,"op":"hello"}\n')
        raw.setblocking(True)
        with open(raw.fileno(), "rb", closefd=False) as lines:
            answers = {one["n"]: one for one in (decode(lines.readline()) for _ in range(2))}
        assert answers[1]["error"]["code"] == "usage"
        assert answers[2]["ok"]
        assert "Traceback" not in Path(home.broker_log).read_text()
