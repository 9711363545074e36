"""The screen under recordings that are cut, torn, begun late and resized, and under any bytes."""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relay.agents.profile import find_profile
from relay.core.source_events import SourceEvent
from relay.protocol import frames
from relay.screen.source import CHECKPOINT_MAX, ScreenSource
from tests.pump.fuzzing import fuzz
from tests.screen.screens import CASTS, cast, cut, texts, until
from tests.screen.test_recordings import directives

NAMES = sorted(path.stem for path in CASTS.glob("*.cast"))
#: Of agents that are heard by what their programs draw.
CONVERSATIONS = ["hearing/qwen-80x24", "hearing/opencode-80x24", "hearing/codex-inline-80x24"]
Recorded = tuple[float, str, bytes]


@functools.cache
def recorded(name: str) -> list[Recorded]:
    """The events of a recording, output as bytes."""
    return [(at, kind, data.encode()) for at, kind, data in cast(name)]


def size_of(name: str) -> int:
    return sum(len(data) for _, kind, data in recorded(name) if kind == "o")


@functools.cache
def every_event(name: str) -> list[SourceEvent]:
    """What is heard of the recording as it is."""
    return replay(recorded(name))


def whole(name: str) -> list[str]:
    """The directives of the recording as it is."""
    return directives(every_event(name))


def feed(source: ScreenSource, event: Recorded) -> list[SourceEvent]:
    """One event of a recording, after what was due before it."""
    at, kind, data = event
    events = until(source, at)
    if kind == "i" and data.startswith(b"\x1b[200~"):
        source.expect_echo(data[6:-6].decode(), at)
    if kind == "r":
        cols, rows = map(int, data.split(b"x"))
        events += source.resize(cols, rows, at)
    if kind == "o":
        events += source.feed(data, at)
    return events


def settle(source: ScreenSource, at: float) -> list[SourceEvent]:
    return until(source, at + 2) + source.finish(at + 2)


def replay(recording: Sequence[Recorded], source: ScreenSource | None = None) -> list[SourceEvent]:
    source = source or ScreenSource(80, 24)
    events = [event for what in recording for event in feed(source, what)]
    return events + settle(source, recording[-1][0] if recording else 0.0)


def pieces(recording: Sequence[Recorded], sizes: list[int]) -> list[Recorded]:
    """The same with its output in smaller pieces."""
    cuts = itertools.cycle(sizes)
    return [
        (at, kind, piece)
        for at, kind, data in recording
        for piece in (cut(data, cuts) if kind == "o" else (data,))
    ]


def split_at(recording: Sequence[Recorded], offset: int) -> tuple[list[Recorded], list[Recorded]]:
    """The recording before and after this byte of its output."""
    before: list[Recorded] = []
    for index, (at, kind, data) in enumerate(recording):
        if kind == "o" and len(data) > offset:
            head = [(at, kind, data[:offset])] if offset else []
            return before + head, [(at, kind, data[offset:]), *recording[index + 1 :]]
        offset -= len(data) if kind == "o" else 0
        before.append((at, kind, data))
    return before, []


def join_close(recording: Sequence[Recorded], window: float) -> list[Recorded]:
    """What is written within ``window`` seconds comes together, and late."""
    joined: list[Recorded] = []
    began = -1.0
    for at, kind, data in recording:
        if kind == "o" and joined and joined[-1][1] == "o" and at - began < window:
            data = joined.pop()[2] + data
        else:
            began = at
        joined.append((at, kind, data))
    return joined


any_name = st.sampled_from(NAMES)
place = st.floats(0, 1, exclude_max=True)


@fuzz(8)
@given(any_name, st.lists(st.integers(1, 300), min_size=1, max_size=10))
def test_any_cut_is_heard_the_same(name: str, sizes: list[int]) -> None:
    assert replay(pieces(recorded(name), sizes)) == every_event(name)


