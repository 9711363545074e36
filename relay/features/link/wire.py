"""The connection of this machine to the link's server, and where it runs here, the server itself.

All of it belongs to the broker's loop; ``nats`` is imported only where there is a link.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import secrets
import signal
import subprocess
import sysconfig
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from relay.core.errors import RelayError, Timeout, UsageError
from relay.core.log import Log
from relay.features.link.by_ssh import SshWay, Tunnel
from relay.features.link.link_files import (
    CODE_LIFE,
    PAYLOAD,
    STREAM,
    STREAM_BYTES,
    Code,
    Link,
    LinkFolder,
    context_for,
    is_name,
)

if TYPE_CHECKING:
    from relay.features.link.own_server import Login

#: The oldest version of nats-server that relay works with.
OLDEST = (2, 11)
#: Messages to one machine that are under way and not in its ledger yet, at most.
WINDOW = 64
#: Seconds between two tries to connect (the first pause, which doubles, and the longest one), and
#: until an answer of the server's is not waited for.
SOON, AGAIN, ANSWER = 0.1, 1.0, 5.0
#: The longest pause, and the time until a connection is there, where it goes through ssh.
AGAIN_BY_SSH, CONNECTED_BY_SSH = 30.0, 20.0
#: Live requests that wait for their turn here, at most; more are not answered.
_ASKED = 64
#: Seconds until a silent machine counts as away; more in a link of many.
AWAY = 35.0


def nats_module() -> Any:
    """The client of NATS. Raises UsageError where it is not installed."""
    try:
        import cryptography  # noqa: F401
        import nats
        import nkeys  # type: ignore[import-untyped]  # noqa: F401
    except ImportError as error:
        from relay.core.extras import adding

        raise UsageError(f"links need {error.name}", hint=adding("link")) from error
    return nats


def refuse_old(version: str) -> None:
    """Raises UsageError for a server that is too old."""
    parts = version.split(".")
    number = tuple(int(one) if one.isdigit() else 0 for one in parts[:2])
    if number < OLDEST:
        raise UsageError(
            f"the server is nats-server {version}; it must be {OLDEST[0]}.{OLDEST[1]} or later"
        )


class Arrival(NamedTuple):
    """What has come over the server, and who sent it, as the server has proven."""

    machine: str
    kind: str  # m: message, r: receipts, p: presence, j: it has joined
    data: bytes
    #: Tells the server that it is in the ledger; None: the server keeps no such thing.
    acknowledge: Callable[[], Awaitable[None]] | None = None


class LiveArrival(NamedTuple):
    """What a machine asks now; nothing keeps it."""

    machine: str
    data: bytes
    respond: Callable[[bytes], Awaitable[None]]


class Wire:
    """What goes over the server."""

    def __init__(self, folder: LinkFolder, link: Link, log: Log) -> None:
        self.folder = folder
        self.link = link
        self._log = log
        self._nats = nats_module()
        self._client: Any = None
        self._server: subprocess.Popen[bytes] | None = None
        self._server_lock = threading.Lock()
        self._has_ended = False  # no server is started any more
        self._refused = ""  # by the server, in its words
        self._tries = 0
        self._life = secrets.token_hex(8)  # tells this broker from one of another machine's
        self.room = PAYLOAD  # bytes of one message, at most
        self.arrived: asyncio.Queue[Arrival] = asyncio.Queue(2 * WINDOW)
        self.connected = asyncio.Event()
        self.connection = 0  # the number of the one that there is, or was last
        self.asked: asyncio.Queue[LiveArrival] = asyncio.Queue(_ASKED)
        #: When each machine was heard of (seconds of the monotonic clock), and its clock then.
        self.heard: dict[str, tuple[float, float]] = {}
        self.away = AWAY
        self.problem = ""

    def hear(self, machine: str, clock: float) -> None:
        """A machine was heard of. ``clock``: its own, in seconds since the epoch."""
        self.heard[machine] = time.monotonic(), clock

    def is_here(self, machine: str) -> bool:
        """Whether both are connected."""
        heard, _ = self.heard.get(machine, (-math.inf, 0.0))
        return self.connected.is_set() and time.monotonic() - heard < self.away

    def clock_of(self, machine: str) -> float | None:
        """What its clock shows now, or showed a little earlier; None: it is not here."""
        if not self.is_here(machine):
            return None
        heard, clock = self.heard[machine]
        return clock + time.monotonic() - heard

    # -- the connection

    async def run(self) -> None:
        """Connect, again and again."""
        pause = SOON  # a server that was just started does not listen yet
        while True:
            try:
                await self._once()
            except RelayError as error:
                self.problem = error.message
            except Exception as error:
                self.problem = (
                    f"{self.link.server}: {self._refused or error or type(error).__name__}"
                )
            finally:
                if self.connected.is_set():
                    pause = SOON
                self.connected.clear()
                client, self._client = self._client, None
                if client is not None:
                    with suppress(Exception):
                        await asyncio.wait_for(client.close(), ANSWER)
            await asyncio.sleep(pause)
            pause = min(2 * pause, AGAIN_BY_SSH if self.link.ssh else AGAIN)

    async def _once(self) -> None:
        link = self.link
        if link.ssh:
            async with Tunnel(SshWay.read(link.ssh), link.address) as tunnel:
                await self._connect(f"tls://{tunnel.address}")
        elif link.urls:
            from relay.features.link.own_server import Login

            url = link.urls[self._tries % len(link.urls)]  # one after the other
            self._tries += 1
            login = Login(url, link.creds)
            await self._connect(url, login)
        else:
            await self._connect(f"tls://{_local(link)}")

    async def _connect(self, url: str, login: Login | None = None) -> None:
        """Connect, and stay so until the connection ends."""
        link, closed = self.link, asyncio.Event()
        self._refused = ""
        if link.hosts:
            await asyncio.get_running_loop().run_in_executor(None, self._start_server)
        if login is not None:
            options = login.options()
        else:
            options = {
                "tls": context_for(link.certificate),
                "tls_handshake_first": True,
                "nkeys_seed_str": self.folder.seed().decode(),
            }

        async def failed(error: Exception) -> None:
            self._refused = str(error).removeprefix("nats: ")
            if "ermissions" in self._refused:
                self.problem = self._refused

        async def lost() -> None:
            closed.set()

        self._client = client = self._nats.NATS()
        await client.connect(
            url,
            **options,
            name=link.name,
            inbox_prefix=f"_INBOX_{link.name}",
            allow_reconnect=False,
            max_reconnect_attempts=1,  # counts for the first connection, too
            reconnect_time_wait=SOON,
            connect_timeout=CONNECTED_BY_SSH if link.ssh else ANSWER,
            ping_interval=5,
            max_outstanding_pings=2,
            pending_size=2 * PAYLOAD,
            error_cb=failed,
            closed_cb=lost,
            disconnected_cb=lost,
        )
        version = client.connected_server_version
        refuse_old(f"{version.major}.{version.minor}.{version.patch}")
        if login is not None:
            login.check_tls()
            self.room = min(PAYLOAD, client.max_payload)
            await self.make_stream()
        if link.hosts:
            await self.make_stream()
            await client.subscribe("join", cb=self._join)
        await client.subscribe(f"_INBOX_{link.name}.arrive", cb=self._message)
        await client.subscribe(f"live.*.{link.name}", cb=self._live)
        await client.subscribe("presence.*", cb=self._presence)
        if login is not None:
            for _ in range(2):  # the first ping may overtake what was subscribed to
                await client.flush(ANSWER)
            if self._refused:
                raise RelayError(self._refused)
        self.problem = ""
        self.connection += 1
        self.connected.set()
        while not client.is_closed:  # of a dead network the callback hears half a minute later
            with suppress(TimeoutError):
                async with asyncio.timeout(AGAIN):
                    await closed.wait()
        self.problem = self._refused or f"the connection to {link.server} has ended"

    async def _message(self, message: Any) -> None:
        parts = message.subject.split(".")
        if len(parts) == 4 and parts[2] == self.link.name and is_name(parts[1]):
            await self.arrived.put(Arrival(parts[1], parts[3], message.data, message.ack))

    async def _presence(self, message: Any) -> None:
        sender = message.subject.partition(".")[2]
        if sender != self.link.name:
            if is_name(sender):
                await self.arrived.put(Arrival(sender, "p", message.data))
        elif self._life.encode() not in message.data and self._client is not None:
            self._refused = (
                f"another machine is called {sender}, too: leave the link on one of them"
            )
            await self._client.close()

    async def _live(self, message: Any) -> None:
        sender = message.subject.split(".")[1]
        # The server lets an answer go wherever the question says: to the one who asks, only.
        if message.reply.startswith(f"_INBOX_{sender}.") and not self.asked.full():
            self.asked.put_nowait(LiveArrival(sender, message.data, message.respond))

    async def ask(self, machine: str, data: bytes, seconds: float) -> bytes:
        """What a machine answers now. Raises RelayError."""
        client = self._client
        if client is None or not self.connected.is_set():
            raise RelayError(self.problem or "there is no connection to the server")
        self._refused = ""
        try:
            answer = await client.request(f"live.{self.link.name}.{machine}", data, seconds)
        except self._nats.errors.TimeoutError as error:
            raise Timeout(self._refused or f"{machine} has not answered in time") from error
        except Exception as error:
            raise RelayError(f"{machine} cannot be asked: {error}") from error
        return bytes(answer.data)

    async def publish(self, to: str, kind: str, data: bytes) -> None:
        """Put it into the stream. Raises RelayError that says why it is not there."""
        client = self._client
        if client is None or not self.connected.is_set():
            raise RelayError(self.problem or "there is no connection to the server")
        self._refused = ""
        try:
            subject = f"relay.{self.link.name}.{to}.{kind}"
            await client.jetstream().publish(subject, data, timeout=ANSWER)
        except Exception as error:
            reason = str(getattr(error, "description", "") or error or type(error).__name__)
            if getattr(error, "err_code", 0) == 10077 or "maximum" in reason:
                where = self.link.host or self.link.server
                reason = f"the stream on {where} is full ({reason})"
            self.problem = self._refused or reason
            raise RelayError(self.problem) from error
        self.problem = ""

    async def tell(self, fields: dict[str, Any]) -> None:
        """Say how this machine is to all others. Nothing keeps it."""
        if self._client is not None and self.connected.is_set():
            with suppress(Exception):
                told = json.dumps(fields | {"life": self._life}).encode()
                await self._client.publish(f"presence.{self.link.name}", told)

    # -- where the server runs

    def _start_server(self) -> None:
        """A thread: start the server, unless it runs."""
        with self._server_lock:
            if self._has_ended or (self._server is not None and self._server.poll() is None):
                return
            self._end_left_over()
            program = Path(sysconfig.get_path("scripts"), "nats-server")
            if not program.exists():
                from relay.core.extras import adding

                raise UsageError("nats-server is not installed", hint=adding("link"))
            self.folder.write_server(self.link)
            with open(self.folder.path / "server.log", "ab") as log:
                self._server = subprocess.Popen(
                    [program, "-c", self.folder.conf],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self.folder.path,
                    start_new_session=True,
                )

    def _end_left_over(self) -> None:
        """End servers of earlier brokers, which were killed: their port is needed. What they hold
        is sent again."""
        # -ww: else lines are cut where COLUMNS is in the environment.
        with suppress(OSError, subprocess.SubprocessError):
            shown = subprocess.run(
                ["ps", "-axwwo", "pid=,args="], capture_output=True, text=True, timeout=ANSWER
            ).stdout
            for row in shown.splitlines():
                if row.endswith(f" -c {self.folder.conf}"):
                    with suppress(ProcessLookupError):
                        os.kill(int(row.split()[0]), signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self._server is not None and self._server.poll() is None:
            self._server.send_signal(number)

    async def users_changed(self) -> None:
        """Let the server read its users again."""
        self.folder.write(self.link)
        self.folder.write_server(self.link)
        self._signal(signal.SIGHUP)
        if self.connected.is_set():
            await self.make_stream()

    async def make_stream(self) -> None:
        """The stream, with a consumer a machine, where the server has none (any more)."""
        from nats.js import api
        from nats.js.errors import NotFoundError, ServerError

        stream = self._client.jetstream()
        try:
            await stream.stream_info(STREAM)
        except NotFoundError:
            await stream.add_stream(
                api.StreamConfig(
                    name=STREAM,
                    subjects=["relay.*.*.*"],
                    retention=api.RetentionPolicy.WORK_QUEUE,
                    discard=api.DiscardPolicy.NEW,
                    max_bytes=STREAM_BYTES,
                    max_age=30 * 24 * 3600,
                )
            )
        try:
            for name in self.link.machines or [self.link.name]:
                await stream.add_consumer(
                    STREAM,
                    api.ConsumerConfig(
                        durable_name=name,
                        filter_subject=f"relay.*.{name}.*",
                        deliver_subject=f"_INBOX_{name}.arrive",
                        ack_policy=api.AckPolicy.EXPLICIT,
                        ack_wait=30,
                        max_ack_pending=WINDOW,
                    ),
                )
        except ServerError:  # its files are gone, say: the next try makes another one
            if self.link.hosts:
                with suppress(Exception):
                    await stream.delete_stream(STREAM)  # who sent what it had sends that again
            raise

    async def new_code(self, address: str) -> tuple[Code, float]:
        """A code for one machine, and until when it may be used. ``address``: where it finds the
        server."""
        from relay.features.link.link_files import pin_of

        link = self.link
        link.secret, link.until = secrets.token_urlsafe(18), time.time() + CODE_LIFE
        await self.users_changed()
        return Code(address, pin_of(link.certificate), link.secret, link.host), link.until

    async def _join(self, message: Any) -> None:
        """A machine that has the secret asks to be in the link."""
        link = self.link
        name = ""
        try:
            asked = json.loads(message.data)
            name, key = str(asked["name"]), str(asked["key"])
            from relay.features.link.link_files import machine_name

            why = ""
            if not link.secret or time.time() > link.until:
                why = "the code was used already, or is too old: relay link new makes another one"
            elif machine_name(name) in link.machines:
                why = f"there is a machine called {name} already: choose another --name"
            elif not (len(key) == 56 and key.isalnum() and key[0] == "U"):
                why = "that is not a public key"
        except (ValueError, KeyError, TypeError, RelayError) as error:
            why = f"this cannot be read: {error}"
        if why:
            await message.respond(json.dumps({"why": why}).encode())
            return
        link.secret = ""
        link.machines[name] = key
        self.folder.write(link)  # before the answer: who is told to be in must be in after a kill
        self._log.write(f"the machine {name} has joined the link")
        await message.respond(json.dumps({"machines": sorted(link.machines)}).encode())
        await self._client.flush()
        await self.users_changed()
        await self.arrived.put(Arrival(name, "j", b""))

    async def remove(self, name: str) -> None:
        """A machine's key does nothing any more."""
        del self.link.machines[name]
        await self.users_changed()
        with suppress(Exception):
            await self._client.jetstream().delete_consumer(STREAM, name)

    def end_server(self) -> None:
        """A thread: end the server, if it runs here, also one that is just being started."""
        if not self.link.hosts:
            return
        with self._server_lock:
            self._has_ended = True
            self._signal(signal.SIGTERM)
            if self._server is not None:
                try:
                    self._server.wait(3)
                except subprocess.TimeoutExpired:
                    self._server.kill()
                    self._server.wait()


