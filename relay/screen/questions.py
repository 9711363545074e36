"""Recognises that a program asks its person something, by its screen. Pure.

Whatever is typed there would be the answer, so nothing is. Two kinds, in any program:

- a question in words (``[y/N]``, ``Password:``, ``press any key``). A text may hold one too, so it
  counts only where it is the last thing said: at the cursor, else at the bottom of the screen, or
  at the end of a frame;
- choices (a list with one of them in focus, radio buttons, a row of buttons), wherever they stand:
  a dialog may hide the cursor, or leave it in an input line that does not have the keys now.

A focus that is shown by colours alone is not seen here.
"""

from __future__ import annotations

import re

QUESTION = "a question waits for the person"
DIALOG = "a dialog waits for the person"

#: From the bottom of a screen whose cursor is hidden, and from its cursor, so many rows up.
_BOTTOM_ROWS, _CURSOR_ROWS = 4, 2
#: A choice is no longer than this; where nothing says what it is, no longer than that.
_CHOICE_MAX, _PLAIN_MAX = 60, 40

_TAIL = r"[\s:?>›»❯.…]*(?:[\[(][^\])]{0,20}[\])])?[\s:?>›»❯.…]*$"
_OPTION = r"(?:\w{1,12}|\?|!)"
_YES = r"(?:y|yes|n|no|q|quit|ok|abort|cancel)"
_ASKS = re.compile(
    "|".join(
        (
            # [Y/n/c/e/a/?], (yes/no/[fingerprint]), y/n
            rf"[\[(<{{](?=[^\])>}}]*\b{_YES}\b)\s*{_OPTION}(?:\s*[/|,]\s*[\[(]?{_OPTION}[\])]?)+"
            rf"\s*[\])>}}]{_TAIL}",
            rf"\by(?:es)?\s?/\s?no?{_TAIL}",
            rf"[?:]\s*\((?:y|n)\){_TAIL}",
            # (Y)es/(N)o, [a]llow [d]eny
            rf"[\[(]\w[\])][\w' ]{{1,20}}[/|,\s]+[\[(]\w[\])][\w' ]{{1,20}}{_TAIL}",
            # Do you want to continue?
            r"\b(?:continue|proceed|overwrite|delete|remove|replace|accept|allow|approve|trust"
            r"|confirm|apply|execute|install|retry|quit|exit|(?:are you )?sure|run (?:it|this))\b"
            rf"[^.?!]{{0,40}}\?{_TAIL}",
            r"\b(?:password|passphrase|pass ?code|api[ _-]?key)\b[^.:?]{0,40}[:?]\s*$",
            # press any key, hit enter to continue
            r"\b(?:press|hit|strike)\s+[<\[('\"`‹]*(?:any\b|enter\b|return\b|⏎|↵)"
            r"(?!.{0,20}\b(?:send|submit|chat|ask|talk|search)\b).{0,60}$",
            r"\b(?:press|hit)\s+[<\[('\"`‹]*(?:space(?:bar)?|esc(?:ape)?|\w)\b.{0,10}"
            r"\bto (?:continue|proceed|start|begin|confirm|accept|approve|allow)\b",
            r"\bany key\b.{0,30}$",
            r"--\s?more\s?--|^\(END\)$",
        )
    ),
    re.IGNORECASE,
)
#: At the cursor only: a text often ends so.
_ASKS_HERE = re.compile(
    r"\b(?:choose|select|pick|choice|option|selection)\b[^.]{0,40}[:?>]\s*$"
    r"|\b(?:token|secret|pin|otp|code|user ?name|login|e-?mail(?: address)?)\b[^.:?]{0,20}[:?]\s*$"
    r"|^\s*\?\s+\S.{0,80}[:?›»]\s*$",
    re.IGNORECASE,
)
_WORDS = (
    r"(?:yes|no|ok|okay|allow|deny|approve|reject|accept|decline|agree|disagree|trust|don'?t|do not"
    r"|cancel|exit|quit|close|dismiss|continue|proceed|skip|abort|retry|always|never|once|enable"
    r"|disable|log ?in|sign ?in|use|create|open|default|confirm|back|next|keep|discard|save|delete"
    r"|overwrite|later|not now|got it|start|stop|help)"
)
_CHOICE_WORD = re.compile(rf"{_WORDS}\b", re.IGNORECASE)
_FOCUS = re.compile(r"(\s*)([❯›▸▶►→➜➤◉●»>])(\s+)(\S.*)")
_NUMBER = re.compile(r"(\d{1,2})[.):]\s+\S")
_RADIO_ON = re.compile(r"\s*(?:\((?:[•●*xXoO◉])\)|[◉●◎⦿])\s+\S")
_RADIO_OFF = re.compile(r"\s*(?:\(\s?\)|[○◯])\s+\S")
_CHECK = re.compile(r"\s*(?:[❯›▸▶►→➜➤»>]\s*)?(?:\[[ xX✓✔*]\]|[☐☑☒◻◼◯◉])\s+\S")
_SET = r"[\])}>]*\s*(?:to |[:=-] ?)?"
_MOVE = re.compile(
    rf"↑\s*[/ ]?\s*↓|\bup/down\b|\barrow keys\b|\buse (?:the )?arrows\b"
    rf"|\bspace(?:bar)?{_SET}(?:toggle|select)|\btab{_SET}(?:switch|select|move)",
    re.IGNORECASE,
)
_TAKE = re.compile(
    rf"(?:\b(?:enter|return)|[⏎↵]){_SET}"
    r"(?:confirm|select|continue|choose|accept|approve|proceed|toggle|allow)\b",
    re.IGNORECASE,
)
_LEAVE = re.compile(
    rf"\besc(?:ape)?{_SET}(?:cancel|go back|back|dismiss|deny|reject|skip|close|exit)\b",
    re.IGNORECASE,
)
#: A button is in focus in brackets of its own; next to it the others may have none.
_BUTTON = rf"(?:[<\[‹❮▐▌]\s*{_WORDS}[\w' ]{{0,20}}\s*[>\]›❯▌▐]|{_WORDS})"
_BUTTONS = re.compile(rf"\s*{_BUTTON}(?:\s+{_BUTTON})*\s*", re.IGNORECASE)
_OTHER_BUTTON = r"[<\[‹❮]\s+\w[\w' ]{0,24}\s+[>\]›❯]"
_OTHER_BUTTONS = re.compile(rf"\s*{_OTHER_BUTTON}(?:\s+{_OTHER_BUTTON})+\s*")
_FRAME = "│┃║|▌▐▊▎▏▕"
_BORDER = re.compile(r"[\s╭╮╰╯┌┐└┘├┤┏┓┗┛╔╗╚╝+]*[─━═╌╍▔▁▄▀-]{3,}.*")
_PROMPT_ONLY = re.compile(r"\s*[>›❯:?»$%#]?\s*")


