"""``relay VERB …``: imports the module of the verb alone, and turns whatever happens into an exit
status: 0 done, 1 failed, 2 usage, 3 not found, 4 not delivered, 5 timeout.
"""

from __future__ import annotations

import os
import sys

from relay.cli import output
from relay.cli.parser import Parser
from relay.cli.verbs import ALIASES, GONE, MEANT, every, group_of, help_text, is_verb
from relay.core import signals
from relay.core.errors import EXIT_USAGE, RelayError, UsageError, nearest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_SIGINT: int = signals.signal.SIGINT
_SIGPIPE: int = signals.signal.SIGPIPE


def main(argv: list[str]) -> int:
    """Run one command line; returns the exit status and raises nothing."""
    in_json = "--json" in argv
    _open_closed()
    output.prepare()
    try:
        status = _run(argv)
        output.flush()
        return status
    except output.OutputFailed as error:
        _drop_output()
        return _report(error, in_json=False)  # stdout is no place to say so
    except RelayError as error:
        return _report(error, in_json)
    except BrokenPipeError:
        _drop_output()  # the reader has gone: nothing must be said at the exit, either
        return 128 + _SIGPIPE
    except KeyboardInterrupt:
        return _die_of(_SIGINT)
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
    verb = argv[0] if argv else _without_verb()
    verb = ALIASES.get(verb, verb)
    if verb in ("", "-h", "--help"):
        from relay.cli.table import prose

        prose(help_text(), titles=True)
        return 0 if verb else EXIT_USAGE
    if verb == "--version":
        from relay.core.build import build

        output.data(f"relay {build()}")
        return 0
    if not is_verb(verb):
        raise unknown_verb(verb)
    options = group_of(verb).verbs[verb].parse(argv[1:])
    run: Callable[[Any], int] = options.run
    return run(options)


def _without_verb() -> str:
    """The console for a person at a terminal; in a pipe, and inside an agent, there is none."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return ""
    from relay.core.processes import wrapped

    return "console" if not wrapped() and is_verb("console") else ""


def unknown_verb(verb: str) -> UsageError:
    """The error for a verb that there is not, with the one that is probably meant."""
    if verb.startswith("-"):
        top = Parser("relay")
        top.add_argument("--version", action="store_true")
        return top.unknown_option(verb.partition("=")[0])
    if verb.lower() in GONE:
        return UsageError(f"relay {verb.lower()} is gone", hint=GONE[verb.lower()])
    meant = {**MEANT, **ALIASES}
    if verb.lower() in meant:
        hint = f"did you mean relay {meant[verb.lower()]}?"
        return UsageError(f"{verb!r} is not a relay command", hint=hint)
    close = nearest(verb, every())
    hint = f"did you mean relay {close}?" if close else "relay help lists the commands"
    return UsageError(f"{verb!r} is not a relay command", hint=hint)


def _report(error: RelayError, in_json: bool) -> int:
    try:
        output.error(error, in_json=in_json)
        output.flush()
    except (OSError, output.OutputFailed):  # the status says it
        _drop_output()
    return error.exit_status


def _drop_output() -> None:
    """What is still to be written to stdout goes nowhere: it would fail again at the exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def _die_of(number: int) -> int:
    """End as a program does that this signal ends, so that a shell's loop ends too."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _drop_output()
    signals.signal.signal(number, signals.signal.SIG_DFL)
    os.kill(os.getpid(), number)
    return 128 + number


def fault() -> RelayError:
    """Log the exception that is being handled; the error that people are shown instead."""
    from relay.core.log import Log
    from relay.core.paths import Home
    from relay.directive.redact import redact

    home = Home.from_env()
    log = Log(os.path.join(home.logs, "cli.log"), redact)
    log.fault()
    return RelayError(
        "internal error in relay", hint=f"the details are in {log.path}", code="internal"
    )
