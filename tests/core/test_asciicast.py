"""Recordings of terminals: what is read, what is refused, and with which line number."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.core.asciicast import CastError, CastEvent, Header, event_line, header_line, read

V2 = '{"version": 2, "width": 80, "height": 24, "title": "T", "relay": {"agent": "Bob"}}\n'
V3 = '{"version": 3, "term": {"cols": 100, "rows": 30, "type": "xterm"}}\n'


def play(*lines: str) -> tuple[Header, list[CastEvent]]:
    header, events = read(lines)
    return header, list(events)


def test_version_3_has_intervals_comments_and_an_exit() -> None:
    header, events = play(V3, "# hello\n", '[0.5, "o", "a"]\n', '[0.25, "x", "0"]\n')
    assert (header.version, header.cols, header.rows) == (3, 100, 30)
    assert events == [CastEvent(0.5, "o", "a"), CastEvent(0.75, "x", "0")]


def test_times_never_go_back() -> None:
    _, events = play(V2, '[5, "o", "a"]\n', '[4, "o", "b"]\n')
    assert [event.at for event in events] == [5.0, 5.0]


def test_a_last_line_that_was_cut_off_is_left_out() -> None:
    whole = V2 + '[0.5, "o", "a"]\n[0.6, "o", "b'
    _, events = play(*whole.splitlines(keepends=True))
    assert events == [CastEvent(0.5, "o", "a")]


@pytest.mark.parametrize(
    ("lines", "line", "says"),
    [
        ([], 1, "empty"),
        (["\n"], 1, "empty"),
        (["hello\n"], 1, "not an asciicast"),
        (["[1]\n"], 1, "version 2 or 3"),
        (['{"version": 1, "width": 80, "height": 24, "stdout": []}\n'], 1, "asciinema convert"),
        (['{"version": 9}\n'], 1, "version 2 or 3"),
        (['{"version": 2, "width": 0, "height": 24}\n'], 1, "columns"),
        (['{"version": 2, "width": true, "height": 24}\n'], 1, "columns"),
        (['{"version": 3, "term": 7}\n'], 1, "columns"),
        ([V2, "[0.1, \n", '[1, "o", "a"]\n'], 2, "JSON"),
        ([V2, '[1, "o", "a"]\n', '[1, "o"]\n'], 3, "a time, a code"),
        ([V2, '["1", "o", "a"]\n'], 2, "not a time"),
        ([V2, '[NaN, "o", "a"]\n'], 2, "not a time"),
        ([V2, '[-1, "o", "a"]\n'], 2, "not a time"),
        ([V2, '[1, "o", 7]\n'], 2, "strings"),
        ([V2, "[" * 100_000 + "\n"], 2, "JSON"),
        (["[" * 100_000 + "\n"], 1, "not an asciicast"),
    ],
)
def test_what_is_no_recording_is_named_with_its_line(
    lines: list[str], line: int, says: str
) -> None:
    with pytest.raises(CastError, match=says) as caught:
        play(*lines)
    assert caught.value.line == line


@pytest.mark.parametrize("data", ["", "80", "x", "0x24", "80x0", "80x99999", "80x24x1", "-1x2"])
def test_no_terminal_has_such_a_size(data: str) -> None:
    assert CastEvent(0.0, "r", data).size() is None


@given(st.text(), st.floats(0, 1e6))
def test_what_is_written_is_read(data: str, at: float) -> None:
    line = event_line(CastEvent(at, "o", data)) + "\n"
    assert line.count("\n") == 1
    fields: dict[str, object] = {"version": 2, "width": 80, "height": 24}
    _, events = play(header_line(fields) + "\n", line)
    assert [(event.code, event.data) for event in events] == [("o", data)]
    assert abs(events[0].at - at) < 1e-5
    assert json.loads(line)[2] == data


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
_HEADERS = st.fixed_dictionaries(
    {"version": st.sampled_from([1, 2, 3, "2"])},
    optional={"width": _VALUES, "height": _VALUES, "term": _VALUES, "relay": _VALUES},
)


@given(st.just(json.loads(V2)) | _HEADERS | _VALUES, st.lists(_VALUES, max_size=4))
def test_whatever_a_file_holds_it_is_read_or_refused(head: object, more: list[object]) -> None:
    try:
        play(*(json.dumps(value) + "\n" for value in [head, *more]))
    except CastError as error:
        assert 1 <= error.line <= 1 + len(more)
