"""An embedding server on 127.0.0.1 that answers what a test tells it to."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Asked:
    """One request as the server got it."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass
class Answer:
    """What to answer. ``hang``: nothing more is sent after so many bytes of the body."""

    body: object
    status: int = 200
    hang: int | None = None

    def data(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()


@dataclass
class EmbeddingServer:
    """Answers each request by ``reply``; remembers all of them in ``asked``."""

    reply: Callable[[Asked], Answer]
    asked: list[Asked] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    def __enter__(self) -> EmbeddingServer:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = False  # closing waits for the last answer
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(20)
        assert not self._thread.is_alive()


def _handler(server: EmbeddingServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 20

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            asked = Asked(self.path, headers, json.loads(body))
            server.asked.append(asked)
            answer = server.reply(asked)
            data = answer.data()
            try:
                self.send_response(answer.status)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data[: answer.hang])
                if answer.hang is not None:
                    server.closing.wait(20)
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True  # the client has had enough

        def log_message(self, format: str, *args: object) -> None:
            """The test looks at ``asked``."""

    return Handler
