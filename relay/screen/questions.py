"""Recognises that a program asks its person something, by its screen. Pure.

Whatever is typed there would be the answer, so nothing is. Two kinds, in any program:

- a question in words (``[y/N]``, ``Password:``, ``press any key``). A text may hold one too, so it
  counts only where it is the last thing said: at the cursor, else at the bottom of the screen, or
  at the end of a frame;
- choices (a list with one of them in focus, radio buttons, a row of buttons), wherever they stand:
  a dialog may hide the cursor, or leave it in an input line that does not have the keys now.

A focus that is shown by colours alone is not seen here.

A program that reads lines asks in more ways: by any last words that end as questions do. What it
shows before each line that it reads is its prompt, and no question (``LinePrompts``). A dialog that
was known is known until nothing is left of it, whatever lies over it (``StandingQuestion``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

QUESTION = "a question waits for the person"
DIALOG = "a dialog waits for the person"

#: From the bottom of a screen whose cursor is hidden, and from its cursor, so many rows up.
_BOTTOM_ROWS, _CURSOR_ROWS = 4, 2
#: A choice is no longer than this; where nothing says what it is, no longer than that.
_CHOICE_MAX, _PLAIN_MAX = 60, 40
#: Blank rows between the last words of a program that reads lines, and its cursor.
_GAP_MAX = 3
#: Prompts that are remembered, and the length of one.
_PROMPTS_MAX, _PROMPT_MAX = 16, 80
#: Rows above the last line by which it is found again.
_ABOVE = 3
#: Rows from one choice of a dialog to the next, at most.
_APART_MAX = 3
#: Letters in a row that are left of a choice over which something lies; a quarter of a long one.
_LEFT_MIN = 4

#: Question marks and brackets of other scripts, each for one of ASCII.
_ASCII = str.maketrans("？؟՞፧⸮\u037e：（）［］／", "?????" + "?:()[]/")

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
    r"|\b(?:enter|type|write|give|specify|confirm|provide)\b[^.:?]{0,60}[:?]\s*$"
    r"|^\s*\?\s+\S.{0,80}[:?›»]\s*$"
    r"|^\s*#\?\s*$"  # bash's select
    # [J/n], (да/нет), in any language
    r"|[\[(<{]\s*[^\W\d_]{1,12}(?:\s*[/|]\s*[^\W\d_]{1,12})+\s*[\])}>][\s:?]*$",
    re.IGNORECASE,
)
#: How words end that ask, in a program that reads lines: Greek asks with a semicolon.
_ENDS_ASKING = re.compile(r"[?:]\s*$|[\u0370-\u03ff]\s*;\s*$")
_QUESTION_MARK = re.compile(r"\?\s*$|[\u0370-\u03ff]\s*;\s*$")
#: What is a prompt for words already when it is shown for the first time.
_CHAT_PROMPT = re.compile(
    r"\W*(?:you|user|me|human|prompt|chat|query|message|input|question|in|say"
    r"|ask(?: me)?(?: anything| a question)?"
    r"|(?:enter|type)?\s*(?:your|a) (?:message|prompt|question|query|turn))"
    r"\W*(?:[\[(]\w+[\])])?\s*[:?>]+\s*",
    re.IGNORECASE,
)
_NUMBERS_IN_ROW = re.compile(
    r"\s*\d{1,2}[.)]\s+\S+(?: (?!\d{1,2}[.)] )\S+){0,5}"
    r"(?:\s+\d{1,2}[.)]\s+\S+(?: (?!\d{1,2}[.)] )\S+){0,5})+\s*"
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
    # Not where the arrows bring back what was said before.
    rf"(?:↑\s*[/ ]?\s*↓|\bup/down\b)"
    rf"(?!\W{{0,4}}(?:for |to |browse |prompt |message )?(?:history|recall|scroll))"
    rf"|\barrow keys\b|\buse (?:the )?arrows\b"
    rf"|\bspace(?:bar)?{_SET}(?:toggle|select)|\btab{_SET}(?:switch|select|move)",
    re.IGNORECASE,
)
_TAKE = re.compile(
    rf"(?:\b(?:enter|return)|[⏎↵]){_SET}"
    r"(?:confirm|select|continue|choose|accept|approve|proceed|toggle|allow)\b",
    re.IGNORECASE,
)
#: A row of its own in a dialog that takes words.
_TAKES = re.compile(rf"\W*{_TAKE.pattern}\W*", re.IGNORECASE)
#: Enter does something, and sends no words.
_ENTERS = re.compile(
    rf"(?:\b(?:enter|return)|[⏎↵]){_SET}"
    r"(?!(?:to )?(?:send|submit|chat|ask|talk|search|new ?line|insert)\b)[a-z]",
    re.IGNORECASE,
)
#: A border that ends where another box begins: no box is drawn so.
_CUTS = (
    re.compile(r"[╭╰┌└┏┗╔╚├┣╠][─━═]+(?P<at>[│┃║])"),
    re.compile(r"(?P<at>[│┃║])[─━═]+[╮╯┐┘┓┛╗╝┤┫╣]"),
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
_ADDRESSED = re.compile(r"\s*@\w+:")
_MARKS = re.compile(r"[^\w\s]")
_NO_WORDS = re.compile(r"[\W_]*")
_PROMPT_ONLY = re.compile(r"\s*[>›❯:?»$%#]?\s*")


class LinePrompts:
    """The prompts at which a program has taken lines: one that comes back each turn is no question.

    One that ends as questions do has taken two, as a question may be asked again after a wrong
    answer.
    """

    def __init__(self, lines: dict[str, int] | None = None) -> None:
        self._lines = {} if lines is None else lines  # by prompt, the one of the last line last
        self._last: tuple[list[str], str] | None = None  # what stood above that, and itself

    def entered(self, rows: list[str], cursor: tuple[int, int]) -> None:
        """A line was entered, before which these rows were shown."""
        column, row = cursor
        prompt = _shape("".join(rows[row : row + 1])[:column])
        self._last = [text for text in rows[:row] if text.strip()][-_ABOVE:], prompt
        if prompt and len(prompt) <= _PROMPT_MAX:
            self._lines[prompt] = self._lines.pop(prompt, 0) + 1
            if len(self._lines) > _PROMPTS_MAX:
                del self._lines[next(iter(self._lines))]

    def comes_back(self, prompt: str) -> bool:
        """Whether what stands before the cursor is a prompt, as often as it was there."""
        shape = _shape(prompt)
        return self._lines.get(shape, 0) > bool(_ENDS_ASKING.search(shape))

    def answered(self, above: list[str]) -> int:
        """How many of the rows above the cursor were there before the last line was entered."""
        if self._last is None:
            return 0
        known, prompt = self._last
        filled = [at for at, text in enumerate(above) if text.strip()]
        texts = [above[at] for at in filled]
        for line in range(len(filled) - 1, len(known) - 1, -1):
            same = texts[line - len(known) : line] == known
            if same and _shape(texts[line]).startswith(prompt) and (known or prompt):
                return filled[line] + 1
        return 0


class StandingQuestion:
    """What asked last on a screen: it goes on while a part of it is left where it was.

    What lies over it for a moment (a toast) may hide that it asks, and takes no keys from it.
    """

    def __init__(self) -> None:
        self._rows: dict[int, str] = {}  # its choices, or its last words
        self._words = False

    def known(self, rows: list[str]) -> None:
        """Something on these rows asks."""
        inner = [_without_frame(row.translate(_ASCII)) for row in rows]
        places = _lowest(set(_choices(inner)))
        self._words = not places
        if not places:
            words = (at for at in range(len(inner) - 1, -1, -1) if _ASKS.search(inner[at].rstrip()))
            places = {at for at, _ in zip(words, range(1), strict=False)}
        self._rows = {at: rows[at] for at in places}

    def stands(self, rows: list[str]) -> bool:
        """Whether something lies over it now. Where all of it is there, it is as it looks: a
        question in words with an answer behind it, or higher up."""
        now = {at: rows[at] if at < len(rows) else "" for at in self._rows}
        whole = all(
            now[at].startswith(old.rstrip())
            if self._words
            else _MARKS.sub(" ", now[at]).rstrip() == _MARKS.sub(" ", old).rstrip()
            for at, old in self._rows.items()
        )
        if whole or not any(_is_left(old, now[at]) for at, old in self._rows.items()):
            self._rows = {}
        return bool(self._rows)


def _lowest(places: set[int]) -> set[int]:
    """Those at the end of the screen: what was said above may look like choices, and stays."""
    found: list[int] = []
    for at in sorted(places, reverse=True):
        if found and found[-1] - at > _APART_MAX:
            break
        found.append(at)
    return set(found)


def question_in_line(
    rows: list[str],
    cursor: tuple[int, int],
    prompts: LinePrompts | None = None,
    *,
    vouched: bool = False,
) -> str:
    """Why nothing may be typed into a program that reads lines; empty where it does not ask.

    ``vouched``: the person has said that it takes lines, so its last words may end as they like.
    """
    rows = [row.translate(_ASCII) for row in rows]
    column, row = cursor
    before = rows[row][:column] if row < len(rows) else ""
    above = rows[:row]
    back, answered = False, 0
    if prompts is not None:
        back, answered = prompts.comes_back(before), prompts.answered(above)
    shown = [*above[answered:], before, *rows[row + 1 :]]
    if _shows_choices([_without_frame(text) for text in shown]):
        return DIALOG
    if _ASKS.search(before.rstrip()):
        return QUESTION
    if not _CHAT_PROMPT.fullmatch(before):
        asks = _ASKS_HERE.search(before) or (not vouched and _ENDS_ASKING.search(before))
        if asks and not back:
            return QUESTION
    if not back and _ends_in_numbers([*above[answered:], before]):
        return DIALOG
    if not _PROMPT_ONLY.fullmatch(before):
        return ""
    blank = before.strip() == ""
    lowest = -_GAP_MAX - 1 if blank else -2
    last = next((row - n for n, text in enumerate(above[:lowest:-1], 1) if text.strip()), None)
    if last is None:
        return ""
    if _ASKS.search(above[last].rstrip()):
        return QUESTION
    words = _QUESTION_MARK.search(above[last]) or _ASKS_HERE.search(above[last])
    return QUESTION if blank and words and not vouched and not _is_sent(above, last) else ""


def _is_sent(rows: list[str], last: int) -> bool:
    """Whether what ends in row ``last`` is addressed to another agent, and asks that."""
    width = max(map(len, rows))
    while not (sent := _ADDRESSED.match(rows[last])) and last and len(rows[last - 1]) == width:
        last -= 1  # the terminal has wrapped it
    return sent is not None


def question_on_screen(rows: list[str], cursor: tuple[int, int], *, shown: bool = True) -> str:
    """Why nothing may be typed into a full-screen program; empty where it does not ask.

    ``shown``: its cursor can be seen, and so may stand where it takes words.
    """
    rows = [row.translate(_ASCII) for row in rows]
    inner = [_without_frame(row) for row in rows]
    if _shows_choices(inner):
        return DIALOG
    column, row = cursor
    if shown and row < len(rows):
        here = _without_frame(rows[row][:column])
        if _ASKS_HERE.search(here) and not _CHAT_PROMPT.fullmatch(here):
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
    return next(_choices(rows), None) is not None


def _choices(rows: list[str]) -> Iterator[int]:
    """The rows that are choices, or say how to choose."""
    hints = any(_MOVE.search(row) or _TAKE.search(row) for row in rows)
    for at, row in enumerate(rows):
        if _is_hint(row) or _is_buttons(row):
            yield at
    yield from _cut(rows)
    for at, row in enumerate(rows):
        focus = _FOCUS.fullmatch(row.rstrip())
        if focus is not None and (others := _other_choices(rows, at, focus, hints)):
            yield from (at, *others)
        near = [n for n in range(max(0, at - 2), min(len(rows), at + 3)) if n != at]
        if _RADIO_ON.match(row) and (off := [n for n in near if _RADIO_OFF.match(rows[n])]):
            yield from (at, *off)
        if hints and _CHECK.match(row):
            yield at
        found = _NUMBER.match(row.strip())
        if hints and found and found[1] == "1":
            second = [n for n in near if _numbered(rows[n], 2)]
            yield from (at, *second) if second else ()


def _is_hint(row: str) -> bool:
    """Whether ``row`` says which keys answer a dialog."""
    if _TAKE.search(row) and (_MOVE.search(row) or _TAKES.fullmatch(row)):
        return True
    return _LEAVE.search(row) is not None and _ENTERS.search(row) is not None


def _cut(rows: list[str]) -> list[int]:
    """The rows of a box whose border another box cuts off, which lies over it."""
    for pattern in _CUTS:
        places: dict[int, list[int]] = {}
        for at, row in enumerate(rows):
            for cut in pattern.finditer(row):
                places.setdefault(cut.start("at"), []).append(at)
        found = [at for cut in places.values() if len(cut) > 1 for at in cut]
        if found:
            return found
    return []


def _other_choices(rows: list[str], at: int, focus: re.Match[str], hints: bool) -> list[int]:
    """Which rows beside the one in focus are choices, too; none where that is not a choice."""
    label, mark = focus[4], focus[2]
    if len(label) > _CHOICE_MAX:
        label = label[:_CHOICE_MAX]
    columns = {focus.start(2), focus.start(4)}
    number = _NUMBER.match(label)
    is_choice = _CHOICE_WORD.match(label) is not None
    others = _aligned(rows, at, columns, apart=hints or is_choice)
    texts = [rows[n].strip() for n in others]
    if number is not None:
        if any(_NUMBER.match(other) for other in texts):
            return others
        near = range(max(0, at - 3), min(len(rows), at + 4))
        return [n for n in near for step in (-1, 1) if _numbered(rows[n], int(number[1]) + step)]
    if hints and others and mark != "●":
        return others
    if is_choice:
        return others if any(_CHOICE_WORD.match(other) for other in texts) else []
    if any(row.lstrip().startswith(mark) for row in rows[at + 1 :]):
        return []  # that is how the person's words are marked
    plain = all(len(one) <= _PLAIN_MAX and one[-1:] not in ".,;" for one in [label, *texts])
    # Nothing but their place says so: they stand below the label, as the words of a status do not.
    inside = all(rows[n].startswith(" " * focus.start(4)) for n in others)
    return others if mark not in ">●→" and len(others) > 1 and plain and inside else []


def _aligned(rows: list[str], at: int, columns: set[int], *, apart: bool) -> list[int]:
    """The rows above and below row ``at`` whose texts begin in one of ``columns``.

    ``apart``: a blank row may stand between them.
    """
    found = []
    for step in (-1, 1):
        blank = 0
        n = at + step
        while 0 <= n < len(rows) and blank <= apart:
            if not rows[n].strip():
                blank += 1
            elif _NO_WORDS.fullmatch(rows[n]) or _BORDER.fullmatch(rows[n]):
                break
            elif len(rows[n]) - len(rows[n].lstrip()) in columns and not _FOCUS.match(rows[n]):
                found.append(n)
                blank = 0
            else:
                break
            n += step
    return found


def _ends_in_numbers(rows: list[str]) -> bool:
    """Whether the last rows before the cursor are numbered choices, short ones."""
    last = len(rows) - 1
    while last >= 0 and last >= len(rows) - _GAP_MAX and _PROMPT_ONLY.fullmatch(rows[last]):
        last -= 1
    if last < 0:
        return False
    if _NUMBERS_IN_ROW.fullmatch(rows[last]) and rows[last].lstrip().startswith("1"):
        return True
    count = 0
    while last >= 0 and (found := _NUMBER.match(rows[last].strip())):
        text = rows[last].strip()
        if len(text) > _PLAIN_MAX or text[-1] in ".,;":
            return False
        count += 1
        if found[1] in "01":
            return count > 1
        last -= 1
    return False


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


def _shape(text: str) -> str:
    """``text`` without what counts in a prompt."""
    return re.sub(r"\d+", "0", text.translate(_ASCII).strip())


def _is_left(old: str, new: str) -> bool:
    """Whether a part of ``old`` is left in ``new``, where it was."""
    words = sum(map(str.isalnum, old))
    run = most = 0
    for one, other in zip(old, new, strict=False):
        run = run + one.isalnum() if one == other else 0
        most = max(most, run)
    # Of two hints that stand in the same place much may be the same.
    least = words // 2 if _is_hint(old) else words // 4
    return 0 < max(min(words, _LEFT_MIN), least) <= most
