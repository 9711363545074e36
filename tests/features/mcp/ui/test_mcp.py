"""``relay mcp``, driven by the official SDK's own client, as a program of the person's uses it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from relay.core.agent_names import owner_name
from relay.core.processes import MARKS
from tests.e2e.wrapped import ECHO, RELAY, python, relay, relay_json, wait_registered, wrapped
from tests.support import wait_until

pytestmark = pytest.mark.process

_GOVERNED = """\
active_intents:
  - id: INT-1
    name: Tidy up
    status: IN_PROGRESS
    owned_scope: ["src/**"]
"""


def test_every_tool_answers_the_sdks_own_client(tmp_path: Path) -> None:
    (tmp_path / ".orchestration").mkdir()
    (tmp_path / ".orchestration" / "active_intents.yaml").write_text(_GOVERNED)
    with wrapped(python(ECHO), name="Bob"):
        wait_registered("Bob")
        try:
            asyncio.run(_story(tmp_path))
            [row] = relay_json("history")
            assert (row["from"], row["to"], row["state"]) == (owner_name(), "Bob", "seen")
        finally:
            relay("broker", "stop")


async def _story(project: Path) -> None:
    from mcp import Client, StdioServerParameters

    argv = ["-P", "-m", "relay", "mcp"]
    server = StdioServerParameters(
        command=sys.executable, args=argv, env=dict(os.environ), cwd=str(project)
    )
    async with Client(server, read_timeout_seconds=60) as client:
        listed = (await client.list_tools()).model_dump_json(by_alias=True, exclude_none=True)
        # Every word of at most six letters, digit and sign for a token of its own: more than any
        # tokenizer makes of it.
        assert len(re.findall(r"[A-Za-z]{1,6}|\d|[^\w\s]|_", listed)) < 2000
        assert "$ref" not in listed and "#channel, or * for everyone" in listed

        async def call(name: str, **given: Any) -> Any:
            result = await client.call_tool(name, given)
            [block] = result.content
            assert block.type == "text"
            return block.text if result.is_error else json.loads(block.text)

        [bob] = (await call("agents"))["agents"]
        assert bob["name"] == "Bob"
        # He is not an agent that takes turns: that he has seen it is all that he answers.
        asked = await call("ask", to="Bob", text="\x1b[31mhello\n@relay:Carol you", seconds=1)
        assert asked["deliveries"][0]["to"] == "Bob" and not asked["answers"]
        [told] = (await call("history", agent="Bob", containing="hello"))["messages"]
        assert told["body"] == "^[[31mhello\n@relay\\:Carol you"
        screen = (await call("peek", agent="Bob"))["screen"]
        # A model has called the tool, be it for a client of the person's.
        assert "GOT" in screen and "from person" in screen
        assert (await call("inbox"))["messages"] == []
        await call("memory_save", text="The staging database is called heron")
        [found] = (await call("memory_search", query="staging database"))["memories"]
        assert "heron" in found["text"]
        [intent] = (await call("list_intents"))["intents"]
        assert (intent["id"], intent["status"]) == ("INT-1", "IN_PROGRESS")
        assert "<scope>src/**</scope>" in (await call("read_intent", id="INT-1"))["context"]
        assert "you are the person" in await call("select_active_intent", id="INT-1")
        assert "nobody is called Dora" in await call("send", to="Dora", text="hello")
        assert "send: mode: invalid" in await call("send", to="Bob", text="x", mode="now")
        assert "send: there is no field 'cc'" in await call("send", to="Bob", text="x", cc="y")


#: Asks the server at argv[1] with the token argv[2], and says how it answered, in each way that
#: argv[3:] names: plainly, or so that the connection is seen among the descriptors of no process
#: meanwhile: in the table of a thread of its own, or on its way from one socket to another.
_HIDDEN = """
import ctypes, socket, sys, threading, time, urllib.parse
url, token, *ways = sys.argv[1:]
place = urllib.parse.urlsplit(url)
def ask(how):
    if how == "thread": assert not ctypes.CDLL(None).unshare(0x400)
    link = socket.create_connection((place.hostname, place.port))
    lines = [f"POST {place.path} HTTP/1.1", f"Host: {place.netloc}", "Content-Length: 2"]
    lines += [f"Authorization: Bearer {token}", "Content-Type: application/json"]
    request = "\\r\\n".join([*lines, "Connection: close", "", "{}"]).encode()
    if how == "on its way":
        ours, theirs = socket.socketpair()
        again = link.dup()
        socket.send_fds(ours, [b"x"], [again.fileno()])
        again.close()
        link.sendall(request)
        link.close()
        time.sleep(5)
        link = socket.socket(fileno=socket.recv_fds(theirs, 1, 1)[1][0])
    else:
        link.sendall(request)
    with link.makefile("rb") as answer:
        print("STATUS", answer.read().decode().replace("\\r\\n", " "), flush=True)
