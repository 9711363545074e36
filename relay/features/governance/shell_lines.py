"""A shell's line, taken apart into the simple commands that it may run. Pure.

It reads what bash and zsh read in the same way, and gives up (:class:`UnreadableLine`) on the rest:
functions, ``case``, arrays and whatever else could mean something that is not seen here. A file of
its own because it knows the shell's grammar only, and nothing of what commands do.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

#: Characters of a line, its commands, the words of one, and commands in commands: what has more is
#: unreadable.
LINE_MAX, COMMANDS_MAX, WORDS_MAX, DEPTH_MAX = 256 * 1024, 1000, 5000, 12
#: What ends a word.
_ENDS = " \t\n;&|<>()"
#: What may stand between ``${`` and ``}``: nothing that assigns, indirects or is evaluated again.
_EXPANSION = re.compile(r"#?(?:\w+|[?#@*$!-])(?:(?::?[-+?]|%%?|##?)[\w ./,:@%+=*-]*)?")
_PARAMETER = re.compile(r"\w+|[?#@*$!-]")
_OPERATOR = re.compile(r"\d*(<<<|<<|<|&>>?|>>|>\||>&|>)")
_NUMBERED = re.compile(r"\d+[<>]|&>")
#: Words before and behind commands that are none.
_AROUND = {"if", "then", "elif", "else", "while", "until", "do", "!", "{", "time"}
_AROUND |= {"fi", "done", "}"}
#: What a word becomes in which a part is known only when it is run.
ANY = "\ufffc"


class UnreadableLine(ValueError):
    """The line cannot be taken apart; the text says at what."""

    #: The commands before that.
    commands: Sequence[Simple] = ()


@dataclass(frozen=True, slots=True)
class Word:
    """One word. ``text`` has :data:`ANY` for what is only known when it is run."""

    text: str
    #: Unquoted ``* ? [ {`` stand in it, so it may be other words, and several.
    glob: bool = False
    #: A part of it is only known when it is run.
    dynamic: bool = False
    #: That part is not in quotes, so it may be several words.
    splits: bool = False
    #: It stands at least partly in quotes, so it is no keyword.
    quoted: bool = False
    #: It begins with a ``~`` that is the home folder.
    home: bool = False

    @property
    def literal(self) -> bool:
        """Whether it is exactly ``text``."""
        return not (self.glob or self.dynamic)


@dataclass(slots=True)
class Simple:
    """One simple command, with what is redirected."""

    words: list[Word] = field(default_factory=list)
    assignments: list[tuple[str, Word]] = field(default_factory=list)
    #: What is written by ``>`` and its kin.
    writes: list[Word] = field(default_factory=list)
    #: What ``<<`` and ``<<<`` give it to read; None without.
    input: str | None = None
    #: What stood before it: "" (the first), ``;``, ``&``, ``&&``, ``||`` or ``|``; of the first one
    #: in a subshell or a substitution: before that.
    after: str = ""

    @property
    def empty(self) -> bool:
        return not (self.words or self.assignments or self.writes)


def commands_of(line: str) -> list[Simple]:
    """Every simple command of ``line``, also those in substitutions and subshells, in its order."""
    if len(line) > LINE_MAX or "\0" in line:
        raise UnreadableLine("a shell would not take this line")
    found: list[Simple] = []
    try:
        _Reader(line, found, 0).read_list("")
    except UnreadableLine as error:
        error.commands = found
        raise
    return found


class _Reader:
    """Reads one text. ``found`` is filled with the commands of this and of all that are in it."""

    def __init__(self, text: str, found: list[Simple], depth: int, after: str = "") -> None:
        if depth > DEPTH_MAX:
            raise UnreadableLine("commands in commands too deep")
        self._text = text
        self._at = 0
        self._found = found
        self._depth = depth
        self._after = after
        #: Here-documents whose text begins on the next line, their ends, whether these are quoted.
        self._pending: list[tuple[Simple, str, bool]] = []

    def read_list(self, until: str) -> None:
        """Read commands up to ``until``, which is "" or ``)``."""
        current = self._new(self._after)
        while True:
            self._skip_blanks()
            char = self._peek()
            if char in ("", until):
                if char != until or self._pending:
                    raise UnreadableLine("something that is not closed")
                self._at += 1
                self._finish(current)
                return
            if char == "#":
                self._at = self._end_of_line()
            elif char in "\n;&|" and not self._text.startswith("&>", self._at):
                current = self._next(current)
            elif char == "(":
                current = self._subshell(current)
            elif char in "<>" or _NUMBERED.match(self._text, self._at):
                self._redirection(current)
            elif char == ")":
                raise UnreadableLine("a parenthesis too much")
            else:
                self._word_of(current)

    def _new(self, after: str) -> Simple:
        self._after = after
        return Simple(after=after)

    def _finish(self, current: Simple) -> None:
        if not current.empty:
            self._found.append(current)

    def _next(self, current: Simple) -> Simple:
        """End ``current`` at an operator, and begin the next one."""
        operator = self._text[self._at]
        self._at += 1
        if operator in "&|" and self._peek() == operator:
            operator *= 2
            self._at += 1
        if operator in (";", "&", "|") and self._peek() in ("&", "|", ";", "!"):
            raise UnreadableLine(operator + self._peek())
        self._finish(current)
        if operator == "\n":
            self._bodies()
            operator = ";"
        return self._new(operator)

    def _subshell(self, current: Simple) -> Simple:
        if not current.empty or self._text.startswith("((", self._at):
            raise UnreadableLine("a parenthesis in a command")
        self._at += 1
        self._inner(")")
        self._skip_blanks()
        if self._peek() not in ("", *"\n;&|)<>") and not _NUMBERED.match(self._text, self._at):
            raise UnreadableLine("something behind a parenthesis")
        return self._new(current.after)

    def _inner(self, until: str) -> None:
        """Read the commands of a subshell or a substitution that begins here."""
        if self._pending:
            raise UnreadableLine("a here-document before a substitution")
        reader = _Reader(self._text, self._found, self._depth + 1, self._after)
        reader._at = self._at  # the same text, further on
        reader.read_list(until)
        self._at = reader._at

    def _word_of(self, current: Simple) -> None:
        word = self._word()
        plain = word.literal and not word.quoted
        if not current.words and not current.assignments:
            if plain and word.text in _AROUND:
                return
            if plain and word.text == "for":
                self._for(current)
                return
            if plain and word.text in ("case", "select", "function", "coproc", "repeat", "foreach"):
                raise UnreadableLine(word.text)
        if not current.words:
            name, equals, _ = word.text.partition("=")
            if equals and re.fullmatch(r"\w+\+?", name):
                current.assignments.append((name.removesuffix("+"), word))
                return
        current.words.append(word)
        if len(self._found) >= COMMANDS_MAX or len(current.words) > WORDS_MAX:
            raise UnreadableLine("it has too many commands or words")

    def _for(self, current: Simple) -> None:
        """Skip ``NAME in WORDS`` up to the separator; what is substituted in it is read."""
        self._skip_blanks()
        name = self._word()
        current.assignments.append((name.text, name))
        self._skip_blanks()
        if self._word().text != "in":
            raise UnreadableLine("for")
        while self._skip_blanks() and self._peek() not in ("", ";", "\n"):
            if not self._word().text:
                raise UnreadableLine("for")

    def _word(self) -> Word:
        text: list[str] = []
        glob = dynamic = splits = quoted = home = False
        begin = self._at
        while (char := self._peek()) and char not in _ENDS:
            first = self._at == begin
            self._at += 1
            if char == "'":
                end = self._text.find("'", self._at)
                if end < 0:
                    raise UnreadableLine("a quote that is not closed")
                if self._text[end - 1] == "\\":
                    raise UnreadableLine("a backslash before a quote")  # fish reads on
                text.append(self._text[self._at : end])
                self._at, quoted = end + 1, True
            elif char == '"':
                dynamic |= self._double_quoted(text)
                quoted = True
            elif char == "\\":
                if not (escaped := self._peek()):
                    raise UnreadableLine("a backslash at the end")
                self._at += 1
                if escaped != "\n":
                    text.append(escaped)
                    quoted = True
            elif char in "$`":
                splits |= self._expansion(char, text, "")
            else:
                home |= first and char == "~"
                # The last ones are globs, or the place of a command, in zsh.
                glob |= char in "*?[^#" or (first and char == "=")
                glob |= char == "{" and self._peek() != "}"
                text.append(char)
        if self._peek() == "(":
            raise UnreadableLine("a parenthesis in a word")
        if self._pending and "\n" in self._text[begin : self._at]:
            raise UnreadableLine("a here-document before a line that goes on")
        word = "".join(text)
        if word in ("[", "[[", "{"):
            glob = False
        dynamic |= home and word != "~" and not word.startswith("~/")
        return Word(word, glob, dynamic or splits, splits, quoted, home)

    def _double_quoted(self, text: list[str]) -> bool:
        dynamic = False
        while char := self._peek():
            self._at += 1
            if char == '"':
                return dynamic
            if char == "\\" and self._peek() in ("$", "`", '"', "\\", "\n"):
                text.append(self._peek().strip("\n"))
                self._at += 1
            elif char in "$`":
                dynamic |= self._expansion(char, text, '"|)/')
            else:
                text.append(char)
        raise UnreadableLine("a quote that is not closed")

    def _expansion(self, char: str, text: list[str], ends: str) -> bool:
        """Read what ``$`` begins; whether it is more than the character itself.

        ``ends``: what a ``$`` may stand before, besides blanks, and mean itself.
        """
        rest = self._text
        if char == "`" or rest.startswith(("((", "[", "'"), self._at):
            raise UnreadableLine("backticks, a sum or a quote behind $")
        if rest.startswith("(", self._at):
            self._at += 1
            self._inner(")")
        elif rest.startswith("{", self._at):
            end = rest.find("}", self._at)
            if end < 0 or not _EXPANSION.fullmatch(rest[self._at + 1 : end]):
                raise UnreadableLine("${…}")
            self._at = end + 1
        elif name := _PARAMETER.match(rest, self._at):
            self._at = name.end()
            if self._peek() == "[":
                raise UnreadableLine("an index")
        elif self._peek() in ("", " ", "\t", "\n", *ends):
            text.append(char)
            return False
        else:
            raise UnreadableLine("$" + self._peek())
        text.append(ANY)
        return True

    def _redirection(self, current: Simple) -> None:
        match = _OPERATOR.match(self._text, self._at)
        assert match is not None
        operator, self._at = match[1], match.end()
        if operator in ("<", ">") and self._peek() == "(":
            self._at += 1
            self._inner(")")
            current.words.append(Word(ANY, dynamic=True, splits=True))
            return
        if self._peek() in ("!", "|", "&", "(", "<", ">", "-"):
            raise UnreadableLine(operator + self._peek())
        self._skip_blanks()
        before = self._at
        word = self._word()
        if self._at == before:
            raise UnreadableLine("a redirection to nothing")
        if operator == "<<":
            if not word.literal:
                raise UnreadableLine("the end of a here-document")
            self._pending.append((current, word.text, word.quoted))
            current.input = ""
        elif operator == "<<<":
            current.input = word.text
        elif operator != "<" and (operator != ">&" or not re.fullmatch(r"\d+", word.text)):
            current.writes.append(word)

    def _bodies(self) -> None:
        """Read the here-documents that were announced on the line that has just ended."""
        for simple, end, quoted in self._pending:
            lines: list[str] = []
            while (line := self._text[self._at : self._end_of_line()]) != end:
                self._at = self._end_of_line() + 1
                # Some shells end it here, too, or read on behind a backslash.
                ends = line.strip().startswith(end or ")") or self._at > len(self._text)
                if ends or (not quoted and re.search(r"`|\$\(|\\$", line)):
                    raise UnreadableLine("a here-document with commands, or without its end")
                lines.append(line)
            self._at = min(self._end_of_line() + 1, len(self._text))
            simple.input = "\n".join(lines)
            if not quoted and re.search(r"[$\\]", simple.input):
                simple.input = ANY
        self._pending = []

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _skip_blanks(self) -> bool:
        while True:
            if self._peek() in (" ", "\t") and self._peek():
                self._at += 1
            elif self._text.startswith("\\\n", self._at):
                self._at += 2
            else:
                return True

    def _end_of_line(self) -> int:
        end = self._text.find("\n", self._at)
        return len(self._text) if end < 0 else end
