"""What is acknowledged, when, and with which checkpoint."""

from __future__ import annotations

from relay.protocol import frames
from relay.session.acknowledgement import ACK_BYTES, ACK_SECONDS, PAUSE_MAX, Progress
from relay.session.session_commands import Acknowledge, PersonNote, ReadPump


def test_much_output_is_acknowledged_at_once_and_little_soon() -> None:
    progress = Progress(100)
    assert progress.deadline() is None
    progress.heard(ACK_BYTES, 1.0)
    assert progress.due(1.0)
    assert list(progress.acknowledge(b"saved")) == [Acknowledge(100 + ACK_BYTES, b"saved")]
    progress.heard(1, 2.0)
    progress.heard(1, 2.05)
    assert not progress.due(2.05) and progress.deadline() == 2.0 + ACK_SECONDS
    assert list(progress.acknowledge(b"")) == [Acknowledge(102 + ACK_BYTES, b"")]
    assert progress.deadline() is None


def test_what_was_heard_elsewhere_renews_the_checkpoint() -> None:
    progress = Progress(100)
    progress.heard(0, 1.0)
    assert progress.due(1.0 + ACK_SECONDS)
    assert list(progress.acknowledge(b"saved")) == [Acknowledge(100, b"saved")]


def test_a_checkpoint_that_fits_no_frame_is_left_out_and_noted() -> None:
    note, acknowledge = Progress(5).acknowledge(bytes(frames.FRAME_MAX))
    assert isinstance(note, PersonNote) and "too much" in note.text
    assert acknowledge == Acknowledge(5, b"")


def test_the_pump_is_not_read_while_much_waits_but_not_for_long() -> None:
    progress = Progress(0)
    progress.heard(1, 1.0)
    assert list(progress.slow_down(1.0)) == [ReadPump(False)]
    assert list(progress.slow_down(1.5)) == []
    assert list(progress.tick(1.0 + PAUSE_MAX)) == [ReadPump(True)]
    assert list(progress.slow_down(2.5)) == []  # not before something more was read
    progress.heard(1, 3.0)
    assert list(progress.slow_down(3.0)) == [ReadPump(False)]
    assert list(progress.go_on()) == [ReadPump(True)] and list(progress.go_on()) == []
