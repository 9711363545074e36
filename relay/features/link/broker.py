"""Links in the broker: what is for another machine goes into an outbox, and leaves it once that
machine's ledger has it; what comes from one is stored here once, in the order of its sender."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from relay.broker.batch import Accepted, Batch, ClientRequest, Served, serve
from relay.broker.broker_tasks import BrokerTasks, LaterAnswers
from relay.broker.delivery_states import advance
from relay.broker.door import BrokerFeature
from relay.broker.ops_messages import THREAD_MAX, checked_id
from relay.broker.parts import BrokerParts
from relay.broker.routing import EVERYONE, TARGETS_MAX, Route, Routing, in_channel
from relay.core import json_text
from relay.core.agent_names import channel_of, valid_name
from relay.core.errors import NotFound, RelayError, UsageError
from relay.core.message import BODY_MAX, MODES, QueueMode, State
from relay.core.visible import is_visible
from relay.features.link.link_files import (
    PORT,
    Code,
    Link,
    LinkFolder,
    fetch_certificate,
    machine_name,
)
from relay.features.link.ops import (
    LINK,
    LINK_ALLOW,
    LINK_JOIN,
    LINK_NEW,
    LINK_REMOVE,
    LinkChange,
    LinkCode,
    LinkJoin,
    LinkJoined,
    LinkNew,
    LinkState,
    Machine,
)
from relay.ledger import queries
from relay.ledger.schema import Delivery
from relay.protocol.agent_ops import AgentElsewhere
from relay.protocol.broker import Json
from relay.protocol.message_ops import Send
from relay.protocol.op import Request

#: What may be granted to another machine, beside messages.
RIGHTS = ("interrupt", "person")
#: Why a message is refused that is for nobody here.
_NOBODY = "nobody is called that"
#: Messages to one machine that it has not stored, at most; and those that are under way.
OUTBOX, WINDOW = 10_000, 64
#: Seconds: between two reports of this machine's presence; until a silent machine counts as away;
#: until a message is sent again (the pause doubles); between two questions about open messages.
TELL, AWAY, AGAIN, ASK = 10.0, 35.0, 5.0, 60.0


def feature(parts: BrokerParts) -> LinkFeature:
    """The feature in the broker."""
    return LinkFeature(parts)


class _Message(msgspec.Struct, forbid_unknown_fields=True):
    """A message on its way. ``before``: the number of the one before it; 0: all are stored."""

    n: int
    before: int
    id: str
    sender: str
    to: list[str]
    body: str
    mode: str | None = None
    thread: str | None = None
    hops: int = 0
    person: bool = False


class _Far(msgspec.Struct):
    """The state of a message at its receiver."""

    id: str
    to: str
    state: str
    reason: str | None = None


class _Receipts(msgspec.Struct):
    """Receipts: ids that are ``stored``, states of deliveries, and ids that are asked about."""

    stored: list[str] = []
    rows: list[_Far] = []
    asked: list[str] = []


class _Presence(msgspec.Struct):
    """The agents of a machine. ``machines``: all machines of the link, said by its host alone."""

    agents: list[str] = []
    machines: list[str] | None = None


class LinkFeature(BrokerFeature):
    """Carries messages between this machine and others."""

    def __init__(self, parts: BrokerParts) -> None:
        self._parts = parts
        self._ledger = parts.kernel.ledger
        self._directory = parts.kernel.directory
        self._folder = LinkFolder(parts.kernel.home.root)
        self._tasks = BrokerTasks(parts.kernel)
        self._later = LaterAnswers(parts.kernel, 4)
        self._wire: Any = None  # of relay.features.link.wire
        self._more, self._tell_now = asyncio.Event(), asyncio.Event()
        self._heard: dict[str, float] = {}  # when machines were heard of
        #: By machine: the first and last number under way, since when the first one is, and
        #: how long until again.
        self._sent: dict[str, tuple[int, int, float, float]] = {}
        self._asked = 0.0

    def ops(self) -> list[Served]:
        """The person alone may change a link."""
        return [
            serve(LINK, self.shown_link),
            serve(LINK_NEW, self.new),
            serve(LINK_JOIN, self.join),
            serve(LINK_REMOVE, self.remove),
            serve(LINK_ALLOW, self.allow),
        ]

    # -- life

    def start(self) -> None:
        """Go on with the link that there is."""
        if self._folder.exists:
            self._begin(self._folder.read())

    def _begin(self, link: Link) -> None:
        from relay.features.link.wire import Wire

        self._wire = Wire(self._folder, link, self._parts.kernel.log)
        for work in (self._wire.run(), self._send(), self._receive(), self._tell()):
            self._tasks.start(work)

    async def close(self) -> None:
        """End the connection, and the server that runs here."""
        await self._tasks.close()
        if self._wire is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._wire.end_server)

    @property
    def busy(self) -> bool:
        """A linked machine's broker stays."""
        return self._wire is not None

    def status(self, now_ms: int) -> Json:
        """The link, where there is one."""
        return {} if self._wire is None else {"link": self._state()}

    # -- ops

    def shown_link(self, request: ClientRequest[Request], batch: Batch) -> LinkState:
        """The machines."""
        return self._state()

    def _state(self) -> LinkState:
        if self._wire is None:
            empty: LinkState = {
                "name": "",
                "server": "",
                "hosts": False,
                "connected": False,
                "problem": "",
                "machines": [],
            }
            return empty
        link = self._wire.link
        waiting = dict(
            self._ledger.rows("SELECT machine, count(*) FROM link_outbox WHERE stored=0 GROUP BY 1")
        )
        rows = self._ledger.rows("SELECT name, seen_ms, told, rights FROM link_machines ORDER BY 1")
        machines: list[Machine] = [
            {
                "name": name,
                "seen_ms": seen,
                "here": self._is_here(name),
                "waiting": waiting.get(name, 0),
                "agents": json_text.loads(told),
                "rights": rights.split(),
            }
            for name, seen, told, rights in rows
        ]
        return {
            "name": link.name,
            "server": link.address,
            "hosts": link.hosts,
            "connected": self._wire.connected.is_set(),
            "problem": self._wire.problem,
            "machines": machines,
        }

    def new(self, request: ClientRequest[LinkNew], batch: Batch) -> LinkCode | None:
        """Begin a link where there is none; a code for one more machine."""
        self._directory.check_person(request, "link machines")
        if self._wire is not None and not self._wire.link.hosts:
            raise UsageError(f"the link's server runs on {self._wire.link.host}: do it there")
        name = machine_name(request.fields.get("name")) if self._wire is None else ""
        address = request.fields.get("address") or _own_address()
        host, colon, port = address.rpartition(":")
        if not colon:
            host, port = address, str(PORT)
        if not port.isdigit():
            raise UsageError(f"{address!r} is not an address", hint="--address HOST or HOST:PORT")
        self._later.answer(request, batch, partial(self._make, name, f"{host}:{port}"), _as_it_is)
        return None

    async def _make(self, name: str, address: str) -> LinkCode:
        from relay.features.link.wire import nats_module

        nats_module()
        if self._wire is None:
            certificate = self._folder.certificate()
            machines = {name: self._folder.public_key()}
            link = Link(name, address, name, certificate, machines)
            self._folder.write(link)
            self._begin(link)
        await self._wait_connected()
        code, until = await self._wire.new_code()
        link = self._wire.link
        return {
            "code": str(code),
            "name": link.name,
            "server": link.address,
            "until_ms": int(until * 1000),
        }

    async def _wait_connected(self) -> None:
        try:
            await asyncio.wait_for(self._wire.connected.wait(), 15)
        except TimeoutError as error:
            raise RelayError(
                f"the link does not work: {self._wire.problem or 'no answer'}",
                hint=f"the server's log is in {self._folder.path}",
            ) from error

    def join(self, request: ClientRequest[LinkJoin], batch: Batch) -> LinkJoined | None:
        """Join the link that a code is for."""
        self._directory.check_person(request, "link machines")
        if self._wire is not None:
            own = self._wire.link.name
            raise UsageError("this machine is in a link", hint=f"leave it: relay link remove {own}")
        name = machine_name(request.fields.get("name"))
        code = Code.read(request.fields["code"])
        self._later.answer(request, batch, partial(self._join, code, name), _as_it_is)
        return None

    async def _join(self, code: Code, name: str) -> LinkJoined:
        from relay.features.link.wire import enrol, nats_module

        nats_module()
        loop = asyncio.get_running_loop()
        try:
            certificate = await loop.run_in_executor(None, fetch_certificate, code)
        except (OSError, ValueError) as error:
            raise RelayError(
                f"{code.address} cannot be reached: {error}",
                hint="can this machine reach it? relay link new --address names another address",
            ) from error
        machines = await enrol(code, certificate, name, self._folder)
        link = Link(name, code.address, code.host, certificate)
        self._folder.write(link)
        others = [one for one in machines if one != name]
        await self._parts.kernel.committer.commit(partial(self._add_machines, others))
        self._begin(link)
        await self._wait_connected()
        return {"name": name, "server": link.address, "machines": others}

    def _add_machines(self, names: list[str], batch: Batch) -> None:
        self._ledger.begin()
        for name in names:
            self._ledger.change("INSERT OR IGNORE INTO link_machines (name) VALUES (?)", (name,))

    def remove(self, request: ClientRequest[LinkChange], batch: Batch) -> LinkState | None:
        """A machine is in the link no more; its own name: this one leaves it."""
        self._directory.check_person(request, "unlink machines")
        name = request.fields["machine"]
        if self._wire is None:
            raise UsageError("there is no link", hint="relay link new")
        link = self._wire.link
        if name == link.name:
            if link.hosts and len(link.machines) > 1:
                raise UsageError("the server runs here: remove the other machines first")
        elif not link.hosts:
            raise UsageError(f"the link's server runs on {link.host}: do it there")
        elif name not in link.machines:
            raise self._no_machine(name)
        self._later.answer(request, batch, partial(self._remove, name), _as_it_is)
        return None

    async def _remove(self, name: str) -> LinkState:
        commit = self._parts.kernel.committer.commit
        if name != self._wire.link.name:
            await self._wire.remove(name)
            await commit(partial(self._forget, [name]))
            self._tell_now.set()
            return self._state()
        await self.close()
        self._folder.forget()
        self._wire, self._tasks = None, BrokerTasks(self._parts.kernel)
        names = [row[0] for row in self._ledger.rows("SELECT name FROM link_machines")]
        await commit(partial(self._forget, names))
        return self._state()

    def _forget(self, names: list[str], batch: Batch) -> None:
        """These machines are in the link no more: what was for them has failed."""
        self._ledger.begin()
        for name in names:
            for id_, told in self._ledger.rows(
                "SELECT id, told FROM link_outbox WHERE machine=?", (name,)
            ):
                for to in json_text.loads(told)["to"]:
                    self._move(name, _Far(id_, to, "failed", "it is in the link no more"), batch)
            self._ledger.change("DELETE FROM link_outbox WHERE machine=?", (name,))
            self._ledger.change("DELETE FROM link_machines WHERE name=?", (name,))
            self._ledger.change("DELETE FROM link_arrived WHERE machine=?", (name,))
            self._ledger.change("DELETE FROM link_refused WHERE machine=?", (name,))
            self._heard.pop(name, None)

    def allow(self, request: ClientRequest[LinkChange], batch: Batch) -> LinkState:
        """What another machine's people and agents may do here beside writing: these, no others."""
        self._directory.check_person(request, "let other machines do more")
        name, rights = request.fields["machine"], request.fields.get("rights", [])
        if name not in self._machines():
            raise self._no_machine(name)
        for one in rights:
            if one not in RIGHTS:
                raise UsageError(
                    f"{one!r} cannot be allowed", hint=f"there are: {', '.join(RIGHTS)}"
                )
        self._ledger.begin()
        self._ledger.change(
            "UPDATE link_machines SET rights=? WHERE name=?", (" ".join(sorted(set(rights))), name)
        )
        return self._state()

    # -- names

    def _machines(self) -> dict[str, list[str]]:
        """The other machines, with their agents."""
        rows = self._ledger.rows("SELECT name, told FROM link_machines")
        return {name: json_text.loads(told) for name, told in rows}

    def _no_machine(self, name: str) -> NotFound:
        known = ", ".join(sorted(self._machines())) or "none yet"
        return NotFound(f"no machine is called {name}", hint=f"linked machines: {known}")

    def _is_here(self, name: str) -> bool:
        return (
            self._wire.connected.is_set() and time.monotonic() - self._heard.get(name, -AWAY) < AWAY
        )

    def agents_elsewhere(self) -> list[AgentElsewhere]:
        """Those of the linked machines, as these told them last."""
        machines = self._state()["machines"]
        return [
            {"name": f"{name}@{one['name']}", "here": one["here"], "seen_ms": one["seen_ms"]}
            for one in machines
            for name in one["agents"]
        ]

    def elsewhere(self, to: str, fields: Send) -> Sequence[Route]:
        """``Bob@machine``; a name that only one machine has; everyone, or a #channel, there."""
        if self._wire is None:
            return ()
        name, at, machine = to.rpartition("@")
        if not at:
            machines = self._machines()
            if to == EVERYONE or to.startswith("#"):
                if fields.get("answer") or fields.get("await"):
                    return ()
                return [self._route(to, one, fields) for one in sorted(machines)]
            found = [one for one in sorted(machines) if to.lower() in map(str.lower, machines[one])]
            if len(found) > 1:
                names = ", ".join(f"{to}@{one}" for one in found)
                raise UsageError(f"{to} is on several machines", hint=f"one of: {names}")
            if not found:
                return ()
            name, machine = to, found[0]
        machine = machine.lower()
        if machine == self._wire.link.name:
            here = self._directory.get(name)
            if here is None:
                raise NotFound(f"nobody is called {name} on this machine", hint="relay agents")
            return (Route(here.name),)
        if machine not in self._machines():
            raise self._no_machine(machine)
        if not (valid_name(name) or name == EVERYONE or (name[:1] == "#" and channel_of(name))):
            raise UsageError(f"{name!r} cannot be a name")
        if fields.get("answer") or fields.get("await"):
            raise UsageError(
                "an answer can be waited for only on this machine",
                hint="relay send: the answer comes as a message",
            )
        return (self._route(name, machine, fields),)

    def _route(self, name: str, machine: str, fields: Send) -> Route:
        if fields.get("mode") == QueueMode.INTERRUPT.value and not self._is_here(machine):
            raise RelayError(
                f"{machine} is away, and an interrupt is not kept until it is back",
                hint="send it in another mode",
            )
        waiting = self._ledger.row(
            "SELECT count(*) FROM link_outbox WHERE machine=? AND stored=0", (machine,)
        )[0]
        if waiting >= OUTBOX:
            raise RelayError(
                f"{waiting} messages wait for {machine} already",
                hint="relay link shows why",
                code="busy",
            )
        why = f"on its way to {machine}"
        if not self._is_here(machine):
            why = f"{machine} is away; it goes there when {machine} is back"
        return Route(f"{name}@{machine}", reason=why)

    # -- out

    def stored(self, messages: Sequence[Accepted], batch: Batch) -> None:
        """What is for other machines is in the outbox from its commit on."""
        if self._wire is None:
            return
        for message in messages:
            by: dict[str, list[str]] = {}
            for one in message.routing.routes if message.routing is not None else ():
                if "@" in one.to:
                    name, _, machine = one.to.rpartition("@")
                    by.setdefault(machine, []).append(name)
                    found = self._ledger.delivery(message.id, one.to)
                    if found is not None and one.reason:
                        new = advance(found[2], State.QUEUED, batch.now_ms, reason=one.reason)
                        self._ledger.update_delivery(found[0], one.to, new)
            for machine, names in by.items():
                told = {
                    "id": message.id,
                    "sender": message.sender,
                    "to": names,
                    "body": message.body,
                    "mode": message.mode,
                    "thread": message.thread,
                    "hops": message.hops,
                    "person": '"proven"' in (message.meta or ""),
                }
                self._ledger.change(
                    "INSERT INTO link_outbox (machine, id, told) VALUES (?,?,?)",
                    (machine, message.id, json_text.dumps(told)),
                )
                batch.after.append(self._more.set)

    def moved(self, id_: str, sender: str, to: str, new: Delivery, batch: Batch) -> None:
        """A message of another machine's has come further, or one to it was withdrawn."""
        if self._wire is None:
            return
        if "@" in sender:
            machine = sender.rpartition("@")[2]
            far = _Far(id_, to, new.state.value, new.reason)
            receipt = msgspec.json.encode(_Receipts(rows=[far]))
            batch.after.append(partial(self._reply, machine, receipt))
        elif "@" in to and new.state.final:
            self._settle(id_, to.rpartition("@")[2])

    def _settle(self, id_: str, machine: str) -> None:
        """Forget a message in the outbox once all of it is over."""
        self._ledger.change(
            "DELETE FROM link_outbox WHERE machine=? AND id=? AND NOT EXISTS (SELECT 1 FROM"
            " deliveries d JOIN events e ON e.seq = d.event WHERE e.id=? AND d.open=1"
            " AND d.recipient LIKE '%@' || ?)",
            (machine, id_, id_, machine),
        )

    def _reply(self, machine: str, data: bytes) -> None:
        self._tasks.start(self._replied(machine, data))

    async def _replied(self, machine: str, data: bytes) -> None:
        with suppress(RelayError):  # it asks again
            await self._wire.publish(machine, "r", data)

    async def _send(self) -> None:
        """Send what is in the outbox, and again what another machine does not store."""
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._more.wait(), 1.0)
            self._more.clear()
            if not self._wire.connected.is_set():
                self._sent.clear()
                continue
            open_ = "SELECT DISTINCT machine FROM link_outbox WHERE stored=0"
            for (machine,) in self._ledger.rows(open_):
                with suppress(RelayError):  # ``relay link`` says why
                    await self._send_to(machine)
            if time.monotonic() - self._asked > ASK:
                self._asked = time.monotonic()
                for machine in self._machines():
                    self._ask(machine)

    async def _send_to(self, machine: str) -> None:
        rows = self._ledger.rows(
            "SELECT n, told FROM link_outbox WHERE machine=? AND stored=0 ORDER BY n LIMIT ?",
            (machine, WINDOW),
        )
        now = time.monotonic()
        first, last, since, pause = self._sent.get(machine, (0, 0, now, AGAIN))
        if rows[0][0] != first:  # it gets on
            first, since, pause = rows[0][0], now, AGAIN
        elif now - since > pause and self._is_here(machine):
            last, since, pause = 0, now, min(2 * pause, ASK)
        before = 0
        for n, told in rows:
            if n > last:
                fields = json_text.loads(told) | {"n": n, "before": before}
                await self._wire.publish(machine, "m", json_text.dumps(fields).encode())
                last = n
                self._sent[machine] = (first, last, since, pause)
            before = n

    def _ask(self, machine: str) -> None:
        """Ask how far those messages are of which nothing final is known."""
        rows = self._ledger.rows(
            "SELECT id FROM link_outbox WHERE machine=? AND stored=1 ORDER BY n LIMIT ?",
            (machine, WINDOW),
        )
        if rows and self._is_here(machine):
            self._reply(machine, msgspec.json.encode(_Receipts(asked=[row[0] for row in rows])))

    # -- in

    async def _receive(self) -> None:
        commit = self._parts.kernel.committer.commit
        while True:
            arrived = [await self._wire.arrived.get()]
            while len(arrived) < WINDOW and not self._wire.arrived.empty():
                arrived.append(self._wire.arrived.get_nowait())
            try:
                taken = await commit(partial(self._take, arrived))
                for _, _, _, message in arrived:
                    if message is not None:
                        await message.ack()
                for machine, ids in taken.items():
                    rows = [row for id_ in ids for row in self._how_far(machine, id_, ids[id_])]
                    self._reply(machine, msgspec.json.encode(_Receipts(list(ids), rows)))
            except Exception:
                self._parts.kernel.log.fault()  # it comes again

    def _take(
        self, arrived: list[tuple[str, str, bytes, Any]], batch: Batch
    ) -> dict[str, dict[str, list[str]]]:
        """Store it. Returns the messages to confirm: by machine, for whom each was, by its id."""
        self._ledger.begin()
        taken: dict[str, dict[str, list[str]]] = {}
        for machine, kind, data, _ in arrived:
            try:
                if kind == "m":
                    message = msgspec.json.decode(data, type=_Message)
                    ids = taken.setdefault(machine, {})
                    try:
                        is_taken = message.id in ids or self._accept(machine, message, batch)
                    except RelayError as error:  # else it would be sent again for ever
                        self._refuse(machine, checked_id(message.id), error.message)
                        is_taken = True
                    if is_taken:
                        ids[message.id] = message.to
                elif kind == "r":
                    told = msgspec.json.decode(data, type=_Receipts)
                    self._receipts(machine, told, batch)
                    for id_ in told.asked[:WINDOW]:
                        taken.setdefault(machine, {}).setdefault(id_, [])
                elif kind == "j":
                    self._add_machines([machine], batch)
                    self._tell_now.set()
                else:
                    self._present(machine, msgspec.json.decode(data, type=_Presence), batch)
            except (msgspec.DecodeError, RelayError) as error:
                self._parts.kernel.log.write(f"what came from {machine} is left out: {error}")
        return taken

    def _accept(self, machine: str, told: _Message, batch: Batch) -> bool:
        """Store a message, unless it is here. False: one before it is not here yet."""
        id_ = checked_id(told.id)
        sender = f"{told.sender}@{machine}"
        if self._ledger.known([id_]):
            return queries.sender_of(self._ledger, id_) == sender.lower()
        found = self._ledger.row("SELECT last FROM link_arrived WHERE machine=?", (machine,))
        last = found[0] if found else 0
        if told.before > last:
            return False
        self._ledger.change(
            "INSERT OR REPLACE INTO link_arrived VALUES (?,?)", (machine, max(last, told.n))
        )
        row = self._ledger.row("SELECT rights FROM link_machines WHERE name=?", (machine,))
        rights = row[0].split() if row else []
        if self._refusal(machine, id_) is not None:
            return True  # its receipt was lost: what holds now is not asked again
        if not valid_name(told.sender) or len(told.body.encode()) > BODY_MAX or not told.to:
            self._refuse(machine, id_, "it is not a message as this version of relay knows them")
            return True
        if told.mode == QueueMode.INTERRUPT.value and "interrupt" not in rights:
            allowed = " ".join(sorted({*rights, "interrupt"}))
            self._refuse(
                machine,
                id_,
                f"{machine} may not interrupt here; on {self._wire.link.name}, its person can"
                f" allow it: relay link allow {machine} {allowed}",
            )
            return True
        routes = self._recipients(told.to)
        if not routes:
            self._refuse(machine, id_, _NOBODY)
            return True
        is_person = told.person and "person" in rights
        meta: Json = {"proven": True} if is_person else {}
        if told.to[0] == EVERYONE:
            meta["attributes"] = {"audience": "everyone"}
        elif told.to[0][:1] == "#":
            meta["attributes"] = {"channel": told.to[0], "sender": "outside"}
        thread = told.thread
        if thread is not None and (len(thread) > THREAD_MAX or not is_visible(thread)):
            thread = None
        message = Accepted(
            request=None,
            id=id_,
            given=True,
            kind="message",
            sender=sender,
            origin="person" if is_person else "agent",
            body=told.body,
            mode=told.mode if told.mode in MODES else QueueMode.FOLLOWUP.value,
            thread=thread,
            meta=json_text.dumps(meta) if meta else None,
            routing=Routing(tuple(routes)),
            handled=True,
        )
        if not is_person:
            self._parts.held.admit_followed(message, max(1, told.hops), batch)
        self._parts.held.hold_over_cap(message, batch)
        self._parts.kernel.windows.collect(message, batch)
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
        found = self._ledger.row(
            "SELECT reason FROM link_refused WHERE machine=? AND id=?", (machine, id_)
        )
        return None if found is None else str(found[0])

    def _recipients(self, names: list[str]) -> list[Route]:
        """Those of the names that are here. Agents and people, none of another machine."""
        members = self._directory.members
        found: dict[str, Route] = {}
        for name in names:
            if name == EVERYONE:
                some = [one for one in members.values() if one.live and not one.person]
            elif name[:1] == "#":
                some = in_channel(name.lower(), members)
            else:
                one = self._directory.get(self._directory.meant(name))
                some = [] if one is None else [one]
            found |= {one.name: Route(one.name) for one in some}
        return list(found.values())

    def _how_far(self, machine: str, id_: str, to: list[str]) -> list[_Far]:
        """The states here of a message from another machine."""
        rows = []
        sender = queries.sender_of(self._ledger, id_) if self._ledger.known([id_]) else ""
        if (sender or "").endswith(f"@{machine}"):
            rows = self._directory.with_absence(queries.deliveries(self._ledger, id_))
        names = {row["to"].lower() for row in rows}
        refusal = self._refusal(machine, id_)
        found = [_Far(id_, row["to"], row["state"], row["reason"]) for row in rows]
        for name in to:
            to_all = name == EVERYONE or name[:1] == "#"
            if to_all and refusal in (None, _NOBODY):
                found.append(_Far(id_, name, "seen", f"given to {len(rows)} there"))
            elif to_all or self._directory.meant(name).lower() not in names:
                found.append(_Far(id_, name, "failed", refusal or _NOBODY))
            elif name.lower() not in names:
                one = next(
                    far for far in found if far.to.lower() == self._directory.meant(name).lower()
                )
                found.append(_Far(id_, name, one.state, one.reason))
        return found

    def _receipts(self, machine: str, told: _Receipts, batch: Batch) -> None:
        """Take another machine's receipts for messages that were sent to it."""
        for id_ in told.stored:
            self._ledger.change(
                "UPDATE link_outbox SET stored=1 WHERE machine=? AND id=?", (machine, id_)
            )
        for far in told.rows:
            self._move(machine, far, batch)
        batch.after.append(self._more.set)

    def _move(self, machine: str, far: _Far, batch: Batch) -> None:
        to = f"{far.to}@{machine}"
        found = self._ledger.delivery(far.id, to)
        if found is None or found[2].state.final:
            return
        event, sender, delivery = found
        try:
            there = State(far.state)
        except ValueError:
            return
        reason = "".join(one if is_visible(one) else "?" for one in (far.reason or "")[:200])
        told = f"{machine}: {reason}" if reason else None
        state = there
        if there in (State.QUEUED, State.WAITING, State.HELD, State.DELIVERING):
            state = State.DELIVERING  # nobody can withdraw it here any more
            word = "held" if there is State.HELD else there.value
            told = f"{word} at {told}" if reason else f"{word} at {machine}"
        elif there is State.CANCELLED:
            state = State.FAILED
        if state is State.FAILED:
            told = told or f"{machine}: withdrawn there"
        if (state, told) == (delivery.state, delivery.reason):
            return
        proof = f"receipt of {machine}" if state is State.SEEN else None
        with suppress(UsageError):
            new = advance(delivery, state, batch.now_ms, reason=told, proof=proof)
            if new is not delivery:
                self._ledger.update_delivery(event, to, new)
                self._parts.deliveries.changed(batch, far.id, sender, to, new)

    # -- presence

    async def _tell(self) -> None:
        while True:
            await self._wire.connected.wait()
            link = self._wire.link
            agents = [one.name for one in self._directory.agents() if one.live][:TARGETS_MAX]
            fields: Json = {"agents": agents}
            if link.hosts:
                fields["machines"] = sorted(link.machines)
            await self._wire.tell(fields)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._tell_now.wait(), TELL)
            self._tell_now.clear()

    def came(self, member: object) -> None:
        """Others hear of it at once."""
        self._tell_now.set()

    def _present(self, machine: str, told: _Presence, batch: Batch) -> None:
        """Take a machine's presence. Only the host says which machines the link has."""
        was_away = not self._is_here(machine)
        self._heard[machine] = time.monotonic()
        agents = [one for one in told.agents[:TARGETS_MAX] if valid_name(one)]
        self._ledger.change(
            "INSERT INTO link_machines (name, seen_ms, told) VALUES (?,?,?) ON CONFLICT (name)"
            " DO UPDATE SET seen_ms=excluded.seen_ms, told=excluded.told",
            (machine, batch.now_ms, json_text.dumps(agents)),
        )
        link = self._wire.link
        if machine == link.host and told.machines is not None:
            known = set(self._machines())
            self._add_machines([one for one in told.machines if one != link.name], batch)
            if gone := known - set(told.machines):
                self._forget(sorted(gone), batch)
        if was_away:
            self._tell_now.set()
            batch.after.append(self._more.set)
            batch.after.append(partial(self._ask, machine))


def _as_it_is(answer: Any, batch: Batch) -> Any:
    return answer


def _own_address() -> str:
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
