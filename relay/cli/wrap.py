"""``relay wrap``: run a program in a terminal that relay listens to.

Everything here happens before the agent starts, so nothing heavy is imported. A file of its own
because its end is its own: it ends as the agent ends, with no interpreter left to finalise.
"""

from __future__ import annotations

import os
import sys

from relay.app.wrapped_run import Choices, exit_status, run
from relay.cli.parser import Options, Parser
from relay.core.agent_names import valid_name
from relay.core.errors import EXIT_FAILED, EXIT_USAGE, RelayError, UsageError

HELP = """\
Run a program so that other agents can talk to it, and it to them.

Examples:
  relay wrap claude                      an agent named "claude"
  relay wrap --name Alice -- claude      an agent named "Alice"
  relay wrap --name Bob ./my-agent       any program will do

Usage: relay wrap [OPTIONS] [--] COMMAND [ARGS…]

Options:
  --name NAME     what others call it (default: made from COMMAND, and unique)
  --role ROLE     what it is for: @relay:ROLE reaches all who have it;
                  several with commas
  --join CHANNEL  the channels that it is in (#build, or build), with commas
  --task TEXT     what it works on; handlers see it as ctx.task
  --config FILE   use this configuration (default: the project's, see
                  relay config show)
  --record FILE   record the terminal into FILE, an asciicast, with known
                  secrets masked; see relay replay --help
  --record-input  record the keys too, except where a password is read
  --overwrite     replace FILE if it exists
  --title         show the name and the roles as the window's title until
                  COMMAND sets one (RELAY_TITLE=1: always)
  --type HOW      how messages are typed: "line" (one line and Enter, whenever
                  COMMAND rests) or "paste"; default: as its terminal shows
  --hear          COMMAND is a shell or the prompt of an interpreter: hear what
                  it shows, whoever wrote that
  --mcp           give the agent relay's tools as an MCP server for this run,
                  if it takes one (Claude Code, Codex, opencode)
  --no-primer     do not tell the agent how to talk to others
  --ungoverned    in a governed project: let it write without an intent, which
                  is written to the trace
  --help          show this help

COMMAND runs in its own terminal with the same keys, output, signals and
exit status as without relay. Options end at COMMAND or at --.

Exit status: COMMAND's own (128 + n when signal n ended it), 127 when it is not
found, 126 when it cannot be run, 1 when relay cannot start, 2 for a mistake in
the options.
"""


def main(argv: list[str]) -> int:
    """Run ``relay wrap`` with ``argv`` (without the verb); returns the exit status."""
    from relay.core import signals

    signals.plain_interrupt()
    try:
        options = PARSER.parse(argv)
        if options.run is not wrap:  # --help
            sys.stdout.write(HELP)
            return 0
        if not options.command:
            raise UsageError("no COMMAND to run", hint="for example: relay wrap claude")
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
            raise UsageError(f"{flag} without --record", hint=f"add --record FILE, or leave {flag}")
    if options.type not in (None, "line", "paste"):
        raise UsageError(f"--type {options.type}: neither line nor paste")
    roles, channels = _words(options.role), _words(options.join)
    for flag, words in (("--role", roles), ("--join", [one.removeprefix("#") for one in channels])):
        for word in words:
            if not valid_name(word):
                raise UsageError(
                    f"{flag} {word}: it is named as agents are",
                    hint="letters, digits, _ . - (at most 64), and none of relay's own words",
                )
    choices = Choices(
        options.command,
        roles=roles,
        join=channels,
        name=options.name,
        task=options.task,
        config=options.config,
        primer=not options.no_primer,
        record=options.record,
        record_input=options.record_input,
        overwrite=options.overwrite,
        title=options.title or os.environ.get("RELAY_TITLE") == "1",
        takes=options.type,
        hear=options.hear,
        mcp=options.mcp,
        exclusive=True,
        ungoverned=options.ungoverned,
    )
    return run(choices)


def _words(text: str | None) -> list[str]:
    return [word.strip() for word in (text or "").split(",") if word.strip()]


def _declared() -> Parser:
    parser = Parser("relay wrap", stops=True)
    for name in ("--name", "--role", "--join", "--task", "--config", "--record", "--type"):
        parser.add_argument(name)
    for name in (
        "--no-primer",
        "--record-input",
        "--overwrite",
        "--title",
        "--ungoverned",
        "--mcp",
        "--hear",
    ):
        parser.add_argument(name, action="store_true")
    parser.add_argument("command", nargs="*")
    parser.set_defaults(run=wrap)
    return parser


def _fail(message: str, hint: str, status: int) -> int:
    from relay.core.visible import visible

    print(f"relay: {visible(message)}", file=sys.stderr)
    if hint:
        print(f"  {visible(hint)}", file=sys.stderr)
    return status or EXIT_USAGE


PARSER = _declared()