@fuzz(8)
@given(any_name, place, st.integers(100, 4000))
def test_byte_by_byte_in_any_window_is_heard_the_same(name: str, start: float, size: int) -> None:
    before, rest = split_at(recorded(name), int(start * size_of(name)))
    window, after = split_at(rest, size)
    assert replay([*before, *pieces(window, [1]), *after]) == every_event(name)


@fuzz(8)
@given(any_name, st.sampled_from([0.002, 0.005, 0.01, 0.015, 0.02]))
def test_what_comes_together_is_heard_once(name: str, window: float) -> None:
    assert directives(replay(join_close(recorded(name), window))) == whole(name)


@fuzz(20)
@given(any_name, place, st.sampled_from([0.0, 0.2, 2.0]))
@example("claude-80x24", 0.40625, 0.0)
@example("codex-80x24", 0.4765625, 0.0)
@example("codex-inline-80x24", 0.115, 2.0)
def test_a_run_that_breaks_off_invents_nothing(name: str, end: float, wait: float) -> None:
    """The last line may be cut short: it stood there so when the program ended."""
    before, _ = split_at(recorded(name), int(end * size_of(name)))
    source, at = ScreenSource(80, 24), before[-1][0] if before else 0.0
    events = [event for what in before for event in feed(source, what)]
    heard = directives(events + until(source, at + wait) + source.finish(at + wait))
    wanted = whole(name)[: len(heard)]
    assert heard[:-1] == wanted[:-1]
    # Marks of Markdown are shown until the end of what they mark has come.
    assert not heard or wanted[-1].startswith(heard[-1].replace("`", "").replace("**", ""))


@fuzz(12)
@given(st.one_of(any_name, st.sampled_from(CONVERSATIONS)), place)
def test_a_recording_begun_in_the_middle_is_heard_without_an_error(name: str, start: float) -> None:
    """A session that lost its checkpoint."""
    before, rest = split_at(recorded(name), int(start * size_of(name)))
    at = before[-1][0] if before else 0.0
    source = ScreenSource(80, 24, now=at)
    replay(rest, source)
    assert len(source.checkpoint()) <= CHECKPOINT_MAX


@fuzz(8)
@given(any_name, st.lists(place, min_size=1, max_size=5))
def test_restored_at_any_byte_it_hears_the_same(name: str, places: list[float]) -> None:
    source = ScreenSource(80, 24)
    offsets = sorted(int(at * size_of(name)) for at in places)
    events: list[SourceEvent] = []
    rest, done = recorded(name), 0
    cols, rows = 80, 24
    for offset in offsets:
        part, rest = split_at(rest, offset - done)
        done = offset
        for what in part:
            events += feed(source, what)
            if what[1] == "r":
                cols, rows = map(int, what[2].split(b"x"))
        now = part[-1][0] if part else source._now
        source = ScreenSource.restore(source.checkpoint(), cols, rows, now)
    events += replay(rest, source)
    assert directives(events) == whole(name)


@fuzz(12)
@given(
    any_name,
    st.lists(st.tuples(place, st.integers(30, 160), st.integers(8, 60)), min_size=1, max_size=4),
    st.sampled_from([0.0, 0.05, 0.5]),
)
def test_resizes_double_nothing(
    name: str, resizes: list[tuple[float, int, int]], stays: float
) -> None:
    """Of a program that does not redraw, and back before it goes on."""
    recording = recorded(name)
    last = recording[-1][0]
    inserted: list[Recorded] = []
    for part, cols, rows in resizes:
        at = part * last
        later = [event[0] for event in recording if event[0] > at]
        back = min(at + stays, min(later, default=last))
        inserted += [(at, "r", b"%dx%d" % (cols, rows)), (back, "r", b"80x24")]
    if any(kind == "r" for _, kind, _ in recording):
        return
    heard = directives(replay(sorted([*recording, *inserted], key=lambda event: event[0])))
    assert [line for line in whole(name) if heard.count(line) > 1] == []


