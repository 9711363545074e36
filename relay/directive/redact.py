"""Masking secrets in text, as a whole or as a stream: every secret character becomes ``*``.

The prefix that names the service stays readable, and the text keeps its length, so that a recorded
screen keeps its layout and nothing else moves. Pure.

A token is found although colours stand inside it, and although a program has broken it at the right
edge (a line end, or cursor movement): then it goes on in the next run of CONTINUED characters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from relay.directive import secret_patterns
from relay.directive.secret_patterns import BEHIND, SecretContext, SecretShape

MASK = "*"
#: Characters of a server's own words in an error.
WORDS_MAX = 200
#: A stream keeps at most so many characters back, to see whether they become a token.
HELD_MAX = 16 * 1024
#: After a line break a token that could be whole only goes on in a run of so many characters.
CONTINUED = 12
#: Of a token that was broken the first piece has at least so many, and all between the first and
#: the last fill a row. More pieces than this it has not.
_PIECE_MIN = 4
_FULL_ROW = 16
_PIECES_MAX = 40

# Control sequences: colours are looked through, the rest moves the cursor or erases.
_CONTROL = re.compile(r"\x1b(?:\[[0-?]{0,60}[ -/]{0,4}([@-~])|[ -/]{1,4}[0-~]|[6-9=>cDEHMNOZ])")
_CONTROL_TAIL = re.compile(r"\x1b(?:\[[0-?]{0,60}[ -/]{0,4}|[ -/]{0,4})\Z")
_MOVED = "\0"
_BREAK = re.compile(r" {0,2}[\r\n\0]+ {0,8}")
_BREAK_TAIL = re.compile(r" {0,2}(?:[\r\n\0]+ {0,8})?\Z")
_BREAKING = frozenset(" \r\n\0")


@dataclass(frozen=True, slots=True)
class _Secret:
    """``start`` to ``end`` is the token, from ``masked`` on it is secret (positions of text)."""

    kind: str
    start: int
    masked: int
    end: int


def redact(text: str) -> str:
    """``text`` with every secret masked; it keeps its length."""
    redactor = Redactor()
    return redactor.feed(text) + redactor.finish()


def mask(text: str) -> str:
    """``text``, which no screen has broken, with every token of a known prefix and every private
    key masked. Fast, whatever the text is: what agents say goes through it while others wait."""
    for sign, needles in secret_patterns.NEEDLES.items():
        if sign in text:
            for needle in needles:
                if needle in text:
                    return secret_patterns.whole_text().sub(_mask_token, text)
    return text


def mask_all(value: Any) -> Any:
    """The same for every text in what JSON can hold, but for the keys."""
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, list):
        return [mask_all(one) for one in value]
    return {key: mask_all(one) for key, one in value.items()} if isinstance(value, dict) else value


def _mask_token(found: re.Match[str]) -> str:
    token = found[0]
    if token.startswith(secret_patterns.PEM_START):
        begin = token.index("-----", len(secret_patterns.PEM_START)) + 5
        return token[:begin] + re.sub(r"\S", MASK, token[begin:])
    prefix = max((one for one in secret_patterns.LITERALS if token.startswith(one)), key=len)
    return prefix + MASK * (len(token) - len(prefix))


def find(text: str) -> list[tuple[int, int, str]]:
    """(start, end, kind) of every secret in ``text``, prefix included, in order.

    A private key is one find, from its first to its last masked line.
    """
    seen = _Seen(text, final=True)
    found: list[tuple[int, int, str]] = []
    for secret in _Scan(seen.text, "", 0, final=True).secrets():
        start, end = seen.raw(secret.start), seen.raw(secret.end - 1) + 1
        if secret.kind == "private-key" and found and found[-1][2] == secret.kind:
            before = found[-1]
            if secret_patterns.PEM_START not in text[before[1] : start]:
                start = found.pop()[0]
        found.append((start, end, secret.kind))
    return found


def server_words(body: bytes, key: str) -> str:
    """The server's words for what is wrong, in one short line; some repeat the key."""
    try:
        error = json.loads(body)["error"]
        text = str(error["message"] if isinstance(error, dict) else error)
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    if key:
        text = text.replace(key, "*" * len(key))
    # Cut first, but far behind the end: a token that is cut may not be known as one.
    text = redact(text[: 10 * WORDS_MAX])
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= WORDS_MAX else line[:WORDS_MAX] + "…"


