"""Watches a program while a person uses it, and has a profile made of what it showed.

A file of its own, apart from the command line: it alone has the emulator read a recording.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterable

from relay.agents.derive_profile import Picture, derive
from relay.app.throwaway_home import throwaway_home
from relay.core import asciicast
from relay.core.asciicast import CastError, CastEvent, Header
from relay.core.errors import RelayError
from relay.screen.emulator import Emulator

#: What the person is asked to type, and the word that is the answer to it.
DRAFT, ANSWER = "Reply with one word: pineapple", "pineapple"
#: Seconds without output after which a screen is one picture; one that changes on is looked at so
#: often.
_STILL, _OFTEN = 0.12, 0.4
#: Pictures that are kept; the first ones of a longer recording.
PICTURES_MAX = 2000


def learn(name: str, command: list[str]) -> str:
    """Run ``command`` in this terminal until the person ends it; the profile that it makes.

    Raises RelayError where there is nothing to be learnt.
    """
    with throwaway_home("relay-learn-") as home:
        file = os.path.join(home.root, "seen.cast")
        wrap = [sys.executable, "-P", "-m", "relay", "wrap", "--name", name, "--no-primer"]
        # In a governed folder, too: it is the person who tries it out.
        wrap += ["--record", file, "--ungoverned", "--", *command]
        with subprocess.Popen(wrap, env={**os.environ, "RELAY_HOME": home.root}) as process:
            try:
                while process.returncode is None:
                    with contextlib.suppress(KeyboardInterrupt):  # the program's own
                        process.wait()
            finally:
                if process.returncode is None:
                    process.send_signal(signal.SIGHUP)
        return _derived(name, file)


def _derived(name: str, file: str) -> str:
    try:
        with open(file, encoding="utf-8", errors="replace", newline="\n") as recording:
            header, events = asciicast.read(recording)
            return derive(name, pictures_of(header, events), DRAFT, ANSWER)
    except (OSError, CastError, ImportError) as error:
        raise RelayError(
            f"nothing was seen of {name}: {error}", hint="does it start by itself? relay doctor"
        ) from error


def pictures_of(header: Header, events: Iterable[CastEvent]) -> list[Picture]:
    """The screens of a recording, in order, each with how long it stood."""
    emulator = Emulator(header.cols, header.rows, history=0)
    found: list[Picture] = []
    looked = shown = 0.0
    typed = False
    for event in events:
        if event.at - shown > _STILL or event.at - looked > _OFTEN:
            _add(found, emulator, event.at - shown, typed)
            looked = event.at
            if len(found) == PICTURES_MAX:
                return found
        if event.code == asciicast.OUTPUT:
            emulator.feed(event.data.encode("utf-8", "replace"))
        elif event.code == asciicast.RESIZE and (size := event.size()) is not None:
            emulator.resize(*size)
        else:
            if event.code in (asciicast.INPUT, asciicast.KEYS):
                typed = event.data not in ("\r", "entered", "cleared")
            continue
        shown = event.at
    _add(found, emulator, _OFTEN, typed)
    return found


def _add(found: list[Picture], emulator: Emulator, lasted: float, typed: bool) -> None:
    rows, title = tuple(row.rstrip() for row in emulator.visible()), emulator.title
    pastes = emulator.mode(2004)
    if found and (found[-1].rows, found[-1].title) == (rows, title):
        before = found.pop()  # a key shows a moment after it was pressed
        lasted, typed, pastes = lasted + before.lasted, before.typed, before.pastes
    found.append(Picture(rows, title, lasted, pastes, typed))