@pytest.mark.parametrize("name", CONVERSATIONS)
@fuzz(2)
@given(st.lists(st.integers(20, 900), min_size=1, max_size=4), st.integers(30, 160), place)
def test_a_conversation_is_borne_however_it_is_cut_resized_and_restored(
    name: str, sizes: list[int], cols: int, part: float
) -> None:
    recording = pieces(recorded(name), sizes)
    middle = int(part * len(recording))
    at = recording[middle][0]
    style = find_profile(name.split("/")[1].split("-")[0])[0].screen
    source = ScreenSource(80, 24, style=style)
    for what in recording[:middle]:
        feed(source, what)
    source.resize(cols, 24, at)
    source = ScreenSource.restore(source.checkpoint(), 80, 24, at, style=style)
    replay(recording[middle:], source)
    assert len(source.checkpoint()) <= CHECKPOINT_MAX


# -- any bytes ---------------------------------------------------------------------------------

_numbers = st.one_of(st.integers(0, 300), st.sampled_from([65535, 65536, 2**31, 2**32, 10**18]))
_parameters = st.lists(st.one_of(_numbers.map(str), st.just("")), max_size=6).map(";".join)
_control_sequence = st.builds(
    lambda mark, args, between, final: b"\x1b[" + mark + args.encode() + between + final,
    st.sampled_from([b"", b"", b"", b"?", b">", b"<", b"=", b"!"]),
    _parameters,
    st.sampled_from([b"", b"", b"", b" ", b"$", b"'", b'"', b"\x18", b"\n", b"\x1b"]),
    st.integers(0x40, 0x7E).map(lambda byte: bytes([byte])),
)
_mode = st.builds(
    lambda number, final: b"\x1b[?%d%s" % (number, final),
    st.sampled_from([1, 3, 5, 6, 7, 12, 25, 40, 47, 69, 1000, 1047, 1048, 1049, 2004, 2026, 2027]),
    st.sampled_from([b"h", b"l", b"s", b"r", b"$p"]),
)
_string = st.builds(
    lambda opener, body, end: b"\x1b" + opener + body + end,
    st.sampled_from([b"]", b"P", b"X", b"^", b"_"]),
    st.one_of(
        st.binary(max_size=40),
        st.sampled_from(
            [b"0;title", b"8;;https://x", b"52;c;QUJD", b"133;A", b"4;1;?", b"+q544e", b"Gf=24;AA"]
        ),
        st.integers(1, 3000).map(lambda size: b"0;" + b"s" * size),
    ),
    st.sampled_from([b"\x07", b"\x1b\\", b"\x9c", b"\x18", b"", b"\x1b"]),
)
_text = st.one_of(
    st.binary(max_size=30),
    st.text(max_size=30).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.sampled_from(
        [
            b"\r\n",
            b"\n",
            b"\r",
            b"\b",
            b"\t",
            b"\x0b",
            b"\x0c",
            b"\x0e",
            b"\x0f",
            b"\x1b7",
            b"\x1b8",
        ]
        + [
            b"\x1bc",
            b"\x1bM",
            b"\x1bD",
            b"\x1bE",
            b"\x1b#8",
            b"\x1b(0",
            b"\x1b%G",
            b"\x90",
            b"\x9b",
        ]
        + [b"@relay:Bob hi\r\n", b"@relay:Bob <<<\r\n", b">>>\r\n", b"```\r\n", b"x" * 200]
        + ["👩‍👩‍👧".encode(), "世界".encode() * 20, b"\xe4\xb8", b"e" + "\u0301".encode() * 40]
        + [b"\n" * 300, b"a\r\n" * 900]
    ),
)
_bytes = st.lists(st.one_of(_text, _control_sequence, _mode, _string), max_size=12).map(b"".join)
_size = st.tuples(st.integers(1, 200), st.integers(1, 60))
_moves = st.one_of(
    st.tuples(st.just("feed"), _bytes),
    st.tuples(st.just("feed"), _bytes),
    st.tuples(st.just("feed"), _bytes),
    st.tuples(st.just("resize"), _size),
    st.tuples(st.just("resize"), st.sampled_from([(0, 0), (1, 1), (1, 60), (2000, 1), (500, 300)])),
    st.tuples(st.just("wait"), st.sampled_from([0.0, 0.01, 0.1, 1.5])),
    st.tuples(st.just("keys"), st.sampled_from([frames.TYPED, frames.ENTERED, frames.CLEARED])),
    st.tuples(st.just("echo"), st.sampled_from(["hi", "@relay:Bob hi", "a\nb", ""])),
    st.tuples(st.just("restore"), st.none()),
)
#: So often may a source that gets nothing ask to be woken up before it rests.
WAKE_UPS = 60


