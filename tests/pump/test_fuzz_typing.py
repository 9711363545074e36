"""Keys and words in every order, and every cut of the same keys."""

from __future__ import annotations

import math
import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relay.protocol import frames
from relay.protocol.frames import ANY_SEQUENCE, CLEARED, ENTERED, TYPED
from relay.pump.activity import ALONE_AFTER, CARRY_MAX, TYPED_EVERY, Classifier, Keyboard
from relay.pump.input import HOLD, QUEUE_MAX, WriteGate
from tests.pump.fuzzing import fuzz
from tests.pump.test_activity import pieces

# -- what goes into the terminal ---------------------------------------------------------------

KEY = 0x80  # keys have the high bit, words have not: what went in says whose it was


class Desk:
    """A person, a session and a terminal that takes what it likes."""

    def __init__(self) -> None:
        self.typing = WriteGate()
        self.now = 0.0
        self.settled = True
        self.pressed = bytearray()
        self.screen = bytearray()  # what went in
        self.texts: dict[int, bytes] = {}
        self.order: list[int] = []  # ids, as asked for
        self.sequences: dict[int, int] = {}
        self.answers: dict[int, bytes] = {}
        self.begun: dict[int, float] = {}
        self.split: set[int] = set()  # keys went in between, after HOLD

    def press(self, count: int, reported: bool) -> None:
        keys = bytes(KEY + (len(self.pressed) + n) % 128 for n in range(count))
        self.pressed += keys
        self.typing.press(keys)
        if reported:
            self.typing.next_sequence()
        self.typing.report_waits(not reported)

    def ask(self, size: int, behind: int | None) -> None:
        number = len(self.texts)
        text = b"%d:" % number + bytes(n % 10 + 97 for n in range(size)) + b";"
        sequence = ANY_SEQUENCE if behind is None else max(0, self.typing.sequence - behind)
        self.texts[number] = text
        if not self.typing.words(number, sequence, text):
            self.answer(number, b"refused")
            return
        self.order.append(number)
        self.sequences[number] = sequence

    def answer(self, number: int, how: bytes) -> None:
        assert number not in self.answers, f"two answers for {number}"
        self.answers[number] = how

    def forget(self) -> None:
        certain = self.typing.certain
        self.typing.forget()
        assert self.typing.certain == certain
        for number in self.texts:
            if number not in self.answers and number not in certain:
                self.answer(number, b"forgotten")

    def write(self, room: int) -> None:
        """As the pump does it: the terminal takes ``room`` bytes and then no more."""
        while self.typing.waiting:
            for _, number in self.typing.refused(self.settled):
                assert number not in self.begun and self.settled
                self.answer(number, b"refused")
            before = self.typing.writing
            head = self.typing.head(self.now, self.settled)
            if head is None:
                assert not self.typing.keys
                return
            if self.typing.writing and not before:
                self.begins()
            taken = bytes(head[:room])
            room -= len(taken)
            self.note_keys(taken)
            self.screen += taken
            done = self.typing.taken(head, len(taken))
            if done is not None:
                self.answer(done, b"written")
            if not room:
                return

    def begins(self) -> None:
        number = self.typing.certain[-1]
        assert not self.typing.keys, "words before keys that were pressed first"
        assert self.settled, "words inside a key sequence"
        sequence = self.sequences[number]
        if sequence != ANY_SEQUENCE:
            assert sequence >= self.typing.sequence and not self.typing.unreported
        self.begun[number] = self.now

    def note_keys(self, taken: bytes) -> None:
        if taken and taken[0] >= KEY and self.typing.writing:
            number = self.typing.certain[-1]
            assert self.now >= self.begun[number] + HOLD, "keys between words"
            self.split.add(number)

    def check(self) -> None:
        keys = bytes(byte for byte in self.screen if byte >= KEY)
        assert self.pressed == keys + self.typing.keys
        words = bytes(byte for byte in self.screen if byte < KEY)
        certain = self.typing.certain
        written = b"".join(self.texts[number] for number in certain)
        assert written.startswith(words)
        assert certain == [n for n in self.order if n in self.begun]
        for number, how in self.answers.items():
            text = self.texts[number]
            assert (text in words) == (how == b"written")
            if how == b"written" and number not in self.split:
                assert text in self.screen, "keys stand in the words"
        due = self.typing.deadline(self.now)
        assert due is None or self.now < due < math.inf


