"""What automations are to run, what they ran, and what is left of a run: the writing side.

An event is due for the stage (``STAGE``) from the commit that stores it; the stage makes of that
one row for each automation that wants it (``run_key``), so that a slow one has a backlog of its
own; and the row goes with the commit that has the run. ``SeenEvents`` adds to an event who it comes
from, and whose its session is.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from relay.broker.directory import Directory
from relay.broker.trusted_configs import TrustedConfigs
from relay.core.bounded import BoundedDict
from relay.core.dispatch import DEFAULT_PERSONA, RELAY_CHANNEL, Event, PersonType
from relay.core.paths import Home
from relay.features.automations import automation_rows, automation_runs
from relay.features.automations.automation_rows import ActiveAutomation, AutomationRow
from relay.features.automations.automation_runner import RunAnswer
from relay.features.automations.definition import Principal
from relay.features.automations.settings import llm_settings
from relay.features.personas import due_rows
from relay.features.personas.evaluation import event_of
from relay.ledger.persons import with_address
from relay.ledger.store import Ledger
from relay.protocol.broker import Json

#: The handlers in ``due``; those of configurations have no slash.
STAGE = "automations"
_RUNS = "automation/"
#: Events that are remembered.
_SEEN_MAX = 64


def run_key(automation: str) -> str:
    """The key under which the runs of one automation are due."""
    return _RUNS + automation


def automation_of(key: str) -> str:
    """The automation whose runs are due under this key; "" where it is none's."""
    return key.removeprefix(_RUNS) if key.startswith(_RUNS) else ""


def is_ours(key: str) -> bool:
    """Whether automations are due under it, and not a configuration's route functions."""
    return key == STAGE or key.startswith(_RUNS)


def begun(ledger: Ledger) -> dict[str, int]:
    """For which event each automation was run last, whether that run has ended or not."""
    return dict(ledger.rows("SELECT id, begun FROM automations WHERE begun NOT NULL"))


def note_begun(ledger: Ledger, automation: str, event: int) -> None:
    """An automation is about to be run for an event, within the open transaction."""
    ledger.change("UPDATE automations SET begun=? WHERE id=?", (event, automation))


def note_skipped(ledger: Ledger, automation: str, count: int) -> None:
    """So many runs were left out because the circuit is open, within the open transaction."""
    ledger.change("UPDATE automations SET skipped=skipped+? WHERE id=?", (count, automation))


def ran(ledger: Ledger, event: int) -> set[str]:
    """The automations that were run for an event."""
    found = ledger.rows("SELECT automation FROM automation_runs WHERE event=?", (event,))
    return {str(row[0]) for row in found}


def outcome(ledger: Ledger, event: int) -> Json | None:
    """How the automations of an event ran, and how many dispatches follow from them; None while it
    is due to one of them."""
    if any(automation_of(key) for key in due_rows.of_event(ledger, event)):
        return None
    runs = ledger.rows(
        "SELECT a.name, r.fired, r.error FROM automation_runs r JOIN automations a"
        " ON a.id = r.automation WHERE r.event=? ORDER BY r.seq",
        (event,),
    )
    made = ledger.rows(
        "SELECT count(*) FROM dispatches WHERE event=? AND hook_id LIKE 'automation/%'", (event,)
    )
    told = [{"name": name, "fired": bool(fired), "error": error} for name, fired, error in runs]
    return {"automations": told, "dispatches": int(made[0][0])}


def enriching(ledger: Ledger, event: int) -> list[Json]:
    """What automations have added to an event, of the highest priority first: where they did not
    fire, or block."""
    found = ledger.rows(
        "SELECT json_extract(r.result_json, '$.enrich') FROM automation_runs r"
        " JOIN automation_versions v ON v.automation = r.automation AND v.version = r.version"
        " WHERE r.event=? AND json_extract(r.result_json, '$.enrich') NOT NULL"
        " AND (NOT r.fired OR json_extract(v.definition_json, '$.blocking'))"
        " ORDER BY json_extract(v.definition_json, '$.priority') DESC, r.seq",
        (event,),
    )
    return [json.loads(row[0]) for row in found]


