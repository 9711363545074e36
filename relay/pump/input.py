"""Writes into the agent's terminal: the person's keys first, the session's words between them.

Keys that mean nothing to the kernel go in at once; all book-keeping comes after, while the agent is
already at work on them.
"""

from __future__ import annotations

import os
import select
import termios

from relay.core.signals import signal
from relay.protocol import frames
from relay.protocol.frames import ANY_SEQUENCE
from relay.pump import tty
from relay.pump.agent_process import Monitored
from relay.pump.session_link import SessionLink

TYPE_CHECKING = False
if TYPE_CHECKING:
    from relay.pump.activity import Keyboard

#: Keys wait at most this many seconds for words that are being typed.
HOLD = 2.0
#: Keys that are not read from the terminal while this many bytes wait.
KEYS_MAX = 64 * 1024
#: Words waiting for their turn; a further WRITE is refused.
QUEUE_MAX = 16
#: Ids of words that are whole, kept for the next session: it must not type them again.
FINISHED_MAX = 1024
#: The most that is offered to the terminal in one write.
_WRITE_MAX = 16384
_CTRL_C = b"\x03"
#: Bytes that mean nothing to a terminal's line discipline, but for settings nobody has.
TEXT = bytes((*range(0x20, 0x7F), *range(0x80, 0x100)))


class Words:
    """One WRITE frame: its id, the sequence it depends on, and what is left of it.

    ``offset``: it depends on the agent's having written nothing beyond that; None: it does not.
    """

    __slots__ = ("number", "sequence", "offset", "left", "begun")

    def __init__(self, number: int, sequence: int, text: bytes, offset: int | None) -> None:
        self.number = number
        self.sequence = sequence
        self.offset = offset
        self.left = bytearray(text)
        self.begun: float | None = None


class WriteGate:
    """Decides which bytes go into the agent's terminal next. Pure.

    The session's words go in whole: keys wait behind them, for at most ``HOLD`` seconds. Nothing is
    typed if the person pressed a key after the session last looked. Bytes to write come out of
    ``head``; ``now`` is in seconds of a monotonic clock.
    """

    def __init__(self) -> None:
        self.keys = bytearray()
        self.sequence = 0  # of the last ACTIVITY
        self.unreported = False  # keys were pressed after that ACTIVITY
        self.finished: list[int] = []  # the ids of the last words that went in whole
        self._queue: list[Words] = []

    @property
    def writing(self) -> bool:
        """Whether words are on their way, the first byte gone."""
        return bool(self._queue) and self._queue[0].begun is not None

    @property
    def waiting(self) -> bool:
        """Whether there is anything to write."""
        return bool(self.keys or self._queue)

    @property
    def certain(self) -> list[int]:
        """The ids of words that went in whole, or will: what has begun is always finished."""
        return [*self.finished, self._queue[0].number] if self.writing else self.finished

    def press(self, keys: bytes) -> None:
        """Queue the person's keys."""
        self.keys += keys

    def next_sequence(self) -> int:
        """Count one more ACTIVITY."""
        self.sequence += 1
        return self.sequence

    def report_waits(self, waits: bool) -> None:
        """Note whether keys were pressed after the last ACTIVITY."""
        self.unreported = waits

    def words(self, number: int, sequence: int, text: bytes, offset: int | None = None) -> bool:
        """Queue the words of a WRITE. False when too many wait already."""
        if len(self._queue) >= QUEUE_MAX:
            return False
        self._queue.append(Words(number, sequence, text, offset))
        return True

    def forget(self) -> None:
        """The session that asked has gone: what has not begun is not typed; the next asks anew."""
        del self._queue[1 if self.writing else 0 :]

    @property
    def looked(self) -> bool:
        """Whether the next words depend on what the agent has written."""
        return bool(self._queue) and not self.writing and self._queue[0].offset is not None

    def refused(self, settled: bool, written: int = 0) -> list[tuple[int, int]]:
        """Take out the words at the head that must not be typed any more: how to say so, and ids.

        ``settled``: no key sequence is unfinished; otherwise nothing is decided yet. ``written``:
        where the agent's output ends.
        """
        refused = []
        while settled and self._queue and not self.writing:
            first = self._queue[0]
            overtaken = first.offset is not None and first.offset < written
            if not overtaken and not self._stale(first):
                break
            kind = frames.REFUSED if self._stale(first) else frames.OVERTAKEN
            refused.append((kind, self._queue.pop(0).number))
        return refused

    def head(self, now: float, settled: bool) -> bytearray | None:
        """What to write now; ``taken`` says how much of it went. None when there is nothing."""
        if self._queue:
            first = self._queue[0]
            if first.begun is not None:
                held = now < first.begun + HOLD
                return first.left if held or not self.keys else self.keys
            if settled and not self.keys:
                first.begun = now
                return first.left
        return self.keys or None

    def taken(self, head: bytearray, count: int) -> int | None:
        """``count`` bytes of ``head`` were written. The id of the words that are whole now."""
        del head[:count]
        if self._queue and head is self._queue[0].left and not head:
            number = self._queue.pop(0).number
            self.finished.append(number)
            del self.finished[:-FINISHED_MAX]
            return number
        return None

    def deadline(self, now: float) -> float | None:
        """When keys stop waiting for words; None when they do not, or no longer."""
        if self.keys and self._queue and self._queue[0].begun is not None:
            until = self._queue[0].begun + HOLD
            return until if now < until else None
        return None

    def _stale(self, words: Words) -> bool:
        if words.sequence == ANY_SEQUENCE:
            return False
        return self.unreported or words.sequence < self.sequence


