"""Text that is safe to type into a terminal and honest to read.

What cannot be typed or seen is shown, never silently dropped: a control becomes its picture
(ESC is ``␛``), an invisible character becomes its number (``<U+202E>``). What looks like a line of
relay's own is marked as a quotation.
"""

from __future__ import annotations

import re
import unicodedata

# C0 but \t and \n, DEL, C1; then what has no width or reorders its neighbours, and so can hide
# text from a reader. Kept: the two joiners and the two emoji variation selectors, without which
# ordinary emoji and several scripts fall apart.
_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0d\ufeff\uffa0\ufff0-\ufffb\ud800-\udfff"
    "\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_LINE_END = re.compile("\r\n?")

#: Letters of other scripts that look like those of relay's own words.
_ALIKE = {
    other: letter
    for letter, others in {
        "b": "ꓐЬьВβᏴᏏ",
        "f": "ꓝϜҒғ",
        "u": "ꓴυսᑌ∪",
        "a": "ꓮаΑАαɑᎪᗅ∀",
        "c": "ꓚсϲСϹᏟ⊂",
        "e": "ꓰеЕΕεєҽᎬ∊℮",
        "g": "ꓖցᏀɡԌ",
        "i": "ꓲіІιΙӏӀᎥ",
        "l": "ꓡᏞ∣ǀו",
        "m": "ꓟмМΜᎷϺ",
        "n": "ꓠпոռηΝ∩",
        "o": "ꓳоОοΟօՕσΘ০०٥〇○◯",
        "r": "ꓣгᴦᎡᏒ",
        "s": "ꓢѕЅᏚտՏ",
        "t": "ꓔтТτΤᎢ⊤",
        "y": "ꓬуУγΥүҮყᎽ",
        ":": "ː׃։፡᠄⁚",
    }.items()
    for other in others
}
_BASE = re.compile(r"(?:LATIN|REGIONAL|NEGATIVE|SQUARED|CROSSED|CIRCLED).*\b([A-Z])(?: WITH\b.*)?")


class _Folds(dict[int, str]):
    """Each character as one that a reader may take it for: ASCII, ``[`` for a symbol, NUL for what
    has no width of its own."""

    def __missing__(self, code: int) -> str:
        folded = _fold(chr(code))
        if len(self) < 65536:
            self[code] = folded
        return folded


def _fold(char: str) -> str:
    if char.isascii() or char in _ALIKE:
        return _ALIKE.get(char) or char.lower()
    kind = unicodedata.category(char)
    if kind in ("Mn", "Me", "Cf"):
        return "\0"
    parts = unicodedata.normalize("NFKD", char)
    plain = next(filter(str.isalnum, parts), parts[0])  # a letter in parentheses, too
    if plain.isascii() or plain in _ALIKE:
        return _ALIKE.get(plain) or plain.lower()
    base = _BASE.fullmatch(unicodedata.name(plain, ""))
    if base is not None:
        return base[1].lower()
    if kind[0] in "PS":
        return "-" if kind in ("Pd", "Pi", "Pf", "Po") else "["
    return plain


_FOLDS = _Folds()
_LOOKS = {
    **{"a": "[a4@]", "e": "[e3]", "i": "[il1|!]", "l": "[il1|!]", "m": "(?:m|rn)", "o": "[o0]"},
    "s": "[s5$]",
}


def _word(letters: str) -> str:
    """Its letters, also spaced out."""
    return r"[\W_]{0,3}".join(_LOOKS.get(letter, letter) for letter in letters)


_NAME = rf"{_word('relay')}[\W_]*(?:{_word('message')}|{_word('notice')})"
#: The beginning of a header, up to where something must come between for it to be none.
_HEADER = re.compile(
    rf"{_NAME}(?! \(quoted\))"
    rf"(?=[\W_]*?[\[\](){{}}<>|:#]|[\W_]*(?:\w{{1,24}}[\W_]+)?{_word('from')})"
)
#: What only the header of the person's own words says.
_OWN = re.compile(
    r"[\W_]*".join(map(_word, ("from", "your", "user", "by", "relay"))) + r"(?!\w| \(quoted\))"
)
#: Agents put what hooks add into such tags; a text must not end one, nor begin one of its own.
_TAG = re.compile(
    r"<(?=[/!?\0]*(?:system[-_]\w+|hook[-_]\w+|(?:additional|environment)[-_]context"
    r"|user[-_](?:instructions|prompt|message))\b)"
)
_CLOSING = re.compile(
    rf"{_word('end')}[\W_]*{_word('of')}[\W_]*(?:{_word('context')}[\W_]*)?[\[({{<]|{_word('not')}[\W_]*{_word('consent')}"
    rf"|{_word('to')}[\W_]*{_word('answer')}[\W_]*{_word('if')}"
    rf"|{_word('no')}[\W_]*{_word('answer')}[\W_]*{_word('needed')}"
    rf"|{_word('by')}[\W_]*{_word('your')}[\W_]*{_word('users')}[\W_]*{_word('automations')}"
)


def clean(text: str) -> str:
    """``text`` without anything that a terminal obeys. Idempotent.

    The result holds no control but ``\\n`` and ``\\t``: no ESC, so no sequence of any kind and no
    end of a bracketed paste; no NUL, DEL, C1. Line ends become ``\\n``; lone surrogates become
    U+FFFD; controls for direction and characters without width are shown as ``<U+202E>``.
    """
    if text.isascii() and text.isprintable():
        return text
    return _UNSAFE.sub(_shown, _LINE_END.sub("\n", text))


def quote_headers(text: str, *, closings: bool = False) -> str:
    """``text``, which is clean, with all broken that looks like a header of relay's.

    In whatever letters: ``Rеlау-MESSAGE  [`` becomes ``Rеlау-MESSAGE (quoted)  [``. So do the tags
    by which agents set apart what is not the user's: ``< /system-reminder>``. Idempotent.
    ``closings``: so does what looks like the words behind a message, for where all is one line.
    """
    folded = _folded(text)
    marks = [
        (found.end(), " (quoted)") for own in (_HEADER, _OWN) for found in own.finditer(folded)
    ]
    if closings:
        marks += [(found.end(), " (quoted) ") for found in _CLOSING.finditer(folded)]
    if "<" in folded:
        marks += [(found.end(), " ") for found in _TAG.finditer(folded)]
    pieces, start = [], 0
    for at, mark in sorted(marks):
        pieces += [text[start:at], mark]
        start = at
    return "".join([*pieces, text[start:]])


def has_closing(text: str) -> bool:
    """Whether ``text``, which is clean, has words that look like those behind relay's messages."""
    return _CLOSING.search(_folded(text)) is not None


def _folded(text: str) -> str:
    return text.lower() if text.isascii() else text.translate(_FOLDS)


def code_point(char: str) -> str:
    """``char`` as its number: ``<U+202E>``."""
    return f"<U+{ord(char):04X}>"


def _shown(match: re.Match[str]) -> str:
    char = match[0]
    code = ord(char)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    if 0xD800 <= code <= 0xDFFF:
        return "\ufffd"
    return code_point(char)
