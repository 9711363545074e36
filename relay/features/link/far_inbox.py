"""The inbox: what comes from another machine is stored here once, in the order of its sender."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import msgspec

from relay.broker.batch import Accepted, Batch
from relay.broker.broker_tasks import BrokerTasks
from relay.broker.ops_messages import THREAD_MAX, checked_id
from relay.broker.parts import BrokerParts
from relay.broker.routing import EVERYONE, Route, Routing, in_channel
from relay.core import json_text
from relay.core.agent_names import valid_name
from relay.core.errors import RelayError
from relay.core.message import BODY_MAX, MODES, QueueMode
from relay.core.visible import is_visible
from relay.features.link.far_outbox import OUTBOX, FarOutbox
from relay.features.link.link_records import FarMessage, FarState, Presence, Receipts
from relay.features.link.machines import Machines
from relay.features.link.wire import WINDOW, Arrival, Wire
from relay.ledger import queries
from relay.protocol.broker import Json

#: Why a message is refused that is for nobody here.
_NOBODY = "nobody is called that"


class FarInbox:
    """Takes what comes from other machines, and sends receipts."""

    def __init__(
        self,
        parts: BrokerParts,
        wire: Wire,
        machines: Machines,
        outbox: FarOutbox,
        tasks: BrokerTasks,
    ) -> None:
        self._kernel = parts.kernel
        self._ledger = parts.kernel.ledger
        self._directory = parts.kernel.directory
        self._held = parts.held
        self._wire = wire
        self._machines = machines
        self._outbox = outbox
        self._tasks = tasks
        #: By machine, the receipts that go next, where some are sent just now.
        self._replies: dict[str, Receipts] = {}

    def reply(self, machine: str, receipts: Receipts) -> None:
        """Send receipts; what comes while some are sent goes together."""
        waiting = self._replies.get(machine)
        if waiting is None:
            self._replies[machine] = receipts
            self._tasks.start(self._send_replies(machine))
        else:
            waiting.stored += receipts.stored
            waiting.rows += receipts.rows

    async def _send_replies(self, machine: str) -> None:
        while (receipts := self._replies[machine]).stored or receipts.rows:
            self._replies[machine] = Receipts()
            # Of each delivery the newest state.
            receipts.rows = list({(row.id, row.to): row for row in receipts.rows}.values())
            with suppress(RelayError):  # it asks again
                await self._wire.publish(machine, "r", msgspec.json.encode(receipts))
        del self._replies[machine]

    async def run(self) -> None:
        """Take what comes, for ever."""
        commit = self._kernel.committer.commit
        while True:
            arrivals = [await self._wire.arrived.get()]
            while len(arrivals) < WINDOW and not self._wire.arrived.empty():
                arrivals.append(self._wire.arrived.get_nowait())
            try:
                confirmed = await commit(partial(self._take, arrivals))
                for arrival in arrivals:
                    if arrival.acknowledge is not None:
                        await arrival.acknowledge()
                for machine, ids in confirmed.items():
                    rows = [row for id_ in ids for row in self._how_far(machine, id_, ids[id_])]
                    self.reply(machine, Receipts(list(ids), rows))
            except Exception:
                self._kernel.log.fault()  # it comes again

    def _take(self, arrivals: list[Arrival], batch: Batch) -> dict[str, dict[str, list[str]]]:
        """Store it. Returns the messages to confirm: by machine, for whom each was, by its id."""
        self._ledger.begin()
        confirmed: dict[str, dict[str, list[str]]] = {}
        for machine, kind, data, _ in arrivals:
            try:
                if kind == "m":
                    message = msgspec.json.decode(data, type=FarMessage)
                    ids = confirmed.setdefault(machine, {})
                    try:
                        is_taken = message.id in ids or self._accept(machine, message, batch)
                    except RelayError as error:  # else it would be sent again for ever
                        self._refuse(machine, checked_id(message.id), error.message)
                        is_taken = True
                    if is_taken:
                        ids[message.id] = message.to
                elif kind == "r":
                    receipts = msgspec.json.decode(data, type=Receipts)
                    self._outbox.take(machine, receipts, batch)
                    for id_ in receipts.asked[:WINDOW]:
                        confirmed.setdefault(machine, {}).setdefault(id_, [])
                elif kind == "j":
                    self._machines.add([machine], batch)
                    self._machines.tell_now()
                else:
                    presence = msgspec.json.decode(data, type=Presence)
                    self._machines.take(machine, presence, batch)
            except (msgspec.DecodeError, RelayError) as error:
                self._kernel.log.write(f"what came from {machine} is left out: {error}")
        return confirmed

    def _accept(self, machine: str, arrived: FarMessage, batch: Batch) -> bool:
        """Store a message, unless it is here. False: one before it is not here yet."""
        id_ = checked_id(arrived.id)
        sender = f"{arrived.sender}@{machine}"
        if self._ledger.known([id_]):
            return queries.sender_of(self._ledger, id_) == sender.lower()
        row = self._ledger.row("SELECT last FROM link_arrived WHERE machine=?", (machine,))
        last = row[0] if row else 0
        if arrived.before > last:
            return False
        self._ledger.change(
            "INSERT OR REPLACE INTO link_arrived VALUES (?,?)", (machine, max(last, arrived.n))
        )
        rights = self._machines.rights(machine)
        if self._refusal(machine, id_) is not None:
            return True  # its receipt was lost: what holds now is not asked again
        if (
            not valid_name(arrived.sender)
            or len(arrived.body.encode()) > BODY_MAX
            or not arrived.to
        ):
            self._refuse(machine, id_, "it is not a message as this version of relay knows them")
            return True
        if arrived.mode == QueueMode.INTERRUPT.value and "interrupt" not in rights:
            self._refuse(machine, id_, self._machines.refusal(machine, "interrupt").line)
            return True
        routes = self._recipients(arrived.to)
        if not routes:
            self._refuse(machine, id_, _NOBODY)
            return True
        is_person = arrived.person and "person" in rights
        meta: Json = {"proven": True} if is_person else {}
        if arrived.to[0] == EVERYONE:
            meta["attributes"] = {"audience": "everyone"}
        elif arrived.to[0][:1] == "#":
            meta["attributes"] = {"channel": arrived.to[0], "sender": "outside"}
        thread = arrived.thread
        if thread is not None and (len(thread) > THREAD_MAX or not is_visible(thread)):
            thread = None
        message = Accepted(
            request=None,
            id=id_,
            given=True,
            kind="message",
            sender=sender,
            origin="person" if is_person else "agent",
            body=arrived.body,
            mode=arrived.mode if arrived.mode in MODES else QueueMode.FOLLOWUP.value,
            thread=thread,
            meta=json_text.dumps(meta) if meta else None,
            routing=Routing(tuple(routes)),
            handled=True,
        )
        if not is_person:
            self._held.admit_followed(message, max(1, arrived.hops), batch)
        self._held.hold_over_cap(message, batch)
        self._kernel.windows.collect(message, batch)
        return True

    def _refuse(self, machine: str, id_: str, reason: str) -> None:
        """Remember that it is not taken, and why: its sender hears it as often as it asks."""
        self._ledger.change(
            "INSERT INTO link_refused (machine, id, reason) VALUES (?,?,?)", (machine, id_, reason)
        )
        self._ledger.change(
            "DELETE FROM link_refused WHERE machine=? AND n <= (SELECT max(n) FROM link_refused)-?",
            (machine, OUTBOX),
        )

    def _refusal(self, machine: str, id_: str) -> str | None:
        """Why this message was not taken; None: it was not refused."""
        row = self._ledger.row(
            "SELECT reason FROM link_refused WHERE machine=? AND id=?", (machine, id_)
        )
        return None if row is None else str(row[0])

    def _recipients(self, names: list[str]) -> list[Route]:
        """Those of the names that are here. Agents and people, none of another machine."""
        members = self._directory.members
        routes: dict[str, Route] = {}
        for name in names:
            if name == EVERYONE:
                some = [one for one in members.values() if one.live and not one.person]
            elif name[:1] == "#":
                some = in_channel(name.lower(), members)
            else:
                member = self._directory.get(self._directory.meant(name))
                some = [] if member is None else [member]
            routes |= {member.name: Route(member.name) for member in some}
        return list(routes.values())

    def _how_far(self, machine: str, id_: str, to: list[str]) -> list[FarState]:
        """The states here of a message from another machine."""
        rows = []
        sender = queries.sender_of(self._ledger, id_) if self._ledger.known([id_]) else ""
        if (sender or "").endswith(f"@{machine}"):
            rows = self._directory.with_absence(queries.deliveries(self._ledger, id_))
        names = {row["to"].lower() for row in rows}
        refusal = self._refusal(machine, id_)
        states = [FarState(id_, row["to"], row["state"], row["reason"]) for row in rows]
        for name in to:
            to_all = name == EVERYONE or name[:1] == "#"
            if to_all and refusal in (None, _NOBODY):
                states.append(FarState(id_, name, "seen", f"given to {len(rows)} there"))
            elif to_all or self._directory.meant(name).lower() not in names:
                states.append(FarState(id_, name, "failed", refusal or _NOBODY))
            elif name.lower() not in names:
                meant = self._directory.meant(name).lower()
                far = next(state for state in states if state.to.lower() == meant)
                states.append(FarState(id_, name, far.state, far.reason))
        return states
