"""The other machines: which there are, who is on each, and what it may do here."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress

from relay.broker.batch import Batch
from relay.broker.parts import BrokerParts
from relay.broker.routing import TARGETS_MAX
from relay.core import json_text
from relay.core.agent_names import valid_name
from relay.core.errors import NotFound, RelayError
from relay.features.link.far_outbox import FarOutbox
from relay.features.link.link_records import Presence
from relay.features.link.ops import RIGHTS, Machine
from relay.features.link.wire import AWAY, Wire
from relay.protocol.broker import Json

#: Seconds between two reports of a machine's presence, at least; of many machines each hears about
#: so many a second.
TELL, HEARD = 10.0, 10
#: Up to so many machines all tell at once whom they have when one comes.
FEW = 200
#: Seconds after which the ledger hears again that a machine is there.
_NOTED = 60


class Machines:
    """The other machines of the link."""

    def __init__(self, parts: BrokerParts, wire: Wire, outbox: FarOutbox) -> None:
        self._ledger = parts.kernel.ledger
        self._directory = parts.kernel.directory
        self._wire = wire
        self._outbox = outbox
        self._news = asyncio.Event()
        self._seen_ms: dict[str, int] = {}

    def agents(self) -> dict[str, list[str]]:
        """By machine, the agents that it has."""
        rows = self._ledger.rows("SELECT name, told FROM link_machines")
        return {name: json_text.loads(agents) for name, agents in rows}

    def listed(self) -> list[Machine]:
        """All that is known of them."""
        waiting = self._outbox.waiting()
        rows = self._ledger.rows("SELECT name, seen_ms, told, rights FROM link_machines ORDER BY 1")
        return [
            {
                "name": name,
                "seen_ms": self._seen_ms.get(name, seen_ms),
                "here": self._wire.is_here(name),
                "waiting": waiting.get(name, 0),
                "agents": json_text.loads(agents),
                "rights": rights.split(),
            }
            for name, seen_ms, agents, rights in rows
        ]

    def rights(self, machine: str) -> list[str]:
        """What it may do here beside writing."""
        row = self._ledger.row("SELECT rights FROM link_machines WHERE name=?", (machine,))
        return row[0].split() if row else []

    def allow(self, machine: str, rights: Sequence[str]) -> None:
        """It may do this, and nothing else. Raises NotFound."""
        self.check(machine)
        self._ledger.begin()
        self._ledger.change(
            "UPDATE link_machines SET rights=? WHERE name=?",
            (" ".join(sorted(set(rights))), machine),
        )

    def check(self, name: str) -> None:
        """Raise NotFound unless there is a machine of this name."""
        known = sorted(self.agents())
        if name not in known:
            names = ", ".join(known) or "none yet"
            raise NotFound(f"no machine is called {name}", hint=f"linked machines: {names}")

    def refusal(self, machine: str, right: str) -> RelayError:
        """The refusal of what needs a right that the machine does not have here."""
        rights = " ".join(sorted({*self.rights(machine), right}))
        return RelayError(
            f"{machine} may not {RIGHTS[right]} here",
            hint=f"on {self._wire.link.name}, its person can allow it:"
            f" relay link allow {machine} {rights}",
            code="forbidden",
        )

    def add(self, names: list[str], batch: Batch) -> None:
        """These machines are in the link."""
        self._ledger.begin()
        for name in names:
            self._ledger.change("INSERT OR IGNORE INTO link_machines (name) VALUES (?)", (name,))

    def forget(self, names: list[str], batch: Batch) -> None:
        """These machines are in the link no more."""
        self._ledger.begin()
        for name in names:
            self._outbox.give_up(name, batch)
            self._ledger.change("DELETE FROM link_machines WHERE name=?", (name,))
            self._ledger.change("DELETE FROM link_arrived WHERE machine=?", (name,))
            self._ledger.change("DELETE FROM link_refused WHERE machine=?", (name,))
            self._wire.heard.pop(name, None)
            self._seen_ms.pop(name, None)

    # -- presence

    def tell_now(self) -> None:
        """The others shall hear at once who is here."""
        self._news.set()

    async def run(self) -> None:
        """Tell the other machines who is here, for ever."""
        while True:
            await self._wire.connected.wait()
            link = self._wire.link
            agents = [one.name for one in self._directory.agents() if one.live][:TARGETS_MAX]
            fields: Json = {"agents": agents, "clock": time.time()}
            if link.hosts:
                fields["machines"] = sorted(link.machines)
            await self._wire.tell(fields)
            pause = seconds_between(self._count())
            self._wire.away = AWAY * pause / TELL
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._news.wait()
            self._news.clear()

    def _count(self) -> int:
        row = self._ledger.row("SELECT count(*) FROM link_machines")
        return row[0] if row else 0

    def take(self, machine: str, presence: Presence, batch: Batch) -> None:
        """Take a machine's presence. Only the host says which machines the link has."""
        was_away = not self._wire.is_here(machine)
        self._wire.hear(machine, presence.clock)
        agents = [name for name in presence.agents[:TARGETS_MAX] if valid_name(name)]
        self._seen_ms[machine] = batch.now_ms
        told = json_text.dumps(agents)
        row = self._ledger.row("SELECT seen_ms, told FROM link_machines WHERE name=?", (machine,))
        # A commit to the disk for each presence of each machine would let no disk rest.
        if row is None or row[1] != told or abs(batch.now_ms - (row[0] or 0)) > 1000 * _NOTED:
            self._ledger.change(
                "INSERT INTO link_machines (name, seen_ms, told) VALUES (?,?,?) ON CONFLICT (name)"
                " DO UPDATE SET seen_ms=excluded.seen_ms, told=excluded.told",
                (machine, batch.now_ms, told),
            )
        link = self._wire.link
        if machine == link.host and presence.machines is not None:
            gone = set(self.agents()) - set(presence.machines)
            self.add([name for name in presence.machines if name != link.name], batch)
            if gone:
                self.forget(sorted(gone), batch)
        if was_away:
            batch.after.append(self._outbox.wake)
            if self._count() <= FEW:  # else n² messages, each time that one comes
                batch.after.append(self._news.set)


def seconds_between(machines: int) -> float:
    """Seconds between two presences of each of so many machines."""
    return max(TELL, machines / HEARD)