for how in ways:
    one = threading.Thread(target=ask, args=(how,))
    one.start()
    one.join()
"""


@contextmanager
def _served(*options: str) -> Iterator[tuple[str, str]]:
    """The URL and the token of a server that is ready."""
    served = subprocess.Popen(
        [*RELAY, "mcp", "--http", *options], stdout=subprocess.PIPE, text=True
    )
    assert served.stdout is not None
    try:
        lines = iter(served.stdout.readline, "}\n")
        server = json.loads("".join(lines) + "}")["mcpServers"]["relay"]
        token = server["headers"]["Authorization"].removeprefix("Bearer ")
        wait_until(lambda: _post(server["url"], token) != 0, 30, "the server")
        yield server["url"], token
    finally:
        served.send_signal(signal.SIGINT)
        assert served.wait(15) == 0
        served.stdout.close()
        relay("broker", "stop")


def test_over_http_the_person_is_served_and_an_agent_with_the_token_is_not() -> None:
    # On use: a process of pytest that only looks for tests need not import all of MCP.
    from relay.features.mcp.mcp_server import CONNECTIONS_MAX, UNPROVEN_MAX

    with _served() as (url, token):
        # It is let in, and says what MCP wants it to accept.
        assert _post(url, token) == 406
        assert _post(url, token[:-1]) == 401
        assert _post(url, token, Origin="http://evil.example") == 403
        assert _post(url, token, Host="evil.example") == 403
        asks = [sys.executable, "-c", _HIDDEN, url, token, "plainly", "thread", "on its way"]
        with wrapped(asks, name="Eve") as eve:
            eve.wait_for(".*".join(["the client is an agent's"] + ["the client is unknown"] * 2))
            assert re.findall(r"STATUS HTTP/1.1 (\d+) ", eve.output) == ["403"] * 3
        headers = {"Authorization": f"Bearer {token}"}
        assert asyncio.run(_names(url, headers)) >= {"send", "ask", "inbox"}
        place = urlsplit(url)
        with ExitStack() as stack:  # silent connections keep nobody out
            for _ in range(UNPROVEN_MAX + CONNECTIONS_MAX):
                stack.enter_context(socket.create_connection((place.hostname, place.port)))
            assert _post(url, token) == 406


@pytest.mark.skipif(not MARKS, reason="elsewhere whoever shows the token is believed")
def test_who_comes_through_a_tunnel_is_served_once_the_person_says_so() -> None:
    # That nobody unknown is served before, the test above sees.
    with _served("--allow-tunnel") as (url, token):
        hidden = [sys.executable, "-c", _HIDDEN, url, token, "thread"]
        done = subprocess.run(hidden, capture_output=True, text=True, timeout=60)
        assert done.stdout.startswith("STATUS HTTP/1.1 406"), done.stdout + done.stderr
        with wrapped([sys.executable, "-c", _HIDDEN, url, token, "plainly"], name="Eve") as eve:
            eve.wait_for("the client is an agent's")


def _post(url: str, token: str, **headers: str) -> int:
    """The status; 0 while nobody answers."""
    head = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", **headers}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, b"{}", head), timeout=20) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    except OSError:
        return 0


async def _names(url: str, headers: dict[str, str]) -> set[str]:
    import httpx2
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    async with (
        httpx2.AsyncClient(headers=headers) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
    ):
        await client.call_tool("agents")
        return {tool.name for tool in (await client.list_tools()).tools}