STEPS: st.SearchStrategy[list[tuple[str, Any, Any]]] = st.lists(
    st.one_of(
        st.tuples(st.just("press"), st.integers(1, 40), st.booleans()),
        st.tuples(st.just("ask"), st.integers(0, 60), st.sampled_from([None, 0, 0, 1])),
        st.tuples(st.just("write"), st.integers(1, 100), st.just(0)),
        st.tuples(st.just("wait"), st.sampled_from([0.1, 1.0, HOLD]), st.just(0)),
        st.tuples(st.just("settle"), st.booleans(), st.just(0)),
        st.tuples(st.just("report"), st.just(0), st.just(0)),
        st.tuples(st.just("forget"), st.just(0), st.just(0)),
    ),
    max_size=40,
)


@fuzz(200)
@given(STEPS)
def test_keys_are_complete_and_words_whole_and_never_stale(
    steps: list[tuple[str, Any, Any]],
) -> None:
    desk = Desk()
    for step, first, second in steps:
        if step == "press":
            desk.press(first, second)
        elif step == "ask":
            desk.ask(first, second)
        elif step == "write":
            desk.write(first)
        elif step == "wait":
            desk.now += first
        elif step == "settle":
            desk.settled = first
        elif step == "report":
            desk.typing.sequence += desk.typing.unreported
            desk.typing.unreported = False
        else:
            desk.forget()
        desk.check()
    desk.settled = True
    desk.write(1 << 20)
    desk.check()
    assert not desk.typing.waiting
    assert set(desk.answers) == set(desk.texts), "a request without an answer"


def test_more_words_than_wait_are_refused_and_the_rest_goes_in() -> None:
    desk = Desk()
    for _ in range(QUEUE_MAX + 3):
        desk.ask(5, None)
    desk.write(1 << 20)
    desk.check()
    assert list(desk.answers.values()).count(b"written") == QUEUE_MAX


# -- what keys mean ----------------------------------------------------------------------------


def last_of_each(kinds: list[bytes]) -> list[bytes]:
    """Each kind once, where it happened last."""
    return list(dict.fromkeys(reversed(kinds)))[::-1]


CUTS = st.lists(st.integers(0, 400), max_size=12)


