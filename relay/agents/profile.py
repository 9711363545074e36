"""Profiles: what differs between programs, as data. One YAML file for each program.

The session reads the one that has its program's name: the person's own in RELAY_HOME/profiles, or
relay's in the folder ``profiles`` beside this file. No repository can bring one. docs/profiles.md
describes the form. A program without a profile is heard and typed into all the same.

A profile has the patterns of the input line, and :class:`InputLine` uses them for every program
alike::

    ────────────────────────────    above: the row above it
    ❯ what the person types         prompt: how its first row begins
      and goes on with
    ────────────────────────────    below: the first row after it

In a box with sides (``│``) ``side`` is what each of its rows begins with.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any, Literal, cast, get_args

from relay.agents.arguments import PROFILE_MAX, SHIPPED, StartFacts, path_of
from relay.agents.headless import HeadlessForm
from relay.core.errors import UsageError
from relay.core.files import read_file
from relay.core.yaml_tree import Mistake, YamlError, YamlForm, YamlNode, read_tree
from relay.screen.agent_styles import UNKNOWN, AgentStyle
from relay.screen.questions import question_on_screen

#: A row that encloses an input line.
_BORDER = "─" * 8
_TOLD_BY = re.compile(r"(?:-\S+ |\w+=)\{(?:text\}|file\}|folder\}(?:/[\w.-]*\w)+)")
_NUMBER = re.compile(r"[-+]?(?:\d{1,15}(?:\.\d*)?|\.\d+)")
#: Rows above the input line in which a turn shows; what waits may lie in between.
_ABOVE = 12


class ProfileError(YamlError):
    """A profile's file cannot be used."""

    code = "profile"


