"""What a call of an agent's tool does to files: one table per agent. Pure.

A file of its own beside ``tool_names``: that one says what tools are called, this one which fields
of a call name paths.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class UseKind(StrEnum):
    """What a tool does."""

    READ = "read"
    WRITE = "write"
    DELETE = "delete"
    MOVE = "move"
    EXECUTE = "execute"
    OTHER = "other"  # touches no file of the project: plans, questions, the web
    UNKNOWN = "unknown"  # stands in no table: it may change anything


@dataclass(frozen=True, slots=True)
class ToolUse:
    """One call of a tool. Paths are as the model gave them, relative to ``cwd``."""

    kind: UseKind
    reads: tuple[str, ...] = ()
    #: What it makes or changes.
    writes: tuple[str, ...] = ()
    deletes: tuple[str, ...] = ()
    moves: tuple[tuple[str, str], ...] = ()
    #: The shell's line of one that executes.
    command: str = ""
    #: The folder that the call names to work in; "": the agent's own.
    cwd: str = ""
    #: Why it cannot be told which paths are touched ("the patch cannot be read"); "" where it can.
    blind: str = ""

    @property
    def changed(self) -> tuple[str, ...]:
        """Every path that is made, changed, moved or deleted."""
        return (*self.writes, *self.deletes, *(path for move in self.moves for path in move))
