"""``relay VERB …``: builds the parser from the modules below, and turns whatever happens into an
exit status: 0 done, 1 failed, 2 usage, 3 not found, 4 not delivered, 5 timeout.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib import import_module
from typing import Any, NoReturn

from relay import __version__
from relay.cli import output
from relay.core.errors import EXIT_FAILED, EXIT_USAGE, RelayError, UsageError

#: Every module here has ``add(subparsers)``, which sets ``run=function(options) -> exit status``.
MODULES = (
    "relay.cli.messages",
    "relay.cli.held",
    "relay.cli.agents",
    "relay.cli.broker_verbs",
    "relay.cli.config_verbs",
    "relay.cli.hooks_verbs",
    "relay.cli.memory_verbs",
    "relay.cli.replay",
    "relay.cli.doctor",
    "relay.cli.demo",
)

_HELP = """\
examples:
  relay wrap --name Bob -- claude     run an agent that others can write to
  relay send Bob "run the tests"      write to it from any shell
  relay send Bob --wait=60 "ready?"   … and wait until Bob has seen it
  relay agents                        who is there
  relay inbox --follow                what agents write to you, as it comes

verbs:
"""

#: Handled before this module is imported, but shown and known here.
_WRAP = ("wrap", "run a program as an agent that others can write to")


_CHOICE = re.compile(r"argument .+: invalid choice: '(.*)' \(choose from (.*)\)", re.DOTALL)


class Parser(argparse.ArgumentParser):
    """argparse with errors of our own: they carry a hint and are raised, not printed."""

    def error(self, message: str) -> NoReturn:
        choice = _CHOICE.fullmatch(message)
        if choice is not None:
            choices = [word.strip(" '") for word in choice[2].split(",")]
            close = difflib.get_close_matches(choice[1], choices, n=1, cutoff=0.5)
            raise UsageError(
                f"{choice[1]!r} is none of {', '.join(choices)}",
                hint=f"did you mean {close[0]}?" if close else f"{self.prog} --help",
            )
        missing = message.removeprefix("the following arguments are required: ")
        text = message if missing == message else f"missing: {missing}"
        raise UsageError(text, hint=f"{self.prog} --help")

    def parse(self, words: list[str]) -> tuple[argparse.Namespace, list[str]]:
        """The options, which may stand anywhere between the words, and what is left over."""
        for action in self._get_positional_actions():
            if action.nargs in (argparse.PARSER, argparse.REMAINDER):
                return self.parse_known_args(words)
        return self.parse_known_intermixed_args(words)

    def options(self) -> list[str]:
        """All option strings."""
        return [text for action in self._actions for text in action.option_strings]


def main(argv: list[str]) -> int:
    """Run one command line; returns the exit status and raises nothing."""
    in_json = "--json" in argv
    _open_closed()
    output.prepare()
    try:
        status = _run(argv)
        with output.writing():
            sys.stdout.flush()
        return status
    except output.OutputFailed as error:
        _drop_output()
        return _report(error, in_json=False)  # stdout is no place to say so
    except RelayError as error:
        return _report(error, in_json)
    except BrokenPipeError:
        return _quiet_pipe()
    except KeyboardInterrupt:
        return _die_of(signal.SIGINT)
    except Exception:
        return _report(fault(), in_json)


def _open_closed() -> None:
    """Open what the caller has closed (``>&-``): an empty stdin, a stdout that refuses, no stderr.

    Otherwise the stream is None, and the next file that is opened takes its number.
    """
    for number, name, flags in (
        (0, "stdin", os.O_RDONLY),
        (1, "stdout", os.O_RDONLY),
        (2, "stderr", os.O_WRONLY),
    ):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, flags)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            mode = "w" if number else "r"
            stream = open(number, mode, encoding="utf-8", closefd=False)  # noqa: SIM115 - it stays
            setattr(sys, name, stream)


def _run(argv: list[str]) -> int:
    parser, verbs = build()
    if not argv:
        parser.print_help()
        return EXIT_USAGE
    _check_verb(argv, verbs)
    chosen = verbs.get(argv[0], parser)
    words = _bare_wait(argv)[1:] if argv[0] in verbs else argv
    try:
        options, rest = chosen.parse(words)
    except SystemExit as end:  # --help and --version
        return end.code if isinstance(end.code, int) else EXIT_FAILED
    if rest:
        raise _unknown(rest, _nested(chosen, words), argv)
    run: Callable[[Any], int] = options.run
    return run(options)


def build(modules: Iterable[str] = MODULES) -> tuple[Parser, dict[str, Parser]]:
    """The parser, and the parsers of its verbs by name."""
    parser = Parser(
        prog="relay",
        usage="relay VERB …",
        description="Wrap command-line agents so that they can talk to each other.",
        epilog=_HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"relay {__version__}")
    subparsers = parser.add_subparsers(
        prog="relay", dest="verb", metavar="VERB", help=argparse.SUPPRESS
    )
    for name in modules:
        import_module(name).add(subparsers)
    verbs: dict[str, Parser] = dict(subparsers.choices)
    parser.epilog = _HELP + _verb_list(subparsers)
    return parser, verbs


def _bare_wait(argv: list[str]) -> list[str]:
    """``--wait`` takes its number only after ``=``: the word that follows is the message."""
    if argv[0] != "send":
        return argv
    end = argv.index("--") if "--" in argv else len(argv)
    return ["--wait=" if a == "--wait" else a for a in argv[:end]] + argv[end:]


def _verb_list(subparsers: Any) -> str:
    helps = [_WRAP] + [(action.dest, action.help or "") for action in subparsers._choices_actions]
    width = max(len(name) for name, _ in helps)
    return "\n".join(f"  {name:<{width}}  {text}" for name, text in helps)


def _check_verb(argv: list[str], verbs: dict[str, Parser]) -> None:
    first = argv[0]
    if first.startswith("-") or first in verbs:
        return
    close = difflib.get_close_matches(first, [*verbs, _WRAP[0]], n=1, cutoff=0.5)
    hint = f"did you mean relay {close[0]}?" if close else "relay --help lists the verbs"
    raise UsageError(f"there is no verb {first!r}", hint=hint)


def _nested(parser: Parser, words: list[str]) -> Parser:
    """The parser of the verb within a group (``relay memory save``) that these words are for."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return next((action.choices[word] for word in words if word in action.choices), parser)
    return parser


