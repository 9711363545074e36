"""A session for tests: logs every frame, and does what ``$FAKE/mode`` and ``$FAKE/ctl`` say.

Modes: ``ack`` (record and acknowledge everything), ``noack`` (read, never acknowledge), ``hang``
(never read), ``die`` (end at once), ``garbage`` (send what is no frame). A datagram sent to
``$FAKE/ctl`` is written to the pump verbatim.
"""

from __future__ import annotations

import json
import os
import select
import socket
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from relay.protocol import frames  # noqa: E402

FOLDER = os.environ.get("FAKE", "")


def main() -> None:
    fds = json.loads(os.environ["RELAY_SESSION_FDS"])
    args = json.loads(os.environ["RELAY_SESSION_ARGS"])
    pump = socket.socket(fileno=fds["pump"])
    with open(os.path.join(FOLDER, "mode")) as file:
        mode = file.read().strip()
    note(
        "start", {"args": args, "fds": fds, "env": dict(os.environ), "open": os.listdir("/dev/fd")}
    )
    if mode == "die":
        os._exit(3)
    if mode == "garbage":
        pump.sendall(b"\xff" * 64)
    control = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    path = os.path.join(FOLDER, "ctl")
    if os.path.exists(path):
        os.unlink(path)
    control.bind(path)
    poll = select.poll()
    poll.register(control, select.POLLIN)
    if mode != "hang":
        poll.register(pump, select.POLLIN)
    decoder = frames.Decoder()
    offset = 0
    while True:
        ready = dict(poll.poll())
        if control.fileno() in ready:
            pump.sendall(control.recv(1 << 20))
        if pump.fileno() in ready:
            data = pump.recv(65536)
            if not data:
                note("end", {})
                return
            before = offset
            for kind, payload in decoder.feed(data):
                if kind == frames.HELLO:
                    offset = before = json.loads(payload)["offset"]
                note(chr(kind), {"at": offset, "hex": payload.hex()})
                if kind == frames.OUTPUT:
                    offset += len(payload)
            if mode == "ack" and offset > before:
                number = offset.to_bytes(8, "big")
                pump.sendall(frames.pack(frames.ACK, number + b"checkpoint %d" % offset))


def note(kind: str, what: dict[str, object]) -> None:
    # A kill may tear a line off; the newline in front keeps the next one apart from it.
    line = "\n" + json.dumps({"kind": kind, "pid": os.getpid(), **what}) + "\n"
    fd = os.open(os.path.join(FOLDER, "log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, line.encode())
    os.close(fd)


if __name__ == "__main__":
    main()