def _local(link: Link) -> str:
    return f"127.0.0.1:{link.address.rpartition(':')[2]}" if link.hosts else link.address


async def enrol(code: Code, certificate: str, name: str, folder: LinkFolder) -> list[str]:
    """Ask the server's machine to take this one in. Returns the names of the machines of the link,
    as far as they are known. Raises RelayError."""
    for wait in (AGAIN, AGAIN, 0.0):
        try:
            return await _ask_in(code, certificate, name, folder.public_key())
        except (_CodeRefused, _NoAnswer) as error:
            problem = error
        if await _is_in(code, certificate, name, folder.seed()):
            return [code.host]
        if isinstance(problem, _CodeRefused):
            break
        await asyncio.sleep(wait)  # while another machine is taken in, the server ends connections
    raise problem


class _CodeRefused(UsageError):
    """The server does not take the code. Perhaps this machine has been taken in by it already."""


class _NoAnswer(RelayError):
    """The connection ended before an answer came: this machine may have been taken in or not."""


async def _ask_in(code: Code, certificate: str, name: str, key: str) -> list[str]:
    client = None
    try:
        client = await nats_module().connect(
            f"tls://{code.address}",
            user="join",
            password=code.secret,
            tls=context_for(certificate),
            tls_handshake_first=True,
            inbox_prefix="_INBOX_join",
            allow_reconnect=False,
            connect_timeout=CONNECTED_BY_SSH,
            error_cb=_quiet,
        )
        version = client.connected_server_version
        refuse_old(f"{version.major}.{version.minor}.{version.patch}")
        asked = json.dumps({"name": name, "key": key}).encode()
        answer = json.loads((await client.request("join", asked, ANSWER)).data)
    except RelayError:
        raise
    except Exception as error:
        if "uthorization" in str(error):
            raise _CodeRefused(
                "the code was used already, or is too old",
                hint="make another one on the other machine: relay link new",
            ) from error
        raise _NoAnswer(f"{code.address}: {error or type(error).__name__}") from error
    finally:
        if client is not None:
            with suppress(Exception):
                await client.close()
    if "why" in answer:
        raise UsageError(str(answer["why"]))
    return [str(one) for one in answer["machines"]]


async def _is_in(code: Code, certificate: str, name: str, seed: bytes) -> bool:
    """Whether the server takes this machine's own key, for a machine of this name."""
    refusals: list[Exception] = []

    async def refused(error: Exception) -> None:
        refusals.append(error)

    try:
        client = await nats_module().connect(
            f"tls://{code.address}",
            nkeys_seed_str=seed.decode(),
            tls=context_for(certificate),
            tls_handshake_first=True,
            allow_reconnect=False,
            connect_timeout=CONNECTED_BY_SSH,
            error_cb=refused,
        )
    except Exception:  # it cannot be reached, or does not know the key
        return False
    try:
        await client.subscribe(f"_INBOX_{name}.arrive")
        await client.flush(ANSWER)
    except Exception as error:
        refusals.append(error)
    finally:
        with suppress(Exception):
            await client.close()
    return not refusals


async def _quiet(error: Exception) -> None:
    """The error is raised as well."""
