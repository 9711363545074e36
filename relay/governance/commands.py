"""What a shell's line does: whether it reads, writes known files, builds, or cannot be told. Pure.

The worst of its parts counts. What relay cannot take apart, or does not know, is unknown: a line is
never taken for harmless because something in it was not understood.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from relay.governance.intents import GovernanceSettings
from relay.governance.shell_lines import UnreadableLine, commands_of


class CommandKind(StrEnum):
    """What a line needs, from the least to the most."""

    READ = "read"
    #: Every path that it changes is known, and is checked as an edit's.
    WRITE = "write"
    #: It builds or tests: an intent is enough, and what is in ``writes`` is checked.
    RUN = "run"
    #: Nobody can tell what it changes: as the setting ``unknown`` says.
    UNKNOWN = "unknown"
    #: Always a person's yes.
    APPROVE = "approve"


@dataclass(frozen=True, slots=True)
class CommandUse:
    """What one line does. Paths are relative to where it begins; ``~`` is the home folder.

    They are to be checked whatever the kind is. A folder in ``deletes``, ``moves`` or ``copies``
    means all that is below it; if the second of a pair is a folder, the first one comes into it.
    """

    kind: CommandKind
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    deletes: tuple[str, ...] = ()
    moves: tuple[tuple[str, str], ...] = ()
    copies: tuple[tuple[str, str], ...] = ()
    #: Why it is unknown or needs a person ("rm -r deletes whole folders"); "" otherwise.
    why: str = ""


def classify(line: str, settings: GovernanceSettings) -> CommandUse:
    """What ``line`` does. Never raises."""
    try:
        commands_of(line)
    except UnreadableLine as unreadable:
        return CommandUse(CommandKind.UNKNOWN, why=f"relay cannot read this line ({unreadable})")
    return CommandUse(CommandKind.UNKNOWN, why=f"relay does not know {line.split()[:1]}")
