"""The HTTP side of the scripted model: which API a request came by, and how its answer is sent."""

from __future__ import annotations

import gzip
import json
import re
import select
import socket
from collections.abc import Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from tests.real_agents import api_anthropic, api_chat, api_gemini, api_responses
from tests.real_agents.request import Asked, Request
from tests.real_agents.steps import Answer, Beat, Fail, Step
from tests.real_agents.tools import NoSuchTool, listed, named

MODELS = ("mock-model", "claude-sonnet-4-5", "gpt-5", "gemini-2.5-pro")
#: What ``ScriptedModel.url_for`` put before the API's own path.
PREFIX = re.compile(r"(?:/by/(?P<by>[^/]+))?(?P<toolless>/toolless)?(?P<path>/.*|)$")


class Api(Protocol):
    """One module api_*.py."""

    NAME: str

    def read(self, body: dict[str, Any], path: str) -> Asked: ...
    def events(self, answer: Answer, beats: Iterable[Beat]) -> Iterator[dict[str, Any]]: ...
    def whole(self, answer: Answer) -> dict[str, Any]: ...
    def frame(self, event: dict[str, Any]) -> str: ...
    def failure(self, status: int, message: str) -> dict[str, Any]: ...


class Model(Protocol):
    """What answers."""

    def record(self, request: Request) -> None: ...
    def failed(self, what: str) -> None: ...
    def answer(self, request: Request) -> tuple[Step, ...]: ...
    def hold(self, gate: str, left: Callable[[], bool]) -> None: ...
    def pause(self, seconds: float) -> None: ...


APIS: list[tuple[re.Pattern[str], Api]] = [
    (re.compile(r"/messages$"), api_anthropic),
    (re.compile(r"/chat/completions$"), api_chat),
    (re.compile(r"/responses$"), api_responses),
    (re.compile(r":(stream)?[gG]enerateContent$"), api_gemini),
]


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, model: Model) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.model = model

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in the middle of a stream is part of many tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._json({})

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if not path.endswith("/models"):
            self._json({"ok": True})
        elif "/v1beta" in path:
            self._json({"models": [{"name": f"models/{name}"} for name in MODELS]})
        else:
            data = [{"id": name, "object": "model", "type": "model"} for name in MODELS]
            self._json({"object": "list", "data": data, "has_more": False})

    def do_POST(self) -> None:
        body = json.loads(self._body() or b"{}")
        found = PREFIX.match(urlsplit(self.path).path)
        assert found is not None  # every part of it may be absent
        path = found["path"]
        api = next((api for pattern, api in APIS if pattern.search(path)), None)
        if path.endswith("/count_tokens"):
            self._json({"input_tokens": 100})
        elif path.endswith(":countTokens"):
            self._json({"totalTokens": 100})
        elif api is None:
            self._json({"error": {"type": "not_found_error", "message": f"no {path} here"}}, 404)
        else:
            asked = api.read(body, path)
            by, toolless = unquote(found["by"] or ""), found["toolless"] is not None
            self._message(api, Request(body, asked, api.NAME, by, toolless))

    def _message(self, api: Api, request: Request) -> None:
        model = self.server.model
        model.record(request)
        steps = model.answer(request)
        try:
            failure = next((step for step in steps if isinstance(step, Fail)), None)
            if failure is not None:
                self._json(api.failure(failure.status, failure.message), failure.status)
            else:
                self._answer(api, request, steps)
            request.done = True
        except OSError:
            request.aborted = True
            self.close_connection = True
        except NoSuchTool as error:
            model.failed(str(error))
            self._json(api.failure(400, str(error)), 400)
            request.done = True

    def _answer(self, api: Api, request: Request, steps: tuple[Step, ...]) -> None:
        model = self.server.model
        blocks = listed(steps) if request.toolless else named(steps, request.asked.offered)
        answer = Answer(request.asked.model, blocks)
        beats = answer.beats(lambda gate: model.hold(gate, self._left), model.pause)
        if request.asked.stream:
            self._stream(api.frame(event) for event in api.events(answer, beats))
        else:
            for _ in beats:  # the gates and delays hold here as well
                pass
            self._json(api.whole(answer))

    def _left(self) -> bool:
        """Whether the client has hung up; it sends nothing while it waits for an answer."""
        readable, _, _ = select.select([self.connection], [], [], 0)
        return bool(readable) and self.connection.recv(1, socket.MSG_PEEK) == b""

    def _body(self) -> bytes:
        if "chunked" in (self.headers.get("Transfer-Encoding") or ""):
            data = b"".join(self._chunks())
        else:
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return gzip.decompress(data) if self.headers.get("Content-Encoding") == "gzip" else data

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self.rfile.readline().split(b";")[0], 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()

    def _json(self, value: object, status: int = 200) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _stream(self, frames: Iterable[str]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Cache-Control", "no-cache")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for frame in frames:
            data = frame.encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")
