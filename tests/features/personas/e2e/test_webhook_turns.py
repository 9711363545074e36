"""From a webhook to a persona's turn and back to its sender, with every process as it is."""

from __future__ import annotations

import json
import socket
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.e2e.wrapped import python, relay, wait_registered, wrapped
from tests.support import wait_until

TOKEN = "t" * 32
CONFIG = """
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
        path.write_text(CONFIG.format(port=port, token=TOKEN, callback=address))
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
