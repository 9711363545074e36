"""What goes into the agent's terminal: the person's keys first, the session's words between them.

Keys that mean nothing to the kernel go in at once; all book-keeping comes after, while the agent is
already at work on them.
"""

from __future__ import annotations

import os
import termios

from relay.core.signals import signal
from relay.protocol import frames
from relay.pump import tty
from relay.pump.agent_process import Direct, Monitored
from relay.pump.session_link import SessionLink
from relay.pump.write_gate import KEYS_MAX, Typing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from relay.pump.keyboard import Keyboard

#: The most that is offered to the terminal in one write.
_WRITE_MAX = 16384
_CTRL_C = b"\x03"
#: Bytes that mean nothing to a terminal's line discipline, but for settings nobody has.
TEXT = bytes((*range(0x20, 0x7F), *range(0x80, 0x100)))


class Input:
    """The writing side of ``master`` (-1: there is none); ``path`` names the agent's side of it."""

    def __init__(
        self, master: int, path: str | None, agent: Monitored | Direct, link: SessionLink
    ) -> None:
        self.typing = Typing()
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
        return len(self.typing.keys) < KEYS_MAX

    def keep(self, keys: bytes) -> None:
        """Text that the terminal did not take from the lane: it waits."""
        self.typing.keys += keys
        self.direct = False

    def press(self, data: bytes, now: float) -> None:
        """The person pressed keys."""
        keys = data
        if self.typing.writing and _CTRL_C in data and self._local_modes() & termios.ISIG:
            # Behind words that the agent does not read Ctrl-C would do nothing.
            self._agent.signal_foreground(signal.SIGINT)
            keys = data.replace(_CTRL_C, b"")
        if any(key in keys for key in self._flushing_keys()):
            left = (tty.unread(self._path) if self._path else None) or 0
            self._activity(frames.FLUSHED, left.to_bytes(4, "big"))
            self._link.flush(now)  # it must not take what is thrown away for read
        waits = self.typing.waiting
        self.typing.keys += keys
        if waits:  # words among it must not follow these keys as if nobody had pressed them
            self.note(data, now)
        self.write(now)
        if not waits:
            self.note(data, now)

    def note(self, keys: bytes, now: float) -> None:
        """Tell the session what these keys, which were typed, mean."""
        if self._keyboard is None:
            from relay.pump.keyboard import Keyboard  # not before the first key

            self._keyboard = Keyboard(self._activity)
        self._keyboard.pressed(keys, self._cooked(), now)
        self.typing.unreported = self._keyboard.unreported

    def obey(self, payload: bytes) -> None:
        """A WRITE frame of the session's."""
        number = int.from_bytes(payload[:4], "big")
        sequence = int.from_bytes(payload[4:8], "big")
        if self._master < 0 or not self.typing.words(number, sequence, payload[8:]):
            self._link.event(frames.REFUSED, payload[:4])
        self._text_signals = any(key in TEXT for key in self._flushing_keys())

    def write(self, now: float) -> None:
        """Write keys and words into the agent's terminal, as much as it takes."""
        if self._master < 0:
            return
        typing = self.typing
        self.direct = False
        while typing.waiting:
            for number in typing.refused(self._settled()):
                self._link.event(frames.REFUSED, number.to_bytes(4, "big"))
            head = typing.head(now, self._settled())
            if head is None:
                return
            written = self._put(head) if head else 0
            if head and not written:
                return  # full: poll says when it takes more; or gone: the exit is on its way
            done = typing.taken(head, written)
            if done is not None:
                self._link.event(frames.WRITTEN, done.to_bytes(4, "big"))
        self.direct = not self._text_signals

    def wants_to_write(self, now: float) -> bool:
        """Whether something waits for room in the terminal."""
        typing = self.typing
        return typing.waiting and typing.head(now, self._settled()) is not None

    def tick(self, now: float) -> None:
        """Do what is due."""
        due = None if self._keyboard is None else self._keyboard.deadline()
        if self._keyboard is not None and due is not None and now >= due:
            self._keyboard.tick(self._cooked(), now)
            self.typing.unreported = self._keyboard.unreported

    def deadline(self, now: float) -> float | None:
        """When ``tick`` or ``write`` has something to do; None for never."""
        times = [self.typing.deadline(now)]
        if self._keyboard is not None:
            times.append(self._keyboard.deadline())
        return min((at for at in times if at is not None), default=None)

    def close(self) -> None:
        """The terminal has gone."""
        self._master = -1

    # -- inside

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

    def _activity(self, kind: bytes, more: bytes = b"") -> None:
        self.typing.sequence += 1
        sequence = self.typing.sequence.to_bytes(4, "big")
        self._link.event(frames.ACTIVITY, sequence + kind + more)

    def _settled(self) -> bool:
        return self._keyboard is None or self._keyboard.settled

    def _local_modes(self) -> int:
        modes = tty.get_modes(self._master) if self._master >= 0 else None
        return modes[3] if modes is not None and isinstance(modes[3], int) else 0

    def _cooked(self) -> bool:
        return bool(self._local_modes() & termios.ICANON)
