"""Text as it is printed for a person: it obeys no terminal, hides nothing and fires no pattern.

Everything that relay prints for people goes through ``visible``, whoever wrote it. It reads without
regular expressions, because the quickest verbs do without that module.
"""

from __future__ import annotations

#: States that wait for somebody, in the order in which they are counted.
NEEDY = ("blocked", "limited", "stopped")
_TONES = {
    **dict.fromkeys((*NEEDY, "failed", "held"), "need"),
    **dict.fromkeys(("seen", "completed", "idle"), "good"),
    **dict.fromkeys(("busy", "starting", "waiting"), "work"),
    "gone": "faint",
}
#: They count as letters, and are blank.
_BLANK = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u3164\uffa0")
#: Variation selectors; the two of emoji are left.
_SELECTORS = (range(0xFE00, 0xFE0E), range(0xE0100, 0xE01F0))
#: Characters of the longest namespace that a pattern can have.
_NAMESPACE_MAX = 64
_OWN = ("relay", "memory", "intent", "broadcast")


def visible(text: str) -> str:
    r"""``text`` on one line: controls and what has no width are shown, ``@relay:`` is broken.

    ESC becomes ``^[``, a bidirectional control ``\u202e``. A pattern is written ``@relay\:Bob``,
    which is none wherever a terminal, a pager or a narrow window begins a row: what relay lists
    must not fire in the program in whose terminal it is listed. Idempotent.
    """
    if not text.isascii() or not text.isprintable():
        text = "".join(char if _is_shown(char) else _named(char) for char in text)
    return _broken(text) if "@" in text else text


def broken_in(text: str) -> str:
    r"""The first of ``text`` that ``visible`` breaks, such as ``@relay\:``; "" for nothing."""
    shown = _broken(text)
    for at, char in enumerate(text):
        if shown[at] != char:
            return shown[text.rindex("@", 0, at) : at + 2]
    return ""


def visible_lines(text: str) -> str:
    """The same, keeping line ends and tabs."""
    return "\n".join(
        "\t".join(visible(part) for part in line.split("\t")) for line in text.split("\n")
    )


def cells(text: str) -> str:
    """``text`` as the cells of a screen: blanks of any kind are blank, private characters (icons of
    a font) stay, and so do patterns; controls are shown.

    Only for what is drawn where no program reads it, such as the console and the web page.
    """
    if text.isascii() and text.isprintable():
        return text
    import unicodedata

    shown = []
    for char in text:
        kind = unicodedata.category(char)
        if kind == "Zs":
            shown.append(" " * columns_of(char))
        else:
            shown.append(char if kind == "Co" or _is_shown(char) else _named(char))
    return "".join(shown)


def without_gaps(texts: list[str]) -> list[int]:
    """The places of the rows to show, so that one blank row stands for three or more."""
    places: list[int] = []
    blank: list[int] = []
    for n, text in enumerate(texts):
        if not text.strip():
            blank.append(n)
            continue
        places += blank[:1] if len(blank) > 2 else blank
        places.append(n)
        blank = []
    return places + (blank[:1] if len(blank) > 2 else blank)


def is_visible(text: str) -> bool:
    """Whether each character of ``text`` can be seen, as in a name."""
    return text.isascii() and text.isprintable() or all(map(_is_shown, text))


def _is_shown(char: str) -> bool:
    if not char.isprintable() or char in _BLANK:
        return False
    return char < "\ufe00" or not any(ord(char) in selectors for selectors in _SELECTORS)


def _named(char: str) -> str:
    if char < " ":
        return "^" + chr(ord(char) + 64)
    code = ord(char)
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def _broken(text: str) -> str:
    before, *pieces = text.split("@")
    shown = [before]
    for piece in pieces:
        name, colon, rest = piece.partition(":")
        begins = not before[-1:].strip() or name in _OWN  # an address is not a pattern
        if colon and begins and _is_namespace(name):
            shown.append(f"{name}\\:{rest}")
        else:
            shown.append(piece)
        before = piece
    return "@".join(shown)


def _is_namespace(name: str) -> bool:
    odd = "\\" in name or any(char.isspace() for char in name)
    return 0 < len(name) <= _NAMESPACE_MAX and not odd


def columns_of(text: str) -> int:
    if text.isascii():
        return len(text)
    import unicodedata

    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def cut(text: str, room: int, mark: str = "…") -> str:
    """``text``, or as much of it as goes into so many columns with ``mark`` behind it."""
    if columns_of(text) <= room:
        return text
    room -= columns_of(mark)
    if text.isascii():
        return text[: max(0, room)] + mark
    kept, width = "", 0
    for char in text:
        width += columns_of(char)
        if width > room:
            break
        kept += char
    return kept + mark


def age(ms: int) -> str:
    """A duration in a few characters."""
    seconds = max(0, ms) // 1000
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def tone(state: str) -> str:
    return _TONES.get(state, "")
