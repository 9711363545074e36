"""A scripted model: an Anthropic API server on 127.0.0.1 that says what a test tells it to.

    model = ScriptedModel()
    model.when("run the demo", Say("Working on it."), Tool("Bash", {"command": "true"}))
    model.when_tool(Say("Done."))
    model.start()
    ... point ANTHROPIC_BASE_URL at model.url ...
    model.requests[-1].last_text        # what reached the model last, reminders and all

Rules are tried in the order in which they were added; the first that matches the newest user text
(or tool result) answers. Requests without tools are the program's own side requests (titles and
the like) and get a fixed short answer.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

GATE_DEADLINE = 60.0  # seconds; a gate that no test opens lets go by itself
REMINDER = re.compile(r"<system-reminder>.*?</system-reminder>", re.DOTALL)


@dataclass(frozen=True)
class Say:
    """One text block, streamed in pieces of ``chunk`` characters."""

    text: str
    chunk: int = 16


@dataclass(frozen=True)
class Think:
    """One thinking block."""

    text: str


@dataclass(frozen=True)
class Tool:
    """One tool call by the tool's exact name."""

    name: str
    input: dict[str, Any]


@dataclass(frozen=True)
class Gate:
    """Hold the stream here until the test calls ``model.open(name)``."""

    name: str


@dataclass(frozen=True)
class Fail:
    """Answer with an HTTP error in place of a message."""

    status: int
    message: str = "scripted failure"


Step = Say | Think | Tool | Gate | Fail


@dataclass
class Request:
    """One request for a message, as it came."""

    body: dict[str, Any]
    done: bool = False
    aborted: bool = False

    @property
    def tools(self) -> list[str]:
        return [str(tool.get("name", "")) for tool in self.body.get("tools") or []]

    @property
    def system(self) -> str:
        return _plain(self.body.get("system"))

    @property
    def newest(self) -> list[dict[str, Any]]:
        """The content blocks that follow the model's last own message."""
        blocks: list[dict[str, Any]] = []
        for message in reversed(self.body.get("messages", [])):
            if message["role"] == "assistant":
                break
            content = message["content"]
            if isinstance(content, str):
                content = [{"type": "text", "text": content}]
            blocks = list(content) + blocks
        return blocks

    @property
    def after_tool(self) -> bool:
        """Whether a tool's result is what the model has to answer, and nobody said anything."""
        texts = [b["text"] for b in self.newest if b.get("type") == "text"]
        spoken = any(REMINDER.sub("", text).strip() for text in texts)
        return not spoken and any(b.get("type") == "tool_result" for b in self.newest)

    @property
    def last_text(self) -> str:
        """All text of the newest blocks, reminders and tool results included."""
        return "\n".join(_plain([block]) for block in self.newest)

    @property
    def said(self) -> str:
        """The newest text without what the program itself put around it."""
        return REMINDER.sub("", self.last_text).strip()


@dataclass
class _Rule:
    pattern: re.Pattern[str]
    after_tool: bool | None
    steps: tuple[Step, ...]
    times: int | None
    used: int = 0


