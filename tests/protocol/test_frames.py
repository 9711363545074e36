"""Frames from chunks cut anywhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.protocol import frames

FRAMES = st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=50)), max_size=8)


@given(FRAMES, st.lists(st.integers(1, 20), min_size=1))
def test_any_cut_gives_the_same_frames(sent: list[tuple[int, bytes]], sizes: list[int]) -> None:
    data = b"".join(frames.pack(kind, payload) for kind, payload in sent)
    decoder, received, at, turn = frames.Decoder(), [], 0, 0
    while at < len(data):
        size = sizes[turn % len(sizes)]
        received += decoder.feed(data[at : at + size])
        at, turn = at + size, turn + 1
    assert received == sent


def test_a_frame_that_is_too_long_is_refused_at_its_head() -> None:
    head = frames.pack(frames.OUTPUT)[:1] + (frames.FRAME_MAX + 1).to_bytes(4, "big")
    with pytest.raises(frames.FrameError, match="at most"):
        frames.Decoder().feed(head)


def test_the_types_differ() -> None:
    names = "HELLO CHECKPOINT OUTPUT ACTIVITY SIZE JOB REST WRITTEN REFUSED GOING EXIT"
    names += " WRITE ACK FAREWELL"
    assert len({getattr(frames, name) for name in names.split()}) == 14
