"""Links in the broker: the link that this machine is in, its machines, and the names on them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from relay.broker.batch import Accepted, AnyRequest, Batch, ClientRequest, Served, serve
from relay.broker.broker_tasks import BrokerTasks, LaterAnswers
from relay.broker.door import BrokerFeature
from relay.broker.parts import BrokerParts
from relay.broker.routing import EVERYONE, Route
from relay.core import json_text
from relay.core.agent_names import channel_of, valid_name
from relay.core.errors import NotFound, RelayError, UsageError
from relay.core.message import QueueMode
from relay.features.link.link_files import (
    PORT,
    Code,
    Link,
    LinkFolder,
    fetch_certificate,
    is_local,
    machine_name,
)
from relay.features.link.link_records import FarState, Receipts
from relay.features.link.ops import (
    LINK,
    LINK_ALLOW,
    LINK_JOIN,
    LINK_NEW,
    LINK_REMOVE,
    LINK_USE,
    RIGHTS,
    LinkChange,
    LinkCode,
    LinkJoin,
    LinkJoined,
    LinkNew,
    LinkState,
    LinkUse,
)
from relay.ledger.schema import Delivery
from relay.protocol.agent_ops import ELSEWHERE, AgentElsewhere, ElsewhereAnswer, ElsewhereQuery
from relay.protocol.broker import Json
from relay.protocol.message_ops import Send
from relay.protocol.op import Request

if TYPE_CHECKING:
    from relay.features.link.far_inbox import FarInbox
    from relay.features.link.far_outbox import FarOutbox
    from relay.features.link.live import Live
    from relay.features.link.machines import Machines
    from relay.features.link.wire import Wire

_NO_LINK: LinkState = {
    "name": "",
    "server": "",
    "hosts": False,
    "connected": False,
    "problem": "",
    "machines": [],
}

T = TypeVar("T")


def feature(parts: BrokerParts) -> LinkFeature:
    """The feature in the broker."""
    return LinkFeature(parts)


@dataclass(frozen=True, slots=True)
class _OpenLink:
    """The link that this machine is in, at work."""

    wire: Wire
    outbox: FarOutbox
    machines: Machines
    inbox: FarInbox
    live: Live
    tasks: BrokerTasks

    @classmethod
    def begin(cls, parts: BrokerParts, folder: LinkFolder, link: Link) -> _OpenLink:
        """Put it to work. Raises UsageError where NATS is not installed."""
        # Imported on use: most brokers have no link.
        from relay.features.link.far_inbox import FarInbox
        from relay.features.link.far_outbox import FarOutbox
        from relay.features.link.live import Live
        from relay.features.link.machines import Machines
        from relay.features.link.wire import Wire

        tasks = BrokerTasks(parts.kernel)
        wire = Wire(folder, link, parts.kernel.log)
        outbox = FarOutbox(parts, wire)
        machines = Machines(parts, wire, outbox)
        inbox = FarInbox(parts, wire, machines, outbox, tasks)
        live = Live(parts, wire, machines, tasks)
        for work in (wire.run(), outbox.run(), machines.run(), inbox.run(), live.run()):
            tasks.start(work)
        return cls(wire, outbox, machines, inbox, live, tasks)

    async def wait_connected(self) -> None:
        """Wait for the server. Raises RelayError."""
        try:
            await asyncio.wait_for(self.wire.connected.wait(), 30 if self.wire.link.ssh else 15)
        except TimeoutError as error:
            link, hint = self.wire.link, ""
            if link.hosts:
                hint = f"the server's log is in {self.wire.folder.path}"
            elif link.urls:
                hint = f"relay link use --needs --name {link.name} prints what it must allow"
            problem = self.wire.problem or "no answer"
            raise RelayError(f"the link does not work: {problem}", hint=hint) from error

    async def end(self) -> None:
        """End the connection, and the server that runs here."""
        await self.tasks.close()
        await asyncio.get_running_loop().run_in_executor(None, self.wire.end_server)


class LinkFeature(BrokerFeature):
    """Carries messages between this machine and others."""

    def __init__(self, parts: BrokerParts) -> None:
        self._parts = parts
        self._directory = parts.kernel.directory
        self._folder = LinkFolder(parts.kernel.home.root)
        self._later = LaterAnswers(parts.kernel, 4)
        self._live_answers = LaterAnswers(parts.kernel, 32)
        self._open: _OpenLink | None = None

    def ops(self) -> list[Served]:
        """The person alone may change a link."""
        return [
            serve(LINK, self.shown_link),
            serve(LINK_NEW, self.new),
            serve(LINK_JOIN, self.join),
            serve(LINK_USE, self.use),
            serve(LINK_REMOVE, self.remove),
            serve(LINK_ALLOW, self.allow),
            serve(ELSEWHERE, self.ask_elsewhere),
        ]

    # -- life

    def start(self) -> None:
        """Go on with the link that there is."""
        if self._folder.exists:
            self._begin(self._folder.read())

    def _begin(self, link: Link) -> _OpenLink:
        self._open = _OpenLink.begin(self._parts, self._folder, link)
        return self._open

    async def close(self) -> None:
        """End the connection, and the server that runs here."""
        if self._open is not None:
            await self._open.end()

    @property
    def busy(self) -> bool:
        """A linked machine's broker stays."""
        return self._open is not None

    def status(self, now_ms: int) -> Json:
        """The link, where there is one."""
        return {} if self._open is None else {"link": self._state()}

    # -- ops

    def shown_link(self, request: ClientRequest[Request], batch: Batch) -> LinkState:
        """The machines."""
        return self._state()

    def _state(self) -> LinkState:
        if self._open is None:
            return _NO_LINK
        wire = self._open.wire
        return {
            "name": wire.link.name,
            "server": wire.link.server,
            "hosts": wire.link.hosts,
            "connected": wire.connected.is_set(),
            "problem": wire.problem,
            "machines": self._open.machines.listed(),
        }

    def _opened(self) -> _OpenLink:
        if self._open is None:
            raise UsageError("there is no link", hint="relay link new")
        return self._open

    def new(self, request: ClientRequest[LinkNew], batch: Batch) -> LinkCode | None:
        """Begin a link where there is none; a code for one more machine."""
        self._directory.check_person(request, "link machines")
        if self._open is not None:
            _check_hosts(self._open.wire.link)
        address = request.fields.get("address") or ""
        host, colon, port = address.rpartition(":")
        if not colon:
            host, port = address, ""
        if port and not port.isdigit():
            raise UsageError(f"{address!r} is not an address", hint="--address HOST or HOST:PORT")
        if self._open is None:
            name = machine_name(request.fields.get("name"))
            address = f"{host or _own_address()}:{port or PORT}"
        else:
            link = self._open.wire.link
            name, own = link.name, link.address.rpartition(":")[2]
            # Who comes by ssh finds the server there, wherever others do.
            address = f"{host}:{port or own}" if host else link.address
            is_other = address != link.address and not (is_local(address) and port in ("", own))
            if is_other or request.fields.get("name"):
                raise UsageError(
                    f"there is a link: this machine is {link.name}, and its server is at"
                    f" {link.address}",
                    hint="relay link new alone prints a code for one more machine; relay link"
                    f" remove {link.name} ends this link",
                )
        self._later.answer(request, batch, partial(self._make, name, address), _as_it_is)
        return None

    async def _make(self, name: str, address: str) -> LinkCode:
        from relay.features.link.wire import nats_module

        nats_module()
        opened = self._open
        if opened is None:
            certificate = self._folder.certificate()
            machines = {name: self._folder.public_key()}
            link = Link(name, address, name, certificate, machines)
            self._folder.write(link)
            opened = self._begin(link)
        await opened.wait_connected()
        code, until = await opened.wire.new_code(address)
        return {
            "code": str(code),
            "name": name,
            "server": address,
            "until_ms": int(until * 1000),
        }

    def join(self, request: ClientRequest[LinkJoin], batch: Batch) -> LinkJoined | None:
        """Join the link that a code is for."""
        self._check_unlinked(request)
        name = machine_name(request.fields.get("name"))
        code = Code.read(request.fields["code"])
        link = Link(name, code.address, code.host, "", ssh=request.fields.get("ssh") or "")
        if link.ssh:
            from relay.features.link.by_ssh import SshWay

            link.ssh = str(SshWay.read(link.ssh))
        self._later.answer(request, batch, partial(self._join, code, link), _as_it_is)
        return None

    def _check_unlinked(self, request: AnyRequest) -> None:
        self._directory.check_person(request, "link machines")
        if self._open is not None:
            own = self._open.wire.link.name
            raise UsageError(
                "this machine is in a link already", hint=f"leave it: relay link remove {own}"
            )

    def use(self, request: ClientRequest[LinkUse], batch: Batch) -> LinkJoined | None:
        """Write by a server that is there already."""
        from relay.features.link.own_server import read_urls

        self._check_unlinked(request)
        urls, creds = read_urls(request.fields["urls"]), request.fields.get("creds") or ""
        link = Link(machine_name(request.fields.get("name")), "", "", "", urls=urls, creds=creds)
        self._later.answer(request, batch, partial(self._use, link), _as_it_is)
        return None

    async def _use(self, link: Link) -> LinkJoined:
        from relay.features.link.own_server import Login
        from relay.features.link.wire import nats_module

        nats_module()
        Login(link.urls[0], link.creds)  # the file can be read
        self._folder.write(link)
        opened = self._begin(link)
        try:
            await opened.wait_connected()
        except RelayError:
            await self._leave(opened)
            raise
        return {"name": link.name, "server": link.server, "machines": []}

    async def _leave(self, opened: _OpenLink) -> None:
        await opened.end()
        self._folder.forget()
        self._open = None

    async def _join(self, code: Code, link: Link) -> LinkJoined:
        from relay.features.link.by_ssh import SshWay, Tunnel
        from relay.features.link.wire import nats_module

        nats_module()
        if link.ssh:
            async with Tunnel(SshWay.read(link.ssh), link.address) as tunnel:
                machines = await self._enrol(replace(code, address=tunnel.address), link)
        else:
            machines = await self._enrol(code, link)
        self._folder.write(link)
        others = [one for one in machines if one != link.name]
        opened = self._begin(link)
        await self._parts.kernel.committer.commit(partial(opened.machines.add, others))
        await opened.wait_connected()
        return {"name": link.name, "server": link.server, "machines": others}

    async def _enrol(self, code: Code, link: Link) -> list[str]:
        from relay.features.link.wire import enrol

        loop = asyncio.get_running_loop()
        try:
            link.certificate = await loop.run_in_executor(None, fetch_certificate, code)
        except (OSError, ValueError) as error:
            raise RelayError(
                f"{link.server} cannot be reached: {error}",
                hint="can this machine reach it? relay link new --address names another address",
            ) from error
        return await enrol(code, link.certificate, link.name, self._folder)

    def remove(self, request: ClientRequest[LinkChange], batch: Batch) -> LinkState | None:
        """A machine is in the link no more; its own name: this one leaves it."""
        self._directory.check_person(request, "unlink machines")
        name = request.fields["machine"]
        opened = self._opened()
        link = opened.wire.link
        if name == link.name:
            if link.hosts and len(link.machines) > 1:
                raise UsageError("the server runs here: remove the other machines first")
        elif link.urls:
            opened.machines.check(name)
        else:
            _check_hosts(link)
            if name not in link.machines:
                opened.machines.check(name)
        self._later.answer(request, batch, partial(self._remove, opened, name), _as_it_is)
        return None

    async def _remove(self, opened: _OpenLink, name: str) -> LinkState:
        commit = self._parts.kernel.committer.commit
        if name != opened.wire.link.name:
            if opened.wire.link.hosts:
                await opened.wire.remove(name)
            await commit(partial(opened.machines.forget, [name]))
            opened.machines.tell_now()
            return self._state()
        await self._leave(opened)
        await commit(partial(opened.machines.forget, list(opened.machines.agents())))
        return self._state()

    def allow(self, request: ClientRequest[LinkChange], batch: Batch) -> LinkState:
        """What another machine's people and agents may do here beside writing: these, no others."""
        self._directory.check_person(request, "let other machines do more")
        rights = request.fields.get("rights", [])
        for one in rights:
            if one not in RIGHTS:
                raise UsageError(
                    f"{one!r} cannot be allowed", hint=f"there are: {', '.join(RIGHTS)}"
                )
        self._opened().machines.allow(request.fields["machine"], rights)
        return self._state()

    def ask_elsewhere(self, request: ClientRequest[ElsewhereQuery], batch: Batch) -> None:
        """Have another machine's broker answer, if that machine allows it."""
        self._directory.check_person(request, "look at agents of other machines")
        fields = request.fields
        opened, machine = self._opened(), fields["machine"].lower()
        if machine == opened.wire.link.name:
            raise UsageError(f"{machine} is this machine", hint="leave out what begins with @")
        opened.machines.check(machine)
        work = partial(opened.live.ask, machine, fields["asked"], fields["fields"])
        self._live_answers.answer(request, batch, partial(work, fields["timeout"]), _as_answer)

    # -- names

    def agents_elsewhere(self) -> list[AgentElsewhere]:
        """Those of the linked machines, as these told them last."""
        machines = [] if self._open is None else self._open.machines.listed()
        return [
            {"name": f"{name}@{one['name']}", "here": one["here"], "seen_ms": one["seen_ms"]}
            for one in machines
            for name in one["agents"]
        ]

    def elsewhere(self, to: str, fields: Send) -> Sequence[Route]:
        """``Bob@machine``; a name that only one machine has; everyone, or a #channel, there."""
        opened = self._open
        if opened is None:
            return ()
        name, at, machine = to.rpartition("@")
        if not at:
            machines = opened.machines.agents()
            if to == EVERYONE or to.startswith("#"):
                if fields.get("answer") or fields.get("await"):
                    return ()
                return [_route(opened, to, one, fields) for one in sorted(machines)]
            having = [one for one in sorted(machines) if _has(machines[one], to)]
            if len(having) > 1:
                names = ", ".join(f"{to}@{one}" for one in having)
                raise UsageError(f"{to} is on several machines", hint=f"one of: {names}")
            if not having:
                return ()
            name, machine = to, having[0]
        machine = machine.lower()
        if machine == opened.wire.link.name:
            here = self._directory.get(name)
            if here is None:
                raise NotFound(f"nobody is called {name} on this machine", hint="relay agents")
            return (Route(here.name),)
        opened.machines.check(machine)
        if not (valid_name(name) or name == EVERYONE or (name[:1] == "#" and channel_of(name))):
            raise UsageError(f"{name!r} cannot be a name")
        if fields.get("answer") or fields.get("await"):
            raise UsageError(
                "an answer can be waited for only on this machine",
                hint="relay send: the answer comes as a message",
            )
        return (_route(opened, name, machine, fields),)

    # -- messages

    def stored(self, messages: Sequence[Accepted], batch: Batch) -> None:
        """What is for other machines is in the outbox from its commit on."""
        if self._open is not None:
            for message in messages:
                self._open.outbox.put(message, batch)

    def moved(self, id_: str, sender: str, to: str, new: Delivery, batch: Batch) -> None:
        """A message of another machine's has come further, or one to it was withdrawn."""
        if self._open is None:
            return
        if "@" in sender:
            machine = sender.rpartition("@")[2]
            receipts = Receipts(rows=[FarState(id_, to, new.state.value, new.reason)])
            batch.after.append(partial(self._open.inbox.reply, machine, receipts))
        elif "@" in to and new.state.final:
            self._open.outbox.settle(id_, to.rpartition("@")[2])

    def came(self, member: object) -> None:
        """Others hear of it at once."""
        if self._open is not None:
            self._open.machines.tell_now()


