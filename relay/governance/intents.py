"""What people write in ``.orchestration/active_intents.yaml``: intents, and how strictly to govern.

Pure. A file of its own because the gate, the verbs and the log page all use what stands in it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

#: The folder of a governed project, and the files in it.
FOLDER = ".orchestration"
INTENTS_FILE = "active_intents.yaml"
TRACE_FILE = "agent_trace.jsonl"
MAP_FILE = "intent_map.md"
LESSONS_FILE = "CLAUDE.md"
#: Bytes of the file; a larger one is refused.
FILE_MAX = 1024 * 1024


class Status(StrEnum):
    """How far an intent is. Only one that is in progress lets anybody write."""

    PENDING = "PENDING"
    IN_PROGRESS = "IN_PROGRESS"
    COMPLETE = "COMPLETE"
    BLOCKED = "BLOCKED"


class Unknown(StrEnum):
    """What becomes of a command or tool of which nobody can tell what it changes."""

    APPROVE = "approve"  # a person is asked
    REFUSE = "refuse"
    ALLOW = "allow"  # an intent is enough


@dataclass(frozen=True, slots=True)
class Intent:
    """One intent, as the file has it."""

    id: str
    name: str
    status: Status
    #: Globs relative to the project's root; one that begins with ``!`` excludes, and always wins.
    owned_scope: tuple[str, ...]
    constraints: tuple[str, ...] = ()
    acceptance_criteria: tuple[str, ...] = ()
    #: The line of the file on which it begins, from 1.
    line: int = 0


@dataclass(frozen=True, slots=True)
class GovernanceSettings:
    """The section ``governance`` of the file; each has a default. Globs match whole commands."""

    #: Commands, beside relay's own lists, that only read; that build or test, for which an intent
    #: is enough; and that always need a person's yes.
    read_commands: tuple[str, ...] = ()
    run_commands: tuple[str, ...] = ()
    approve_commands: tuple[str, ...] = ()
    #: The same for tools that relay does not know, such as those of MCP servers.
    read_tools: tuple[str, ...] = ()
    run_tools: tuple[str, ...] = ()
    approve_tools: tuple[str, ...] = ()
    unknown: Unknown = Unknown.APPROVE
    #: Seconds that a person has to say yes, and that a lease lasts without a further write.
    approve_seconds: float = 300.0
    lease_seconds: float = 600.0
    #: An agent selects its intent anew in every turn.
    select_every_turn: bool = False


@dataclass(frozen=True, slots=True)
class IntentDocument:
    """The whole file, by intents' ids in the file's order."""

    intents: dict[str, Intent] = field(default_factory=dict)
    settings: GovernanceSettings = field(default_factory=GovernanceSettings)
