"""Classifies the person's keys by what they mean for the input line, and reports them in time.

Source: ECMA-48, xterm's ctlseqs and the kitty keyboard protocol. What a terminal sends by itself
(answers to queries, mouse and focus reports, key releases) is no typing. No I/O, no clock: the
caller says with :meth:`Classifier.flush` that nothing followed for a while.
"""

from __future__ import annotations

from collections.abc import Callable

from relay.protocol.frames import CLEARED, ENTERED, TYPED

#: The longest sequence that is carried over from one chunk to the next, in bytes.
CARRY_MAX = 64

#: Further keys of a draft are reported at most once in this many seconds.
TYPED_EVERY = 0.05
#: After this silence an unfinished sequence was a key by itself (Escape).
ALONE_AFTER = 0.1

_ESC = 0x1B
_PASTE_BEGIN = b"\x1b[200~"
_PASTE_END = b"\x1b[201~"
_STRINGS = frozenset(b"P]_^X")  # DCS OSC APC PM SOS, after ESC
#: Finals of sequences that only a terminal sends: DA, DSR, CPR, DECRPM, window and focus reports,
#: mouse (urxvt's among them), DECREPTPARM.
_REPORT_FINALS = frozenset(b"cnRytIOMmx")
_CLEARING = frozenset((0x03, 0x04, 0x15))  # Ctrl-C, Ctrl-D, Ctrl-U
_PLAIN_STOPS = bytes(sorted(_CLEARING | {0x0A, 0x0D}))
#: A line program's terminal throws its line away at these two as well: Ctrl-Z, Ctrl-backslash.
_COOKED_CLEARING = _CLEARING | {0x1A, 0x1C}
_COOKED_STOPS = bytes(sorted(_COOKED_CLEARING | {0x0A, 0x0D}))
# The kitty protocol's key numbers.
_KEY_ENTERS = frozenset((13, 57414))
_KEY_ESCAPE = 27
_KEY_CLEARING = frozenset((ord("c"), ord("d"), ord("u")))
_KEY_MODIFIERS = frozenset((*range(57358, 57361), *range(57441, 57455)))
_CTRL = 4
_LOCKS = 64 | 128  # caps lock, num lock: no modifiers in our sense
_RELEASE = 3


class Classifier:
    """Chunks in, verdicts out; holds at most CARRY_MAX bytes of an unfinished sequence."""

    def __init__(self) -> None:
        self._carry = b""
        self._pasting = False
        self._string = False  # inside DCS, OSC, APC, PM or SOS

    @property
    def pending(self) -> bool:
        """Whether a sequence is unfinished, so that more bytes or ``flush`` decide."""
        return bool(self._carry) or self._string

    def feed(self, data: bytes, cooked: bool = False) -> list[bytes]:
        """The classes of activity in ``data``: each at most once, the last to happen last.

        ``cooked``: the kernel edits lines, so that a newline submits and Escape clears nothing.
        """
        found: list[bytes] = []
        data = self._carry + data
        self._carry = b""
        at = 0
        while at < len(data):
            if self._pasting:
                at = self._paste(data, at, found)
            elif self._string:
                at = self._in_string(data, at)
            elif data[at] == _ESC:
                at = self._escape(data, at, found, cooked)
            else:
                at = _plain(data, at, found, cooked)
        return found

    def flush(self, cooked: bool = False) -> list[bytes]:
        """Nothing followed for a while: an unfinished sequence was a key by itself."""
        found: list[bytes] = []
        if self._string or (self._carry and not self._pasting):
            alone = self._carry == b"\x1b" and not self._string
            _note(found, CLEARED if alone and not cooked else TYPED)
        if not self._pasting:
            self._carry = b""
        self._string = False
        return found

    def _paste(self, data: bytes, at: int, found: list[bytes]) -> int:
        end = data.find(_PASTE_END, at)
        if end >= 0:
            self._pasting = False
            _note(found, TYPED)
            return end + len(_PASTE_END)
        keep = _partial(data, at, _PASTE_END)
        if len(data) - at > keep:
            _note(found, TYPED)
        self._carry = data[len(data) - keep :] if keep else b""
        return len(data)

    def _in_string(self, data: bytes, at: int) -> int:
        """Skip to the end of a control string: BEL or ESC \\; any other ESC cancels it."""
        bell = data.find(b"\x07", at)
        escape = data.find(b"\x1b", at)
        if bell >= 0 and (escape < 0 or bell < escape):
            self._string = False
            return bell + 1
        if escape < 0:
            return len(data)
        if escape + 1 == len(data):
            self._carry = b"\x1b"
            return len(data)
        self._string = False
        return escape + 2 if data[escape + 1] == 0x5C else escape

    def _escape(self, data: bytes, at: int, found: list[bytes], cooked: bool) -> int:
        if at + 1 == len(data):
            self._carry = b"\x1b"
            return len(data)
        second = data[at + 1]
        if second == 0x5B:
            return self._control(data, at, found)
        if second == _ESC:
            _note(found, TYPED if cooked else CLEARED)
            return at + 1
        if second in _STRINGS:
            self._string = True
            return at + 2
        if second == 0x4F:  # SS3: function and keypad keys
            if at + 2 == len(data):
                self._carry = data[at:]
                return len(data)
            _note(found, ENTERED if data[at + 2] == 0x4D else TYPED)
            return at + 3
        _note(found, TYPED)  # Alt and a key; Alt-Enter is a newline in the draft
        return at + 2

    def _control(self, data: bytes, at: int, found: list[bytes]) -> int:
        end = at + 2
        while end < len(data) and 0x20 <= data[end] <= 0x3F:
            end += 1
            if end - at > CARRY_MAX:
                _note(found, TYPED)
                return end
        if end == len(data):
            self._carry = data[at:]
            return end
        if not 0x40 <= data[end] <= 0x7E:  # cut short by another control: a key, and then that
            _note(found, TYPED)
            return end
        sequence = data[at : end + 1]
        if sequence == b"\x1b[M":  # an X10 mouse report: three bytes follow
            if len(data) - end - 1 < 3:
                self._carry = data[at:]
                return len(data)
            return end + 4
        if sequence == _PASTE_BEGIN:
            self._pasting = True
            _note(found, TYPED)
            return end + 1
        verdict = _control_verdict(sequence)
        if verdict:
            _note(found, verdict)
        return end + 1


