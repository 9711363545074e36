"""What the words of a command line mean: options anywhere between the words, a hint for a mistake.

Declared as with argparse, which only lays out the help: importing it takes as long as a whole verb
may. It reads only the clock, for ``moment``, and prints only the help.
"""

from __future__ import annotations

from relay.core.errors import UsageError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

#: ``--wait`` without a number. Seconds.
WAIT = 60.0
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
    """One option (``names`` with dashes) or word (without names)."""

    __slots__ = ("names", "name", "shown", "how", "flag")

    def __init__(self, names: tuple[str, ...], how: dict[str, Any]) -> None:
        self.names = names if names[0].startswith("-") else ()
        self.how = how
        self.flag = how.get("action") == "store_true"
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
        return self.how.get("default", [] if self.how.get("nargs") == "*" else None)

    def value(self, text: str) -> object:
        """What ``text`` stands for. Raises UsageError."""
        choices, kind = self.how.get("choices"), self.how.get("type")
        if choices is not None and text not in choices:
            raise not_among(text, choices, "")
        if kind is None:
            return text
        try:
            return kind(text)
        except BadValue as error:
            raise UsageError(f"argument {self.shown}: {error}") from None
        except ValueError:
            said = f"argument {self.shown}: invalid {kind.__name__} value: {text!r}"
            raise UsageError(said) from None


class Parser:
    """The words of one verb, or of a group of verbs such as ``relay hooks``.

    ``stops``: options end at the first word that is none (``relay wrap COMMAND …``).
    ``layout`` is what argparse is told for the help.
    """

    def __init__(self, prog: str, *, stops: bool = False, **layout: Any) -> None:
        self.prog = prog
        self.help = layout.pop("help", "")
        self.verbs: dict[str, Parser] = {}
        #: What to do instead of a verb of this group that is gone.
        self.gone_verbs: dict[str, str] = {}
        self._stops = stops
        self._layout = layout
        self.arguments: list[_Argument] = []
        self._defaults: dict[str, Any] = {}
        self._verbs_shown = ""
        self._dest = ""

    # -- declaring

    def add_argument(self, *names: str, **how: Any) -> None:
        """An option or a word, as argparse has it. ``bare`` is an option's value without ``=``,
        which then never takes the word that follows it."""
        self.arguments.append(_Argument(names, how))

    def set_defaults(self, **values: Any) -> None:
        """Values that no word gives, such as ``run``."""
        self._defaults.update(values)

    def add_subparsers(self, *, metavar: str, dest: str = "") -> Parser:
        """Make this a group of verbs, which ``add_parser`` adds; ``dest`` names the chosen one."""
        self._dest = dest
        self._verbs_shown = metavar
        return self

    def add_parser(self, name: str, **layout: Any) -> Parser:
        """A verb of this group."""
        self.verbs[name] = Parser(f"{self.prog} {name}", **layout)
        return self.verbs[name]

    # -- reading

    def parse(self, words: list[str]) -> Options:
        """The values of ``words``. Raises UsageError."""
        if self._verbs_shown:
            return self._parse_group(words)
        values = {argument.name: argument.default for argument in self.arguments}
        values.update((one.name, False) for one in self.arguments if one.flag)
        values.update(self._defaults)
        plain: list[str] = []
        at = 0
        while at < len(words):
            word = words[at]
            at += 1
            if word == "--" or (self._stops and not self._is_option(word)):
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
                    said = f"argument {argument.shown}: ignored explicit argument {text!r}"
                    raise self._wrong(said)
                values[argument.name] = True
                continue
            if not equals and "bare" in argument.how:
                text = argument.how["bare"]
            elif not equals:
                if at == len(words) or (not self._stops and self._is_option(words[at])):
                    raise self._wrong(f"argument {argument.shown}: expected one argument")
                text = words[at]
                at += 1
            if argument.name == "config" and values[argument.name] is not None:
                # The last one would take the place of a guard that an alias puts there.
                raise UsageError(
                    "--config is given twice, and one file can be named",
                    hint="leave one out; your own and the project's configurations apply with it",
                )
            values[argument.name] = self._value(argument, text)
        return Options(values | self._words(plain, words))

    def _parse_group(self, words: list[str]) -> Options:
        if not words:
            raise self._wrong(f"missing: {self._verbs_shown}")
        if words[0] in ("-h", "--help"):
            return Options({"run": lambda _: self.print_help()})
        if self._is_option(words[0]):
            self._option(words[0].partition("=")[0])
        if words[0] in self.gone_verbs:
            raise UsageError(
                f"there is no {self.prog} {words[0]} any more", hint=self.gone_verbs[words[0]]
            )
        if words[0] not in self.verbs:
            raise not_among(words[0], self.verbs, f"{self.prog} --help")
        options = self.verbs[words[0]].parse(words[1:])
        if self._dest:
            setattr(options, self._dest, words[0])
        return options

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
        if len(name) == 2:  # -v: every other short option is as near, what it abbreviates is not
            close = [option for option in self._options() if option.startswith(f"-{name}")][:1]
        else:
            close = _nearest(name, self._options())
        hint = f"did you mean {close[0]}?" if close else f"{self.prog} --help"
        if self._stops:
            hint += " (options of the program itself go after its name)"
        return UsageError(f"there is no option {name}", hint=hint)

    def _words(self, plain: list[str], words: list[str]) -> dict[str, object]:
        """The values of the arguments that are no options."""
        values: dict[str, object] = {}
        wanted = [argument for argument in self.arguments if not argument.names]
        missing = []
        for argument in wanted:
            many = argument.how.get("nargs")
            if many == "*":
                values[argument.name], plain = plain, []
            elif plain:
                values[argument.name] = self._value(argument, plain[0])
                plain = plain[1:]
            elif many is None:
                missing.append(argument.shown)
        if missing:
            raise self._wrong(f"missing: {', '.join(missing)}")
        if plain:
            takes_text = any(argument.shown == "TEXT" for argument in wanted)
            text = "put a text of several words into quotes"
            hint = text if takes_text else f"{self.prog} --help"
            for argument in self.arguments:
                for name in argument.names if "bare" in argument.how else ():
                    after = words[words.index(name) + 1 :][:1] if name in words else []
                    if after and after[0][:1].isdecimal():
                        hint = f"write it with =: {name}={after[0]}"
            raise UsageError(f"{plain[0]!r} is one word too many", hint=hint)
        return values

    def _value(self, argument: _Argument, text: str) -> object:
        try:
            return argument.value(text)
        except UsageError as error:
            raise UsageError(error.message, hint=error.hint or f"{self.prog} --help") from None

    def _wrong(self, text: str) -> UsageError:
        return UsageError(text, hint=f"{self.prog} --help")

    # -- help

    @property
    def description(self) -> str:
        """What is said of it; examples stand before that."""
        return str(self._layout.get("description") or self.help)

    def usage(self) -> str:
        """How it is written, in one line."""
        words = [] if not self.verbs else [self._verbs_shown, "…"]
        for one in self.arguments:
            if one.names:
                words.append(f"[{one.form}]")
                continue
            many = one.how.get("nargs")
            words.append(
                f"[{one.shown} …]" if many == "*" else f"[{one.shown}]" if many else one.shown
            )
        return " ".join([self.prog, *words])

    def taken(self) -> list[tuple[str, str]]:
        """Each word and option that it takes, and what that is."""
        rows = [(name, verb.help) for name, verb in self.verbs.items()]
        return rows + [(one.form, str(one.how.get("help") or "")) for one in self.arguments]

    def print_help(self) -> int:
        """Print what argparse makes of the declarations."""
        import argparse

        examples = "\n" in self._layout.get("description", "")
        layout = argparse.RawDescriptionHelpFormatter if examples else argparse.HelpFormatter
        parser = argparse.ArgumentParser(self.prog, formatter_class=layout, **self._layout)
        for one in self.arguments:
            how = {key: value for key, value in one.how.items() if key != "bare"}
            parser.add_argument(*(one.names or (one.name,)), **how)
        if self._verbs_shown:
            verbs = parser.add_subparsers(metavar=self._verbs_shown)
            for name, verb in self.verbs.items():
                verbs.add_parser(name, help=verb.help)
        parser.print_help()
        return 0