#: How a program takes what is typed.
Takes = Literal["", "line", "paste"]


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """What is known of one program; the default of each field serves for every other program."""

    #: The name under which it is started.
    name: str = ""
    #: The version with which this was seen, and the npm or Python package that it is of.
    checked_with: str = ""
    package: str = ""
    #: How it draws around its words.
    screen: AgentStyle = UNKNOWN
    #: Its input line; without it only general rules tell where something may be typed.
    input: InputLine | None = None
    #: Rows, in part, that say that a question stands where the input line would, or below it.
    dialog: Patterns = ()
    #: The same where it lies over the screen: whether or not an input line is seen.
    dialog_anywhere: Patterns = ()
    #: A part of the title that says that a question stands.
    dialog_title: re.Pattern[str] | None = None
    #: Rows, in part, that say that a turn runs: below the input line, or not far above it.
    busy: Patterns = ()
    #: The same, wherever it stands.
    busy_anywhere: Patterns = ()
    #: A part of the title that says the same.
    busy_title: re.Pattern[str] | None = None
    #: ``line`` or ``paste``: how it takes what is typed; empty where its terminal tells.
    takes: Takes = ""
    #: The keys that submit.
    enter: str = "\r"
    #: The key that stops the running turn, and rows, in part, that say that it does so now.
    interrupt: str = ""
    interrupt_shown: Patterns = ()
    #: What it asks about (a command) never begins in the first so many columns, nor leaves its
    #: frame: what is marked there is not of a question.
    inset: int = 0
    #: In its lists of numbered choices the digit chooses at once, without Enter.
    digits: bool = False
    #: The key behind which a typed line's backslash is text, where that is a key of its own.
    literal: str = ""
    #: Its input line surely shows a paste.
    shows_paste: bool = False
    #: For people: what its screen does not tell.
    unseen: str = ""
    # What its start needs: see StartFacts.
    answers_once: tuple[str, ...] = ()
    converses_with: tuple[str, ...] = ()
    state: tuple[str, ...] = ()
    told_by: str = ""
    spelling: str = ""
    #: How it is asked one question.
    headless: HeadlessForm | None = None

    def __post_init__(self) -> None:
        if self.busy or self.busy_anywhere or self.busy_title:
            object.__setattr__(self, "screen", replace(self.screen, works=self.shows_turn))

    @property
    def tells_of_screen(self) -> bool:
        """Whether it says by what to tell an input line, a question or a turn."""
        told = (self.input, self.dialog, self.dialog_anywhere, self.busy, self.busy_anywhere)
        return any((*told, self.dialog_title, self.busy_title))

    def composer(self, rows: Sequence[str]) -> ComposerState:
        """Tell by the screen's rows how the input line is, or what stands in its place."""
        if _any(self.dialog_anywhere, rows):
            return "dialog"
        if self.input is None:
            return "dialog" if _any(self.dialog, rows) else "unknown"
        return self.input.state(rows, self.dialog)

    def composer_at_rest(
        self, rows: Sequence[str], title: str, cursor: int | None = None
    ) -> ComposerState:
        """The same of a program of which only the screen tells whether a turn runs.

        Where the input line is known and not seen, nothing reads what would be typed. One that only
        its mark tells is where the cursor is, in row ``cursor``: others like it were entered. A
        question of which the profile does not tell counts, too.
        """
        found = "dialog" if self.asks(rows, title) else self.composer(rows)
        if found in ("empty", "unknown") and self.shows_turn(rows, title):
            return "busy"
        if self.input is None or found == "dialog":
            return found
        place = self.input.find(rows)
        if place is None:
            return "busy"
        if cursor is not None and not self.input.boxed and not place[0] <= cursor < place[1]:
            return "busy"
        # What the agent asks in words above it, the input line is the place to answer.
        around = [*rows[: place[0]], _BORDER, *rows[place[1] :]]
        return "dialog" if question_on_screen(around, (0, 0), shown=False) else found

    def shows_turn(self, rows: Sequence[str], title: str) -> bool:
        """Whether a turn runs, as far as can be seen."""
        if self.busy_title is not None and self.busy_title.search(title):
            return True
        if _any(self.busy_anywhere, rows):
            return True
        if not self.busy or self.input is None:
            return _any(self.busy, rows)
        above = self.input.above_it(rows)
        return _any(self.busy, [*above[-_ABOVE:], *rows[len(above) :]])

    def stops(self, rows: Sequence[str], title: str) -> bool:
        """Whether the screen says that the key ``interrupt`` stops a turn."""
        if self.busy_title is not None and self.busy_title.search(title):
            return True
        if self.input is None:
            return _any(self.interrupt_shown, rows)
        above = self.input.above_it(rows)
        return _any(self.interrupt_shown, [*above[-_ABOVE:], *rows[len(above) :]])

    def asks(self, rows: Sequence[str], title: str) -> bool:
        """Whether a question waits for the person."""
        titled = self.dialog_title is not None and self.dialog_title.search(title)
        return bool(titled) or self.composer(rows) == "dialog"


def find_profile(name: str, folder: str = "") -> tuple[Profile, list[str]]:
    """The profile of a program, and remarks about those that cannot be used. Never raises.

    ``folder`` is the person's own, which must be theirs alone: it says what is typed.
    """
    notes: list[str] = []
    for place in dict.fromkeys((folder, "")):
        try:
            if path := path_of(name, place):
                return read_profile(path), notes
        except ProfileError as error:
            notes.append(f"{error.message}: this profile is not used")
        except OSError as error:
            notes.append(f"{error.filename} {error.strerror}: this profile is not used")
    return Profile(name, screen=UNKNOWN), notes


def profile_names(folder: str) -> list[str]:
    """The programs that have a profile, in the person's ``folder`` or relay's."""
    found = set()
    for place in (folder, SHIPPED):
        with contextlib.suppress(OSError):
            found |= {name[:-5] for name in os.listdir(place) if name.endswith(".yaml")}
    return sorted(found)


def has_profile(name: str, folder: str = "") -> bool:
    """Whether there is a profile of this name, be it a broken one."""
    try:
        return bool(path_of(name, folder))
    except OSError:
        return True