class Input:
    """The writing side of ``master`` (-1: there is none); ``path`` names the agent's side of it."""

    def __init__(self, master: int, path: str | None, agent: Monitored, link: SessionLink) -> None:
        self.gate = WriteGate()
        self._master = master
        self._path = path
        self._agent = agent
        self._link = link
        self._keyboard: Keyboard | None = None
        # When relay last typed, a printable key was a signal's: words that are unread may be thrown
        # away at it, so each key is looked at.
        self._text_signals = False
        self.direct = False  # nothing stands between plain text and the terminal

    @property
    def hungry(self) -> bool:
        """Whether more keys may be read from the outer terminal."""
        return len(self.gate.keys) < KEYS_MAX

    def keep(self, keys: bytes) -> None:
        """Keep text that the terminal did not take on the fast path."""
        self.gate.press(keys)
        self.direct = False

    def press(self, data: bytes, now: float) -> None:
        """The person pressed keys."""
        keys = data
        if self.gate.writing and _CTRL_C in data and self._local_modes() & termios.ISIG:
            # Behind words that the agent does not read Ctrl-C would do nothing.
            self._agent.signal_foreground(signal.SIGINT)
            keys = data.replace(_CTRL_C, b"")
        if len(keys) > 1 and keys[-1] < 0x20 and self._interrupts(keys[-1:]):
            self.press(keys[:-1], now)
            self.press(keys[-1:], now)
            return
        interrupts = False
        if any(key in keys for key in self._flushing_keys()):
            left = (tty.unread(self._path) if self._path else None) or 0
            interrupts = self._settled() and self._interrupts(keys)
            kind = frames.INTERRUPTED if interrupts else frames.FLUSHED
            self._activity(kind, left.to_bytes(4, "big"))
            self._link.flush(now)  # it must not take what is thrown away for read
        if interrupts:
            self.gate.press(keys)
            self.write(now)
            return
        waits = self.gate.waiting
        self.gate.press(keys)
        if waits:  # words among it must not follow these keys as if nobody had pressed them
            self.note(data, now)
        self.write(now)
        if not waits:
            self.note(data, now)

    def note(self, keys: bytes, now: float) -> None:
        """Tell the session what these keys, which were typed, mean."""
        if self._keyboard is None:
            from relay.pump.activity import Keyboard  # not before the first key

            self._keyboard = Keyboard(self._activity)
        self._keyboard.pressed(keys, bool(self._local_modes() & termios.ICANON), now)
        self.gate.report_waits(self._keyboard.unreported)

    def obey(self, payload: bytes, *, looked: bool = False) -> None:
        """A WRITE frame of the session's; with ``looked`` a WRITE_AT."""
        number = int.from_bytes(payload[:4], "big")
        sequence = int.from_bytes(payload[4:8], "big")
        offset = int.from_bytes(payload[8:16], "big") if looked else None
        text = payload[16:] if looked else payload[8:]
        if self._master < 0 or not self.gate.words(number, sequence, text, offset):
            self._link.event(frames.REFUSED, payload[:4])
        self._text_signals = any(key in TEXT for key in self._flushing_keys())

    def write(self, now: float) -> None:
        """Write keys and words into the agent's terminal, as much as it takes."""
        if self._master < 0:
            return
        gate = self.gate
        self.direct = False
        while gate.waiting:
            written = self._link.written + self._unheard() if gate.looked else 0
            for kind, number in gate.refused(self._settled(), written):
                self._link.event(kind, number.to_bytes(4, "big"))
            head = gate.head(now, self._settled())
            if head is None:
                return
            count = self._put(head) if head else 0
            if head and not count:
                return  # full: poll says when it takes more; or gone: the exit is on its way
            done = gate.taken(head, count)
            if done is not None:
                self._link.event(frames.WRITTEN, done.to_bytes(4, "big"))
        self.direct = not self._text_signals

    def wants_to_write(self, now: float) -> bool:
        """Whether something waits for room in the terminal."""
        gate = self.gate
        return gate.waiting and gate.head(now, self._settled()) is not None

    def tick(self, now: float) -> None:
        """Do what is due."""
        due = None if self._keyboard is None else self._keyboard.deadline()
        if self._keyboard is not None and due is not None and now >= due:
            self._keyboard.tick(self._cooked(), now)
            self.gate.report_waits(self._keyboard.unreported)

    def deadline(self, now: float) -> float | None:
        """When ``tick`` or ``write`` has something to do; None for never."""
        times = [self.gate.deadline(now)]
        if self._keyboard is not None:
            times.append(self._keyboard.deadline())
        return min((at for at in times if at is not None), default=None)

    def close(self) -> None:
        """The terminal has gone."""
        self._master = -1

    # -- inside

    def _unheard(self) -> bool:
        """Whether the agent has written what nobody has read."""
        return bool(select.select([self._master], [], [], 0)[0])

    def _put(self, data: bytes | bytearray) -> int:
        try:
            return os.write(self._master, data[:_WRITE_MAX])
        except OSError:
            return 0

    def _flushing_keys(self) -> list[bytes]:
        """The keys at which the terminal throws its unread input away."""
        modes = tty.get_modes(self._master) if self._master >= 0 else None
        if modes is None or not isinstance(modes[3], int):
            return []
        if not modes[3] & termios.ISIG or modes[3] & termios.NOFLSH:
            return []
        special = modes[6]
        assert isinstance(special, list)
        signals_keys = [special[n] for n in (termios.VINTR, termios.VQUIT, termios.VSUSP)]
        return [key for key in signals_keys if isinstance(key, bytes) and key != b"\0"]

    def _interrupts(self, keys: bytes) -> bool:
        modes = tty.get_modes(self._master)
        special = modes[6] if modes is not None else None
        return isinstance(special, list) and special[termios.VINTR] == keys

    def _activity(self, kind: bytes, more: bytes = b"") -> None:
        sequence = self.gate.next_sequence().to_bytes(4, "big")
        self._link.event(frames.ACTIVITY, sequence + kind + more)

    def _settled(self) -> bool:
        return self._keyboard is None or self._keyboard.settled

    def _local_modes(self) -> int:
        modes = tty.get_modes(self._master) if self._master >= 0 else None
        return modes[3] if modes is not None and isinstance(modes[3], int) else 0

    def _cooked(self) -> bool:
        return bool(self._local_modes() & termios.ICANON)
