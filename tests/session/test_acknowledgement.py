"""What is acknowledged, when, and with which checkpoint."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from relay.protocol import frames
from relay.session import acknowledgement
from relay.session.acknowledgement import Progress


class FakeLink:
    def __init__(self) -> None:
        self.acks: list[tuple[int, bytes]] = []
        self.reading: list[str] = []

    def ack(self, offset: int, checkpoint: bytes) -> None:
        self.acks.append((offset, checkpoint))

    def pause_reading(self) -> None:
        self.reading.append("pause")

    def resume_reading(self) -> None:
        self.reading.append("resume")

    def farewell(self, seconds: float) -> None: ...


class Desk:
    def __init__(self) -> None:
        self.link = FakeLink()
        self.notes: list[str] = []
        self.busy = False
        self.saved = b"saved"
        self.progress = Progress(
            self.link, 100, lambda: self.saved, self.notes.append, busy=lambda: self.busy
        )


def play(scenario: Callable[[Desk], Awaitable[None]]) -> Desk:
    async def limited() -> Desk:
        desk = Desk()
        async with asyncio.timeout(10):
            await scenario(desk)
        desk.progress.stop()
        return desk

    return asyncio.run(limited())


async def until(check: Callable[[], object]) -> None:
    while not check():
        await asyncio.sleep(0.001)


def test_much_output_is_acknowledged_at_once_and_little_soon() -> None:
    async def scenario(desk: Desk) -> None:
        desk.progress.heard(acknowledgement.ACK_BYTES)
        assert desk.link.acks == [(100 + acknowledgement.ACK_BYTES, b"saved")]
        desk.progress.heard(1)
        assert len(desk.link.acks) == 1
        await until(lambda: len(desk.link.acks) == 2)

    assert play(scenario).link.acks[1] == (101 + acknowledgement.ACK_BYTES, b"saved")


def test_what_was_heard_elsewhere_renews_the_checkpoint_and_nothing_else_does() -> None:
    async def scenario(desk: Desk) -> None:
        desk.progress.acknowledge()
        assert desk.link.acks == []
        desk.progress.heard(0)
        desk.progress.acknowledge()
        desk.progress.acknowledge()

    assert play(scenario).link.acks == [(100, b"saved")]


def test_a_checkpoint_that_fits_no_frame_is_left_out_and_noted() -> None:
    async def scenario(desk: Desk) -> None:
        desk.saved = bytes(frames.FRAME_MAX)
        desk.progress.heard(5)
        desk.progress.acknowledge()

    desk = play(scenario)
    assert desk.link.acks == [(105, b"")] and "too much" in desk.notes[0]


def test_the_pump_is_not_read_while_much_waits_but_not_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(acknowledgement, "PAUSE_MAX", 0.01)

    async def scenario(desk: Desk) -> None:
        desk.progress.slow_down()
        assert desk.link.reading == []
        desk.busy = True
        desk.progress.slow_down()
        desk.progress.slow_down()
        assert desk.link.reading == ["pause"]
        await until(lambda: desk.link.reading == ["pause", "resume"])
        desk.progress.slow_down()
        desk.progress.go_on()
        desk.progress.go_on()

    assert play(scenario).link.reading == ["pause", "resume"] * 2
