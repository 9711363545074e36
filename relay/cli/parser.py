"""What the words of a command line mean: options anywhere between the words, a hint for a mistake.

A verb is declared once, in the words of argparse, whose import takes as long as a whole verb may.
Parsing, help, completion, the manual and the reference follow from the declaration. It reads only
the clock, for ``moment``, and prints only the help.
"""

from __future__ import annotations

from relay.core.errors import UsageError, nearest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: ``--wait`` without a number. Seconds.
WAIT = 60.0
#: Columns in which the help names an option, and columns of a line where no terminal says so.
_FORM_COLUMNS, _WIDTH = 24, 80
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


class BadValue(ValueError):
    """What an argument's ``type`` raises; the text is for the person."""


class Options:
    """The values of one command line by name, and ``run``: what the verb does with them."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


class _Argument:
    """One option (``names`` with dashes) or word (without names).

    ``how`` is what argparse takes; of relay's own are ``bare`` (an option's value without ``=``,
    which then never takes the word that follows it) and ``offers`` (what completion offers for a
    word: see relay.cli.help_verbs).
    """

    __slots__ = ("names", "name", "shown", "how", "flag", "again")

    def __init__(self, names: tuple[str, ...], how: dict[str, Any]) -> None:
        self.names = names if names[0].startswith("-") else ()
        self.how = how
        self.flag = how.get("action") == "store_true"
        #: It may be given several times.
        self.again = how.get("action") == "append"
        self.name: str = how.get("dest") or names[0].lstrip("-").replace("-", "_")
        #: What messages call it.
        self.shown: str = "/".join(self.names) or how.get("metavar") or names[0]

    @property
    def form(self) -> str:
        """How it is written, with the name of its value."""
        if self.flag or not self.names:
            return ", ".join(self.names) or self.shown
        choices = self.how.get("choices")
        value = self.how.get("metavar") or (
            "{" + ",".join(choices) + "}" if choices else self.name.upper()
        )
        joined = f"[={value}]" if "bare" in self.how else f" {value}"
        return ", ".join(self.names) + joined

    @property
    def default(self) -> object:
        many = self.how.get("nargs") == "*" or self.again
        return self.how.get("default", [] if many else None)

    def value(self, text: str) -> object:
        """What ``text`` stands for. Raises UsageError."""
        choices, kind = self.how.get("choices"), self.how.get("type")
        if choices is not None and text not in choices:
            close = nearest(text, choices)
            said = f"{self.shown}: {text!r} is not one of {', '.join(choices)}"
            raise UsageError(said, hint=f"did you mean {close}?" if close else "")
        if kind is None:
            return text
        try:
            return kind(text)
        except BadValue as error:
            raise UsageError(f"{self.shown}: {error}") from None
        except ValueError:
            raise UsageError(f"{self.shown}: {text!r} is not valid") from None


class Parser:
    """The words of one verb, or of a group of verbs such as ``relay hooks``.

    ``help`` is what it does, in a line; ``description`` says more, in paragraphs. Without it the
    line stands for both. Of ``examples`` each stands on a line. ``stops``: options end at the first
    word that is none (``relay wrap COMMAND …``), and the exit status is not one of relay's own.
    """

    def __init__(
        self,
        prog: str,
        *,
        help: str = "",
        description: str = "",
        examples: str = "",
        stops: bool = False,
    ) -> None:
        self.prog = prog
        self.help = help
        self.description = description or f"{help[:1].upper()}{help[1:]}{'.' if help else ''}"
        self.examples = [line.removeprefix("  ") for line in examples.splitlines()]
        self.verbs: dict[str, Parser] = {}
        self.stops = stops
        self.arguments: list[_Argument] = []
        self._gone: dict[str, str] = {}
        self._defaults: dict[str, Any] = {}
        self._dest = ""
        self._alone = ""

    # -- declaring

    def add_argument(self, *names: str, **how: Any) -> None:
        self.arguments.append(_Argument(names, how))

    def gone(self, name: str, instead: str) -> None:
        """An option, or a verb of this group, that relay once had; ``instead``: what to use now."""
        self._gone[name] = instead

    def set_defaults(self, **values: Any) -> None:
        """Values that no word gives, such as ``run``."""
        self._defaults.update(values)

    def add_subparsers(self, *, dest: str = "", alone: str = "") -> Parser:
        """Make this a group of verbs, which ``add_parser`` adds; ``dest`` names the chosen one.
        ``alone`` is the verb that the group's name stands for by itself, and with options only."""
        self._dest = dest
        self._alone = alone
        return self

    def add_parser(self, name: str, **how: Any) -> Parser:
        self.verbs[name] = Parser(f"{self.prog} {name}", **how)
        return self.verbs[name]

    # -- reading

    def parse(self, words: list[str]) -> Options:
        """The values of ``words``. Raises UsageError."""
        if self.verbs:
            return self._parse_group(words)
        values: dict[str, Any] = {one.name: one.default for one in self.arguments}
        values.update((one.name, False) for one in self.arguments if one.flag)
        values.update(self._defaults)
        plain: list[str] = []
        at = 0
        while at < len(words):
            word = words[at]
            at += 1
            if word == "--" or (self.stops and not self._is_option(word)):
                plain += words[at if word == "--" else at - 1 :]
                break
            if not self._is_option(word):
                plain.append(word)
                continue
            name, equals, text = word.partition("=")
            if name in ("-h", "--help"):
                return Options({"run": lambda _: self.print_help()})
            argument = self._option(name)
            if argument.flag:
                if equals:
                    raise self._wrong(f"{argument.shown} takes no value")
                values[argument.name] = True
                continue
            if not equals and "bare" in argument.how:
                text = argument.how["bare"]
            elif not equals:
                if at == len(words) or (not self.stops and self._is_option(words[at])):
                    raise self._wrong(f"{argument.shown} needs a value")
                text = words[at]
                at += 1
            if argument.name == "config" and values[argument.name] is not None:
                # The last one would take the place of a guard that an alias puts there.
                raise UsageError(
                    "--config is given twice; it can name only one file",
                    hint="leave one out; your own and the project's configurations apply with it",
                )
            value = self._value(argument, text)
            values[argument.name] = [*values[argument.name], value] if argument.again else value
        return Options(values | self._words(plain, words))

    def _parse_group(self, words: list[str]) -> Options:
        if words and words[0] in ("-h", "--help"):
            return Options({"run": lambda _: self.print_help()})
        if self._alone and (not words or self._is_option(words[0])):
            words = [self._alone, *words]
        if not words:
            known = ", ".join(self.verbs)
            raise UsageError(f"{self.prog} needs a command", hint=f"it has: {known}")
        if self._is_option(words[0]):
            self._option(words[0].partition("=")[0])
        options = self.verb(words[0]).parse(words[1:])
        if self._dest:
            setattr(options, self._dest, words[0])
        return options

    def verb(self, name: str) -> Parser:
        """The verb of this group with this name. Raises UsageError."""
        if name in self._gone:
            raise UsageError(f"{self.prog} {name} is gone", hint=self._gone[name])
        if name not in self.verbs:
            close = nearest(name, self.verbs)
            known = f"it has: {', '.join(self.verbs)}" if self.verbs else self._usage_hint()
            hint = f"did you mean {self.prog} {close}?" if close else known
            raise UsageError(f"{name!r} is not a command of {self.prog}", hint=hint)
        return self.verbs[name]

    def _is_option(self, word: str) -> bool:
        """A dash begins one, but for numbers and for texts of several words."""
        if len(word) < 2 or word[0] != "-":
            return False
        number = word[1:].replace(".", "", 1).isdecimal()
        return word.partition("=")[0] in self._options() or not (number or " " in word)

    def _options(self) -> list[str]:
        own = [name for argument in self.arguments for name in argument.names]
        return ["-h", "--help", *own]

    def _option(self, name: str) -> _Argument:
        for argument in self.arguments:
            if name in argument.names:
                return argument
        raise self.unknown_option(name)

    def unknown_option(self, name: str) -> UsageError:
        """The error for an option that there is not, with the nearest one as its hint."""
        if name in self._gone:
            return UsageError(f"the option {name} is gone", hint=self._gone[name])
        if len(name) == 2:  # -v: every other short option is as near, what it abbreviates is not
            begin = f"-{name.lower()}"
            starts = (option for option in self._options() if option.startswith(begin))
            close = next(starts, None)
        else:
            close = nearest(name, self._options())
        hint = f"did you mean {close}?" if close else f"{self.prog} --help"
        if self.stops:
            hint += " (options of the program itself go after its name)"
        return UsageError(f"there is no option {name}", hint=hint)

    def _words(self, plain: list[str], words: list[str]) -> dict[str, object]:
        """The values of the arguments that are no options."""
        values: dict[str, object] = {}
        wanted = [argument for argument in self.arguments if not argument.names]
        missing = []
        for at, argument in enumerate(wanted):
            many = argument.how.get("nargs")
            if many in ("*", "+"):  # all but what the words behind it need
                needed = sum(one.how.get("nargs") is None for one in wanted[at + 1 :])
                end = max(many == "+", len(plain) - needed)
                taken, plain = plain[:end], plain[end:]
                if argument.how.get("offers") == "names":  # A B and A,B are the same
                    taken = [one for word in taken for one in word.split(",") if one]
                values[argument.name] = taken
                if many == "+" and not taken:
                    missing.append(argument.shown)
            elif plain:
                values[argument.name] = self._value(argument, plain[0])
                plain = plain[1:]
            elif many is None:
                known = argument.how.get("help", "") if "choices" in argument.how else ""
                missing.append(f"{argument.shown} ({known})" if known else argument.shown)
        if missing:
            verb = "is" if len(missing) == 1 else "are"
            said = f"{' and '.join(missing)} {verb} missing"
            raise UsageError(said, hint=self._usage_hint())
        if plain:
            takes_text = any(argument.shown == "TEXT" for argument in wanted)
            text = "put quotes around a text of several words"
            hint = text if takes_text else f"{self.prog} --help"
            for argument in self.arguments:
                if "spare" in argument.how:  # what a word too many was most likely meant for
                    hint = f"{argument.how['help']}: {argument.names[0]} {plain[0]}"
                for name in argument.names if "bare" in argument.how else ():
                    after = words[words.index(name) + 1 :][:1] if name in words else []
                    if after and after[0][:1].isdecimal():
                        hint = f"write it with =: {name}={after[0]}"
            raise UsageError(f"unexpected argument {plain[0]!r}", hint=hint)
        return values

    def _value(self, argument: _Argument, text: str) -> object:
        try:
            return argument.value(text)
        except UsageError as error:
            raise UsageError(error.message, hint=error.hint or f"{self.prog} --help") from None

    def _usage_hint(self) -> str:
        return f"usage: {' '.join(self.usage())}"

    def _wrong(self, text: str) -> UsageError:
        return UsageError(text, hint=f"{self.prog} --help")

    # -- help

    def usage(self) -> list[str]:
        """How it is written: the name, and each word."""
        group = "[COMMAND …]" if self._alone else "COMMAND …"
        words = [group] if self.verbs else []
        for one in self.arguments:
            many = one.how.get("nargs")
            form = f"{one.shown} …" if many in ("*", "+") else one.shown
            if not one.names:
                words.append(form if many in (None, "+") else f"[{form}]")
        if any(one.names for one in self.arguments):
            words.insert(0 if self.stops else len(words), "[options]")
        return [self.prog, *words]

    def taken(self) -> list[tuple[str, str]]:
        """Each word and option that it takes, and what that is."""
        return self._verb_rows() + [
            (one.form, str(one.how.get("help") or "")) for one in self.arguments
        ]

    def _verb_rows(self) -> list[tuple[str, str]]:
        return [
            (name, f"{verb.help} (the default)" if name == self._alone else verb.help)
            for name, verb in self.verbs.items()
        ]

    def help_text(self, width: int) -> str:
        """The help, in lines of at most ``width`` columns."""
        import textwrap

        lines = list[str]()
        for paragraph in self.description.split("\n\n"):
            lines += [*textwrap.wrap(paragraph, width), ""]
        lines += textwrap.wrap(f"usage: {' '.join(self.usage())}", width, subsequent_indent="  ")
        taken = self._verb_rows()
        words = [(one.form, one.how.get("help", "")) for one in self.arguments if not one.names]
        options = [(one.form, one.how.get("help", "")) for one in self.arguments if one.names]
        options.append(("-h, --help", "show this help"))
        column = min(_FORM_COLUMNS, 4 + max(len(form) for form, _ in taken + words + options))
        for title, rows in (("commands:", taken), ("arguments:", words), ("options:", options)):
            lines += ["", title] if rows else []
            for form, text in rows:
                below = textwrap.wrap(text, max(_FORM_COLUMNS, width - column))
                beside = len(form) + 4 <= column and below
                lines.append(f"  {form:<{column - 2}}{below.pop(0)}" if beside else f"  {form}")
                lines += [" " * column + line for line in below]
        if self.examples:
            lines += ["", "examples:", *(f"  {line}" for line in self.examples)]
        return "\n".join(lines) + "\n"

    def print_help(self) -> int:
        import shutil

        from relay.cli.output import headed

        width = shutil.get_terminal_size((_WIDTH, 24)).columns
        for line in self.help_text(max(_FORM_COLUMNS * 2, width - 2)).splitlines():
            headed(line)
        return 0


