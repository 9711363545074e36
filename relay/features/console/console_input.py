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
#: The beginning of one, which the next read may complete.
_BEGUN = re.compile(r"\x1b(?:O|\[(?:M.{0,2}|\[?[0-?]{0,30}[ -/]{0,2}))?\Z", re.DOTALL)
#: Where the mouse is, in its three forms, and where the cursor is.
_REPORT = re.compile(
    r"\x1b\[(?:<?\d{1,4};\d{1,4};\d{1,4}[Mm]|M[ -#`a]..|\d{1,4};\d{1,4}R)", re.DOTALL | re.ASCII
)
_NO_TEXT = re.compile("[\ud800-\udfff]")  # bytes that are no UTF-8


class ConsoleInput(Vt100Input):
    """The keys of a terminal. Ctrl-C also ends a paste whose end never came."""

    _begun = ""

    def read_keys(self) -> list[KeyPress]:
        text = self._begun + _NO_TEXT.sub("\ufffd", self.stdin_reader.read())
        if text == _CTRL_C:
            self.vt100_parser.reset()
        begun = _BEGUN.search(text)
        self._begun = begun[0] if begun else ""
        text = text[: len(text) - len(self._begun)]
        self.vt100_parser.feed(_SEQUENCE.sub(_known, text))
        return super().flush_keys() if text else []

    def flush_keys(self) -> list[KeyPress]:
        """Nothing more has come: what has begun is all of it, such as the key Esc."""
        self.vt100_parser.feed(self._begun)
        self._begun = ""
        return super().flush_keys()


def _known(sequence: re.Match[str]) -> str:
    known = sequence[0] in ANSI_SEQUENCES or _REPORT.fullmatch(sequence[0])
    return sequence[0] if known else ""