class Redactor:
    """The same for a stream that is cut anywhere: wherever it is cut, the result is the same.

    ``feed`` returns what is decided; at most HELD_MAX characters are kept back, so that a longer
    token is masked to there and on, as far as its characters go.
    """

    def __init__(self) -> None:
        self._held = ""
        self._behind = ""
        self._pem = 0
        self._going_on: re.Pattern[str] | None = None

    def feed(self, text: str) -> str:
        """Add ``text``; return what can be told of it and of what was kept back."""
        decided = self._take(self._held + text, final=False)
        if len(self._held) > HELD_MAX:
            decided += self._take(self._held, final=True)
        return decided

    def finish(self) -> str:
        """The stream is over: the rest of it."""
        rest = self._take(self._held, final=True)
        self._going_on = None
        return rest

    def _take(self, text: str, final: bool) -> str:
        seen = _Seen(text, final)
        skipped = self._go_on(seen.text)
        scan = _Scan(self._behind + seen.text, self._behind, self._pem, final, skipped)
        secrets = list(scan.secrets())
        base = len(self._behind)
        decided = scan.decided - base
        cut = seen.raw(decided)
        masks = [(one.masked - base, one.end - base) for one in secrets]
        if skipped:
            masks.append((0, skipped))
        if final and secrets and secrets[-1].end == len(scan.text):
            self._going_on = scan.last_chars
        self._pem = scan.pem
        self._behind = scan.text[: scan.decided][-BEHIND:]
        self._held = text[cut:]
        return _masked(text[:cut], seen, masks)

    def _go_on(self, text: str) -> int:
        """How many characters belong to a token that was too long to be kept back."""
        if self._going_on is None or not text:
            return 0
        run = self._going_on.match(text)
        end = run.end() if run else 0
        if end < len(text):
            self._going_on = None
        return end


def _masked(text: str, seen: _Seen, masks: list[tuple[int, int]]) -> str:
    if not masks:
        return text
    chars = list(text)
    for start, end in masks:
        for at in range(start, end):
            if seen.text[at] not in _BREAKING:
                chars[seen.raw(at)] = MASK
    return "".join(chars)


def _least_piece(shape: SecretShape, piece: int, count: int) -> int:
    """How long the next piece must be, ``count`` characters being there already."""
    if piece == 0:
        return min(shape.least, _PIECE_MIN)
    return CONTINUED if count >= shape.least else 1


class _Seen:
    """``text`` as it shows: without colours, every other control sequence one character."""

    def __init__(self, text: str, final: bool) -> None:
        self.text = text
        self._index: list[int] | None = None
        self._end = len(text)
        if "\x1b" not in text:
            return
        tail = None if final else _CONTROL_TAIL.search(text)
        if tail is not None:
            self._end = tail.start()
        self._raw = text
        pieces = _CONTROL.split(text[: self._end])
        pieces[1::2] = ["" if final == "m" else _MOVED for final in pieces[1::2]]
        self.text = "".join(pieces)

    def raw(self, at: int) -> int:
        """Where the character at ``at`` stands in the text that was given."""
        if at >= len(self.text):
            return self._end
        if len(self.text) == self._end:
            return at
        if self._index is None:
            self._index = self._make_index()
        return self._index[at]

    def _make_index(self) -> list[int]:
        index: list[int] = []
        at = 0
        for found in _CONTROL.finditer(self._raw, 0, self._end):
            index.extend(range(at, found.start()))
            if found[1] != "m":
                index.append(found.start())
            at = found.end()
        index.extend(range(at, self._end))
        return index


