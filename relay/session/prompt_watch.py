"""Whether a shell or an interpreter shows its prompt with nothing open: only then it is typed into.

What a terminal shows does not tell a prompt from what continues an open quote, so a prompt is
*proven*. It is, while the person has pressed no key since the program's start or since Ctrl-C,
which takes back whatever was open: what goes on behind a known prompt is a draft. A prompt
that was proven is remembered: the same one after the person's Enter is a prompt again, be it that
another folder stands in it, which the kernel knows. So is any line that names the
shell's folder and ends as prompts do. Where a shell edits its lines itself, what the kernel edits
is the answer to a question.

Source: the manuals of bash, zsh, dash and fish on PS1, PS2, PROMPT2 and their line editors.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from relay.agents.base import Blocked, TypingRules
from relay.core.source_events import Screen, Terminal
from relay.core.state import from_json, to_json
from relay.protocol import frames
from relay.session.open_questions import OpenQuestions

#: Prompts that are remembered; the oldest is forgotten first.
PROMPTS_MAX = 16
#: Columns of one.
PROMPT_MAX = 500
#: A program that shows its first prompt has written nothing for this many seconds.
PROMPT_REST = 0.15
NO_PROMPT = "the shell may be in the middle of something; Ctrl-C there brings a prompt"
KEYS_PRESSED = "keys were pressed at the prompt; Enter or Ctrl-C there lets it in"

#: How a program edits lines that takes pastes at its prompt.
_PASTES = "pastes"
# How prompts end, and questions do not.
_SIGN = re.compile(r"[$#%>❯➜»λ✗✔]\s*$")


@dataclass(slots=True)
class _State:
    """What a checkpoint keeps."""

    #: What stood before the cursor, the program's folder then, and how it reads.
    prompts: list[list[str]] = field(default_factory=list)
    #: The person's last key, whether it was Enter, and whether nothing can be open: no key was
    #: pressed since the start, or since Ctrl-C.
    last: int = 0
    entered: bool = False
    fresh: bool = True
    #: Whether the shell was seen to edit its lines itself at its prompt.
    edits: bool = False
    #: Whether the program has turned bracketed paste on at some time.
    pastes: bool = False
    #: Any program: the person's last key, and the prompts at which lines were taken.
    pressed: int = 0
    lines: dict[str, int] = field(default_factory=dict)


class PromptWatch:
    """Learns the prompts of one program, and says why nothing may be typed there now."""

    def __init__(
        self,
        screen: Screen,
        terminal: Terminal,
        rules: TypingRules,
        state: Mapping[str, Any] = MappingProxyType({}),  # of a session before this one
    ) -> None:
        self.rules = rules
        self._screen = screen
        self._terminal = terminal
        self._saved = from_json(_State, state)
        self.questions = OpenQuestions(screen, terminal, rules, self._saved.lines)
        self._told = 0  # the last key that this session was told of
        self._away = False  # a program that reads keys was in the shell's place when it last wrote
        self._output_at = self._fresh_at = float("-inf")
        self._begins = True  # the next key is the first of a line
        self._begun = False  # that line was begun at the prompt
        self._command = False  # … and has been entered

    def output(self, now: float) -> None:
        """The program wrote something."""
        self._output_at = now
        self._saved.pastes |= self._screen.bracketed_paste
        self._away = self.rules.is_shell and self._is_away()

    def pressed(self, sequence: int, kind: bytes, now: float, *, paged: bool = False) -> None:
        """The person pressed keys, for a pager if ``paged``; the screen is as it was before."""
        if sequence > self._saved.pressed:  # else the pump repeats it, and the screen is another
            self._saved.pressed = sequence
            if not paged:
                self.questions.pressed(kind)
        if self._watches and self._told == self._saved.last < sequence:
            # Before a first command is the last time to learn a prompt. The screen is as it was
            # then, but of the terminal the kernel tells what it is now: the command may run.
            proven = self._proven(now, typing=False)
            self._begun = proven if self._begins else self._begun
            self._saved.edits |= proven and self._edits_itself()
        elif kind == frames.TYPED and not self._watches and not paged:
            raw = not self._terminal.cooked() and not self._screen.bracketed_paste
            self._saved.edits = self._saved.edits or raw
        self._begins = kind in (frames.ENTERED, frames.INTERRUPTED)
        self._command = self._begun and kind == frames.ENTERED
        self._told = sequence
        if not self._watches or sequence <= self._saved.last:
            return
        self._saved.last = sequence
        if self._went_elsewhere(kind):
            return
        self._saved.entered = kind == frames.ENTERED
        self._saved.fresh = kind == frames.INTERRUPTED
        self._fresh_at = now

    @property
    def edits(self) -> bool:
        """Whether the program was seen to edit its lines itself, which takes no pastes."""
        return self._saved.edits

    @property
    def pastes(self) -> bool:
        """Whether the program was seen to take pastes."""
        if self.rules.is_shell:
            # What a program that was started from it has turned on is not the shell's, and may
            # stand on the screen for a moment longer than that program.
            return any(mode == _PASTES for _, _, mode in self._saved.prompts)
        return self._saved.pastes or self._screen.bracketed_paste

    def begins(self, line: str) -> bool:
        """Whether ``line`` begins with a prompt that was proven here."""
        return any(line.startswith(prompt.rstrip()) for prompt, *_ in self._saved.prompts)

    def command(self) -> bool:
        """Whether a line that was begun at the prompt was just entered; true once."""
        command, self._command = self._command, False
        return command

    def shows(self, now: float) -> bool:
        """Whether the program shows its prompt, with nothing behind it."""
        return self._watches and self._proven(now)

    def asks(self) -> str:
        """The question that the program asks its person, which words would answer."""
        if self.rules.comment or (self.rules.is_shell and self.rules.in_front()):
            return ""
        return self.questions.asks()

    def blocked(self, now: float) -> Blocked | None:
        """Why nothing may be typed now."""
        if not self._watches or self._proven(now):
            return None
        again = 0.05 if now - self._output_at < 1.0 else 0.5
        if self.rules.comment:
            return Blocked("the interpreter is not at its prompt", again)
        if not self._saved.fresh and not self._saved.entered:
            return Blocked(KEYS_PRESSED, again)
        return Blocked(NO_PROMPT, again)

    def state(self) -> dict[str, Any]:
        """Return a JSON-able checkpoint."""
        made: dict[str, Any] = to_json(self._saved)
        return made

    # -- inside

    @property
    def _watches(self) -> bool:
        return self.rules.style in ("shell", "comment")

    def _is_away(self) -> bool:
        """Whether a program in the shell's place reads keys. (Of what is typed ahead in lines the
        kernel does not tell.)"""
        return not self._terminal.cooked() and self.rules.in_front() is False

    def _went_elsewhere(self, kind: bytes) -> bool:
        """Whether a program in the shell's place has read the key."""
        was, self._away = self._away, False
        if not self.rules.is_shell or self._terminal.unread() != 0:
            return False
        self._away = self._is_away()
        # The first key after which it is gone is the one that has ended it, as a pager's `q`. (Not
        # Escape: were it the shell's after all, it would not show.)
        return self._away or (was and kind == frames.TYPED)

    def _proven(self, now: float, *, typing: bool = True) -> bool:
        line = self._before_cursor()
        if not line.strip() or len(line) > PROMPT_MAX:
            return False
        if self._saved.last > self._told:
            return False  # a next session has not been told yet what was pressed
        if typing and self.rules.is_shell and self.rules.in_front() is not True:
            return False
        folder, mode = self.rules.folder(), self._mode()
        prompts = [
            variant
            for prompt, there, how in self._saved.prompts
            if how == mode
            for variant in self._variants(prompt, there, folder)
        ]
        # Where several lines were typed at once it stands there once for each that said nothing.
        line = next((prompt for prompt in prompts if _repeats(line, prompt)), line)
        known = line in prompts
        # What goes on behind a prompt is a draft, whatever Enter and Ctrl-C do there.
        may_be = known or not line.startswith(tuple(prompts))
        first = self._saved.fresh and may_be and self._at_rest(line, now, typing)
        if first and not known:
            self._saved.prompts.append([line, folder, mode])
            del self._saved.prompts[:-PROMPTS_MAX]
        if first or not (self._saved.fresh or self._saved.entered):
            self._saved.edits = self._edits_itself() if first and typing else self._saved.edits
            return first
        if typing and self._saved.edits and self._terminal.cooked():
            return False
        self._saved.edits |= known and typing and self._edits_itself()
        looks = known or (may_be and self._shows_folder(line, folder))
        return looks and self.rules.at_prompt(line)

    def _at_rest(self, line: str, now: float, typing: bool) -> bool:
        """Whether this is all that the program shows where nothing is open: its prompt."""
        rests = now - self._output_at >= PROMPT_REST or not typing
        if not rests or self._output_at < self._fresh_at:
            return False  # it is still at work, or Ctrl-C did nothing
        if line.rstrip().endswith("^C"):
            return False
        if self.rules.comment:
            return self.rules.at_prompt(line)
        # A script that runs before the first prompt may ask, too, for a line or for a key.
        edited = not self._terminal.cooked() and self._screen.bracketed_paste
        return bool(_SIGN.search(line)) or (typing and edited)

    def _edits_itself(self) -> bool:
        raw = self.rules.in_front() is True and not self._terminal.cooked()
        return raw or self._screen.bracketed_paste

    def _shows_folder(self, line: str, folder: str) -> bool:
        """Whether this is a prompt by its look: no line of a continued command names the folder."""
        if not folder or not _SIGN.search(line):
            return False
        names = {name for name in self._spellings(folder) if name.strip("/")}
        words = [re.compile(rf"(?<!\w){re.escape(name)}(?!\w)") for name in names]
        return any(w.search(line) and re.search(r"\w", w.sub("", line)) for w in words)

    def _before_cursor(self) -> str:
        rows = self._screen.visible()
        column, row = self._screen.cursor
        return (rows[row] if row < len(rows) else "")[:column].ljust(column)

    def _mode(self) -> str:
        return _PASTES if self._screen.bracketed_paste else "lines"

    def _variants(self, prompt: str, there: str, here: str) -> Iterator[str]:
        """A prompt that was seen in folder ``there``, as it is in folder ``here``."""
        yield prompt
        if there == here or not there or not here:
            return
        for old, new in zip(self._spellings(there), self._spellings(here), strict=True):
            at = prompt.find(old)
            while at >= 0:
                yield prompt[:at] + new + prompt[at + len(old) :]
                at = prompt.find(old, at + 1)

    def _spellings(self, folder: str) -> list[str]:
        """How prompts show a folder: whole, below the home, by its last name, and as fish does."""
        short = folder
        if self.rules.home and (folder + "/").startswith(self.rules.home + "/"):
            short = "~" + folder[len(self.rules.home) :]
        parts = short.split("/")
        fish = [part[: 2 if part.startswith(".") else 1] for part in parts[:-1]] + parts[-1:]
        return [folder, short, os.path.basename(short) or "/", "/".join(fish)]


def _repeats(line: str, prompt: str) -> bool:
    """Whether ``line`` is ``prompt`` several times, or the last row of that."""
    many = prompt * (len(line) // len(prompt) + 1)
    return line.endswith(prompt) and many.endswith(line)
