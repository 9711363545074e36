"""Why a call is refused, as one JSON object that a model can act on. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from relay.core.errors import RelayError
from relay.core.visible import visible
from relay.features.governance.governance_store import Lease
from relay.features.governance.intents import Intent, Status
from relay.features.governance.mutation import ABSENT, FileMutation

#: What ``type`` says of every refusal.
TYPE = "HOOK_BLOCKED"
#: Characters of the error and of one step; the rest is cut.
ERROR_MAX, STEP_MAX = 2000, 500
#: Intents, globs or files that one text lists.
LISTED_MAX = 10
READING = "Reading needs no intent: go on reading meanwhile."


class Reason(StrEnum):
    """Why a call is refused; models and programs tell refusals apart by it."""

    INTENT_REQUIRED = "INTENT_REQUIRED"
    INTENT_INACTIVE = "INTENT_INACTIVE"  # it vanished, or is no longer in progress
    INTENTS_INVALID = "INTENTS_INVALID"
    SCOPE_VIOLATION = "SCOPE_VIOLATION"
    STALE_FILE = "STALE_FILE"  # changed since it was read, or never read
    FILE_LEASED = "FILE_LEASED"
    HUMAN_REJECTED = "HUMAN_REJECTED"  # a person said no, or nobody said yes in time
    UNKNOWN_CHANGE = "UNKNOWN_CHANGE"
    PROTECTED_FILE = "PROTECTED_FILE"
    ENGINE_FAILED = "ENGINE_FAILED"


@dataclass(frozen=True, slots=True)
class Refusal:
    """One call that does not happen: why, and what its model can do about it."""

    reason: Reason
    error: str
    recovery: tuple[str, ...] = ()

    def text(self, tool: str) -> str:
        """The whole of what the model reads: one JSON object on one line."""
        return json.dumps(
            {
                "error": _cut(self.error, ERROR_MAX),
                "type": TYPE,
                "tool": _cut(tool, STEP_MAX),
                "reason": self.reason.value,
                "recovery": [_cut(step, STEP_MAX) for step in self.recovery],
            }
        )


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 6] + " [cut]"


# -- the words of each reason


def intent_required(intents: Mapping[str, Intent]) -> Refusal:
    """Nothing was selected yet."""
    return Refusal(
        Reason.INTENT_REQUIRED,
        "No intent is selected: this project lets nobody write without one.",
        _how_to_select(intents),
    )


def intent_inactive(id_: str, intents: Mapping[str, Intent]) -> Refusal:
    """What was selected allows nothing any more."""
    intent = intents.get(id_)
    now = f"is {intent.status}, no longer IN_PROGRESS" if intent else "is no longer in the file"
    return Refusal(
        Reason.INTENT_INACTIVE,
        f'The selected intent "{visible(id_)}" {now}.',
        ("Tell the person if its work is not done.", *_how_to_select(intents)),
    )


def intents_invalid(why: str) -> Refusal:
    """The file of intents cannot be used."""
    return Refusal(
        Reason.INTENTS_INVALID,
        f"Nobody can write while the intents of this project cannot be read: {visible(why)}",
        ("Tell the person what is wrong.", "See all of it: relay intent check", READING),
    )


def scope_violation(intent: Intent, path: str) -> Refusal:
    """A file that the intent does not own."""
    return Refusal(
        Reason.SCOPE_VIOLATION,
        f'Intent "{visible(intent.id)}" is not authorized to write to "{visible(path)}".'
        f" Authorized scope: [{_some(intent.owned_scope)}]",
        (
            "Do the work inside the scope.",
            "If another intent owns the file, select that one: relay intent list",
            "Else ask the person to widen the scope.",
        ),
    )


def violation(intent: Intent, found: Sequence[tuple[FileMutation, bool]]) -> str:
    """What was found after a call: files that the intent does not own, and whether their modes
    were changed."""
    told = []
    for file, mode in found[:LISTED_MAX]:
        how = "made" if file.before == ABSENT else "removed" if file.after == ABSENT else "changed"
        what = "its mode was changed" if mode and file.before == file.after else how
        told.append(f"{visible(file.path)} ({what})")
    more = f" and {len(found) - LISTED_MAX} more" if len(found) > LISTED_MAX else ""
    return (
        f'While this call ran, files changed that intent "{visible(intent.id)}" does not allow:'
        f" {', '.join(told)}{more}. Authorized scope: [{_some(intent.owned_scope)}]"
    )


def outside(path: str, root: str, scratch: Sequence[str]) -> Refusal:
    """A file that is not in the project."""
    steps = ["Write inside the project only."]
    if scratch:
        steps.append(f"Temporary files may go below {visible(scratch[0])}")
    return Refusal(
        Reason.SCOPE_VIOLATION,
        f'"{visible(path)}" is outside of the governed project {visible(root)}.',
        tuple(steps),
    )


def protected_file(path: str) -> Refusal:
    """A file that no intent opens."""
    return Refusal(
        Reason.PROTECTED_FILE,
        f'"{visible(path)}" is written by people only, whatever the intent: it is of the rules and'
        " settings that agents work under, or of the repository itself.",
        (
            "Ask the person to make the change.",
            "For git, use git itself; for a status, relay intent; for a lesson, @intent:learn",
        ),
    )


def stale_file(files: Sequence[tuple[str, str]]) -> Refusal:
    """Files, with what is the matter with each ("was modified since you last read it")."""
    listed = "; ".join(f'"{visible(path)}" {visible(why)}' for path, why in files[:LISTED_MAX])
    more = f"; and {len(files) - LISTED_MAX} more" if len(files) > LISTED_MAX else ""
    first = visible(files[0][0]) if len(files) == 1 else "each of them"
    return Refusal(
        Reason.STALE_FILE,
        f"{listed}{more}.",
        (
            f"Read {first} now, with your tool for reading.",
            "Make the change again, from what stands there.",
        ),
    )


def file_leased(leases: Sequence[Lease], now_ms: int) -> Refusal:
    """Files that somebody else is changing."""
    listed = "; ".join(
        f'"{visible(one.path)}" by {visible(one.agent)}'
        + (f' for intent "{visible(one.intent)}"' if one.intent else "")
        + f", begun {ago(now_ms - one.since_ms)}"
        for one in leases[:LISTED_MAX]
    )
    first = leases[0]
    left = max(1, (max(one.until_ms for one in leases) - now_ms + 999) // 1000)
    return Refusal(
        Reason.FILE_LEASED,
        f"Being changed by another agent: {listed}",
        (
            "Work on something else first; it is free when that agent's turn ends, after"
            f" {left} s at the latest.",
            "Then read the file again, and repeat the call.",
            f'To ask for it: relay send {visible(first.agent)} "TEXT"',
        ),
    )


def unknown_change(why: str) -> Refusal:
    """A call of which nobody can tell what it changes."""
    return Refusal(
        Reason.UNKNOWN_CHANGE,
        f"It cannot be told what this changes: {visible(why)}.",
        (
            "Use your tools for reading and editing files in its place, or simpler commands, one"
            " at a time.",
            "If it is needed, ask the person to add it to the lists in"
            " .orchestration/active_intents.yaml",
        ),
    )


def human_rejected(what: str, by: str, note: str) -> Refusal:
    """A person said no, or nobody said yes."""
    who = "The person said no to" if by else "Only a person's yes allows"
    words = f": {visible(note)}" if note else ""
    return Refusal(
        Reason.HUMAN_REJECTED,
        f"{who} {visible(what)[:200]}{words}",
        ("Do not try it again in another way.", "Go on without it, or ask the person what to do."),
    )


def engine_failed(error: Exception) -> Refusal:
    """relay itself could not decide."""
    return Refusal(
        Reason.ENGINE_FAILED,
        f"relay could not check this call: {type(error).__name__}: {visible(str(error))}",
        (
            "Try once more.",
            "If it fails again, tell the person: relay govern shows what is wrong, and"
            ' relay govern off --reason "..." turns governance off (the person only).',
            READING,
        ),
    )


def not_selectable(intent: Intent, intents: Mapping[str, Intent]) -> RelayError:
    """For a selection of what is done or blocked."""
    return RelayError(
        f'Intent "{visible(intent.id)}" is {intent.status}, so nobody can work on it',
        hint=f"only the person opens it again; {_valid(intents)}",
        code="not_selectable",
    )


def _selectable(intents: Mapping[str, Intent]) -> list[Intent]:
    return [one for one in intents.values() if one.status in (Status.IN_PROGRESS, Status.PENDING)]


def _valid(intents: Mapping[str, Intent]) -> str:
    ids = [visible(one.id) for one in _selectable(intents)]
    more = f" and {len(ids) - LISTED_MAX} more" if len(ids) > LISTED_MAX else ""
    return f"Valid IDs: {', '.join(ids[:LISTED_MAX])}{more}" if ids else "there is none to select"


def _how_to_select(intents: Mapping[str, Intent]) -> tuple[str, ...]:
    can = _selectable(intents)
    if not can:
        return ("There is no intent to select. Ask the person to add one.", READING)
    listed = [f"{visible(one.id)} ({visible(one.name)[:80]})" for one in can[:LISTED_MAX]]
    more = [f"and {len(can) - LISTED_MAX} more: relay intent list"] * (len(can) > LISTED_MAX)
    id_ = visible(can[0].id)
    return (
        f"Choose the intent that your task belongs to: {'; '.join(listed + more)}",
        f"Select it: relay intent select {id_} in your shell, by itself; or a line of your own that"
        f' is only "@intent:select {id_}"; or your tool select_active_intent, if you have one.',
        "Then call the tool again.",
    )


def _some(globs: Sequence[str]) -> str:
    more = f", and {len(globs) - LISTED_MAX} more" if len(globs) > LISTED_MAX else ""
    return ", ".join(visible(one) for one in globs[:LISTED_MAX]) + more


def ago(ms: int) -> str:
    """How long ago something was."""
    seconds = max(0, ms // 1000)
    return f"{seconds} s ago" if seconds < 120 else f"{seconds // 60} minutes ago"
