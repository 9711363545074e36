"""Text to the numbers that a BERT model reads: the uncased WordPiece tokenizer, in pure Python.

Wu et al., "Google's Neural Machine Translation System" (2016), section 4.1, with the clean-up of
BERT (Devlin et al., 2018): accents and case dropped, punctuation and Chinese characters each a
word of their own, the longest known pieces first. Gives the same numbers as the tokenizer that the
model was trained with, its handling of a special token in the text included; only of 500 rare
characters that Unicode knows since 2015 it sees more than that one.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator

PAD, UNKNOWN, START, END, MASK = SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
#: Characters of a word; a longer one is unknown as a whole, however it could be divided.
WORD_MAX = 100
_CONTINUED = "##"
_SPECIAL = re.compile("(" + "|".join(re.escape(token) for token in SPECIAL) + ")")
#: Blocks whose characters are words, inclusive. 2B820 to 2B91F are missing in the original too.
_IDEOGRAPHS = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


class _Cleaning(dict[int, str]):
    """What ``str.translate`` puts for a character; each is worked out when it is first met."""

    def __missing__(self, code: int) -> str:
        self[code] = found = _cleaned(chr(code))
        return found


class WordPiece:
    """A vocabulary, ready to use."""

    def __init__(self, vocabulary: Iterable[str]) -> None:
        """Take the pieces in the order of their numbers; raises ValueError without the special
        tokens, or when a piece stands there twice."""
        pieces = list(vocabulary)
        self._numbers = {piece: number for number, piece in enumerate(pieces)}
        if len(self._numbers) != len(pieces):
            raise ValueError("the vocabulary holds a piece twice")
        missing = [token for token in SPECIAL if token not in self._numbers]
        if missing:
            raise ValueError(f"the vocabulary lacks {', '.join(missing)}")
        self._unknown = self._numbers[UNKNOWN]
        self._longest = max(map(len, pieces))
        self._cleaning = _Cleaning()

    def __len__(self) -> int:
        return len(self._numbers)

    def encode(self, text: str, limit: int) -> list[int]:
        """At most ``limit`` numbers, ``[CLS]`` and ``[SEP]`` around them included; the text's end
        is dropped. ``limit`` is at least 2."""
        numbers = [self._numbers[START]]
        for found in self._words(text):
            numbers.extend(found)
            if len(numbers) >= limit - 1:
                del numbers[limit - 1 :]
                break
        numbers.append(self._numbers[END])
        return numbers

    def _words(self, text: str) -> Iterator[list[int]]:
        for part in _SPECIAL.split(text):
            if part in SPECIAL:
                yield [self._numbers[part]]
                continue
            plain = part if part.isascii() else unicodedata.normalize("NFD", part)
            for word in plain.translate(self._cleaning).split():
                yield self._pieces(word)

    def _pieces(self, word: str) -> list[int]:
        """The numbers of the longest pieces from the left; ``[UNK]`` when one is not known."""
        if len(word) > WORD_MAX:
            return [self._unknown]
        found: list[int] = []
        start, prefix = 0, ""
        while start < len(word):
            for end in range(min(len(word), start + self._longest), start, -1):
                number = self._numbers.get(prefix + word[start:end])
                if number is not None:
                    break
            else:
                return [self._unknown]
            found.append(number)
            start, prefix = end, _CONTINUED
        return found


def _cleaned(char: str) -> str:
    """What stands for one character of decomposed text: spaces set it apart as a word."""
    category = unicodedata.category(char)
    if char in "\t\n\r" or category[0] == "Z":
        return " "
    if category in ("Cc", "Cf", "Co", "Cs", "Mn") or char == "\ufffd":
        return ""
    if _is_punctuation(char, category) or _is_ideograph(char):
        return f" {char} "
    return char.lower()


def _is_punctuation(char: str, category: str) -> bool:
    """Every printable ASCII character that is neither letter nor digit counts as well."""
    return category[0] == "P" or (char.isascii() and not char.isalnum())


def _is_ideograph(char: str) -> bool:
    code = ord(char)
    return any(first <= code <= last for first, last in _IDEOGRAPHS)
