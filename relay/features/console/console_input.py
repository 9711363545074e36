"""What the terminal sends to the console, without what neither a key nor the mouse sends.

prompt-toolkit fails on a mouse report that is none, and types an answer of the terminal's, such as
its colour, into the line. A terminal, a bad line or a paste may send any bytes.
"""

from __future__ import annotations

import re

from prompt_toolkit.input.ansi_escape_sequences import ANSI_SEQUENCES
from prompt_toolkit.input.vt100 import Vt100Input
from prompt_toolkit.key_binding.key_processor import KeyPress

_CTRL_C = "\x03"
#: A mouse report of the oldest kind, a control sequence, and a string such as a colour.
_SEQUENCE = re.compile(
    r"\x1b\[M...|\x1b\[\[?[0-?]*[ -/]*[@-~]|\x1b[]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)", re.DOTALL
)
#: The beginning of one, which the next read may complete; so much of it says what it is.
_BEGUN = re.compile(r"\x1b(?:O|\[(?:M.{0,2}|\[?[0-?]*[ -/]*))?\Z", re.DOTALL)
_BEGUN_MAX = 64
#: Where the mouse is, in its three forms, and where the cursor is.
_REPORT = re.compile(
    r"\x1b\[(?:<?\d{1,4};\d{1,4};\d{1,4}[Mm]|M[ -#`a]..|\d{1,4};\d{1,4}R)", re.DOTALL | re.ASCII
)
_PASTE, _PASTE_END = "\x1b[200~", "\x1b[201~"
_NO_TEXT = re.compile("[\ud800-\udfff]")  # bytes that are no UTF-8


class ConsoleInput(Vt100Input):
    """The keys of a terminal. While a paste has no end, Ctrl-C drops it."""

    _begun = ""
    _pastes = False

    def read_keys(self) -> list[KeyPress]:
        text = self._begun + _NO_TEXT.sub("\ufffd", self.stdin_reader.read())
        if text == _CTRL_C and self._pastes:
            self.vt100_parser.reset()
            self._pastes, text = False, ""
        begun = _BEGUN.search(text)
        self._begun = begun[0][:_BEGUN_MAX] if begun else ""
        text = text[: begun.start()] if begun else text
        if (first := text.rfind(_PASTE)) != (last := text.rfind(_PASTE_END)):
            self._pastes = first > last
        self.vt100_parser.feed(_SEQUENCE.sub(_known, text))
        return super().flush_keys() if text else []

    def flush_keys(self) -> list[KeyPress]:
        """Nothing more has come: what has begun is all of it, such as the key Esc."""
        self.vt100_parser.feed(self._begun)
        self._begun = ""
        return super().flush_keys()


def _known(sequence: re.Match[str]) -> str:
    sent = sequence[0]
    known = sent in ANSI_SEQUENCES or sent == _PASTE_END or _REPORT.fullmatch(sent)
    return sent if known else ""