def question_in_line(rows: list[str], cursor: tuple[int, int]) -> str:
    """Why nothing may be typed into a program that reads lines; empty where it does not ask."""
    column, row = cursor
    before = rows[row][:column] if row < len(rows) else ""
    asked = [before]
    if _PROMPT_ONLY.fullmatch(before) and 0 < row <= len(rows):
        asked.append(rows[row - 1])
    asks = _ASKS_HERE.search(before) or any(_ASKS.search(text.rstrip()) for text in asked)
    return QUESTION if asks else ""


def question_on_screen(rows: list[str], cursor: tuple[int, int], *, shown: bool = True) -> str:
    """Why nothing may be typed into a full-screen program; empty where it does not ask.

    ``shown``: its cursor can be seen, and so may stand where it takes words.
    """
    inner = [_without_frame(row) for row in rows]
    if _shows_choices(inner):
        return DIALOG
    column, row = cursor
    if shown and row < len(rows) and _ASKS_HERE.search(_without_frame(rows[row][:column])):
        return QUESTION
    if any(_ASKS.search(text) for text in _last_words(rows, inner, cursor, shown)):
        return QUESTION
    return ""


def _last_words(
    rows: list[str], inner: list[str], cursor: tuple[int, int], shown: bool
) -> list[str]:
    """The rows that say what the program waits for."""
    found = []
    if shown and cursor[1] < len(rows):
        column, row = cursor
        before = _without_frame(rows[row][:column]).rstrip()
        after = rows[row][column:].strip(_FRAME + " ")
        found.append(before)
        if not after or _ASKS.search(after):
            found.append(inner[row].rstrip())
        for above in range(row - 1, max(-1, row - 1 - _CURSOR_ROWS), -1):
            if not inner[above].strip() or _BORDER.fullmatch(rows[above]):
                break
            found.append(inner[above].rstrip())
    else:
        filled = [at for at, row in enumerate(rows) if row.strip()]
        for at in filled[: -_BOTTOM_ROWS - 1 : -1]:
            if _BORDER.fullmatch(rows[at]):
                break
            found.append(inner[at].rstrip())
    # The last two rows within a frame, above its lower border.
    for at, border in enumerate(rows):
        if at and _BORDER.fullmatch(border):
            framed = (n for n in range(at - 1, max(-1, at - 6), -1) if inner[n].strip())
            for n, _ in zip(framed, range(2), strict=False):
                if inner[n] is rows[n] or _BORDER.fullmatch(rows[n]):
                    break
                found.append(inner[n].rstrip())
    return found


