"""``relay wrap``: run a program in a terminal that relay listens to.

Everything here happens before the agent starts, so nothing heavy is imported: no argparse (4 ms).
"""

from __future__ import annotations

import os
import sys

from relay.app.wrap import Choices, exit_status, run
from relay.core.errors import EXIT_FAILED, EXIT_USAGE, RelayError, UsageError

HELP = """\
Run a program so that other agents can talk to it, and it to them.

Examples:
  relay wrap claude                      an agent named "claude"
  relay wrap --name Alice -- claude      an agent named "Alice"
  relay wrap --name Bob bash             any program will do

Usage: relay wrap [OPTIONS] [--] COMMAND [ARGS…]

Options:
  --name NAME     what others call it (default: made from COMMAND, and unique)
  --task TEXT     what it works on; handlers see it as ctx.task
  --config FILE   use this configuration (default: the project's, see
                  relay config show)
  --record FILE   record the terminal into FILE, an asciicast, with known
                  secrets masked; see relay replay --help
  --record-input  record the keys too, except where a password is read
  --overwrite     let FILE be one that is already there
  --no-primer     do not tell the agent how to talk to others
  --help          show this help

COMMAND runs in a terminal of its own with the same keys, output, signals and
exit status as without relay. Options end at COMMAND or at --.

Exit status: COMMAND's own (128 + n when signal n ended it), 127 when it is not
found, 126 when it cannot be run, 1 when relay cannot start, 2 for a mistake in
the options.
"""

_VALUED = ("--name", "--task", "--config", "--record")
_FLAGS = ("--no-primer", "--record-input", "--overwrite", "--help")


class Options:
    """The parsed command line; ``command`` is COMMAND and its arguments."""

    __slots__ = ("values", "flags", "command")

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.flags: set[str] = set()
        self.command: list[str] = []


def main(argv: list[str]) -> int:
    """Run ``relay wrap`` with ``argv`` (without the verb); returns the exit status."""
    from relay.core import signals

    signals.plain_interrupt()
    try:
        options = parse(argv)
        if "--help" in options.flags:
            sys.stdout.write(HELP)
            return 0
        if not options.command:
            raise UsageError("no COMMAND to run", hint="for example: relay wrap claude")
        status = wrap(options)
    except RelayError as error:
        return _fail(error.message, error.hint, error.exit_status)
    except OSError as error:
        what = f"{error.filename}: " if error.filename else ""
        return _fail(f"cannot start: {what}{error.strerror}", "", EXIT_FAILED)
    except Exception:
        from relay.cli.main import fault

        error_of_ours = fault()
        return _fail(error_of_ours.message, error_of_ours.hint, EXIT_FAILED)
    if status == -signals.signal.SIGINT:
        # A shell ends its loop or script at Ctrl-C only if the program that had it died of it.
        signals.die_of(-status)
    # Nothing of ours is left to finalise: the interpreter's own end would cost milliseconds.
    os._exit(exit_status(status))


def parse(argv: list[str]) -> Options:
    """Options up to ``--`` or the first word that is none. Raises UsageError."""
    options = Options()
    at = 0
    while at < len(argv):
        word = argv[at]
        at += 1
        if word == "--":
            options.command = argv[at:]
            break
        if not word.startswith("-") or word == "-":
            options.command = argv[at - 1 :]
            break
        name, equals, value = word.partition("=")
        if name == "-h":
            name = "--help"
        if name in _VALUED:
            if not equals:
                if at == len(argv):
                    raise UsageError(f"{name} needs a value", hint="see: relay wrap --help")
                value = argv[at]
                at += 1
            options.values[name] = value
        elif name in _FLAGS and not equals:
            options.flags.add(name)
        else:
            raise _unknown(word, name)
    return options


def _unknown(word: str, name: str) -> UsageError:
    if name in _FLAGS:
        return UsageError(f"{name} takes no value: {word}", hint="see: relay wrap --help")
    import difflib

    close = difflib.get_close_matches(name, (*_VALUED, *_FLAGS), 1, 0.5)
    meant = f"did you mean {close[0]}?" if close else "see: relay wrap --help"
    return UsageError(
        f"unknown option {word}",
        hint=f"{meant} (options of the program itself go after its name)",
    )


def wrap(options: Options) -> int:
    """Do what the command line says; returns what ``run`` does. Raises RelayError."""
    values = options.values
    for flag in ("--record-input", "--overwrite"):
        if flag in options.flags and "--record" not in values:
            raise UsageError(f"{flag} without --record", hint=f"add --record FILE, or leave {flag}")
    choices = Choices(
        options.command,
        name=values.get("--name"),
        task=values.get("--task"),
        config=values.get("--config"),
        primer="--no-primer" not in options.flags,
        record=values.get("--record"),
        record_input="--record-input" in options.flags,
        overwrite="--overwrite" in options.flags,
        exclusive=True,
    )
    return run(choices)


def _fail(message: str, hint: str, status: int) -> int:
    print(f"relay: {message}", file=sys.stderr)
    if hint:
        print(f"  {hint}", file=sys.stderr)
    return status or EXIT_USAGE
