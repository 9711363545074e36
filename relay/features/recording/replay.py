"""``relay replay FILE``: what would have fired in a recorded terminal, and why not.

The recording is heard by the sources, detector, grammar and registry of a live session. No handler
runs, and the time is what the recording says: no clock is read.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import IO

from relay.agents.known_agents import ADAPTERS, profile_of_run
from relay.cli import output, table
from relay.cli.parser import Options, Parser
from relay.cli.verbs import verb
from relay.config.load import LoadedConfig, load_for_session
from relay.config.settings import Settings
from relay.core import asciicast
from relay.core.asciicast import CastError, CastEvent, Header, read
from relay.core.errors import NotFound, RelayError
from relay.core.paths import Home
from relay.directive.explain import Misses
from relay.directive.grammar import Match
from relay.hooks.registry import PatternHandler, Registry
from relay.protocol import frames
from relay.pump.activity import Keyboard
from relay.screen import emulator_library
from relay.screen.line_events import squeeze
from relay.screen.source import ScreenSource, make_source
from relay.session.detector import SCREEN, Detection, DirectiveDetector, ForAgent, Heard
from relay.session.door import SessionFacts
from relay.session.feature_parts import SessionModules
from relay.session.handler_lanes import refusal, register
from relay.session.sources import SourceSelector

#: The longest line that is read of a file.
_LINE_MAX = 64 * 1024 * 1024
_TEXT = (
    "Play a recording (asciicast, see relay wrap --record) as relay would hear it, and print "
    "what would fire. Nothing is sent and no handler runs."
)
#: What stands on the screen is looked at for misses after a rest of this many seconds.
LOOK_AFTER = 0.5
#: Lines that were heard and are remembered to tell what was not; the oldest are forgotten.
_HEARD_MAX = 10_000
_TICKS_MAX = 10_000
_PASTE = re.compile(r"\x1b\[20[01]~")
_KINDS = {"typed": frames.TYPED, "entered": frames.ENTERED, "cleared": frames.CLEARED}


def add(verbs: Parser) -> None:
    parser = verb(verbs, "replay", description=_TEXT)
    parser.add_argument("file", metavar="FILE", help="the recording; - reads stdin")
    parser.add_argument(
        "--misses", action="store_true", help="also what almost fired, and why it did not"
    )
    parser.add_argument("--config", metavar="FILE", help="use this configuration, if it is trusted")
    parser.add_argument("--json", action="store_true", help="print JSON, with whole bodies")
    parser.gone("--source", "a recording is always read from the screen; leave the option out")
    parser.set_defaults(run=run)


def run(options: Options) -> int:
    """Play the file and print the findings."""
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
    name = header.relay.get("agent") or header.title
    if options.json:
        output.as_json([_fields(finding, name) for finding in replay.found])
    else:
        _table(replay.found)
    return 0


def _opened(path: str) -> AbstractContextManager[IO[str]]:
    if path == "-":
        return nullcontext(sys.stdin)
    try:
        return open(path, encoding="utf-8", errors="replace", newline="\n")
    except FileNotFoundError:
        raise NotFound(f"there is no file {path}", hint="check the name") from None
    except OSError as error:
        why = error.strerror
        raise RelayError(f"cannot read {path}: {why}", hint="check the name") from None


def _source(header: Header, home: Home, namespaces: Collection[str]) -> ScreenSource:
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
    profile = str(header.relay.get("profile") or "")
    if profile in ADAPTERS:
        output.note(
            f"note: {profile} is read from what it reports itself; its screen only counts "
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


@dataclass(frozen=True, slots=True)
class Finding:
    """One directive: it ``fires``, by ``handlers`` in this order, or ``why`` says why not.

    ``at`` is in seconds of the recording; ``directive`` is ``@namespace:target``, or the whole line
    of a miss (``missed``: the agent would not have been told either).
    """

    at: float
    directive: str
    body: str = ""
    attributes: dict[str, str] = field(default_factory=dict)
    block: bool = False
    handlers: tuple[str, ...] = ()
    why: str = ""
    missed: bool = False

    @property
    def fires(self) -> bool:
        return not self.why


class Replay:
    """Hears one recording; ``found`` are the findings so far, in the order of their times.

    ``notes`` are what the source could not hear. Misses are only looked for with ``misses``.
    """

    def __init__(
        self,
        source: ScreenSource,
        registry: Registry,
        header: Header,
        *,
        misses: bool = False,
    ) -> None:
        self.found: list[Finding] = []
        self._source = source
        self._registry = registry
        self._misses = Misses(registry.namespaces()) if misses else None
        self._own = bool(header.relay)
        self._keyboard = Keyboard(self._pressed)
        self._now = 0.0
        self._lines: dict[str, None] = {}
        self._look_at: float | None = None
        self._seen: set[str] = set()
        detector = _LineShowingDetector(registry.namespaces(), self._line)
        self._sources = SourceSelector(detector, source, None)

    @property
    def notes(self) -> list[str]:
        return self._sources.notes

    def run(self, events: Iterable[CastEvent]) -> None:
        """Hear all of it, and the end of it. What ``events`` raises comes through."""
        for event in events:
            self._until(event.at)
            self._take(event)
        self._hear(self._sources.finish(self._now))
        self._look()

    def _until(self, now: float) -> None:
        """Time passes: do what is due, each at its moment."""
        for _ in range(_TICKS_MAX):
            times = (self._sources.next_deadline(), self._keyboard.deadline(), self._look_at)
            due = min((at for at in times if at is not None), default=None)
            if due is None or due > now:
                break
            self._now = max(self._now, due)
            self._hear(self._sources.tick(self._now))
            self._keyboard.tick(False, self._now)
            if self._look_at is not None and self._now >= self._look_at:
                self._look()
        self._now = max(self._now, now)

    def _take(self, event: CastEvent) -> None:
        now = self._now
        if event.code == asciicast.OUTPUT:
            self._hear(self._sources.output(event.data.encode("utf-8", "replace"), now))
            if self._misses is not None and ("@" in event.data or self._look_at is not None):
                self._look_at = now + LOOK_AFTER
        elif event.code == asciicast.RESIZE and (size := event.size()) is not None:
            self._hear(self._sources.resize(*size, now))
        elif event.code == asciicast.KEYS and event.data in _KINDS:
            self._pressed(_KINDS[event.data])
        elif event.code == asciicast.INPUT and not self._own:
            self._keyboard.pressed(event.data.encode("utf-8", "replace"), False, now)
        elif event.code == asciicast.WORDS:
            self._source.expect_echo(_PASTE.sub("", event.data).rstrip("\r\n"), now)

    def _pressed(self, kind: bytes) -> None:
        self._hear(self._sources.activity(kind, self._now))

    # -- what is heard

    def _hear(self, heard: list[Heard]) -> None:
        for one in heard:
            if isinstance(one, Detection):
                self._detected(one)

    def _detected(self, heard: Detection) -> None:
        found = heard.found
        directive = f"@{found.namespace}:{found.target}"
        why = refusal(self._registry, heard)
        if not isinstance(found, Match):
            self.found.append(Finding(self._now, directive, why=why))
            return
        handlers = self._registry.select(found.namespace, found.target)
        self.found.append(
            Finding(
                self._now,
                directive,
                found.body,
                found.attributes,
                found.block,
                tuple(map(handler_name, handlers)),
                why,
            )
        )

    def _line(self, text: str, inside: str) -> None:
        if self._misses is None or "@" not in text:
            return
        self._lines[squeeze(text)] = None
        while len(self._lines) > _HEARD_MAX:
            del self._lines[next(iter(self._lines))]
        if why := self._misses.why_not(text, inside):
            self._missed(text.strip(), why)

    def _missed(self, line: str, why: str) -> None:
        self.found.append(Finding(self._now, line, why=why, missed=True))

    def _look(self) -> None:
        """What stands on the screen and was not heard as the agent's words."""
        self._look_at = None
        if self._misses is None:
            return
        for row in self._source.visible():
            text = squeeze(row)
            if not self._misses.looks(text) or text in self._seen:
                continue
            self._seen.add(text)
            if not any(text in line or text.endswith(line) for line in self._lines):
                self._missed(text, "on the screen, but not as the agent's words: typed or drawn")


class _LineShowingDetector(DirectiveDetector):
    """Shows each line to ``on_line``, with what it stands in."""

    def __init__(self, namespaces: Collection[str], on_line: Callable[[str, str], None]) -> None:
        super().__init__("replay", 0, namespaces)
        self._on_line = on_line

    def lines(
        self, stream: str, texts: list[str], own: bool = False
    ) -> Iterator[tuple[int, Detection | ForAgent]]:
        for number, text in enumerate(texts, 1):
            inside = self.inside(stream)
            for _, heard in super().lines(stream, [text]):
                yield number, heard
            if stream == SCREEN:
                self._on_line(text, inside)


def handler_name(handler: PatternHandler) -> str:
    """For people: ``relay (built-in)``, or the function and its file."""
    if handler.builtin:
        return f"{handler.namespace} (built-in)"
    return handler.callee.name.partition(" ")[2]