# -- types of arguments


def wait_seconds(text: str) -> float:
    """Seconds of ``--wait=S``, the default for a bare ``--wait``."""
    if not text:
        return WAIT
    unit = _UNITS.get(text[-1:], 0) if text[-1:] != "w" else 0
    number = text[:-1] if unit else text
    plain = number.replace(".", "", 1).isdecimal() and number[:1] != "." and number[-1:] != "."
    seconds = float(number) * (unit or 1) if plain else -1.0
    if not 0 <= seconds <= 86400:
        raise BadValue(f"{text!r} is not a duration such as 30 (seconds), 1.5, 10m or 2h")
    return seconds


def count(text: str) -> int:
    """A number from 1 to 10000."""
    if not text.isdecimal() or not 0 < int(text) <= 10_000:
        raise BadValue(f"{text!r} is not a number from 1 to 10000")
    return int(text)


def port(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= 65_535:
        raise BadValue(f"{text!r} is not a port: 1 to 65535")
    return int(text)


def moment(text: str) -> int:
    """Milliseconds since the epoch of a time, or of a time ago (``10m``)."""
    import time
    from datetime import UTC, datetime

    unit = _UNITS.get(text[-1:])
    if unit is not None and text[:-1].isdecimal() and len(text) <= 7:
        return int((time.time() - int(text[:-1]) * unit) * 1000)
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise BadValue(
            f"{text!r} is not a time such as 10m (ago), 2h, 3d, 2026-01-31 or 2026-01-31T12:00:00Z"
        ) from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return int(found.timestamp() * 1000)
