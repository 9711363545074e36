"""What the person is told of while they look elsewhere, as the desktop and a webhook get it."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from relay.config.trust import user_config
from relay.core.agent_names import owner_name
from tests.e2e.wrapped import (
    RELAY,
    SAY,
    Wrapped,
    python,
    relay,
    relay_json,
    say,
    wait_registered,
    wrapped,
)
from tests.support import wait_until

#: Stands for notify-send: one line for each call.
_DESKTOP = """#!/bin/sh
printf '%s|' "$@" >>"$DESKTOP"
echo >>"$DESKTOP"
"""


class Hook:
    """A webhook: what was posted to it."""

    def __init__(self) -> None:
        self.posted: list[dict[str, Any]] = []
        self.paths: set[str] = set()
        posted, paths = self.posted, self.paths

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                size = int(self.headers["Content-Length"])
                posted.append(json.loads(self.rfile.read(size)))
                paths.add(self.path)
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/hook"


@pytest.fixture
def hook() -> Iterator[Hook]:
    found = Hook()
    thread = threading.Thread(target=found.server.serve_forever, args=(0.05,))
    thread.start()
    yield found
    found.server.shutdown()
    thread.join()
    found.server.server_close()


def test_each_thing_is_told_once_through_a_kill_of_the_broker(
    hook: Hook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "notify-send"
    program.parent.mkdir()
    program.write_text(_DESKTOP)
    program.chmod(0o755)
    desktop = tmp_path / "desktop"
    desktop.touch()
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("DESKTOP", str(desktop))
    own = Path(user_config())
    own.parent.mkdir(parents=True)
    own.write_text(f'config = {{"notify": {{"webhook": {hook.url!r}}}}}\n')
    relay("trust", str(own))
    project = tmp_path / "project" / "relay.config.py"
    project.parent.mkdir()
    project.write_text(f'config = {{"notify": {{"webhook": "{hook.url}/project"}}}}\n')
    relay("trust", str(project))
    owner = owner_name()

    def told(count: int) -> list[str]:
        wait_until(lambda: len(hook.posted) >= count, 30, f"{count} notices")
        return [one["text"] for one in hook.posted]

    with wrapped(python(SAY), name="Bob", cwd=project.parent) as bob:
        wait_registered("Bob")
        bob.type(say(f"@relay:{owner} <b>done</b>"))
        assert told(1) == ["Bob writes: <b>done</b>"]
        line = "--app-name=relay|--|Bob writes|&lt;b&gt;done&lt;/b&gt;|"
        wait_until(lambda: desktop.read_text() == line + "\n", 10, "the desktop")
        os.kill(relay_json("broker", "status")["pid"], signal.SIGKILL)
        bob.type(say(f"@relay:{owner} again"))
        assert told(2)[1:] == ["Bob writes: again"]
        # Somebody's terminal tells the desktop by itself now.
        terminal = Wrapped.__new__(Wrapped)
        terminal._start([*RELAY, "notify"], (24, 100), None, {"TERM_PROGRAM": "WezTerm"})
        try:
            terminal.wait_for("Notices appear here")
            bob.type(say(f"@relay:{owner} a;b"))
            shown = r"\a\x1b\]9;Bob writes: a,b\x1b\\\d\d:\d\d:\d\d  Bob writes: a;b"
            terminal.wait_for(shown)
        finally:
            terminal.close()
        told(3)
    assert told(4)[3].startswith("Bob has ended")
    assert len(hook.posted) == 4 and hook.paths == {"/hook"}
    # What the terminal told, notify-send was not asked for.
    assert "a;b" not in desktop.read_text() and "Bob has ended" in desktop.read_text()
    relay("broker", "stop")