def read_profile(path: str) -> Profile:
    """Read one file. Raises ProfileError with all mistakes and their places."""
    try:
        data = read_file(path, PROFILE_MAX)
    except OSError as error:
        raise ProfileError(
            [Mistake(0, f"it cannot be read: {error.strerror}")], file=path
        ) from error
    if len(data) > PROFILE_MAX:
        raise ProfileError([Mistake(0, f"it has more than {PROFILE_MAX} bytes")], file=path)
    return parse_profile(data.decode("utf-8", "replace"), path)


def parse_profile(text: str, path: str) -> Profile:
    """Make the profile that ``path`` holds. Raises ProfileError with all mistakes."""
    name = os.path.basename(path).removesuffix(".yaml")
    try:
        node, mistakes = read_tree(text, ProfileError)
    except ProfileError as error:
        raise ProfileError(error.mistakes, file=path) from None
    form = _Form(mistakes)
    made = Profile(name) if node is None else form.build(Profile, node, name=name)
    if made is not None and not form.mistakes:
        form.mistakes += _start_mistakes(made, text)
    if form.mistakes:
        raise ProfileError(form.mistakes, file=path)
    return cast(Profile, made)


def _start_mistakes(made: Profile, text: str) -> Iterator[Mistake]:
    """Where the start of the program would read another thing."""
    facts, lines = StartFacts(text), text.split("\n")
    for key in facts.__slots__:
        number = next((n for n, line in enumerate(lines, 1) if line.startswith(f"{key}:")), 1)
        if getattr(facts, key) != getattr(made, key):
            yield Mistake(number, f"{key!r} must stand on one line, without a remark")
        elif key == "told_by" and made.told_by and not _TOLD_BY.fullmatch(made.told_by):
            meant = "an option or VARIABLE= and {text}, {file} or {folder}/NAME"
            yield Mistake(number, f"told_by: {meant} are meant here")


class _Form(YamlForm):
    """Builds dataclasses of a YAML document. ``path`` is a field's: ``input.above_within``."""

    def build(self, form: type, node: YamlNode, path: str = "", **given: Any) -> Any:
        """An object of the dataclass ``form``; None where there is a mistake."""
        known = {one.name: one for one in fields(form) if one.name not in given}
        needed = [
            name
            for name, one in known.items()
            if one.default is MISSING and one.default_factory is MISSING
        ]
        found = self.mapping(node, tuple(known), tuple(needed), path)
        values = dict(given)
        for name, value in found.items():
            at = f"{path}.{name}" if path else name
            values[name] = self._value(str(known[name].type), value, at)
        return None if self.mistakes else form(**values)

    def _value(self, kind: str, node: YamlNode, path: str) -> Any:
        if kind.endswith(" | None") and node.is_null:
            return None
        return self._readers[kind.removesuffix(" | None")](self, node, path)

    def _style(self, node: YamlNode, path: str) -> Any:
        return self.build(AgentStyle, node, path, works=None)

    def _input(self, node: YamlNode, path: str) -> Any:
        return self.build(InputLine, node, path)

    def _headless(self, node: YamlNode, path: str) -> Any:
        made: HeadlessForm | None = self.build(HeadlessForm, node, path)
        try:
            return made and made.checked()
        except UsageError as error:
            self.wrong(node, error.message)

    def _pattern(self, node: YamlNode, path: str) -> re.Pattern[str] | None:
        try:
            return re.compile(self._string(node, path))
        except (re.error, RecursionError) as error:
            self.wrong(node, f"{path}: this is not a regular expression: {error}")
            return None

    def _patterns(self, node: YamlNode, path: str) -> tuple[Any, ...]:
        return tuple(self._pattern(one, path) for one in self.entries(node, path))

    def _texts(self, node: YamlNode, path: str) -> tuple[str, ...]:
        return tuple(self._string(one, path) for one in self.entries(node, path))

    def _pairs(self, node: YamlNode, path: str) -> tuple[Any, ...]:
        pairs = []
        for one in self.entries(node, path):
            if one.kind != "list" or len(one.items) != 2:
                self.wrong(one, f"{path}: two are meant here: a pattern, and its replacement")
            else:
                pairs.append((self._pattern(one.items[0], path), self._string(one.items[1], path)))
        return tuple(pairs)

    def _string(self, node: YamlNode, path: str) -> str:
        """Any text, also an empty one or one of control characters."""
        if node.kind != "text":
            self.wrong(node, f"{path}: text is meant here")
        return node.value

    def _takes(self, node: YamlNode, path: str) -> str:
        if node.kind != "text" or node.value not in get_args(Takes):
            self.wrong(node, f"{path}: line or paste is meant here")
        return node.value

    def _flag(self, node: YamlNode, path: str) -> bool:
        word = node.value.lower() if node.kind == "text" and node.plain else ""
        if word not in ("true", "yes", "on", "false", "no", "off"):
            self.wrong(node, f"{path}: true or false is meant here")
        return word in ("true", "yes", "on")

    def _whole(self, node: YamlNode, path: str) -> int:
        return int(self._number(node, path))

    def _number(self, node: YamlNode, path: str) -> float:
        if node.kind == "text" and node.plain and _NUMBER.fullmatch(node.value):
            return float(node.value)
        self.wrong(node, f"{path}: a number is meant here")
        return 0.0

    _readers: dict[str, Callable[[_Form, YamlNode, str], Any]] = {
        "str": _string,
        "Takes": _takes,
        "bool": _flag,
        "int": _whole,
        "float": _number,
        "re.Pattern[str]": _pattern,
        "Patterns": _patterns,
        "tuple[str, ...]": _texts,
        "tuple[tuple[re.Pattern[str], str], ...]": _pairs,
        "AgentStyle": _style,
        "InputLine": _input,
        "HeadlessForm": _headless,
    }


