"""``relay replay FILE``: what would have fired in a recorded terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import IO, TYPE_CHECKING

from relay.cli import output, table
from relay.cli.parser import Options, Parser
from relay.cli.verbs import verb
from relay.core.errors import NotFound, RelayError
from relay.core.paths import Home

if TYPE_CHECKING:
    from relay.core.asciicast import Header
    from relay.features.recording.replay_recording import Finding, Replay
    from relay.hooks.registry import Registry
    from relay.screen.source import ScreenSource

#: The longest line that is read of a file.
_LINE_MAX = 64 * 1024 * 1024
_TEXT = (
    "Play a recording (asciicast, see relay wrap --record) as relay would hear it, and print "
    "what would fire. Nothing is sent and no handler runs."
)


def add(verbs: Parser) -> None:
    """Declare the verb."""
    parser = verb(verbs, "replay", description=_TEXT)
    parser.add_argument("file", metavar="FILE", help="the recording; - reads stdin")
    parser.add_argument(
        "--misses", action="store_true", help="also what almost fired, and why it did not"
    )
    parser.add_argument("--config", metavar="FILE", help="use this configuration, if it is trusted")
    parser.add_argument("--name", metavar="NAME", help="the agent's name (default: as recorded)")
    parser.add_argument("--json", action="store_true", help="print JSON, with whole bodies")
    parser.gone("--source", "a recording is always heard by the screen; leave the option out")
    parser.set_defaults(run=run)


def run(options: Options) -> int:
    """Play the file and print the findings."""
    from relay.core.asciicast import CastError, read
    from relay.features.recording.replay_recording import Replay

    home = Home.from_env()
    with _opened(options.file) as file:
        lines = iter(lambda: file.readline(_LINE_MAX), "")
        try:
            header, events = read(lines)
            registry = _registry(home, options.config)
            source = _source(header, home, registry.namespaces())
            replay = Replay(source, registry, header, misses=options.misses)
            replay.run(events)
        except CastError as error:
            raise RelayError(
                f"{options.file}, {error}",
                hint="a recording is made with: relay wrap --record FILE -- COMMAND",
                code="recording",
                details={"line": error.line},
            ) from None
    _say(header, replay)
    name = options.name or header.relay.get("agent") or header.title
    if options.json:
        output.as_json([_fields(finding, name) for finding in replay.found])
    else:
        _table(replay.found)
    return 0


@contextmanager
def _opened(path: str) -> Iterator[IO[str]]:
    if path == "-":
        yield sys.stdin
        return
    with ExitStack() as stack:
        try:
            file = stack.enter_context(open(path, encoding="utf-8", errors="replace", newline="\n"))
        except FileNotFoundError:
            raise NotFound(f"there is no file {path}", hint="check the name") from None
        except OSError as error:
            why = error.strerror
            raise RelayError(f"cannot read {path}: {why}", hint="check the name") from None
        yield file


def _source(header: Header, home: Home, namespaces: Collection[str]) -> ScreenSource:
    from relay.agents.known_agents import profile_of_run
    from relay.screen import emulator_library
    from relay.screen.source import make_source

    cache = os.path.join(home.root, "cache")
    emulator_library.check(cache)
    run = {"profile": str(header.relay.get("profile") or ""), "argv": header.command.split()}
    profile, notes = profile_of_run(run, home.profiles)
    for reason in notes:
        output.note(f"note: {reason}")
    size = (header.cols, header.rows)
    return make_source(*size, 0.0, cache=cache, namespaces=namespaces, style=profile.screen)


def _registry(home: Home, config: str | None) -> Registry:
    """The handlers that a session started here would have."""
    from relay.config.load import LoadedConfig, load_for_session
    from relay.config.settings import Settings
    from relay.hooks.registry import Registry
    from relay.session.door import SessionFacts
    from relay.session.feature_parts import SessionModules
    from relay.session.handler_lanes import register

    try:
        loaded = load_for_session(home, os.getcwd(), config)
    except RelayError as error:
        if config is not None:
            raise
        output.note(f"note: a session would go on without its configuration: {error.message}")
        loaded = LoadedConfig(None, Registry(), Settings(), None)
    if loaded.unusable is not None and config is not None:
        raise loaded.unusable
    for line in loaded.not_applied:
        output.note(f"note: {line}")
    register(loaded.registry)
    SessionModules().register(loaded.registry, SessionFacts("", {}, {}, Settings()))
    return loaded.registry


def _say(header: Header, replay: Replay) -> None:
    from relay.agents.known_agents import ADAPTERS

    profile = str(header.relay.get("profile") or "")
    if profile in ADAPTERS:
        output.note(
            f"note: {profile} is heard through what it reports itself; its screen only counts "
            "when that fails"
        )
    for reason in replay.notes:
        output.note(f"note: {reason}")


def _fields(finding: Finding, name: str) -> output.Json:
    return {
        "time": round(finding.at, 6),
        "from": name,
        "directive": finding.directive,
        "attributes": finding.attributes,
        "block": finding.block,
        "body": finding.body,
        "handlers": list(finding.handlers),
        "fires": finding.fires,
        "missed": finding.missed,
        "why": finding.why,
    }


def _table(found: list[Finding]) -> None:
    if not found:
        output.note("nothing would fire; relay replay --misses shows what looks like it")
        return
    rows, remarks = [], []
    for finding in found:
        attributes = "".join(f" [{name}:{value}]" for name, value in finding.attributes.items())
        handlers = ", ".join(finding.handlers) if finding.fires else "-"
        what = "-" if finding.missed else finding.directive + attributes
        text = finding.directive if finding.missed else finding.body
        first = text.partition("\n")[0] + (" …" if "\n" in text else "")
        rows.append((f"{finding.at:.3f}", what, handlers, first))
        remarks.append(finding.why or None)
    head = ("TIME", "DIRECTIVE", "HANDLER", "TEXT")
    table.table(head, rows, width=table.columns(), remarks=remarks)
