"""What the person has entered in a shell: only that may speak in its name. Pure.

The screen shows what was entered, but not that it was: a line counts if it was begun at a proven
prompt, or if it ends with what the person is known to have typed, by the fingerprints that come
with their Enter. These tell also what was typed ahead, several lines at once, and further lines of
a command, which a shell shows later, behind other prompts or none.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice

from relay.core.source_events import Entered, Line, Pause, SourceEvent
from relay.directive.grammar import Match
from relay.protocol import frames
from relay.session.detector import Detection, Heard
from relay.session.prompt_watch import PromptWatch

#: Lines that were entered at a shell's prompt and are remembered, characters of each, and what
#: each is remembered to have said.
COMMANDS_MAX, COMMAND_MAX, SAID_MAX = 4, 16 * 1024, 64
#: Lines that were typed and not shown yet, and how many of them a line that is shown may be.
#: Shorter ones stand alone or behind the sign of a command that goes on.
AWAITED_MAX, LOOKED_AT, SHORT = 512, 64, 4


class CommandLines:
    """What the person has entered at a shell's prompt lately: the shell repeats it on purpose."""

    def __init__(self, prompt: PromptWatch, *, ignore: bool) -> None:
        """``ignore``: what nobody has typed is not even held for the person."""
        self._prompt = prompt
        self._ignore = ignore
        # With what each has said already.
        self._entered: deque[tuple[str, set[str]]] = deque(maxlen=COMMANDS_MAX)
        # Fingerprints of lines that the screen has not shown yet, and whether once without a prompt
        # (a terminal echoes what is typed ahead at once, its shell when it comes to it).
        self._awaited: deque[tuple[bytes, bool]] = deque(maxlen=AWAITED_MAX)
        self._goes_on = False  # nothing was said since a line was entered

    def typed(self, lines: bytes) -> None:
        """The person has entered these lines into the shell."""
        size = frames.FINGERPRINT_SIZE
        self._awaited += [(lines[at : at + size], False) for at in range(0, len(lines), size)]

    def reread(self, events: list[SourceEvent]) -> list[SourceEvent]:
        """Tell among the lines those that only show what the person has typed."""
        found: list[SourceEvent] = []
        for event in events:
            if isinstance(event, Line):
                if self._awaited and self._shows_typed(event.text):
                    found.append(Entered(event.text, typed=True))
                    continue
                if self._prompt.begins(event.text):
                    found.append(Pause(event.stream))  # it does not go on with what stands above
            elif isinstance(event, Entered) and self._awaited:
                # A terminal's echo, or behind the shell's prompt, which is not a part of it.
                known = self._shows_typed(event.text)
                known = known or self._shows_typed(event.text, alone=False)
                event = Entered(event.text, typed=known)
            found.append(event)
        return found

    def _shows_typed(self, text: str, *, alone: bool = True) -> bool:
        """``alone``: with nothing before it, it is only a terminal's echo."""
        solid = _solid(text)
        ends: dict[int, bytes] = {}
        for number, (mark, echoed) in enumerate(islice(self._awaited, LOOKED_AT)):
            length = int.from_bytes(mark[:2], "big")
            before = solid[: max(0, len(solid) - length)]
            behind = not before or not self._prompt.rules.at_prompt(before)
            if length > len(solid) or (length < SHORT and not behind):
                continue
            if length not in ends:
                ends[length] = frames.fingerprint(solid[len(before) :])
            if ends[length] != mark or (echoed and alone and not before):
                continue
            if alone and not before:
                self._awaited[number] = mark, True
            else:
                for _ in range(number + 1):
                    self._awaited.popleft()
            return True
        return False

    def entered(self, line: Entered) -> None:
        """A line was entered; it counts if it is known what was typed, or if it was begun at a
        proven prompt, and not among what some program was just writing."""
        begun = self._prompt.command()
        if not (line.typed or begun):
            return
        command = _solid(line.text)
        if self._goes_on and self._entered and not begun:
            # The lines of one command, or what was typed ahead of another.
            command = f"{self._entered.pop()[0]}\n{command}"
        elif begun:
            before = self._entered[-1][0] if self._entered else ""
            command = command.replace("!!", before, 1)  # as shells do
        self._entered.append((command[:COMMAND_MAX], set()))
        self._goes_on = True

    def said(self, texts: list[str]) -> None:
        """The shell, or what runs in it, has shown lines: a command goes on behind no others."""
        starts = self._prompt.rules.at_prompt
        self._goes_on &= not any(text.strip() and starts(text) for text in texts)

    def judged(self, heard: Iterable[Heard]) -> Iterator[Heard]:
        """Mark the finds of which not every line was typed, and leave out what is none at all."""
        for one in heard:
            if not isinstance(one, Detection):
                yield one
            elif not isinstance(one.found, Match):
                continue  # an open block of a file that was shown is nobody's mistake
            elif self._typed(one.found):
                yield one
            elif not self._ignore:
                yield replace(one, shown=True)

    def _typed(self, found: Match) -> bool:
        """Whether a command is about to say this: the latest one as often as it likes, those
        before it only what they have not said yet. A file that says it again does so by itself."""
        lines = [solid for line in found.raw.split("\n") if (solid := _solid(line))]
        body = [solid for line in found.body.split("\n") if (solid := _solid(line))]
        if body and any(line.removesuffix("<<<").endswith(body[0]) for line in lines):
            del body[0]  # it begins behind the target
        lines += body
        what = "\n".join(lines)
        for age, (command, said) in enumerate(reversed(self._entered)):
            if age and (what in said or len(said) >= SAID_MAX):
                continue
            if all(_stands_in(command, line) for line in lines):
                if len(said) < SAID_MAX:
                    said.add(what)
                return True
        return False


def _stands_in(command: str, line: str) -> bool:
    """Whether ``line`` begins and ends in ``command`` where something does: it is not cut out."""
    begins = r"(?:(?<!\w)|(?<=\\n)|(?<=echo))"
    ends = r"(?!\w)|(?=[0-9]?[<>])"
    return re.search(f"{begins}{re.escape(line)}(?:{ends})", command) is not None


def _solid(text: str) -> str:
    """``text`` without blanks: the same however it is wrapped."""
    return "".join(text.split())