def _unknown(rest: list[str], parser: Parser, argv: list[str]) -> UsageError:
    wrong = rest[0]
    if wrong.startswith("-"):
        return _unknown_option(wrong, parser)
    takes_text = any(action.metavar == "TEXT" for action in parser._get_positional_actions())
    hint = "put a text of several words into quotes" if takes_text else f"{parser.prog} --help"
    after = argv[argv.index("--wait") + 1 :][:1] if "--wait" in argv else []
    if after and re.fullmatch(r"\d[\d.]*[smh]?", after[0]):
        hint = f"write it with =: --wait={after[0]}"
    return UsageError(f"{wrong!r} is one word too many", hint=hint)


def _unknown_option(wrong: str, parser: Parser) -> UsageError:
    bare = wrong.split("=", 1)[0]
    if len(bare) == 2:  # -v: every other short option is as near, what it abbreviates is not
        close = [option for option in parser.options() if option.startswith(f"-{bare}")][:1]
    else:
        close = difflib.get_close_matches(bare, parser.options(), n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}?" if close else f"{parser.prog} --help"
    return UsageError(f"there is no option {bare}", hint=hint)


def _report(error: RelayError, in_json: bool) -> int:
    try:
        output.error(error, in_json=in_json)
        sys.stdout.flush()
    except (OSError, output.OutputFailed):  # the status says it
        _drop_output()
    return error.exit_status


def _quiet_pipe() -> int:
    """The reader has gone: nothing more can be said, and nothing must be said at exit."""
    _drop_output()
    return 128 + signal.SIGPIPE


def _drop_output() -> None:
    """What is still to be written to stdout goes nowhere: it would fail again at the exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def _die_of(number: signal.Signals) -> int:
    """End as a program does that this signal ends, so that a shell's loop ends too."""
    with suppress(BrokenPipeError):
        sys.stdout.flush()
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    return 128 + number


def fault() -> RelayError:
    """Log the exception that is being handled; the error that people are shown instead."""
    from relay.core.log import Log
    from relay.core.paths import Home

    home = Home.from_env()
    log = Log(os.path.join(home.logs, "cli.log"))
    log.fault()
    return RelayError(
        "relay met a fault of its own", hint=f"the details are in {log.path}", code="internal"
    )
