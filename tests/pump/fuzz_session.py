"""A session for tests that does what a session may do, at random, and sometimes what none should.

Logs every frame as ``fake_session`` does. Reads in pieces of any size and with rests, acknowledges
any offset that it may, asks for words to be typed; the first two of a run may send garbage or end
of themselves, but not once the file ``$FAKE/calm`` is there. ``$FUZZ_SEED`` decides what it does.
"""

from __future__ import annotations

import json
import os
import random
import select
import socket
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from relay.protocol import frames  # noqa: E402
from tests.pump import fake_session  # noqa: E402

FOLDER = os.environ.get("FAKE", "")
WORD_BEGIN, WORD_END, WORD_DIGIT, WORD_BODY = 0x80, 0x81, 0xA0, 0xB0


def word(number: int, size: int) -> bytes:
    """Words with their id in them; every byte has the high bit, which no key has."""
    digits = bytes(WORD_DIGIT | (number >> shift & 15) for shift in range(28, -1, -4))
    return bytes([WORD_BEGIN]) + digits + bytes([WORD_BODY]) * size + bytes([WORD_END])


class Session:
    def __init__(self, pump: socket.socket) -> None:
        self.pump = pump
        self.decoder = frames.Decoder()
        self.rng = random.Random()
        self.offset = 0
        self.acked = 0
        self.sequence = 0
        self.wild = False

    def frame(self, kind: int, payload: bytes) -> None:
        if kind == frames.HELLO:
            hello = json.loads(payload)
            self.offset = self.acked = hello["offset"]
            restarts = hello["restarts"]
            self.rng.seed(int(os.environ["FUZZ_SEED"]) * 100 + restarts)
            self.wild = restarts < 2
        elif kind == frames.ACTIVITY:
            self.sequence = int.from_bytes(payload[:4], "big")
        fake_session.note(chr(kind), {"at": self.offset, "hex": payload.hex()})
        if kind == frames.OUTPUT:
            self.offset += len(payload)

    def act(self) -> None:
        rng = self.rng
        if rng.random() < 0.5 and self.offset > self.acked:
            self.acked = rng.choice((self.offset, rng.randint(self.acked, self.offset)))
            offset = self.acked.to_bytes(8, "big")
            checkpoint = b"checkpoint %d" % self.acked if rng.random() < 0.7 else b""
            self.send(frames.ACK, offset + checkpoint)
        if rng.random() < 0.2:
            number = rng.getrandbits(32)
            sequence = rng.choice((frames.ANY_SEQUENCE, self.sequence))
            text = word(number, rng.choice((0, 5, 3000)))
            head = number.to_bytes(4, "big") + sequence.to_bytes(4, "big")
            self.send(frames.WRITE, head + text)
        if self.wild and rng.random() < 0.02 and not os.path.exists(f"{FOLDER}/calm"):
            if rng.random() < 0.5:
                os._exit(3)
            self.pump.sendall(rng.choice((b"\xff" * 64, frames.pack(frames.ACK, b"\xff" * 8))))

    def send(self, kind: int, payload: bytes) -> None:
        self.pump.sendall(frames.pack(kind, payload))

    def run(self) -> None:
        while True:
            data = self.pump.recv(self.rng.choice((10, 300, 5000, 65536)))
            if not data:
                fake_session.note("end", {})
                return
            for kind, payload in self.decoder.feed(data):
                self.frame(kind, payload)
            self.act()
            select.select([], [], [], self.rng.choice((0, 0, 0, 0.001, 0.03)))


def main() -> None:
    fds = json.loads(os.environ["RELAY_SESSION_FDS"])
    pump = socket.socket(fileno=fds["pump"])
    fake_session.note("start", {})
    try:
        Session(pump).run()
    except OSError:
        fake_session.note("end", {})  # the pump has gone, or has had enough of us


if __name__ == "__main__":
    main()
