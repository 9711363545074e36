"""The verb ``confine``: run a program that can read everything, and write only where it may.

It is imported before the program starts, so nothing heavy is imported at the top.
"""

from __future__ import annotations

import os
import sys

from relay.cli.verbs import verb
from relay.core.errors import RelayError, UsageError
from relay.core.paths import Home, working_folder
from relay.features.confine import confinement, landlock, places
from relay.pump.agent_process import CannotRun, find_program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from relay.cli.parser import Options, Parser

#: The table of a feature's package that says how the places of a scope are found: see
#: ``relay.core.features.named``.
SCOPES = "SCOPES"


def add(verbs: Parser) -> None:
    parser = verb(
        verbs,
        "confine",
        "relay confine --write build -- make\n"
        "  relay confine --intent INT-001 -- python scripts/rename.py",
        "Run COMMAND so that it reads everything and writes only where it may: below each PATH or"
        " in the scope of an intent, in its scratch folder ($TMPDIR), on devices, and in the caches"
        " of builds. The kernel holds it, and all that it starts.\n\n"
        "Exit status: COMMAND's own, 127 when it is not found, 126 when it cannot be run, 1 when"
        " it cannot be confined, 2 for a mistake in the options.",
    )
    parser.stops = True
    parser.add_argument(
        "--write",
        action="append",
        metavar="PATH",
        help="a folder, with all below it, or a file that it may write; can be given again",
    )
    parser.add_argument(
        "--intent",
        metavar="INTENT",
        offers="intents",
        help="it may write what this intent of a governed project allows",
    )
    parser.add_argument(
        "command", nargs="+", metavar="COMMAND", offers="commands", help="the program to run"
    )
    parser.set_defaults(run=run)


def run(options: Options) -> int:
    """Become the program; returns only where it could not be started, or where it can be told
    what it was refused."""
    confinement.check()
    confinement.tell_weaker()
    home, cwd = Home.from_env(), working_folder()
    program = find_program(options.command[0], os.environ.get("PATH"))
    given = [places.named(path, cwd) for path in options.write]
    if options.intent is not None:
        given += of_intent(options.intent, cwd)
    try:
        scratch = places.scratch(cwd)
    except OSError as error:
        raise RelayError(
            f"there is no scratch folder: {error.filename}: {error.strerror}",
            hint="set TMPDIR to a folder of your own",
        ) from error
    os.environ |= places.environment(scratch)
    more: list[str] = []
    if os.path.exists(home.trust):
        from relay.features.confine.start import wanted

        more = wanted(home, cwd)[1]
    writable = [*given, scratch, *places.usual(home, os.environ, more)]
    if sys.platform == "linux" and _keeps_what_is_said():
        return _watched(program, options.command, writable, cwd)
    raise _become(program, options.command, writable)


def of_intent(intent: str, cwd: str) -> list[str]:
    """The places that an intent allows. Raises RelayError."""
    from relay.core.features import named

    scope = named(SCOPES, "intent")
    if scope is None:
        raise UsageError("--intent needs relay's feature governance, which is not installed")
    allowed, notes = scope(intent, cwd)
    for note in notes:
        print(f"relay: {note}", file=sys.stderr, flush=True)
    return list(allowed)


def _become(program: str, argv: list[str], writable: list[str]) -> CannotRun:
    """Run the program in the place of this process; returns why that is impossible."""
    if sys.platform == "linux":
        try:
            landlock.confine(writable, landlock.version())
        except OSError as error:
            raise confinement.CannotConfine(f"{argv[0]} cannot be confined: {error}") from error
    else:
        words = confinement.command(writable, program, argv)
        program, argv = words[0], words
    failure = landlock.become(program, argv)
    return CannotRun(f"cannot run {argv[0]}: {failure.strerror}", 126)


# -- saying what was refused


def _keeps_what_is_said() -> bool:
    """Whether what the program says to stderr can be read there afterwards: in a file. A terminal
    shows it to the person, and a pipe is the reader's alone."""
    import stat

    try:
        return stat.S_ISREG(os.fstat(2).st_mode)
    except OSError:
        return False


def _watched(program: str, argv: list[str], writable: list[str], cwd: str) -> int:
    """Run the program as a child, pass its status and signals on, and say in a line which write
    was refused."""
    from relay.features.confine import refused

    begin = os.fstat(2).st_size
    child, mask = refused.forked()
    if child == 0:
        raise _become(program, argv, writable)
    status = refused.waited(child, mask)
    if status and (path := refused.write_in(refused.said_since(begin), writable, cwd)):
        from relay.core.visible import visible

        why = "the program is confined"
        if refused.replaces(path, writable, cwd):
            why += (
                "; files there can be written but not replaced: write to $TMPDIR, then cp it over"
            )
        print(f"relay: {visible(path)} was not written: {why}", file=sys.stderr)
    return refused.ended_like(status)
