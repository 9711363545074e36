"""Events and dispatches become turns of personas, wrapped, headless or started; their
answers come back, whatever is killed.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from relay.config.trust import user_config
from relay.core.paths import Home
from tests.config.trusted import trusted
from tests.e2e.wrapped import (
    kill_broker,
    kill_session,
    python,
    relay,
    relay_json,
    say,
    wait_registered,
    wrapped,
)
from tests.support import wait_until

#: It goes on where there is a file "go".
CLERK = "echo $$ >>FOLDER/pids; read said; test -e FOLDER/go || sleep 60; echo done: $said"
#: Sends as if it were the person, with nothing in its environment that says what it is.
SEND = f"{sys.executable} -P -m relay send --offline Bob hi"
LIAR = f'setsid env -i RELAY_HOME="$RELAY_HOME" {SEND} 2>&1 || true'
ATLAS = "while True:\n print('at your service,', len(input()), flush=True)\n"
CONFIG = f"""
config = {{
    "personas": {{
        "clerk": {{"command": ["sh", "-c", {CLERK!r}], "mode": "headless"}},
        "none": {{"command": "no-such-program"}},
        "liar": {{"command": ["sh", "-c", {LIAR!r}], "mode": "headless"}},
        "atlas": {{"command": [{sys.executable!r}, "-u", "-c", {ATLAS!r}], "cwd": "FOLDER"}},
    }}
}}
"""


@pytest.fixture
def folder(isolated_home: Path, tmp_path: Path) -> Path:
    path = Path(user_config())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(CONFIG.replace("FOLDER", str(tmp_path)))
    trusted(Home(str(isolated_home)), path)
    return tmp_path


def answers(persona: str) -> list[str]:
    return [row["body"] for row in relay_json("history") if row["from"] == persona]


def test_a_headless_turn_outlives_its_broker(folder: Path) -> None:
    relay("broker", "dispatch", "clerk", "count")
    pids = folder / "pids"
    wait_until(lambda: pids.exists() and pids.read_text().strip(), 30, "the program")
    kill_broker()
    first = int(pids.read_text())
    wait_until(lambda: not Path(f"/proc/{first}").exists(), 30, "its end")
    (folder / "go").touch()
    relay("broker", "status")
    wait_until(lambda: answers("clerk"), 60, "the answer")
    [said] = answers("clerk")
    assert said.startswith("done: (This is sent again")
    assert len(pids.read_text().split()) == 2


def test_a_headless_persona_does_not_speak_as_the_person(folder: Path) -> None:
    relay("broker", "dispatch", "liar", "pretend")
    wait_until(lambda: answers("liar"), 60, "the answer")
    assert "not known to the broker" in answers("liar")[0]
    assert [row for row in relay_json("history") if row["to"] == "Bob"] == []


def test_an_interactive_persona_is_started_where_nobody_is(
    folder: Path, isolated_home: Path
) -> None:
    relay("broker", "dispatch", "none", "hello")
    relay("broker", "dispatch", "atlas", "hello")
    wait_until(lambda: answers("atlas"), 60, "the answer")
    assert "at your service" in answers("atlas")[0]
    [agent] = [one for one in relay_json("agents") if one["name"] == "atlas"]
    assert agent["cwd"] == str(folder)
    os.kill(agent["pid"], signal.SIGTERM)
    [row] = relay_json("broker", "queue")
    assert row["state"] == "waiting" and "personas.log" in row["reason"]
    log = isolated_home / "log" / "personas.log"
    wait_until(lambda: "command not found: no-such-program" in log.read_text(), 30, "the reason")


#: Works in steps on what is slow, unless it has begun with that before.
SLOW = (
    "import time\n"
    "while True:\n"
    "    line = input()\n"
    "    for n in range(300 if 'forever' in line and 'sent again' not in line else 9):\n"
    "        print('step', n, flush=True)\n"
    "        time.sleep(0.1)\n"
    "    print('finished.', flush=True)\n"
)


def asked() -> list[str]:
    """What the persona was asked, and has read."""
    rows = relay_json("history")
    return [row["body"] for row in rows if row["to"] == "atlas" and row["state"] == "seen"]


def test_an_agent_killed_in_mid_turn_is_followed_by_the_next_of_its_name() -> None:
    with wrapped(python(SLOW), name="atlas") as atlas:
        wait_registered("atlas")
        id_ = relay("broker", "dispatch", "atlas", "work forever").strip()
        atlas.wait_for("step 3")
        [row] = relay_json("broker", "queue")
        assert (row["id"], row["state"], row["tries"]) == (id_, "running", 0)
        [agent] = relay_json("agents")
        os.kill(agent["pid"], signal.SIGKILL)
        atlas.wait()
    wait_until(lambda: relay_json("broker", "queue")[0]["tries"] == 1, 20, "the first try to fail")
    with wrapped(python(SLOW), name="atlas") as atlas:
        atlas.wait_for("sent again.*finished")
        wait_until(lambda: answers("atlas"), 30, "the answer")
    assert relay_json("broker", "queue") == []
    assert len(answers("atlas")) == 1 and "finished." in answers("atlas")[0]
    first, second = asked()
    assert first == "work forever" and second.startswith("(This is sent again:")


def test_a_session_and_a_broker_killed_in_mid_turn_change_nothing() -> None:
    with wrapped(python(SLOW), name="atlas") as atlas:
        wait_registered("atlas")
        relay("broker", "dispatch", "atlas", "work once")
        atlas.wait_for("work once.*step 3")
        kill_session(atlas)
        wait_until(lambda: len(answers("atlas")) == 1, 30, "the answer")
        relay("broker", "dispatch", "atlas", "work twice")
        atlas.wait_for("work twice.*step 3")
        kill_broker()
        wait_until(lambda: len(answers("atlas")) == 2, 30, "the other answer")
        assert len(answers("atlas")) == 2 and len(asked()) == 2
        assert relay_json("broker", "queue") == relay_json("broker", "dead") == []


ROUTES = """
from relay import HookResult, HookRouting, PermissionSet, Relay

