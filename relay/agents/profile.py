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
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from relay.agents.arguments import PROFILE_MAX, SHIPPED, StartFacts, path_of
from relay.agents.headless import HeadlessForm
from relay.core.errors import RelayError, UsageError
from relay.core.files import read_file
from relay.screen.agent_styles import UNKNOWN, AgentStyle
from relay.screen.questions import question_on_screen

if TYPE_CHECKING:
    from yaml import MappingNode, Node, SequenceNode

#: A row that encloses an input line.
_BORDER = "─" * 8
_TOLD_BY = re.compile(r"(?:-\S+ |\w+=)\{(?:text\}|file\}|folder\}(?:/[\w.-]*\w)+)")
#: Rows above the input line in which a turn shows; what waits may lie in between.
_ABOVE = 12


class ProfileError(RelayError):
    """A profile's file cannot be used; the message says where it is wrong."""

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
    #: What it asks about (a command) never begins in the first column, nor leaves its frame: what
    #: stands there is not of a question.
    inset: bool = False
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
    """Read one file. Raises ProfileError with the place of the first mistake."""
    try:
        data = read_file(path, PROFILE_MAX)
    except OSError as error:
        raise ProfileError(f"{path} cannot be read: {error.strerror}") from error
    if len(data) > PROFILE_MAX:
        raise ProfileError(f"{path} has more than {PROFILE_MAX} bytes")
    return parse_profile(data.decode("utf-8", "replace"), path)


def parse_profile(text: str, path: str) -> Profile:
    """Make the profile that ``path`` holds. Raises ProfileError with the place of a mistake."""
    import yaml  # 15 ms: only where there is a profile to read

    try:
        node = yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        at = f"{path}:{mark.line + 1}" if mark else path
        raise ProfileError(f"{at}: {getattr(error, 'problem', None) or error}") from error
    name = os.path.basename(path).removesuffix(".yaml")
    if node is None:
        return Profile(name)
    made: Profile = _Form(path).build(Profile, node, name=name)
    _check_start(made, text, path)
    return made


def _check_start(made: Profile, text: str, path: str) -> None:
    """Raises ProfileError where the start of the program would read another thing."""
    facts, lines = StartFacts(text), text.split("\n")
    for key in facts.__slots__:
        number = next((n for n, line in enumerate(lines, 1) if line.startswith(f"{key}:")), 1)
        if getattr(facts, key) != getattr(made, key):
            wrong = f"{key!r} must stand on one line, without a remark"
        elif key == "told_by" and made.told_by and not _TOLD_BY.fullmatch(made.told_by):
            wrong = "an option or VARIABLE= and {text}, {file} or {folder}/NAME are meant here"
        else:
            continue
        raise ProfileError(f"{path}:{number}: {wrong}")


class _Form:
    """Builds dataclasses of a YAML document's nodes, which know their lines."""

    def __init__(self, path: str) -> None:
        self._path = path

    def build(self, form: type, node: Node, **given: Any) -> Any:
        known = {one.name: one for one in fields(form) if one.name not in given}
        values = dict(given)
        for key, value in self._mapping(node).value:
            name = self._text(key)
            if name not in known:
                hint = ", ".join(known)
                raise self._error(key, f"there is no {name!r} here; there are {hint}")
            if name in values:
                raise self._error(key, f"{name!r} stands here twice")
            values[name] = self._value(str(known[name].type), value)
        for name, one in known.items():
            if name not in values and one.default is MISSING and one.default_factory is MISSING:
                raise self._error(node, f"{name!r} is missing")
        return form(**values)

    def _value(self, kind: str, node: Node) -> Any:
        optional = kind.endswith(" | None")
        if optional and node.tag.endswith(":null"):
            return None
        return self._readers[kind.removesuffix(" | None")](self, node)

    def _style(self, node: Node) -> AgentStyle:
        made: AgentStyle = self.build(AgentStyle, node, works=None)
        return made

    def _input(self, node: Node) -> InputLine:
        made: InputLine = self.build(InputLine, node)
        return made

    def _headless(self, node: Node) -> HeadlessForm:
        made: HeadlessForm = self.build(HeadlessForm, node)
        try:
            return made.checked()
        except UsageError as error:
            raise self._error(node, error.message) from error

    def _pattern(self, node: Node) -> re.Pattern[str]:
        try:
            return re.compile(self._text(node))
        except (re.error, RecursionError) as error:
            raise self._error(node, f"this is no regular expression: {error}") from error

    def _patterns(self, node: Node) -> Patterns:
        return tuple(map(self._pattern, self._sequence(node).value))

    def _texts(self, node: Node) -> tuple[str, ...]:
        return tuple(map(self._text, self._sequence(node).value))

    def _pairs(self, node: Node) -> tuple[tuple[re.Pattern[str], str], ...]:
        pairs = []
        for one in self._sequence(node).value:
            pair = self._sequence(one).value
            if len(pair) != 2:
                raise self._error(one, "two are meant: a pattern, and what stands for it")
            pairs.append((self._pattern(pair[0]), self._text(pair[1])))
        return tuple(pairs)

    def _text(self, node: Node) -> str:
        if node.id != "scalar":
            raise self._error(node, "text is meant here")
        return str(node.value)

    def _takes(self, node: Node) -> Takes:
        for known in get_args(Takes):
            if known == self._text(node):
                made: Takes = known
                return made
        raise self._error(node, "line or paste is meant here")

    def _flag(self, node: Node) -> bool:
        if node.tag.endswith(":bool"):
            return str(node.value).lower() in ("true", "yes", "on")
        raise self._error(node, "true or false is meant here")

    def _whole(self, node: Node) -> int:
        return int(self._number(node))

    def _number(self, node: Node) -> float:
        if node.tag.endswith((":int", ":float")):
            try:
                return float(node.value)
            except ValueError:
                pass
        raise self._error(node, "a number is meant here")

    def _mapping(self, node: Node) -> MappingNode:
        if node.id != "mapping":
            raise self._error(node, "names with values are meant here, as in `name: value`")
        return node

    def _sequence(self, node: Node) -> SequenceNode:
        if node.id != "sequence":
            raise self._error(node, "a list is meant here, as in `[one, two]`")
        return node

    def _error(self, node: Node, text: str) -> ProfileError:
        return ProfileError(f"{self._path}:{node.start_mark.line + 1}: {text}")

    _readers: dict[str, Callable[[_Form, Node], Any]] = {
        "str": _text,
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
    #: Its last row, where that tells something and is no text (a box that names the model).
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
