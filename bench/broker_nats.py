"""What NATS JetStream stores and acknowledges a second, every message synced (``sync_interval:
always``), 64 in flight on one connection: beside it stands what relay's broker accepts.

Only where ``nats-server`` (2.12 or newer) is installed: the bench says so otherwise.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

#: Messages in flight, as with relay's broker.
IN_FLIGHT = 64
#: Seconds within which the server must serve, and answer.
_WITHIN = 20.0
_CONFIG = """
listen: 127.0.0.1:{port}
jetstream {{ store_dir: {folder}, sync_interval: always }}
"""
_STREAM = {"name": "bench", "subjects": ["bench"], "storage": "file", "retention": "limits"}


def program() -> str | None:
    """The server, where it is installed."""
    return shutil.which("nats-server")


@contextmanager
def served(folder: str) -> Iterator[socket.socket]:
    """A connection to a server of its own, which has a stream named ``bench``."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = os.path.join(folder, "nats.conf")
    with open(config, "w") as file:
        file.write(_CONFIG.format(port=port, folder=json.dumps(os.path.join(folder, "nats"))))
    command = [program() or "nats-server", "--config", config]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            with _connected(port) as connection:
                yield connection
        finally:
            server.terminate()
            server.wait(_WITHIN)


def _connected(port: int) -> socket.socket:
    end = time.monotonic() + _WITHIN
    while True:
        try:
            connection = socket.create_connection(("127.0.0.1", port), _WITHIN)
            break
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(b'CONNECT {"verbose":false,"pedantic":false}\r\nSUB answers 1\r\n')
    asked = json.dumps(_STREAM).encode()
    head = f"PUB $JS.API.STREAM.CREATE.bench answers {len(asked)}\r\n".encode()
    connection.sendall(head + asked + b"\r\n")
    said = b""
    while b"MSG answers" not in said or not said.endswith(b"}\r\n"):
        said += connection.recv(65536)
    if b'"error"' in said:
        raise SystemExit(f"nats-server refuses the stream: {said[-300:]!r}")
    return connection


def accepted(connection: socket.socket, body: str, count: int) -> float:
    """Acknowledged messages a second."""
    line = f"PUB bench answers {len(body)}\r\n{body}\r\n".encode()
    begin = time.perf_counter()
    connection.sendall(line * min(IN_FLIGHT, count))
    sent, answered = min(IN_FLIGHT, count), 0
    part = b""
    while answered < count:
        data = part + connection.recv(262144)
        if b'"error"' in data or b"-ERR" in data or not data:
            raise SystemExit(f"nats-server refused: {data[-300:]!r}")
        if b"PING\r\n" in data:
            connection.sendall(b"PONG\r\n")
        fresh = data.count(b"MSG answers ")
        cut = data.rfind(b"\r\n") + 2  # the mark may be cut, too
        part = data[cut:]
        answered += fresh
        more = min(fresh, count - sent)
        if more > 0:
            connection.sendall(line * more)
            sent += more
    return count / (time.perf_counter() - begin)