class ScriptedModel:
    """The server. ``start`` it, and ``close`` it when the test is over."""

    def __init__(self) -> None:
        self._rules: list[_Rule] = []
        self._gates: dict[str, threading.Event] = {}
        self._lock = threading.Lock()
        self._all: list[Request] = []
        self._server = _Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def when(self, pattern: str, *steps: Step, times: int | None = None) -> None:
        """Answer a message of the user's that ``pattern`` is found in."""
        self._rules.append(_Rule(re.compile(pattern, re.DOTALL), False, steps, times))

    def when_tool(self, *steps: Step, pattern: str = "", times: int | None = None) -> None:
        """Answer the result of a tool that the model called."""
        self._rules.append(_Rule(re.compile(pattern, re.DOTALL), True, steps, times))

    def open(self, gate: str) -> None:
        """Let the streams go on that wait at ``gate``, now and later."""
        self._gate(gate).set()

    @property
    def requests(self) -> list[Request]:
        """The conversation's requests so far, side requests left out."""
        with self._lock:
            return [request for request in self._all if request.tools]

    def seen(self, text: str) -> list[Request]:
        """The requests whose newest part contains ``text``."""
        return [request for request in self.requests if text in request.last_text]

    @property
    def resting(self) -> bool:
        """Whether every request has been answered to the end."""
        return all(request.done or request.aborted for request in self.requests)

    def start(self) -> ScriptedModel:
        self._thread.start()
        return self

    def close(self) -> None:
        with self._lock:
            for gate in self._gates.values():
                gate.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def __enter__(self) -> ScriptedModel:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    # What the handler asks for.

    def record(self, body: dict[str, Any]) -> Request:
        request = Request(body)
        with self._lock:
            self._all.append(request)
        return request

    def answer(self, request: Request) -> tuple[Step, ...]:
        if not request.tools:
            return (Say("Side request"),)
        text, after_tool = request.said, request.after_tool
        with self._lock:
            for rule in self._rules:
                spent = rule.times is not None and rule.used >= rule.times
                if spent or rule.after_tool is not after_tool or not rule.pattern.search(text):
                    continue
                rule.used += 1
                return rule.steps
        return (Say("OK."),)

    def wait_at(self, gate: str) -> None:
        self._gate(gate).wait(GATE_DEADLINE)

    def _gate(self, name: str) -> threading.Event:
        with self._lock:
            return self._gates.setdefault(name, threading.Event())


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, model: ScriptedModel) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.model = model

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in the middle of a stream is part of many tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._json({})

    def do_GET(self) -> None:
        self._json({"data": [], "has_more": False})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        path = urlsplit(self.path).path
        if path.endswith("/count_tokens"):
            self._json({"input_tokens": 100})
        elif path.endswith("/messages"):
            self._message(body)
        else:
            self._json({})

    def _message(self, body: dict[str, Any]) -> None:
        model = self.server.model
        request = model.record(body)
        steps = model.answer(request)
        try:
            failure = next((step for step in steps if isinstance(step, Fail)), None)
            if failure is not None:
                error = {"type": "api_error", "message": failure.message}
                self._json({"type": "error", "error": error}, failure.status)
            elif body.get("stream"):
                self._stream(_events(steps, model, str(body.get("model"))))
            else:
                self._json(_whole(steps, str(body.get("model"))))
            request.done = True
        except OSError:
            request.aborted = True
            self.close_connection = True

    def _json(self, value: object, status: int = 200) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _stream(self, events: Iterator[dict[str, Any]]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for event in events:
            data = f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")


@dataclass
class _Ids:
    count: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def new(self, prefix: str) -> str:
        with self.lock:
            self.count += 1
            return f"{prefix}_scripted{self.count:06d}"


_IDS = _Ids()
_USAGE = {
    "input_tokens": 100,
    "output_tokens": 20,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 0,
}


def _head(model: str) -> dict[str, Any]:
    return {
        "id": _IDS.new("msg"),
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": dict(_USAGE),
    }


def _stop_reason(steps: tuple[Step, ...]) -> str:
    return "tool_use" if any(isinstance(step, Tool) for step in steps) else "end_turn"


def _events(steps: tuple[Step, ...], model: ScriptedModel, name: str) -> Iterator[dict[str, Any]]:
    """The stream of one message."""
    yield {"type": "message_start", "message": _head(name)}
    index = 0
    for step in steps:
        if isinstance(step, Gate):
            model.wait_at(step.name)
        elif not isinstance(step, Fail):
            start, deltas = _block(step)
            yield {"type": "content_block_start", "index": index, "content_block": start}
            for delta in deltas:
                yield {"type": "content_block_delta", "index": index, "delta": delta}
            yield {"type": "content_block_stop", "index": index}
            index += 1
    reason = {"stop_reason": _stop_reason(steps), "stop_sequence": None}
    yield {"type": "message_delta", "delta": reason, "usage": {"output_tokens": 20}}
    yield {"type": "message_stop"}


def _block(step: Say | Think | Tool) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The opening of one content block and the pieces that follow it."""
    if isinstance(step, Say):
        pieces = [step.text[at : at + step.chunk] for at in range(0, len(step.text), step.chunk)]
        deltas = [{"type": "text_delta", "text": piece} for piece in pieces]
        return {"type": "text", "text": ""}, deltas
    if isinstance(step, Think):
        thinking = [
            {"type": "thinking_delta", "thinking": step.text},
            {"type": "signature_delta", "signature": "c2NyaXB0ZWQ="},
        ]
        return {"type": "thinking", "thinking": "", "signature": ""}, thinking
    call = {"type": "tool_use", "id": _IDS.new("toolu"), "name": step.name, "input": {}}
    return call, [{"type": "input_json_delta", "partial_json": json.dumps(step.input)}]


def _whole(steps: tuple[Step, ...], name: str) -> dict[str, Any]:
    """One message that is not streamed."""
    content: list[dict[str, Any]] = []
    for step in steps:
        if isinstance(step, Say):
            content.append({"type": "text", "text": step.text})
        elif isinstance(step, Tool):
            use = {"type": "tool_use", "id": _IDS.new("toolu"), "name": step.name}
            content.append({**use, "input": step.input})
    return {**_head(name), "content": content, "stop_reason": _stop_reason(steps)}


def _plain(value: Any) -> str:
    """The text in a content value, however deep."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(_plain(item) for item in value)
    if isinstance(value, dict):
        return _plain(value.get("text", value.get("content", "")))
    return ""