def add_run(
    ledger: Ledger, row: AutomationRow, event: int, answer: RunAnswer, *, retry: bool
) -> None:
    """Append one run, within the open transaction. Only the first of an automation for an event
    counts."""
    result = answer.result
    ledger.change(
        "INSERT OR IGNORE INTO automation_runs (automation, version, event, started_ms,"
        " latency_us, fired, retry, llm_calls, result_json, error, log)"
        " VALUES (?,?,?,?,?,?,?,?,?,?,?)",
        (
            *(row.id, row.version, event, answer.started_ms, answer.latency_us),
            *(result is not None and result.fire, retry, answer.llm_calls),
            None if result is None else json.dumps(result.to_json()),
            *(answer.error, answer.log or None),
        ),
    )


def save_circuit(
    ledger: Ledger, automation: str, errors: int, opened_ms: int | None, fired_ms: int | None
) -> None:
    """Store how an automation is after a run, within the open transaction: its circuit, and when
    it fired; None: it did not."""
    ledger.change(
        "UPDATE automations SET errors=?, opened_ms=?, last_fired_ms=ifnull(?,last_fired_ms)"
        " WHERE id=?",
        (errors, opened_ms, fired_ms, automation),
    )


def persona_of(ledger: Ledger, session: str) -> str:
    """The persona that was last used in the session with this label; ``default`` if none was."""
    found = ledger.row(
        "SELECT persona FROM agent_sessions WHERE label=? AND persona NOT NULL"
        " ORDER BY updated_ms DESC LIMIT 1",
        (session,),
    )
    return DEFAULT_PERSONA if found is None else str(found[0])


@dataclass(frozen=True, slots=True)
class SeenEvent:
    """An event as automations see it. ``cwd``: of the agent it comes from; "" where it is none's.
    ``persona``: whom its session belongs to."""

    event: Event
    principal: Principal
    cwd: str
    persona: str


class SeenEvents:
    """The last of them. Belongs to the broker's loop."""

    def __init__(
        self, ledger: Ledger, configs: TrustedConfigs, directory: Directory, home: Home
    ) -> None:
        self._ledger = ledger
        self._configs = configs
        self._directory = directory
        self._home = home
        self._seen: BoundedDict[int, SeenEvent] = BoundedDict(_SEEN_MAX)

    def of(self, seq: int) -> SeenEvent:
        """What runs need of an event."""
        seen = self._seen.get(seq)
        if seen is None:
            seen = self.see(event_of(self._ledger, self._home, seq))
            self._seen[seq] = seen
        return seen

    def forget(self, seq: int) -> None:
        """An event of this number was not stored after all: another one will have it."""
        self._seen.pop(seq, None)

    def see(self, event: Event) -> SeenEvent:
        """What runs need of an event: who it comes from, and whom its session belongs to."""
        member = None
        if event.channel == RELAY_CHANNEL and event.sender_type is PersonType.AGENT:
            member = self._directory.get(event.sender)
        cwd = "" if member is None else member.record.cwd or ""
        persona = automation_runs.persona_of(self._ledger, event.session_key)
        return SeenEvent(event, self._principal(event), cwd, persona)

    def _principal(self, event: Event) -> Principal:
        person = with_address(self._ledger, event.channel, event.sender)
        if person is None:
            return Principal(event.sender_type, event.sender)
        # What somebody calls himself whom nobody has named proves nothing.
        name = event.sender if person.type is PersonType.UNKNOWN else person.name
        return Principal(event.sender_type, name, person.relationship, person.id)

    def question(self, one: ActiveAutomation, seen: SeenEvent, *, dry: bool = False) -> Json:
        """What a worker is asked: to run an automation for an event."""
        row, event = one.row, seen.event
        return {
            "automation": row.id,
            "version": row.version,
            "name": row.name,
            "path": row.path,
            "event": event.to_json(),
            "principal": seen.principal.to_json(),
            "permissions": event.default_permissions.to_json(),
            "session": {"key": event.session_key, "persona": seen.persona},
            "about": {
                "id": row.id,
                "name": row.name,
                "created_at": row.created_ms,
                "last_triggered": row.last_fired_ms,
                "config": one.definition.config,
            },
            "state": automation_rows.state(self._ledger, row.id),
            "llm": llm_settings(self._configs, row.folder),
            "deadline": one.definition.deadline,
            "dry": dry,
        }
