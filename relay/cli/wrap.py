"""``relay wrap``: run a program in a terminal that relay listens to.

Everything here happens before the agent starts, so nothing heavy is imported. It ends as the agent
ends, with no interpreter left to finalise.
"""

from __future__ import annotations

import os
import sys

from relay.app.wrapped_run import (
    Choices,
    Limits,
    Participant,
    RecordingChoice,
    TerminalChoice,
    Terms,
    exit_status,
    run,
)
from relay.cli.parser import Options, Parser
from relay.core.agent_names import valid_name
from relay.core.errors import EXIT_FAILED, EXIT_USAGE, RelayError, UsageError

_SAID = (
    "Run a program so that other agents can talk to it, and it to them. COMMAND runs in its own"
    " terminal with the same keys, output, signals and exit status as without relay. Options end"
    " at COMMAND or at --.\n\n"
    "Exit status: COMMAND's own (128 + n when signal n ended it), 127 when it is not found, 126"
    " when it cannot be run, 1 when relay cannot start, 2 for a mistake in the options."
)


def add(verbs: Parser) -> None:
    parser = verbs.add_parser(
        "wrap",
        description=_SAID,
        examples='relay wrap claude                      an agent named "claude"\n'
        'relay wrap --name Alice -- claude      an agent named "Alice"\n'
        "relay wrap --name Bob ./my-agent       any program will do",
        stops=True,
    )
    parser.add_argument(
        "--name",
        metavar="NAME",
        help="what others call it (default: made from COMMAND, and unique)",
    )
    add_agent_options(parser)
    parser.add_argument(
        "--record",
        metavar="FILE",
        help="record the terminal into FILE, an asciicast, with known secrets masked; see"
        " relay replay --help",
    )
    parser.add_argument(
        "--record-input",
        action="store_true",
        help="record the keys too, except where a password is read",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace FILE if it exists")
    parser.add_argument(
        "--title",
        action="store_true",
        help="show the name and the roles as the window's title until COMMAND sets one"
        " (RELAY_TITLE=1: always)",
    )
    parser.add_argument(
        "--mcp",
        action="store_true",
        help="give the agent relay's tools as an MCP server for this run, if it takes one (Claude"
        " Code, Codex, opencode)",
    )
    parser.add_argument(
        "--no-primer", action="store_true", help="do not tell the agent how to talk to others"
    )
    parser.add_argument(
        "--ungoverned",
        action="store_true",
        help="in a governed project: let it write without an intent; the trace records that",
    )
    parser.add_argument(
        "command",
        nargs="+",
        metavar="COMMAND",
        offers="commands",
        help="the program and its arguments",
    )
    parser.set_defaults(run=wrap)


def add_agent_options(parser: Parser) -> None:
    """Declare what ``wrap`` and ``spawn`` take alike."""
    parser.add_argument(
        "--role",
        metavar="ROLE",
        help="its role: @relay:ROLE reaches all who have it; several, separated by commas",
    )
    parser.add_argument(
        "--join",
        metavar="CHANNEL",
        help="channels to join (#build or build), separated by commas",
    )
    parser.add_argument(
        "--task", metavar="TEXT", help="what it works on; handlers see it as ctx.task"
    )
    parser.add_argument(
        "--config",
        metavar="FILE",
        help="use this configuration (default: the project's, see relay config show)",
    )
    parser.add_argument(
        "--type",
        metavar="HOW",
        choices=("line", "paste"),
        help='how messages are typed: "line" (one line and Enter, whenever COMMAND is quiet)'
        ' or "paste"; default: as COMMAND sets its terminal',
    )
    parser.add_argument(
        "--hear",
        action="store_true",
        help="COMMAND is a shell or an interpreter: take messages from all that it shows, whoever"
        " wrote that",
    )
    parser.add_argument(
        "--confine",
        action="store_true",
        help="the kernel lets it write only to its folder (or worktree), its own state and caches",
    )
    parser.add_argument(
        "--intent",
        metavar="INTENT",
        offers="intents",
        help="in a governed project: the kernel lets it write only what this intent allows",
    )
    parser.add_argument(
        "--write",
        action="append",
        metavar="PATH",
        help="with --confine or --intent: it may write this folder or file, too; can be given"
        " again",
    )


def check_writable(options: Options) -> None:
    """Raises UsageError where ``--write`` limits nothing."""
    if options.write and options.intent is None and not options.confine:
        raise UsageError(
            "--write needs --confine or --intent", hint="without these it may write everything"
        )


def parsed(argv: list[str]) -> Options:
    """The values of ``argv``. Raises UsageError."""
    verbs = Parser("relay")
    add(verbs)
    return verbs.verbs["wrap"].parse(argv)


def main(argv: list[str]) -> int:
    """Run ``relay wrap`` with ``argv`` (without the verb); returns the exit status."""
    from relay.core import signals

    signals.plain_interrupt()
    try:
        options = parsed(argv)
        if options.run is not wrap:  # --help
            return int(options.run(options))
        status = wrap(options)
    except signals.EndedBySignal as end:
        os.kill(os.getpid(), end.number)
        return 128 + end.number
    except RelayError as error:
        return _fail(error.message, error.hint, error.exit_status)
    except OSError as error:
        what = f"{error.filename}: " if error.filename else ""
        return _fail(f"cannot start: {what}{error.strerror}", "", EXIT_FAILED)
    except Exception:
        from relay.cli.command_line import fault

        error_of_ours = fault()
        return _fail(error_of_ours.message, error_of_ours.hint, EXIT_FAILED)
    if status == -signals.signal.SIGINT:
        # A shell ends its loop or script at Ctrl-C only if the program that had it died of it.
        signals.die_of(-status)
    # Nothing of ours is left to finalise: the interpreter's own end would cost milliseconds.
    os._exit(exit_status(status))


def wrap(options: Options) -> int:
    """Do what the command line says; returns what ``run`` does. Raises RelayError."""
    for flag, given in (
        ("--record-input", options.record_input),
        ("--overwrite", options.overwrite),
    ):
        if given and options.record is None:
            raise UsageError(
                f"{flag} needs --record", hint=f"add --record FILE, or leave out {flag}"
            )
    roles, channels = _words(options.role), _words(options.join)
    for flag, words in (("--role", roles), ("--join", [one.removeprefix("#") for one in channels])):
        for word in words:
            if not valid_name(word):
                raise UsageError(
                    f"{flag}: {word!r} cannot be a name",
                    hint="letters, digits, _ . - (at most 64), and none of relay's own words",
                )
    if options.intent is not None and options.ungoverned:
        raise UsageError("--intent and --ungoverned cannot be combined", hint="leave one out")
    check_writable(options)
    title = options.title or os.environ.get("RELAY_TITLE") == "1"
    recording = None
    if options.record is not None:
        recording = RecordingChoice(options.record, options.record_input, options.overwrite)
    choices = Choices(
        options.command,
        Participant(options.name, options.task, roles, channels),
        TerminalChoice(title, options.type, recording, options.hear),
        Terms(
            options.config,
            not options.no_primer,
            options.mcp,
            options.ungoverned,
            Limits(options.confine, options.intent, options.write),
        ),
        exclusive=True,
    )
    return run(choices)


def _words(text: str | None) -> list[str]:
    return [word.strip() for word in (text or "").split(",") if word.strip()]


def _fail(message: str, hint: str, status: int) -> int:
    from relay.core.visible import visible

    print(f"relay: {visible(message)}", file=sys.stderr)
    if hint:
        print(f"  {visible(hint)}", file=sys.stderr)
    return status or EXIT_USAGE
