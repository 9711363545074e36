"""What is acknowledged, when, and with which checkpoint."""

from __future__ import annotations

from relay.protocol import frames
from relay.session.acknowledgement import ACK_BYTES, ACK_SECONDS, PAUSE_MAX, AckTracker
from relay.session.session_commands import Acknowledge, PersonNote, ReadPump


def test_much_output_is_acknowledged_at_once_and_little_soon() -> None:
    acks = AckTracker(100)
    assert acks.deadline() is None
    acks.output(ACK_BYTES, 1.0)
    assert acks.due(1.0)
    assert list(acks.acknowledge(b"saved")) == [Acknowledge(100 + ACK_BYTES, b"saved")]
    acks.output(1, 2.0)
    acks.output(1, 2.05)
    assert not acks.due(2.05) and acks.deadline() == 2.0 + ACK_SECONDS
    assert list(acks.acknowledge(b"")) == [Acknowledge(102 + ACK_BYTES, b"")]
    assert acks.deadline() is None


def test_what_changes_elsewhere_renews_the_checkpoint() -> None:
    acks = AckTracker(100)
    acks.changed(1.0)
    assert acks.due(1.0 + ACK_SECONDS)
    assert list(acks.acknowledge(b"saved")) == [Acknowledge(100, b"saved")]


def test_a_checkpoint_that_fits_no_frame_is_left_out_and_noted() -> None:
    note, acknowledge = AckTracker(5).acknowledge(bytes(frames.FRAME_MAX))
    assert isinstance(note, PersonNote) and "too much" in note.text
    assert acknowledge == Acknowledge(5, b"")


def test_the_pump_is_not_read_while_much_waits_but_not_for_long() -> None:
    acks = AckTracker(0)
    acks.output(1, 1.0)
    assert list(acks.pace(True, 1.0)) == [ReadPump(False)]
    assert list(acks.pace(True, 1.5)) == []
    assert list(acks.tick(1.0 + PAUSE_MAX)) == [ReadPump(True)]
    assert list(acks.pace(True, 2.5)) == []  # not before something more was read
    acks.output(1, 3.0)
    assert list(acks.pace(True, 3.0)) == [ReadPump(False)]
    assert list(acks.pace(False, 3.0)) == [ReadPump(True)] and list(acks.pace(False, 3.0)) == []


def test_the_pump_is_not_read_for_as_long_as_what_waits_goes_on() -> None:
    acks = AckTracker(0)
    acks.output(1, 0.0)
    assert list(acks.pace(True, 0.0)) == [ReadPump(False)]
    list(acks.acknowledge(b""))
    for tenths in range(5, 100, 5):
        assert list(acks.tick(tenths / 10)) == []
        assert list(acks.pace(True, tenths / 10, moved=True)) == []
    assert acks.due(1.5)  # the pump learns of it
    assert list(acks.tick(9.5 + PAUSE_MAX)) == [ReadPump(True)]
