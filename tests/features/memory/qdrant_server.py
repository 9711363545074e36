"""A server for tests that speaks qdrant's REST API, as far as a store of memories uses it.

What it is: the engine of qdrant-client's own local mode (``QdrantClient(path=…)``) behind HTTP, in
a process of its own. **It is not the real server.** It says nothing about qdrant's index, its
speed, its storage or how it behaves when several write to one point. What it does show is that a
client talks to it as to a server: over the network, with errors as HTTP statuses, with an api key,
with a server that is away or was killed, and next to other clients. Every request is read, and
every answer made, through the models of ``qdrant_client.http``; paths, statuses and messages are
those that qdrant's public source gives.

    python -m tests.features.memory.qdrant_server --port 6333 --path FOLDER [--api-key KEY]
    [--until-eof]

Port 0 takes a free one. The port is printed when requests are answered. Without ``--path`` all is
in memory. SIGTERM ends it; with ``--until-eof`` so does the end of its standard input, so that a
test that is killed leaves nothing behind.
"""

from __future__ import annotations

import argparse
import hmac
import importlib.metadata
import itertools
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, get_type_hints
from urllib.parse import parse_qs, unquote, urlsplit

from pydantic import BaseModel, TypeAdapter
from qdrant_client.http import models as m
from qdrant_client.http.api.collections_api import SyncCollectionsApi as Collections
from qdrant_client.http.api.indexes_api import SyncIndexesApi as Indexes
from qdrant_client.http.api.points_api import SyncPointsApi as Points
from qdrant_client.http.api.search_api import SyncSearchApi as Search

from tests.features.memory.qdrant_engine import Engine, Refused, refusal

#: The real server's ``max_request_size_mb``.
_BODY_MAX = 32 << 20
#: What needs no api key.
_OPEN = {"/", "/healthz", "/livez", "/readyz"}


@dataclass(frozen=True)
class Route:
    """One operation. ``call`` gets the parameters in the path, then the request if there is one."""

    method: str
    path: tuple[str, ...]
    call: Callable[..., Any]
    request: TypeAdapter[Any] | None
    answer: type[BaseModel]

    def match(self, method: str, parts: tuple[str, ...]) -> list[str] | None:
        """The parameters in the path, or None when this is not what was asked for."""
        if method != self.method or len(parts) != len(self.path):
            return None
        pairs = list(zip(self.path, parts, strict=True))
        if any(mine != theirs for mine, theirs in pairs if mine != "*"):
            return None
        return [theirs for mine, theirs in pairs if mine == "*"]


def _route(line: str, call: Callable[..., Any], request: Any, api: Callable[..., Any]) -> Route:
    """``api``: the method of the client that asks for it; its answer is of that one's type."""
    method, _, path = line.partition(" ")
    adapter = None if request is None else TypeAdapter(request)
    return Route(method, tuple(path.split("/")), call, adapter, get_type_hints(api)["return"])


_CHANGED = get_type_hints(Points.upsert_points)["return"]
_ONE = "collections/*"
_POINTS = "collections/*/points"
_SELECTOR = m.PointsSelector
ROUTES = (
    _route("GET collections", Engine.list_collections, None, Collections.get_collections),
    _route(f"GET {_ONE}/exists", Engine.exists, None, Collections.collection_exists),
    _route(f"PUT {_ONE}", Engine.create, m.CreateCollection, Collections.create_collection),
    _route(f"GET {_ONE}", Engine.collection, None, Collections.get_collection),
    _route(f"DELETE {_ONE}", Engine.drop, None, Collections.delete_collection),
    _route(
        f"PUT {_ONE}/index", Engine.create_index, m.CreateFieldIndex, Indexes.create_field_index
    ),
    _route(f"POST {_POINTS}", Engine.retrieve, m.PointRequest, Points.get_points),
    _route(f"POST {_POINTS}/query", Engine.query, m.QueryRequest, Search.query_points),
    _route(f"POST {_POINTS}/scroll", Engine.scroll, m.ScrollRequest, Points.scroll_points),
    _route(f"PUT {_POINTS}", Engine.upsert, m.PointInsertOperations, Points.upsert_points),
    _route(f"POST {_POINTS}/delete", Engine.delete, _SELECTOR, Points.delete_points),
)


