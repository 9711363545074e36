"""Which events may be forgotten when a session does not read."""

from __future__ import annotations

import os
import socket

import pytest

from relay.protocol import frames
from relay.pump import session_link as module
from relay.pump.session_link import SessionLink


def test_an_answer_is_never_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for it would wait for ever."""
    monkeypatch.setattr(module, "_EVENTS_MAX", 4)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)

    def start() -> tuple[int, int]:
        return os.dup(ours.fileno()), 0

    with ours, theirs:
        link = SessionLink(start, lambda offset, size, restarts: b"{}", b"\0" * 8)
        link.open(0.0)
        link.event(frames.WRITTEN, (7).to_bytes(4, "big"))
        for number in range(10):
            link.event(frames.ACTIVITY, number.to_bytes(4, "big") + frames.TYPED)
        link.flush(0.0)
        received = frames.Decoder().feed(theirs.recv(65536))
        os.close(link.fd)
    kinds = [kind for kind, _ in received]
    assert kinds.count(frames.WRITTEN) == 1
    activity = [payload[:4] for kind, payload in received if kind == frames.ACTIVITY]
    assert activity == [number.to_bytes(4, "big") for number in (7, 8, 9)]