class _Scan:
    """One pass over ``text``, of which ``behind`` was decided before.

    Afterwards everything before ``decided`` is decided: no token that begins there is unfinished.
    """

    def __init__(self, text: str, behind: str, pem: int, final: bool, skip: int = 0) -> None:
        self.text = text
        self.pem = pem  # characters for which a private key is expected
        self.decided = len(text)
        self.last_chars: re.Pattern[str] | None = None
        self._final = final
        self._runs: dict[re.Pattern[str], tuple[int, int]] = {}
        self._at = len(behind) + skip

    def secrets(self) -> Iterator[_Secret]:
        """The tokens, in order; ``decided`` and ``pem`` are right once they are all taken."""
        while True:
            if self.pem:
                yield from self._key()
                if self.pem:
                    return
            found = self._trigger()
            if found is None:
                self._look_at_end()
                return
            verdict = self._verdict(found[0], found.start(), found.end())
            if verdict is None:
                self.decided = found.start()
                return
            if verdict:
                yield verdict
                self._at = verdict.end
            elif not self.pem:
                self._at = found.start() + 1

    def _trigger(self) -> re.Match[str] | None:
        """The next beginning of what may be a token."""
        at = self._at
        while (anchor := secret_patterns.ANCHOR.search(self.text, at)) is not None:
            reach = secret_patterns.TRIGGER_MAX
            begin = max(self._at, anchor.start() - reach)
            found = secret_patterns.TRIGGER.search(self.text, begin, anchor.end() + reach)
            if found is not None:  # matched again: the window may have cut a longer one
                return secret_patterns.TRIGGER.match(self.text, found.start())
            at = anchor.end()
        return None

    def _verdict(self, word: str, start: int, end: int) -> _Secret | Literal[False] | None:
        """The secret that begins with ``word``; False for none, None when more text decides."""
        if self._unfinished(start):
            return None
        if word == secret_patterns.PEM_START:
            return self._header(start)
        if word in secret_patterns.BY_PREFIX:
            return self._run(secret_patterns.BY_PREFIX[word], start, end)
        return self._context(secret_patterns.BY_START[word.lower()], start)

    def _unfinished(self, start: int) -> bool:
        """Whether the text ends within a prefix that begins at ``start``."""
        if self._final or len(self.text) - start > secret_patterns.UNFINISHED_MAX:
            return False
        return self.text[start:] in secret_patterns.UNFINISHED

    def _look_at_end(self) -> None:
        """A token may have begun with the last characters."""
        if self._final:
            return
        text = self.text
        for length in range(min(secret_patterns.UNFINISHED_MAX, len(text) - self._at), 0, -1):
            start = len(text) - length
            tail = text[start:]
            word = (
                tail in secret_patterns.UNFINISHED
                or tail.lower() in secret_patterns.UNFINISHED_WORDS
            )
            if word and (tail[0] in ":-" or secret_patterns.AT_BOUNDARY.match(text, start)):
                self.decided = start
                return

    def _run(self, shape: SecretShape, start: int, at: int) -> _Secret | Literal[False] | None:
        text, count, end = self.text, 0, at
        for piece in range(_PIECES_MAX):
            reached = self._reach(shape.chars, at)
            if reached == len(text) and not self._final:
                return None
            if piece and self._unfinished(at):
                return None
            another = piece > 0 and secret_patterns.TRIGGER.match(text, at)
            if another or reached - at < _least_piece(shape, piece, count):
                break
            count, end = count + reached - at, reached
            full = piece == 0 or reached - at >= _FULL_ROW
            if not full or (shape.exact and count >= shape.least):
                break
            broken = _BREAK.match(text, end)
            if broken is None or broken.end() == len(text):
                if not self._final and _BREAK_TAIL.match(text, end):
                    return None
                break
            at = broken.end()
        joined = piece > 0
        while end > start and text[end - 1] in ".-":
            end -= 1
        return self._whole(shape, start, end, count, joined)

    def _reach(self, chars: re.Pattern[str], at: int) -> int:
        """Where the run that begins or goes on at ``at`` ends."""
        known = self._runs.get(chars)
        if known is None or not known[0] <= at < known[1]:
            # Remembered: many tokens may seem to begin in one long run.
            run = chars.match(self.text, at)
            known = self._runs[chars] = (at, run.end() if run else at)
        return known[1]

    def _whole(
        self, shape: SecretShape, start: int, end: int, count: int, joined: bool
    ) -> _Secret | Literal[False]:
        if count < shape.least or (shape.exact and count != shape.least):
            return False
        if shape.whole is not None and shape.whole.match(self.text, start, end) is None:
            if not joined:
                return False
            text = re.sub(r"[ \r\n\0]+", "", self.text[start : min(end, start + HELD_MAX)])
            if shape.whole.match(text) is None:
                return False
        self.last_chars = shape.chars
        prefix = next(p for p in shape.prefixes if self.text.startswith(p, start))
        return _Secret(shape.kind, start, start + len(prefix), end)

    def _context(self, shape: SecretContext, start: int) -> _Secret | Literal[False] | None:
        if not self._final and shape.opening.match(self.text, start):
            return None
        found = shape.full.match(self.text, start)
        if found is None:
            return False
        group = "s" if found["s"] is not None else "t"
        self.last_chars = secret_patterns.VALUE_RUN
        return _Secret(shape.kind, found.start(group), found.start(group), found.end(group))

    def _header(self, start: int) -> _Secret | Literal[False] | None:
        header = secret_patterns.PEM_HEADER.match(self.text, start)
        if header is None:
            opening = not self._final and secret_patterns.PEM_OPENING.match(self.text, start)
            return None if opening else False
        self._at = header.end()
        self.pem = secret_patterns.PEM_MAX
        return False

    def _key(self) -> Iterator[_Secret]:
        """The lines of a private key, until its end or as far as it may reach."""
        text, begin = self.text, self._at
        reach = begin + self.pem
        limit = len(text)
        if not self._final:
            limit = max(begin, len(text.rstrip(secret_patterns.PEM_CHARS)))
        for step in secret_patterns.PEM_STEP.finditer(text, begin, limit):
            if step.start() >= reach:
                break
            self._at = step.end()
            if step[0] == "-----END":
                self.pem = 0
                return
            self.last_chars = secret_patterns.PEM_LINE
            yield _Secret("private-key", step.start(), step.start(), step.end())
        if limit >= reach:
            self._at, self.pem = max(self._at, reach), 0
        else:
            self.decided = limit
            self.pem = reach - limit
