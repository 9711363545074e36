"""What the kind of a program asks of whoever types into it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from relay.directive.envelope import Style


@dataclass(frozen=True, slots=True)
class TypingRules:
    """By default those of a program that is not known.

    ``style`` is how messages are worded, None for lines or a paste, whatever the program takes.
    ``cooked`` is why nothing is typed while the kernel edits lines (empty: lines are typed then).
    ``enter`` is the key that submits a paste, by what the screen shows. ``spell`` writes a body so
    that the program leaves its words alone. ``shows_paste``: its input line surely shows a paste.
    With ``comment`` an interpreter is typed into, only where ``at_prompt`` (of the cursor's row up
    to the cursor) says so, and each line begins with it. ``in_front`` says of a shell whether it is
    itself in front in its terminal (None: nobody knows). ``refusal`` is why nothing is ever typed.
    """

    style: Style | None = None
    comment: str = ""
    cooked: str = ""
    enter: Callable[[list[str]], bytes] = lambda rows: b"\r"
    spell: Callable[[str], str] = lambda body: body
    shows_paste: bool = False
    refusal: str = ""
    at_prompt: Callable[[str], bool] = lambda line: True
    in_front: Callable[[], bool | None] = lambda: None


UNKNOWN = TypingRules()
