"""Reads a dialog off a screen: what is asked, the choices, which one has the focus. Pure.

relay.screen.questions only says *that* something is asked. Here it is known already, and the lowest
place that looks like choices is taken: a list with or without numbers, a row of buttons, or a
question in words (``(Y)es/(N)o``, ``[y/N]``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from relay.screen.styled_rows import Span

#: Choices of one dialog.
CHOICES_MAX = 30
#: Characters of the question, and of one choice.
TEXT_MAX, LABEL_MAX = 16_000, 300

#: Stands before what a question may have more of.
ABOVE = "(more may have stood above)"

_FRAME = "│┃║▌▐█▎▏"
_FRAMES = frozenset(_FRAME)
#: A border, or how words begin that are not of the question, to the left of it.
_SAID = re.compile(r"[─━═▀▄▔▁]{8}|[•›■◦✗⚠●❯◆>] ")
_MARKS = "❯›▸▶►→➜➤◉●»>"
_NUMBERED = re.compile(rf"(\s*)([{_MARKS}]\s*)?(\d{{1,2}})[.)]\s+(\S.*)")
_MARKED = re.compile(rf"(\s*)([{_MARKS}])(\s+)(\S.*)")
_BUTTON = re.compile(
    r"[<\[‹❮▐▌]?\s*((?:yes|no|ok(?:ay)?|allow|deny|approve|reject|accept|decline|agree|trust|cancel"
    r"|exit|quit|close|dismiss|continue|proceed|skip|abort|retry|always|never|once|confirm|back"
    r"|keep|discard|save|delete|overwrite|later|install|leave)\b[\w' ]{0,24}?)\s*[>\]›❯▌▐]?",
    re.IGNORECASE,
)
_LETTERED = re.compile(r"[(\[](\w)[)\]]([\w' ]{1,24})")
#: ``1) Yes 2) No`` in one row.
_COUNTED = re.compile(r"(?:^|(?<=\s))(\d{1,2})[.)]\s+(\S+(?: (?!\d{1,2}[.)])\S+){0,5})")
_SLASHED = re.compile(r"[(\[<{]\s*([\w?!]{1,12}(?:\s*[/|,]\s*[\[(]?[\w?!]{1,14}[\])]?)+)\s*[)\]>}]")
_ENTER = re.compile(r"\b(?:press|hit|strike)\s+\W?(?:enter|return)|\bany key\b", re.IGNORECASE)
#: What these letters stand for.
_LETTERS = {"y": "Yes", "n": "No", "a": "All", "q": "Quit", "c": "Cancel", "?": "Help"}


class Takes(Enum):
    """How a dialog is told what was chosen."""

    LIST = "list"  # arrows up and down, then Enter; its numbers may be keys
    BUTTONS = "buttons"  # arrows left and right, then Enter
    WORDS = "words"  # the key, and Enter where it shows
    ENTER = "enter"  # Enter alone
    NOTHING = "nothing"  # it has no choices that are known


@dataclass(frozen=True, slots=True)
class Choice:
    """One choice: ``key`` is what the person says for it."""

    key: str
    label: str


@dataclass(frozen=True, slots=True)
class Dialog:
    """What a screen asks."""

    text: str
    choices: tuple[Choice, ...] = ()
    #: Which choice has the focus; None where that cannot be seen.
    chosen: int | None = None
    takes: Takes = Takes.NOTHING
    #: Whether the choices have numbers on the screen.
    numbered: bool = False


def read_dialog(
    rows: Sequence[str],
    spans: Sequence[list[Span]] = (),
    cursor: tuple[int, int] | None = None,
    *,
    inset: int = 0,
) -> Dialog | None:
    """The dialog on a screen of which it is known that it asks something; None where its choices
    are not found. ``spans``: the rows with their styles; ``cursor``: where it is to be seen.

    What is asked about may be a command that an enemy has worded: nothing of it is left out, so the
    question is all that stands above the choices. ``inset``: the program keeps it off the first
    columns, so many, and within its frame, so that what is marked there is not of the question.
    """
    inner = [_inner(row) for row in rows]
    last = _last(inner, cursor)
    end = _joined(inner[max(0, last - 3) : last + 1])
    if choices := _choices_in(end):
        return Dialog(_said(inner, last + 1), choices, None, Takes.WORDS)
    if found := _buttons(rows, inner, spans, inset) or _listed(rows, inner, spans, inset):
        return found
    if not _ENTER.search(end):
        return None
    return Dialog(_said(inner, last + 1), (Choice("enter", "go on"),), 0, Takes.ENTER)


def as_text(rows: Sequence[str]) -> Dialog:
    """What a screen shows at its end, where no choices are found."""
    shown = [_inner(row).strip() for row in rows]
    return Dialog(_joined([row for row in shown if row][-12:]))


# -- lists


def _listed(
    rows: Sequence[str], inner: list[str], spans: Sequence[list[Span]], inset: int
) -> Dialog | None:
    places = _numbered(inner) or _marked(inner)
    if places is None:
        return None
    first, labels, marked, numbers = places
    at = [place for place, _ in labels]
    chosen = marked if marked is not None else _focused(at, inner, spans)
    choices = tuple(
        Choice(numbers[n] if numbers else str(n + 1), _cut(text, LABEL_MAX))
        for n, (_, text) in enumerate(labels)
    )
    text = _above(rows, inner, first, inset)
    return Dialog(text, choices, chosen, Takes.LIST, numbered=bool(numbers))


_Places = tuple[int, list[tuple[int, str]], int | None, list[str]]


def _numbered(inner: list[str]) -> _Places | None:
    """The lowest run of numbers one after the other."""
    found = [(at, one) for at, row in enumerate(inner) if (one := _NUMBERED.fullmatch(row))]
    if not found:
        return None
    run = [found[-1]]
    for at, one in reversed(found[:-1]):
        column = run[0][1].start(3)
        if int(one[3]) != int(run[0][1][3]) - 1 or abs(one.start(3) - column) > 1:
            break
        if run[0][1][3] == "1" or not _goes_on(inner[at + 1 : run[0][0]], one.start(4)):
            break  # what stands between them is of no choice
        run.insert(0, (at, one))
    if run[0][1][3] != "1":
        return None  # the others are not on the screen
    marked = [n for n, (_, one) in enumerate(run) if one[2]]
    if len(run) < 2 and not marked:
        return None
    run = run[:CHOICES_MAX]
    labels = []
    for n, (at, one) in enumerate(run):
        end = run[n + 1][0] if n + 1 < len(run) else len(inner)
        text = [one[4].strip()]
        for row in inner[at + 1 : end]:
            if not row.strip() or len(row) - len(row.lstrip()) < one.start(4):
                break
            text.append(row.strip())
        labels.append((at, " ".join(" ".join(text).split())))
    chosen = marked[0] if len(marked) == 1 else None
    return run[0][0], labels, chosen, [one[3] for _, one in run]


def _goes_on(rows: list[str], column: int) -> bool:
    """Whether these rows, as far as they are not blank, go on with a label in ``column``."""
    return all(not row.strip() or len(row) - len(row.lstrip()) >= column for row in rows)


def _marked(inner: list[str]) -> _Places | None:
    """The lowest row with a mark, and those that are aligned with it."""
    for at in range(len(inner) - 1, -1, -1):
        one = _MARKED.fullmatch(inner[at].rstrip())
        if one is None:
            continue
        if _NUMBERED.fullmatch(inner[at]):
            return None  # one of a list whose beginning is not known
        columns = {one.start(2), one.start(4)}
        labels = [(at, one[4].strip())]
        chosen = 0
        for step in (-1, 1):
            n = at + step
            while 0 <= n < len(inner) and len(labels) < CHOICES_MAX:
                row = inner[n]
                column = len(row) - len(row.lstrip())
                if row.strip() in ("", "↑", "↓") or column not in columns:
                    break
                if _MARKED.fullmatch(row.rstrip()):
                    break  # a prompt, and what was typed there
                labels.insert(0 if step < 0 else len(labels), (n, row.strip()))
                chosen += step < 0
                n += step
        if len(labels) > 1:
            return labels[0][0], labels, chosen, []
    return None


def _focused(at: list[int], inner: list[str], spans: Sequence[list[Span]]) -> int | None:
    """Which of the rows is drawn otherwise than all others."""
    if not spans or len(at) < 2:
        return None
    drawn = []
    for row in at:
        column = len(inner[row]) - len(inner[row].lstrip())
        drawn.append(_style_at(spans[row], column + 3))
    return _odd_one(drawn)


def _style_at(row: list[Span], column: int) -> tuple[object, ...]:
    for text, style in row:
        if column < len(text):
            return tuple(style.get(name) for name in ("fg", "bg", "bold", "reverse"))
        column -= len(text)
    return ()


def _odd_one(drawn: list[tuple[object, ...]]) -> int | None:
    """The one that is unlike the others; of two the one on a ground of its own."""
    odd = [n for n, one in enumerate(drawn) if drawn.count(one) == 1]
    if len(drawn) > 2 and len(odd) == 1:
        return odd[0]
    grounded = [n for n in odd if drawn[n] and (drawn[n][1] is not None or drawn[n][3])]
    return grounded[0] if len(grounded) == 1 else None


# -- buttons


def _buttons(
    rows: Sequence[str], inner: list[str], spans: Sequence[list[Span]], inset: int
) -> Dialog | None:
    for at in range(len(inner) - 1, -1, -1):
        found: list[re.Match[str]] = []
        for part in re.finditer(r"\S+(?: \S+)*", inner[at]):
            one = _BUTTON.fullmatch(part[0])
            if one is None:
                break
            found.append(part)
        if len(found) < 2:
            continue
        texts = [part[0] for part in found]
        framed = [n for n, text in enumerate(texts) if text[0] in "<[‹❮▐▌"]
        chosen = framed[0] if len(framed) == 1 else None
        if chosen is None and spans:
            chosen = _odd_one([_style_at(spans[at], part.start() + 1) for part in found])
        labels = (re.sub(r"^[<\[‹❮▐▌]\s*|\s*[>\]›❯▌▐]$", "", text) for text in texts)
        choices = tuple(Choice(str(n), text) for n, text in enumerate(labels, 1))
        return Dialog(_above(rows, inner, at, inset), choices, chosen, Takes.BUTTONS)
    return None


# -- questions in words


def _last(inner: list[str], cursor: tuple[int, int] | None) -> int:
    """The last row that says something, or that of the cursor; -1 on a blank screen."""
    last = max((n for n, row in enumerate(inner) if row.strip()), default=-1)
    if cursor is not None and cursor[1] <= last and inner[cursor[1]][: cursor[0]].strip():
        return cursor[1]
    return last


def _choices_in(text: str) -> tuple[Choice, ...]:
    end = text.replace("\n", " ")[-160:]
    lettered = list(_LETTERED.finditer(end))
    if len(lettered) > 1 and len(end) - lettered[-1].end() < 24:
        return tuple(
            Choice(one[1].lower(), (one[1] + one[2]).strip()) for one in lettered[:CHOICES_MAX]
        )
    counted = [list(_COUNTED.finditer(row)) for row in text.split("\n")[-2:]]
    for found in counted:
        if len(found) > 1 and [one[1] for one in found] == [str(n + 1) for n in range(len(found))]:
            return tuple(Choice(one[1], one[2]) for one in found[:CHOICES_MAX])
    slashed = list(_SLASHED.finditer(end))
    if not slashed or len(end) - slashed[-1].end() > 12:
        return ()
    words = [re.sub(r"[\[\]()]", "", one).strip() for one in re.split(r"[/|,]", slashed[-1][1])]
    known = {word.lower() for word in words}
    if not known & {"y", "yes", "n", "no", "q", "quit", "ok"}:
        return ()
    return tuple(
        Choice(word.lower(), _LETTERS.get(word.lower(), word)) for word in words[:CHOICES_MAX]
    )


# -- the question above the choices


def _above(rows: Sequence[str], inner: list[str], first: int, inset: int) -> str:
    """All rows above the choices, up to where the question is sure to begin."""
    column = len(rows[first]) - len(rows[first].lstrip())
    framed = rows[first][column : column + 1] in _FRAMES
    for at in range(first - 1, -1, -1) if inset else ():
        if framed:
            outside = rows[at][column : column + 1] not in _FRAMES
        else:
            words = rows[at].lstrip()
            outside = len(rows[at]) - len(words) < inset and bool(_SAID.match(words))
        if outside:
            return _joined(inner[at + 1 : first])
    return _said(inner, first)


def _said(inner: list[str], end: int) -> str:
    """These rows from the top of the screen on; what a full one no longer shows is named."""
    full = any(row.strip() for row in inner[-2:])
    return _joined([*([ABOVE] if full else []), *inner[:end]])


def _joined(rows: Iterable[str]) -> str:
    texts = [" ".join(row.split()) for row in rows]
    kept = [one for one in texts if one and not re.fullmatch(r"[╌─━═╭╮╰╯│ ]+", one)]
    return _cut("\n".join(kept), TEXT_MAX)


def _cut(text: str, most: int) -> str:
    """``text``, of which more is never left out without a word: the end is what is asked."""
    return text if len(text) <= most else f"(cut: look at its screen) … {text[40 - most :]}"


def _inner(row: str) -> str:
    """``row`` without the frame around it; columns stay as they are."""
    text = row.rstrip()
    end = text[-1:]
    if end in _FRAME and len(text) > 1 and text[-2:-1].isspace():
        text = text[:-1].rstrip()
    start = len(text) - len(text.lstrip())
    while text[start : start + 1] and text[start] in _FRAME:
        text = f"{text[:start]} {text[start + 1 :]}"
        start = len(text) - len(text.lstrip())
    if text.endswith(" │") or text.endswith(" ┃"):
        text = text[:-1].rstrip()
    return text
