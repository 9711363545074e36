"""Server-sent events, however the stream is cut."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from relay.agents.opencode.sse import EVENT_MAX, Events

EVENTS = [{"type": "a", "properties": {"x": "é\n\r"}}, {"type": "b"}, {"type": "c", "n": 1}]
STREAM = b": hello\n\n" + b"".join(
    b"event: message\ndata: " + json.dumps(event, ensure_ascii=False).encode() + b"\n\n"
    for event in EVENTS
)


@given(st.lists(st.integers(0, len(STREAM)), max_size=8), st.booleans())
def test_any_cut_gives_the_same_events(cuts: list[int], crlf: bool) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    pieces = [STREAM[a:b] for a, b in zip(edges, edges[1:], strict=False)]
    if crlf:
        pieces = [STREAM.replace(b"\n", b"\r\n")]
    events = Events()
    assert [event for piece in pieces for event in events.feed(piece)] == EVENTS
    assert events.dropped == 0


def test_what_is_no_event_is_passed_over() -> None:
    events = Events()
    assert events.feed(b"data: {broken\n\ndata: [1]\n\ndata: {}\n\n") == [{}]
    assert events.dropped == 2


def test_data_of_several_lines_is_one_event() -> None:
    assert Events().feed(b'data: {"a":\ndata: 1}\n\n') == [{"a": 1}]


def test_an_event_that_is_too_long_costs_only_itself() -> None:
    events = Events()
    assert events.feed(b"data: " + b"x" * EVENT_MAX) == []
    assert events.feed(b"x" * 100) == []
    assert events.feed(b'x\n\ndata: {"a": 1}\n\n') == [{"a": 1}]
    assert events.dropped == 1
