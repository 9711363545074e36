"""The frames that the pump and its session exchange over their socketpair, and a viewer sends.

A frame is one type byte, a big-endian uint32 length and that many bytes of payload. Only
``struct`` is imported: the pump loads this module before it starts the agent.

Pump to session:
    HELLO     JSON: protocol, run_id, name, pid, tty, cols, rows, xpixel, ypixel, offset,
              started_ms, restarts, command (argv), cwd, written (ids of WRITEs that went in
              whole, the last 1024, and of one that has begun and will)
    CHECKPOINT the bytes of the last ACK that carried any (empty on the first start)
    OUTPUT    the agent's output, verbatim; the first byte after HELLO stands at ``offset``
    ACTIVITY  uint32 sequence, one byte: the person pressed keys (never which); after FLUSHED
              and INTERRUPTED also uint32: bytes of input that the agent had not read and now
              never will
    SIZE      4 x uint16: cols, rows, xpixel, ypixel
    JOB       one byte: the agent stopped or continued
    KEYS      bytes: what the person typed; only for a recording of it, and only where the agent's
              terminal shows what is typed
    REST      uint32: milliseconds in which the agent wrote nothing; only before bytes that the
              session gets later than they were written, because it starts or starts again
    WRITTEN   uint32 id: a WRITE has reached the terminal whole
    REFUSED   uint32 id: not a byte of the WRITE was written, the person typed meanwhile
    OVERTAKEN uint32 id: not a byte of the WRITE_AT was written, the agent wrote meanwhile
    GOING     nothing: the person's terminal has gone; the agent's follows (see FAREWELL)
    EXIT      JSON: status (int or null), signal (int or null), unread (bytes of input that the
              agent had not read, or null); the socket's end follows

Session to pump:
    WRITE     uint32 id, uint32 sequence, bytes: type this, unless an ACTIVITY of a higher
              sequence was sent (``ANY_SEQUENCE``: type it whatever was pressed)
    WRITE_AT  uint32 id, uint32 sequence, uint64 offset, bytes: the same, and unless the agent has
              written anything beyond ``offset``: it may ask something by now
    ACK       uint64 offset, bytes: all output before ``offset`` is dealt with; the bytes, if any,
              are the checkpoint from which a next session can go on at this offset
    FAREWELL  uint16: when the person's terminal goes, the agent's stays for this many seconds; 0:
              it need not, or need not any longer

Viewer (``relay attach``) to host, after one line of JSON {cols, rows, read_only}, which the host
answers by a line {ok, viewers} or {ok, error} and by what draws the agent's terminal:
    KEYS      bytes: what the person has typed
    SIZE      as above: the size of the viewer's terminal
"""

from __future__ import annotations

import struct

PROTOCOL = 1

HELLO = ord("H")
CHECKPOINT = ord("C")
OUTPUT = ord("O")
ACTIVITY = ord("I")
SIZE = ord("Z")
JOB = ord("J")
REST = ord("T")
WRITTEN = ord("D")
REFUSED = ord("N")
OVERTAKEN = ord("V")
GOING = ord("G")
EXIT = ord("X")

WRITE = ord("W")
WRITE_AT = ord("L")
ACK = ord("A")
FAREWELL = ord("F")

KEYS = ord("K")

# The payload byte of ACTIVITY.
TYPED = b"t"  # something that may stand in the input line now
ENTERED = b"e"  # Enter: what stood there was submitted
CLEARED = b"c"  # Ctrl-C, Ctrl-U, Ctrl-D or Escape: the line may be empty again
FLUSHED = b"f"  # Ctrl-C and the like: the terminal throws away what was not read
INTERRUPTED = b"i"  # the same, and it was the key of the terminal's interrupt alone
# The payload byte of JOB.
STOPPED = b"s"
CONTINUED = b"c"

ANY_SEQUENCE = 0xFFFFFFFF
#: The largest payload either side accepts; a longer one is a broken peer.
FRAME_MAX = 16 * 1024 * 1024

_HEADER = struct.Struct(">BI")
HEADER_SIZE = _HEADER.size


class FrameError(ValueError):
    """The peer sent something that is no frame."""


def pack(kind: int, payload: bytes = b"") -> bytes:
    return header(kind, len(payload)) + payload


def header(kind: int, size: int) -> bytes:
    """What stands before a payload of ``size`` bytes."""
    return _HEADER.pack(kind, size)


class Decoder:
    """Frames from chunks cut anywhere. Holds at most one incomplete frame."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Add what was read; return the frames that are complete. Raises FrameError."""
        buffer = self._buffer
        buffer += data
        frames = []
        at = 0
        # One copy for each payload, not two: under a flood this is most of what decoding costs.
        with memoryview(buffer) as view:
            while len(buffer) - at >= HEADER_SIZE:
                kind, length = _HEADER.unpack_from(buffer, at)
                if length > FRAME_MAX:
                    raise FrameError(f"frame of {length} bytes (at most {FRAME_MAX})")
                end = at + HEADER_SIZE + length
                if len(buffer) < end:
                    break
                frames.append((kind, bytes(view[at + HEADER_SIZE : end])))
                at = end
        if at:
            del buffer[:at]
        return frames
