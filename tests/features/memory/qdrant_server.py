"""A server that speaks qdrant's REST API, as far as a store of memories uses it.

**It is not the real server**: behind HTTP is the engine of qdrant-client's own local mode. It shows
that a client talks to it as to a server: over the network, with an api key, with a server that is
away or was killed, and next to other clients. Requests and answers go through the client's models.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import random
import selectors
import socket
import subprocess
import sys
import threading
import warnings
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import to_json

ROOT = Path(__file__).resolve().parents[3]
DEADLINE = 60.0  # seconds


class QdrantProcess:
    """The server as a process; a second start has the first's port and folder."""

    def __init__(self, folder: Path, api_key: str) -> None:
        self._folder, self._key = folder, api_key
        self._process: subprocess.Popen[bytes] | None = None
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"

    def start(self) -> QdrantProcess:
        """Start it and wait until it answers."""
        command = [sys.executable, "-m", __name__, str(self.port), str(self._folder), self._key]
        pipe, env = subprocess.PIPE, {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=ROOT, env=env)
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as ready:
            ready.register(self._process.stdout, selectors.EVENT_READ)
            if not ready.select(DEADLINE) or self._process.stdout.readline() != b"ready\n":
                self.kill()
                raise AssertionError("the server does not start")
        return self

    def kill(self) -> None:
        """End it with SIGKILL."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate(timeout=DEADLINE)

    def __enter__(self) -> QdrantProcess:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()


def _free_port() -> int:
    """One that no outgoing connection is given while the server is away (those are from 32768)."""
    for port in random.SystemRandom().sample(range(20_000, 32_000), 100):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("there is no free port")


class Server(ThreadingHTTPServer):
    """A thread for each connection, one request at a time in the engine."""

    daemon_threads = True

    def __init__(self, port: int, folder: str, key: str) -> None:
        from qdrant_client import QdrantClient

        super().__init__(("127.0.0.1", port), _Handler)
        self.engine = QdrantClient(path=folder, force_disable_check_same_thread=True)
        self.key, self.lock = key, threading.Lock()

    def result(self, method: str, path: str, body: bytes) -> Any:
        """Do what is asked. Raises ValueError: it cannot be done."""
        from qdrant_client import models as m

        def asked(kind: Any) -> Any:
            return TypeAdapter(kind).validate_json(body)

        engine, changed = (
            self.engine,
            m.UpdateResult(operation_id=0, status=m.UpdateStatus.COMPLETED),
        )
        match [method, *path.partition("?")[0].strip("/").split("/")]:
            case ["GET", "collections"]:
                return engine.get_collections()
            case ["GET", "collections", name]:
                return engine.get_collection(name)
            case ["GET", "collections", name, "exists"]:
                return m.CollectionExistence(exists=engine.collection_exists(name))
            case ["PUT", "collections", name]:
                made = asked(m.CreateCollection)
                return engine.create_collection(
                    name, made.vectors or {}, sparse_vectors_config=made.sparse_vectors
                )
            case ["PUT", "collections", _, "index"]:
                return changed
            case ["PUT", "collections", name, "points"]:
                engine.upsert(name, asked(m.PointsList).points)
                return changed
            case ["POST", "collections", name, "points"]:
                read = asked(m.PointRequest)
                return engine.retrieve(
                    name, read.ids, _or(read.with_payload, True), _or(read.with_vector, False)
                )
            case ["POST", "collections", name, "points", "delete"]:
                engine.delete(name, asked(m.PointsSelector))
                return changed
            case ["POST", "collections", name, "points", "scroll"]:
                page = asked(m.ScrollRequest)
                points, following = engine.scroll(
                    name,
                    scroll_filter=page.filter,
                    limit=_or(page.limit, 10),
                    offset=page.offset,
                    with_payload=_or(page.with_payload, True),
                    with_vectors=_or(page.with_vector, False),
                )
                return m.ScrollResult(points=points, next_page_offset=following)
            case ["POST", "collections", name, "points", "query"]:
                query = asked(m.QueryRequest)
                return engine.query_points(
                    name,
                    query=query.query,
                    using=query.using,
                    query_filter=query.filter,
                    limit=_or(query.limit, 10),
                    with_payload=_or(query.with_payload, False),
                    with_vectors=_or(query.with_vector, False),
                    score_threshold=query.score_threshold,
                )
        raise ValueError(f"this test server has no {method} {path}")


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # the head and the body in one packet
    disable_nagle_algorithm = True
    timeout = 60

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.path == "/":
            version = importlib.metadata.version("qdrant-client")
            return self._send(200, {"title": "a test's", "version": version})
        if self.headers.get("api-key") != self.server.key:
            return self._send(401, "Invalid API key or JWT")
        try:
            with self.server.lock:
                result = self.server.result(self.command, self.path, body)
        except ValueError as error:
            return self._send(404, {"status": {"error": str(error)}, "time": 0.0})
        return self._send(200, {"result": result, "status": "ok", "time": 0.0})

    do_GET = do_POST = do_PUT = do_DELETE = _serve

    def _send(self, status: int, answer: Any) -> None:
        data = to_json(answer)
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """What is asked for is seen by the test that asks."""


def main() -> None:
    """Serve until standard input ends, so that a test that is killed leaves nothing behind."""
    warnings.simplefilter("ignore")  # local mode warns of being local mode
    port, folder, key = sys.argv[1:]
    server = Server(int(port), folder, key)
    threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()
    print("ready", flush=True)
    while os.read(0, 4096):
        pass


if __name__ == "__main__":
    main()