def rest(source: ScreenSource, now: float) -> None:
    """Every tick at a deadline comes nearer to the end of them."""
    for _ in range(WAKE_UPS):
        due = source.next_deadline()
        if due is None:
            return
        assert math.isfinite(due)
        now = max(now, due)
        assert now < 1e6
        source.tick(now)
        after = source.next_deadline()
        assert after is None or after > now, "a tick at the deadline makes no progress"
    raise AssertionError(f"still a deadline after {WAKE_UPS} of them: {due}")


def look_at(source: ScreenSource, rows: int) -> None:
    """All that a session asks of a screen."""
    shown = source.visible()
    assert len(shown) == rows
    x, y = source.cursor
    assert x >= 0 and y >= 0
    assert isinstance(source.title, str) and isinstance(source.alt_screen, bool)
    assert isinstance(source.bracketed_paste, bool)
    assert isinstance(source.reset_sequences(), bytes)


@fuzz(80)
@given(size=_size, moves=st.lists(_moves, max_size=14))
def test_any_bytes_sizes_and_moments_are_borne(
    size: tuple[int, int], moves: list[tuple[str, object]]
) -> None:
    now = 0.0
    source = ScreenSource(*size)
    for move, what in moves:
        if isinstance(what, bytes) and move == "feed":
            source.feed(what, now)
        elif isinstance(what, bytes):
            source.activity(what, now)
        elif isinstance(what, tuple):
            source.resize(what[0], what[1], now)
            size = what if min(what) > 0 else size
        elif isinstance(what, float):
            until(source, now + what)
            now += what
        elif isinstance(what, str):
            source.expect_echo(what, now)
        else:
            saved = source.checkpoint()
            assert len(saved) <= CHECKPOINT_MAX
            source = ScreenSource.restore(saved, *size, now)
        look_at(source, size[1])
    rest(source, now)
    source.finish(now + 1e3)


# A control character within a sequence acts at once, before the sequence that it stands in; such a
# one may move the cursor up and is not told from text: docs/screen.md, what a screen cannot know.
_BROKEN = re.compile(
    rb"(?:\x1b+(?:\[[0-?]*+)?[ -/]*+[\x00-\x1a\x1c-\x1f\x7f-\xff]|\x1b+[PX^_][^\x1b]*[\x80-\xff])+"
)


def _told_apart(data: bytes) -> bytes:
    """Rows that are alike numbered: of hundreds on a drawn screen some may be taken for redrawn."""
    numbers = itertools.count()
    return re.sub(rb"a(?=\r\n)", lambda _: b"%d" % next(numbers), data)


@fuzz(60)
@given(
    _bytes.map(lambda data: _told_apart(_BROKEN.sub(b"", data[:3000]))),
    st.lists(st.integers(1, 40), min_size=1),
)
def test_any_bytes_are_heard_the_same_however_they_are_cut(data: bytes, sizes: list[int]) -> None:
    one, many = ScreenSource(40, 10), ScreenSource(40, 10)
    heard = one.feed(data, 0.0)
    parts = [
        event for piece in cut(data, itertools.cycle(sizes)) for event in many.feed(piece, 0.0)
    ]
    assert texts(parts + settle(many, 0.0)) == texts(heard + settle(one, 0.0))