class Server(ThreadingHTTPServer):
    """Listens on 127.0.0.1; a thread for each connection, one request at a time in the engine."""

    daemon_threads = True

    def __init__(self, port: int, engine: Engine, api_key: str | None) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.engine = engine
        self.api_key = api_key
        self.operations = itertools.count(1)

    def answer(self, method: str, target: str, body: bytes) -> BaseModel:
        """Do what is asked. Raises whatever ``refusal`` has an answer for."""
        began = time.monotonic()
        url = urlsplit(target)
        parts = tuple(unquote(part) for part in url.path.strip("/").split("/"))
        if parts == ("",) and method == "GET":
            version = importlib.metadata.version("qdrant-client")
            return m.VersionInfo(title="test server of qdrant's API", version=version)
        route, values = _find(method, parts)
        asked = [] if route.request is None else [route.request.validate_json(body)]
        with self.engine.lock:
            result = route.call(self.engine, *values, *asked)
        if route.answer is _CHANGED:
            waited = parse_qs(url.query).get("wait") == ["true"]
            result = m.UpdateResult(
                operation_id=next(self.operations),
                status=m.UpdateStatus.COMPLETED if waited else m.UpdateStatus.ACKNOWLEDGED,
            )
        return route.answer(result=result, status="ok", time=time.monotonic() - began)


def _find(method: str, parts: tuple[str, ...]) -> tuple[Route, list[str]]:
    for route in ROUTES:
        values = route.match(method, parts)
        if values is not None:
            return route, values
    raise Refused(404, f"this test server has no {method} /{'/'.join(parts)}")


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # the head and the body in one packet
    disable_nagle_algorithm = True
    timeout = 60

    def _serve(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        if length > _BODY_MAX:
            self.close_connection = True
            return self._send_error(Refused(413, f"the body is larger than {_BODY_MAX} bytes"))
        body = self.rfile.read(length)
        if not self._allowed():
            given = self.headers.get("api-key") or self.headers.get("authorization")
            why = "Invalid API key or JWT" if given else "Must provide an API key"
            return self._send(401, why.encode(), "text/plain; charset=utf-8")
        try:
            answer = self.server.answer(self.command, self.path, body)
        except Exception as error:
            return self._send_error(refusal(error))
        return self._send(200, answer.model_dump_json(by_alias=True).encode())

    do_GET = do_POST = do_PUT = do_DELETE = _serve

    def _allowed(self) -> bool:
        expected = self.server.api_key
        if expected is None or urlsplit(self.path).path in _OPEN:
            return True
        bearer = self.headers.get("authorization", "").removeprefix("Bearer ")
        return hmac.compare_digest(self.headers.get("api-key", bearer), expected)

    def _send_error(self, error: Refused) -> None:
        status = m.ErrorResponseStatus(error=str(error))
        answer = m.ErrorResponse(status=status, time=0.0)
        self._send(error.status, answer.model_dump_json().encode())

    def _send(self, status: int, body: bytes, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """What is asked for is seen by the test that asks."""


def _end_with_stdin() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--path", type=Path)
    parser.add_argument("--api-key")
    parser.add_argument("--until-eof", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    warnings.simplefilter("ignore")  # local mode warns of being local mode
    engine = Engine(options.path)
    try:
        with Server(options.port, engine, options.api_key) as server:
            if options.until_eof:
                threading.Thread(target=_end_with_stdin, daemon=True).start()
            print(server.server_port, flush=True)
            server.serve_forever(0.1)
    finally:
        engine.close()


if __name__ == "__main__":
    main()