def _check_hosts(link: Link) -> None:
    """Raise UsageError unless the server runs here."""
    if link.urls:
        raise UsageError(
            f"the link's server is {link.server}, not relay's",
            hint="on the other machine: relay link use",
        )
    if not link.hosts:
        raise UsageError(f"the link's server runs on {link.host}: do it there")


def _route(opened: _OpenLink, name: str, machine: str, fields: Send) -> Route:
    """The way to ``name`` on ``machine``. Raises RelayError."""
    from relay.features.link.far_outbox import OUTBOX

    is_here = opened.wire.is_here(machine)
    if fields.get("mode") == QueueMode.INTERRUPT.value and not is_here:
        raise RelayError(
            f"{machine} is away, and an interrupt is not kept until it is back",
            hint="send it in another mode",
        )
    room = opened.wire.room - 4096
    if len(fields["body"]) > room // 6 and len(json_text.dumps(fields["body"]).encode()) > room:
        raise RelayError(
            f"the message is larger than the link's server takes ({room:,} bytes)",
            hint="put it into a file, or have its max_payload raised",
            code="too_large",
        )
    waiting = opened.outbox.waiting_for(machine)
    if waiting >= OUTBOX:
        raise RelayError(
            f"{waiting} messages wait for {machine} already",
            hint="relay link shows why",
            code="busy",
        )
    away = f"{machine} is away; it goes there when {machine} is back"
    return Route(f"{name}@{machine}", reason=None if is_here else away)


def _has(agents: list[str], name: str) -> bool:
    return name.lower() in map(str.lower, agents)


def _as_it_is(answer: T, batch: Batch) -> T:
    return answer


def _as_answer(answer: Json, batch: Batch) -> ElsewhereAnswer:
    return {"answer": answer}


def _own_address() -> str:
    import socket

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
