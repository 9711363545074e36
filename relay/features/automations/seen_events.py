"""Events as automations see them: with who each comes from, and whose its session is.

Kept apart from their runs: what matches them and what tries one out see them too.
"""

from __future__ import annotations

from dataclasses import dataclass

from relay.broker.directory import Directory
from relay.broker.trusted_configs import TrustedConfigs
from relay.core.bounded import BoundedDict
from relay.core.dispatch import RELAY_CHANNEL, Event, PersonType
from relay.core.paths import Home
from relay.features.automations import automation_rows, automation_runs
from relay.features.automations.automation_registry import ActiveAutomation
from relay.features.automations.definition import Principal
from relay.features.automations.settings import llm_settings
from relay.features.personas.evaluation import event_of
from relay.ledger.persons import with_address
from relay.ledger.store import Ledger
from relay.protocol.broker import Json

#: Events that are remembered.
_SEEN_MAX = 64


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