def _plain(data: bytes, at: int, found: list[bytes], cooked: bool) -> int:
    end = data.find(b"\x1b", at)
    end = len(data) if end < 0 else end
    segment = data[at:end]
    stops = _COOKED_STOPS if cooked else _PLAIN_STOPS
    # The order of the last of each kind is the order in which they are reported.
    last: list[tuple[int, bytes]] = []
    for stop in stops:
        where = segment.rfind(stop)
        if where < 0:
            continue
        if stop in _COOKED_CLEARING:
            last.append((where, CLEARED))
        else:
            last.append((where, ENTERED if stop == 0x0D or cooked else TYPED))
    typed = len(segment.rstrip(stops))
    if typed:
        last.append((typed - 1, TYPED))
    for _, kind in sorted(last):
        _note(found, kind)
    return end


def _note(found: list[bytes], kind: bytes) -> None:
    if kind in found:
        found.remove(kind)
    found.append(kind)


def _partial(data: bytes, at: int, marker: bytes) -> int:
    """How many bytes at the end of ``data`` may be the beginning of ``marker``."""
    for length in range(min(len(marker) - 1, len(data) - at), 0, -1):
        if data.endswith(marker[:length]):
            return length
    return 0


def _control_verdict(sequence: bytes) -> bytes:
    """TYPED, ENTERED, CLEARED, or nothing for what a terminal sends by itself."""
    final = sequence[-1]
    body = sequence[2:-1]
    if final in _REPORT_FINALS or body[:1] in (b"?", b"<", b">", b"="):
        return b""
    fields = [field.split(b":") for field in body.split(b";")]
    if final == 0x75:  # CSI key;modifiers:event u
        return _key(_number(fields, 0, 0), _number(fields, 1, 0), _number(fields, 1, 1))
    if final == 0x7E and body.startswith(b"27;"):  # CSI 27;modifiers;key ~
        return _key(_number(fields, 2, 0), _number(fields, 1, 0), 1)
    return b"" if _number(fields, 1, 1) == _RELEASE else TYPED


def _key(key: int, modifiers: int, event: int) -> bytes:
    held = max(modifiers - 1, 0) & ~_LOCKS
    if event == _RELEASE or key in _KEY_MODIFIERS:
        return b""
    if key in _KEY_ENTERS and not held:
        return ENTERED
    if (key == _KEY_ESCAPE and not held) or (key in _KEY_CLEARING and held == _CTRL):
        return CLEARED
    return TYPED


def _number(fields: list[list[bytes]], field: int, part: int) -> int:
    try:
        return int(fields[field][part])
    except (IndexError, ValueError):
        return 0


class Keyboard:
    """Reports ACTIVITY through ``report(kind)``. ``unreported``: a key whose report is due."""

    def __init__(self, report: Callable[[bytes], None]) -> None:
        self.unreported = False
        self._classifier = Classifier()
        self._report = report
        self._last = ENTERED
        self._typed_at = float("-inf")
        self._flush_at: float | None = None

    @property
    def settled(self) -> bool:
        """Whether no key sequence is unfinished."""
        return self._flush_at is None

    def pressed(self, data: bytes, cooked: bool, now: float) -> None:
        """The terminal sent ``data``."""
        self._flush_at = None
        self._note(self._classifier.feed(data, cooked), now)
        if self._classifier.pending:
            self._flush_at = now + ALONE_AFTER

    def tick(self, cooked: bool, now: float) -> None:
        """Do what is due."""
        if self._flush_at is not None and now >= self._flush_at:
            self._flush_at = None
            self._note(self._classifier.flush(cooked), now)
        if self.unreported and now >= self._typed_at + TYPED_EVERY:
            self._typed(now)

    def deadline(self) -> float | None:
        """When ``tick`` has something to do."""
        due = self._typed_at + TYPED_EVERY if self.unreported else None
        if self._flush_at is None or due is None:
            return due if self._flush_at is None else self._flush_at
        return min(due, self._flush_at)

    def _note(self, kinds: list[bytes], now: float) -> None:
        for kind in kinds:
            if kind != TYPED:
                self.unreported = False
                self._last = kind
                self._report(kind)
            elif self._last == TYPED and now < self._typed_at + TYPED_EVERY:
                self.unreported = True
            else:
                self._typed(now)

    def _typed(self, now: float) -> None:
        self.unreported = False
        self._typed_at = now
        self._last = TYPED
        self._report(TYPED)