def _any(patterns: Patterns, rows: Sequence[str]) -> bool:
    return any(pattern.search(row) for row in rows for pattern in patterns)


#: The input line: ``dialog`` stands in its place, there is none now (``busy``), or ``unknown``.
ComposerState = Literal["empty", "draft", "dialog", "busy", "unknown"]
#: Tells it by the screen's rows.
Composer = Callable[[list[str]], ComposerState]

_BLANK = re.compile(r"\s*$")
#: A choice of a dialog; the mark of one that is selected often is the input line's own.
_CHOICE = re.compile(r"[\s│┃|]*(?:[❯›>●○]\s*)?(\d{1,2})[.)]\s+\S")

Patterns = tuple[re.Pattern[str], ...]


def nobody_knows(rows: list[str]) -> ComposerState:
    """The composer of a program of which nothing but general rules is known."""
    return "unknown"


@dataclass(frozen=True, slots=True, eq=False)
class InputLine:
    """How one program draws its input line. Patterns are matched at the beginning of a row.

    The lowest place on the screen where all of this holds is the input line.
    """

    #: How its first row begins; what follows is text.
    prompt: re.Pattern[str] | None = None
    #: The row above it, ...
    above: re.Pattern[str] | None = None
    #: ... which may stand this many rows higher.
    above_within: int = 1
    #: What each of its rows begins with, in a box that has sides.
    side: re.Pattern[str] | None = None
    #: The first row below it; one must be there. Without it, a blank one.
    below: re.Pattern[str] | None = None
    #: Its last row, where that tells something and is not text (a box that names the model).
    status: re.Pattern[str] | None = None
    #: A row that, standing anywhere below it, says that something else is read now.
    covered: re.Pattern[str] | None = None
    #: The first row or the status begins so where words would be commands: always a draft.
    other_mode: re.Pattern[str] | None = None
    #: All of the text that an empty one shows.
    placeholder: Patterns = ()
    #: The same where it may as well be the person's: nobody knows whether it is empty.
    suggestion: Patterns = ()
    #: A part of a row below that is shown only while it is empty.
    empty_below: re.Pattern[str] | None = None

    @property
    def boxed(self) -> bool:
        """Whether it is known by what stands around it, and not by its mark alone."""
        return (self.above or self.side or self.below) is not None

    def state(self, rows: Sequence[str], dialog: Patterns) -> ComposerState:
        """Tell by the screen's rows, from top to bottom, how the input line is.

        ``dialog`` is searched for below it, and everywhere where there is none. ``unknown`` is a
        screen without both, into which nothing may be typed that is not safe anywhere.
        """
        place = self.find(rows)
        if place is None:
            return "dialog" if _shows_choices(rows) or _any(dialog, rows) else "unknown"
        first, end = place
        if _any(dialog, rows[end:]):
            return "dialog"
        inside = [self.text(row) for row in rows[first : end - (self.status is not None)]]
        if _CHOICE.match(inside[0]) and any(map(_CHOICE.match, rows[first + 1 :])):
            return "dialog"
        if self.other_mode and any(map(self.other_mode.match, (rows[first], rows[end - 1]))):
            return "draft"
        if self.empty_below and end - first == 1 and _any((self.empty_below,), rows[end:]):
            return "empty"
        text = "\n".join(inside).strip("\n").rstrip()
        if not text.strip() or any(one.fullmatch(text) for one in self.placeholder):
            return "empty"
        return "unknown" if any(one.fullmatch(text) for one in self.suggestion) else "draft"

    def above_it(self, rows: Sequence[str]) -> list[str]:
        """The rows above it and above what encloses it; all where it is not on the screen."""
        place = self.find(rows)
        return list(rows[: place[0] - (self.above is not None)] if place else rows)

    def find(self, rows: Sequence[str]) -> tuple[int, int] | None:
        """Where it begins, and the row behind its end; None where it is not on the screen."""
        for first in range(len(rows) - 1, -1, -1):
            if not self._begins(rows, first):
                continue
            end = self._end(rows, first)
            if end is None:
                continue
            others = [*rows[first + 1 : end], *rows[end + 1 :]]
            return None if self.covered and any(map(self.covered.match, others)) else (first, end)
        return None

    def text(self, row: str) -> str:
        """What stands in one of its rows, without mark and frame."""
        for mark in (self.prompt, self.side):
            if mark is not None and (found := mark.match(f"{row} ")):
                row = row[found.end() :]
                return re.sub(r"\s*[│┃|]\s*$", "", row) if self.side else row.rstrip()
        return row.rstrip()

    def _begins(self, rows: Sequence[str], at: int) -> bool:
        if self.above is not None:
            higher = rows[max(0, at - self.above_within) : at]
            if not any(map(self.above.match, higher)):
                return False
        marks = [mark for mark in (self.prompt, self.other_mode) if mark is not None]
        if self.prompt is not None:
            # A screen's rows come without the blanks at their ends, a mark may end in one.
            return any(mark.match(f"{rows[at]} ") for mark in marks)
        if self.side is not None:
            return not (at and self.side.match(rows[at - 1]))
        return self.above is not None

    def _end(self, rows: Sequence[str], first: int) -> int | None:
        below = self.below or _BLANK
        ends = (at for at in range(first + 1, len(rows)) if below.match(rows[at]))
        # Below the screen's last row all is blank.
        end = next(ends, len(rows) if below.match("") else None)
        if end is None:
            return None
        if self.side is not None and not all(map(self.side.match, rows[first:end])):
            return None
        if self.status is not None:
            return end if end - first > 1 and self.status.match(rows[end - 1]) else None
        return end


def _shows_choices(rows: Sequence[str]) -> bool:
    """Whether numbered choices stand on the screen."""
    numbers = {found[1] for row in rows if (found := _CHOICE.match(row))}
    return {"1", "2"} <= numbers