def not_among(word: str, known: Iterable[str], otherwise: str) -> UsageError:
    """The error for a word that is none of ``known``, with the nearest of them as its hint."""
    known = list(known)
    close = _nearest(word, known)
    hint = f"did you mean {close[0]}?" if close else otherwise
    return UsageError(f"{word!r} is none of {', '.join(known)}", hint=hint)


def _nearest(word: str, known: list[str]) -> list[str]:
    import difflib

    return difflib.get_close_matches(word, known, n=1, cutoff=0.5)


# -- types of arguments


def wait_seconds(text: str) -> float:
    """Seconds of ``--wait=S``, the default for a bare ``--wait``."""
    if not text:
        return WAIT
    unit = _UNITS.get(text[-1:], 0) if text[-1:] != "w" else 0
    number = text[:-1] if unit else text
    plain = number.replace(".", "", 1).isdecimal() and number[:1] != "." and number[-1:] != "."
    seconds = float(number) * (unit or 1) if plain else -1.0
    if not 0 <= seconds <= 86400 * 30:
        raise BadValue(f"{text!r} is no number of seconds (30, 1.5, 10m, 2h)")
    return seconds


def count(text: str) -> int:
    """A number from 1 to 10000."""
    if not text.isdecimal() or not 0 < int(text) <= 10_000:
        raise BadValue(f"{text!r} is no number from 1 to 10000")
    return int(text)


def port(text: str) -> int:
    """The number of a TCP port."""
    if not text.isdecimal() or not 0 < int(text) <= 65_535:
        raise BadValue(f"{text!r} is no port: 1 to 65535")
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
            f"{text!r} is no time (10m, 2h, 3d, 2026-01-31, 2026-01-31T12:00:00Z)"
        ) from None
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    return int(found.timestamp() * 1000)