relay = Relay(idle_seconds=1)

@relay.route(kinds=["output"])
def failures(event):
    if "BUILD FAILED" in event.content:
        # This persona has no hooks by which relay could hold it to less.
        permissions = PermissionSet("full")
        return HookResult(fire=True, routing=HookRouting(persona="atlas"), permissions=permissions)

@relay.route(kinds=["idle", "match", "session_start", "session_end"])
def lives(event):
    return None
"""
#: Says what it is told to say, and takes anything else.
SAYS = (
    "import sys\nfor line in sys.stdin:\n"
    "    print(eval(line) if line[0] == chr(39) else 'HEARD', flush=True)\n"
)
#: Answers in words of its own.
LOOKS = "import sys\nfor line in sys.stdin:\n    print('I look into it', flush=True)\n"


def kinds(agent: str) -> list[str]:
    """What route functions were asked of, as the ledger has it."""
    rows = relay_json("hooks", "log", "--quiet", "--agent", agent, "--limit", "1000")
    return [row["event"] for row in rows]


def test_what_an_agent_says_is_routed_to_a_persona_whose_answer_comes_back(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    (folder / ".git").mkdir(parents=True)
    (folder / "relay.config.py").write_text(ROUTES)
    relay("trust", str(folder / "relay.config.py"))
    with (
        wrapped(python(LOOKS), name="atlas", cwd=tmp_path) as atlas,
        wrapped(python(SAYS), name="Alice", cwd=folder) as alice,
    ):
        wait_registered("atlas")
        wait_registered("Alice")
        alice.type(say("@relay:me ready"))
        wait_until(lambda: {"session_start", "match", "idle"} <= set(kinds("Alice")), what="these")
        alice.type(say("BUILD FAILED in 3 s"))
        # What it was heard to say just before may be in the same event.
        atlas.wait_for("message .* from agent Alice: (HEARD ⏎ )?BUILD FAILED in 3 s")
        alice.wait_for("from agent atlas: I look into")
        [fired] = relay_json("hooks", "log", "--agent", "Alice")
        assert (fired["event"], fired["decision"]) == ("output", "fired")
        alice.type("\x04")
        assert alice.wait() == 0
    wait_until(lambda: kinds("Alice")[-1] == "session_end", what="the end to be told")
    assert kinds("atlas") == []  # it runs elsewhere


TOKEN = "t" * 32
WEBHOOK = """
from relay import Relay
from relay.integrations import webhook

relay = Relay()
webhook.use(
    relay, port={port}, tokens={{"stripe": {token!r}}}, callbacks={{"stripe": {callback!r}}}
)

@relay.route(channels=["webhook"])
def charges(event):
    # A program without hooks cannot be held to less.
    return {{
        "fire": "charge" in event.content,
        "routing": {{"persona": "atlas"}},
        "permissions": {{"level": "full"}},
    }}
"""
ASSISTANT = (
    "import re\n"
    "while True:\n"
    "    m = re.search(r'outside webhook:stripe.*charge.: (\\d+)', input('> '))\n"
    "    if m: print('I refund', m[1], 'at once')\n"
)


@contextmanager
def callback() -> Iterator[tuple[str, list[dict[str, str]]]]:
    """Where answers are posted: its address, and what has come."""
    got: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            got.append({"token": self.headers["authorization"], **json.loads(body)})
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/answers", got
        server.shutdown()
        thread.join(20)


def post(port: int, charge: int) -> dict[str, object]:
    headers = {"Authorization": f"Bearer {TOKEN}", "Idempotency-Key": str(charge)}
    data = json.dumps({"charge": charge}).encode()
    asked = urllib.request.Request(f"http://127.0.0.1:{port}/stripe", data, headers)
    with urllib.request.urlopen(asked, timeout=20) as answer:
        found: dict[str, object] = json.load(answer)
        return found


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_webhook_is_answered_by_a_wrapped_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    path = tmp_path / "xdg" / "relay" / "relay.config.py"
    path.parent.mkdir(parents=True)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with callback() as (address, got):
        path.write_text(WEBHOOK.format(port=port, token=TOKEN, callback=address))
        assert "webhook" in relay("trust", str(path))
        wait_until(lambda: listens(port), 30, "the webhook")
        with wrapped(python(ASSISTANT), name="atlas") as atlas:
            wait_registered("atlas")
            stored = post(port, 120)
            assert post(port, 120) == {**stored, "duplicate": True}
            atlas.wait_for("I refund 120 at once")
            wait_until(lambda: got, 30, "the answer")
        [answer] = got
        assert (answer["token"], answer["persona"]) == (f"Bearer {TOKEN}", "atlas")
        assert "I refund 120 at once" in answer["text"]
        shown = ("show", str(stored["id"]))
        wait_until(lambda: "answer sent" in relay(*shown), 30, "the answer to be noted")
