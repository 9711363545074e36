"""Finds directives in a source's lines: one scanner per stream, one id per utterance. Pure.

The id of a detection is derived from where it was said. So the same words heard again (a killed
session's output is replayed, a transcript is read twice) get the same id and are sent once, and the
same words said twice on purpose get two ids.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from relay.core.bounded import BoundedDict
from relay.core.ids import derived_ulid
from relay.core.source_events import End, GoesOn, Line, Pause, Proof, StateChange
from relay.directive.explain import Misses
from relay.directive.grammar import Found, Match, Scanner

#: Streams that are remembered: a structured source opens one per message.
STREAMS_MAX = 64
#: Distinct utterances whose number of occurrences is remembered; the oldest is forgotten first.
COUNTS_MAX = 4096
#: The stream of everything that is heard on the screen.
SCREEN = "screen"
#: Characters of a near miss that its notice shows.
SHOWN_MAX = 80


@dataclass(frozen=True, slots=True)
class Detection:
    """A directive with its id (a ULID that is the same whenever the words are heard again)."""

    id: str
    found: Found
    #: Read off a screen, where a program may draw words otherwise than they were said.
    drawn: bool = False


@dataclass(frozen=True, slots=True)
class AgentSaid:
    """All lines that the agent said, in order."""

    texts: list[str]


@dataclass(frozen=True, slots=True)
class ForAgent:
    """A notice to the agent about its own words: a line that nearly was a message (once for each
    kind and run), or words that its screen keeps from being heard."""

    text: str


#: What the session hears of an agent.
Heard = Detection | ForAgent | AgentSaid | StateChange | Proof


class DirectiveDetector:
    """Finds directives in lines, and gives each its id."""

    def __init__(self, run_id: str, started_ms: int, namespaces: Collection[str]) -> None:
        self._run_id = run_id
        self._started_ms = started_ms
        self._namespaces = frozenset(namespaces)
        self._misses = Misses(namespaces)
        self._missed: set[str] = set()  # the kinds of which the agent was told
        self._scanners: BoundedDict[str, Scanner] = BoundedDict(STREAMS_MAX)
        self._counts: BoundedDict[str, int] = BoundedDict(COUNTS_MAX)
        # The highest count that was forgotten; words that are said again count on from there.
        self._forgotten = 0

    def feed(self, event: Line | Pause | GoesOn | End) -> list[Detection]:
        """The detections that this line, pause or end completes, or that continue after a pause."""
        if isinstance(event, End) and event.aborted:
            self._scanners.pop(event.stream, None)
            return []
        scanner = self._scanner(event.stream)
        if isinstance(event, Line):
            found = scanner.line(event.text)
        elif isinstance(event, Pause):
            found = scanner.pause()
        elif isinstance(event, GoesOn):
            found = scanner.goes_on(event.text)
        else:
            found = scanner.end()
        return [self._detection(event.stream, item) for item in found]

    def lines(
        self, stream: str, texts: list[str], own: bool = False
    ) -> Iterator[tuple[int, Detection | ForAgent]]:
        """The detections in many lines of one stream, each with the number of lines up to it.

        ``own``: they are certainly the agent's own words, so near misses are reported, too. On a
        screen they may be anybody's, and a program may take a notice for an answer.
        """
        scanner = self._scanner(stream)
        for number, text in enumerate(texts, 1):
            if own and ("@" in text or "＠" in text):
                kind, why = self._misses.near(text, scanner.inside)
                if kind and kind not in self._missed:
                    self._missed.add(kind)
                    yield number, ForAgent(_told(text, why))
            for item in scanner.line(text):
                yield number, self._detection(stream, item)

    def is_open(self, stream: str) -> bool:
        """Whether a message is being collected in this stream."""
        scanner = self._scanners.get(stream)
        return scanner is not None and scanner.open

    def inside(self, stream: str) -> str:
        """The construct that the next line of this stream is in, see Scanner."""
        scanner = self._scanners.get(stream)
        return scanner.inside if scanner is not None else ""

    def abandon(self) -> None:
        """Forget unfinished messages, in every stream."""
        self._scanners.clear()

    def close(self) -> list[Detection]:
        """The session is over: every stream ends."""
        heard: list[Detection] = []
        for stream in list(self._scanners):
            heard += self.feed(End(stream))
        return heard

    def state(self) -> dict[str, Any]:
        """A JSON-able snapshot from which :meth:`restore` goes on."""
        return {
            "scanners": {stream: scanner.state() for stream, scanner in self._scanners.items()},
            "counts": dict(self._counts),
            "forgotten": self._forgotten,
            "missed": sorted(self._missed),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`state` was taken."""
        for stream, scanner in state["scanners"].items():
            self._scanner(stream).restore(scanner)
        self._counts.update(state["counts"])
        self._forgotten = state["forgotten"]
        self._missed.update(state.get("missed", ()))

    def _scanner(self, stream: str) -> Scanner:
        scanner = self._scanners.get(stream)
        if scanner is None:
            scanner = self._scanners[stream] = Scanner(self._namespaces, drawn=stream == SCREEN)
        return scanner

    def _detection(self, stream: str, found: Found) -> Detection:
        return Detection(self._identify(stream, found), found, drawn=stream == SCREEN)

    def _identify(self, stream: str, found: Found) -> str:
        # A screen's text may be cut differently when it is replayed faster than it came, so only
        # the head line counts there; a message of a structured source has fixed words.
        words = found.raw if isinstance(found, Match) else f"{type(found).__name__}:{found.target}"
        key = "\x1f".join((stream, " ".join(words.split())))
        count = self._counts.get(key, self._forgotten) + 1
        if (oldest := self._counts.put(key, count)) is not None:
            self._forgotten = max(self._forgotten, oldest[1])
        return derived_ulid(self._started_ms, self._run_id, key, str(count))


def _told(line: str, why: str) -> str:
    """A notice that quotes ``line``; no row of the notice begins with it."""
    shown = line.strip()
    shown = shown if len(shown) <= SHOWN_MAX else shown[: SHOWN_MAX - 1] + "…"
    return (
        f'the line "{shown}" is not a message and did nothing: {why}. A message is a line that'
        " begins with the address, such as @relay:Bob and the text. If none was meant, do nothing"
    )


def match_event_id(heard: Detection) -> str:
    """The id of a detection's event. It differs from the detection's own id, which its message
    gets: otherwise the message would count as stored already."""
    return heard.id[:10] + derived_ulid(0, heard.id, "match")[10:]


def match_meta(match: Match) -> dict[str, Any]:
    """The metadata of a detection's event."""
    return {"namespace": match.namespace, "target": match.target}