def chunks(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    return [data[start:end] for start, end in zip(edges, edges[1:], strict=False)]


@fuzz(300)
@given(pieces, CUTS, st.booleans())
def test_every_cut_of_the_same_keys_says_the_same_in_the_same_order(
    data: bytes, cuts: list[int], cooked: bool
) -> None:
    whole, split, single = Classifier(), Classifier(), Classifier()
    wanted = last_of_each(whole.feed(data, cooked) + whole.flush(cooked))
    for classifier, parts in (
        (split, chunks(data, cuts)),
        (single, [bytes([byte]) for byte in data]),
    ):
        found: list[bytes] = []
        for part in parts:
            found += classifier.feed(part, cooked)
            assert len(classifier._carry) <= CARRY_MAX
        assert last_of_each(found + classifier.flush(cooked)) == wanted
        assert not classifier.pending or classifier._pasting


@fuzz(200)
@given(
    st.lists(st.tuples(pieces, st.sampled_from([0.0, 0.01, TYPED_EVERY, 0.09])), max_size=8),
    st.lists(st.integers(1, 7), min_size=1, max_size=5),
    st.booleans(),
)
def test_the_keyboard_reports_the_last_word_however_keys_come(
    bursts: list[tuple[bytes, float]], sizes: list[int], cooked: bool
) -> None:
    reports: list[tuple[float, bytes]] = []
    now = 0.0
    keyboard = Keyboard(lambda kind: reports.append((now, kind)))
    classifier = Classifier()
    kinds: list[bytes] = []
    turn = 0
    for data, pause in bursts:
        for part in cut_by(data, sizes, turn):
            keyboard.pressed(part, cooked, now)
            kinds += classifier.feed(part, cooked)
            turn += 1
        now += min(pause, ALONE_AFTER * 0.9)
        keyboard.tick(cooked, now)
    kinds += classifier.flush(cooked)
    for _ in range(3):
        due = keyboard.deadline()
        if due is None:
            break
        assert math.isfinite(due)
        now = max(now, due)
        keyboard.tick(cooked, now)
    assert keyboard.deadline() is None and keyboard.settled and not keyboard.unreported
    told = [kind for _, kind in reports]
    assert told[-1:] == kinds[-1:]
    assert [k for k in told if k != TYPED] == [k for k in kinds if k != TYPED]
    for (earlier, before), (at, kind) in zip(reports, reports[1:], strict=False):
        assert (before, kind) != (TYPED, TYPED) or at >= earlier + TYPED_EVERY


def cut_by(data: bytes, sizes: list[int], turn: int) -> list[bytes]:
    found = []
    while data:
        size = sizes[turn % len(sizes)]
        found.append(data[:size])
        data, turn = data[size:], turn + 1
    return found


@pytest.mark.parametrize("byte", range(256))
def test_no_single_byte_leaves_the_keyboard_waiting_for_ever(byte: int) -> None:
    reports: list[bytes] = []
    keyboard = Keyboard(reports.append)
    keyboard.pressed(bytes([byte]), False, 0.0)
    keyboard.tick(False, ALONE_AFTER)
    assert keyboard.settled and len(reports) == 1 and reports[0] in (TYPED, ENTERED, CLEARED)


# -- frames ------------------------------------------------------------------------------------


@fuzz(200)
@given(
    st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=300)), max_size=6),
    st.one_of(st.binary(max_size=80), st.just(b"W\xff\xff\xff\xff")),
    CUTS,
)
def test_garbage_behind_frames_is_an_error_or_a_frame_wherever_it_is_cut(
    sent: list[tuple[int, bytes]], garbage: bytes, cuts: list[int]
) -> None:
    data = b"".join(frames.pack(kind, payload) for kind, payload in sent) + garbage
    results = []
    for parts in (chunks(data, cuts), [bytes([byte]) for byte in data]):
        decoder = frames.Decoder()
        received: list[tuple[int, bytes]] = []
        failed = False
        fed = 0
        for part in parts:
            fed += len(part)
            try:
                received += decoder.feed(part)
            except frames.FrameError:
                failed = True
                break
            used = sum(frames.HEADER_SIZE + len(payload) for _, payload in received)
            assert len(decoder._buffer) == fed - used
        results.append((failed, received))
    (failed, some), (failed_single, every) = results
    # A chunk with an error in it loses the frames before it in the same chunk, and no other.
    assert failed == failed_single
    assert every[: len(some)] == some and (failed or some == every)
    assert every[: len(sent)] == sent


def test_the_largest_frame_is_taken_in_any_pieces_and_one_byte_more_is_refused() -> None:
    head = frames.pack(frames.OUTPUT)[:1]
    payload = os.urandom(frames.FRAME_MAX)
    data = frames.pack(frames.OUTPUT, payload)
    decoder = frames.Decoder()
    received = [
        frame
        for at in range(0, len(data), 70_001)
        for frame in decoder.feed(data[at : at + 70_001])
    ]
    assert received == [(frames.OUTPUT, payload)] and not decoder._buffer
    with pytest.raises(frames.FrameError):
        decoder.feed(head + (frames.FRAME_MAX + 1).to_bytes(4, "big"))