def _shows_choices(rows: list[str]) -> bool:
    hints = any(_MOVE.search(row) or _TAKE.search(row) for row in rows)
    for row in rows:
        if _TAKE.search(row) and _LEAVE.search(row):
            return True
        if _is_buttons(row):
            return True
    for at, row in enumerate(rows):
        focus = _FOCUS.fullmatch(row.rstrip())
        if focus is not None and _has_other_choices(rows, at, focus, hints):
            return True
        near = [r for r in rows[max(0, at - 2) : at + 3] if r is not row]
        if _RADIO_ON.match(row) and any(_RADIO_OFF.match(other) for other in near):
            return True
        if hints and _CHECK.match(row):
            return True
        found = _NUMBER.match(row.strip())
        if hints and found and found[1] == "1" and any(_numbered(other, 2) for other in near):
            return True
    return False


def _has_other_choices(rows: list[str], at: int, focus: re.Match[str], hints: bool) -> bool:
    """Whether beside the row in focus stand others that could be."""
    label, mark = focus[4], focus[2]
    if len(label) > _CHOICE_MAX:
        label = label[:_CHOICE_MAX]
    columns = {focus.start(2), focus.start(4)}
    number = _NUMBER.match(label)
    is_choice = _CHOICE_WORD.match(label) is not None
    others = _aligned(rows, at, columns, apart=hints or is_choice)
    if number is not None:
        return any(_NUMBER.match(other) for other in others) or any(
            _numbered(row, int(number[1]) + step)
            for row in rows[max(0, at - 3) : at + 4]
            for step in (-1, 1)
        )
    if hints and others and mark != "●":
        return True
    if is_choice:
        return any(_CHOICE_WORD.match(other) for other in others)
    if any(row.lstrip().startswith(mark) for row in rows[at + 1 :]):
        return False  # that is how the person's words are marked
    plain = [one for one in [label, *others] if len(one) <= _PLAIN_MAX and one[-1:] not in ".,;"]
    return mark not in ">●→" and len(others) > 1 and len(plain) == len(others) + 1


def _aligned(rows: list[str], at: int, columns: set[int], *, apart: bool) -> list[str]:
    """The texts above and below row ``at`` that begin in one of ``columns``.

    ``apart``: a blank row may stand between them.
    """
    found = []
    for step in (-1, 1):
        blank = 0
        n = at + step
        while 0 <= n < len(rows) and blank <= apart:
            text = rows[n].strip()
            if not text:
                blank += 1
            elif _BORDER.fullmatch(rows[n]):
                break
            elif len(rows[n]) - len(rows[n].lstrip()) in columns and not _FOCUS.match(rows[n]):
                found.append(text)
                blank = 0
            else:
                break
            n += step
    return found


def _numbered(row: str, number: int) -> bool:
    found = _NUMBER.match(row.strip())
    return found is not None and int(found[1]) == number


def _is_buttons(row: str) -> bool:
    """Whether nothing but buttons stands in ``row``, one of which must look like one."""
    if _OTHER_BUTTONS.fullmatch(row):
        return True
    if _BUTTONS.fullmatch(row) is None:
        return False
    return any(mark in row for mark in "<[‹❮▐▌") or len(re.split(r"\s{2,}", row.strip())) > 1


def _without_frame(row: str) -> str:
    """``row`` as it reads within its frame; the very same where it has none."""
    text = row.strip()
    if len(text) > 1 and text[0] in _FRAME and text[-1] in _FRAME:
        return row.replace(text[0], " ", 1).rstrip()[:-1].rstrip()
    return row
