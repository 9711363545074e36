"""Two and three machines (each a RELAY_HOME) on a real nats-server."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from relay.broker.client import connect
from relay.core.agent_names import owner_name
from relay.core.errors import RelayError, UsageError
from relay.core.paths import Home
from relay.features.link.link_files import Code, LinkFolder, context_for
from relay.features.link.machines import seconds_between
from relay.features.link.ops import LINK, LINK_ALLOW, LINK_JOIN, LINK_NEW, LINK_REMOVE
from relay.features.link.wire import refuse_old
from relay.features.mcp.mcp_tools import ToolCaller
from relay.ledger.reading import query
from relay.protocol.agent_ops import AGENT_STATE, AGENTS, ANSWER, ELSEWHERE
from relay.protocol.item_ops import ITEM_ANSWER, ITEMS
from relay.protocol.message_ops import INBOX, READ, SEND, SENT
from relay.protocol.op import by_name
from tests.broker.support import Session, kill_broker, stop_broker

nats = pytest.importorskip("nats", reason="relay[link] is not installed")

ME = owner_name()
#: Seconds within which what must happen has happened.
SOON = 60.0


class MachineUnderTest:
    """One machine."""

    def __init__(self, root: Path, name: str) -> None:
        self.name = name
        self.home = Home(str(root / name))
        self.home.create()
        self.folder = LinkFolder(self.home.root)

    def ask(self, op: Any, **fields: Any) -> Any:
        with connect(self.home) as client:
            return client.request(op, deadline=60, **fields)

    def inbox(self) -> list[str]:
        return [row["body"] for row in self.ask(INBOX, limit=1000)["rows"]]

    def sent(self) -> list[tuple[str, str | None]]:
        rows = self.ask(SENT, limit=1000)["rows"]
        return [(row["state"], row["reason"]) for row in rows]

    def send(self, to: str, body: str, **more: Any) -> Any:
        return self.ask(SEND, to=to, body=body, **more)


def until(what: Callable[[], object]) -> None:
    """Wait until it is so."""
    end = time.monotonic() + SOON
    while not what():
        assert time.monotonic() < end, "it has not happened"
        time.sleep(0.05)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def running() -> str:
    """The command lines of all processes."""
    return subprocess.check_output(["ps", "-axwwo", "args="], text=True)


def end(machine: MachineUnderTest) -> None:
    """End its broker, and with it the server, though the broker may have been killed."""
    machine.ask(LINK)
    stop_broker(machine.home)


@pytest.fixture
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[MachineUnderTest]]:
    """laptop, which serves, and server, which has joined."""
    root = tmp_path_factory.mktemp("m")
    found = [MachineUnderTest(root, name) for name in ("laptop", "server", "third")]
    with ExitStack() as ends:
        for one in found:
            ends.callback(end, one)
        laptop, server, _ = found
        made = laptop.ask(LINK_NEW, name="laptop", address=f"127.0.0.1:{free_port()}")
        server.ask(LINK_JOIN, code=made["code"], name="server")
        until(lambda: all(row["here"] for row in laptop.ask(LINK)["machines"]))
        until(lambda: all(row["here"] for row in server.ask(LINK)["machines"]))
        yield found
    until(lambda: str(laptop.folder.conf) not in running())  # its server


def signal_server(laptop: MachineUnderTest, number: int) -> int:
    """Send a signal to the server, which may be just being started again. Returns its process."""
    found = 0

    def is_sent() -> bool:
        nonlocal found
        laptop.ask(LINK)
        try:
            found = int(laptop.folder.pid.read_text())
            os.kill(found, number)
        except (OSError, ValueError):
            return False
        return True

    until(is_sent)
    return found


def test_a_message_there_and_the_answer_back_with_receipts(
    machines: list[MachineUnderTest],
) -> None:
    laptop, server, _ = machines
    sent = laptop.send(f"{ME}@server", "are you there?", thread="t")
    assert sent["deliveries"][0]["state"] == "queued"
    until(lambda: server.inbox() == ["are you there?"])
    [row] = server.ask(INBOX, limit=9)["rows"]
    # From elsewhere the owner of the other machine is nobody's user, unless that is allowed here.
    assert (row["from"], row["from_kind"], row.get("proven")) == (f"{ME}@laptop", "agent", None)
    until(lambda: laptop.sent() == [("delivering", "queued at server")])
    server.ask(READ, ids=[row["id"]])
    until(lambda: laptop.sent() == [("seen", None)])
    server.send(row["from"], "yes")
    until(lambda: laptop.inbox() == ["yes"])
    server.ask(LINK_ALLOW, machine="laptop", rights=["person"])
    laptop.send(f"{ME}@server", "now it is me")
    until(lambda: server.inbox()[-1:] == ["now it is me"])
    assert server.ask(INBOX, limit=9)["rows"][-1]["proven"] is True


def test_names_that_nobody_has_are_refused_with_the_machine(
    machines: list[MachineUnderTest],
) -> None:
    laptop, server, _ = machines
    with pytest.raises(RelayError, match="no machine is called moon"):
        laptop.send("Bob@moon", "x")
    laptop.send("Bob@server", "x")
    until(lambda: laptop.sent()[0][0] == "failed")
    assert "server: nobody is called that" in str(laptop.sent()[0][1])
    # Without a right, an interrupt is not a message.
    laptop.send(f"{ME}@server", "stop", mode="interrupt")
    until(lambda: [one[0] for one in laptop.sent()] == ["failed", "failed"])
    assert server.inbox() == []
    reasons = " ".join(str(one[1]) for one in laptop.sent())
    assert "server: laptop may not interrupt here" in reasons
    assert "on server, its person can allow it: relay link allow laptop interrupt" in reasons


def test_a_message_that_was_refused_is_refused_when_it_comes_again(
    machines: list[MachineUnderTest],
) -> None:
    laptop, server, _ = machines
    laptop.send(f"{ME}@server", "stop", mode="interrupt")
    until(lambda: laptop.sent()[0][0] == "failed")
    [refused] = query(server.home.ledger, "SELECT id FROM link_refused", 2).rows
    row = {"n": 1, "before": 0, "sender": ME, "to": [ME], "body": "stop", "mode": "interrupt"}
    server.ask(LINK_ALLOW, machine="laptop", rights=["interrupt"])

    async def again() -> None:
        link = laptop.folder.read()
        client = await nats.connect(
            f"tls://{link.address}",
            tls=context_for(link.certificate),
            tls_handshake_first=True,
            nkeys_seed_str=laptop.folder.seed().decode(),
        )
        for told in (row | {"id": refused[0]}, row | {"id": "0" * 26, "sender": "no name at all"}):
            await client.jetstream().publish("relay.laptop.server.m", json.dumps(told).encode())
        await client.close()

    asyncio.run(again())
    laptop.send(f"{ME}@server", "after it", mode="interrupt")
    until(lambda: server.inbox() == ["after it"])
    ids = query(server.home.ledger, "SELECT id FROM link_refused", 9).rows
    assert {one[0] for one in ids} == {refused[0], "0" * 26}


def test_the_screen_of_an_agent_elsewhere_is_shown_where_its_machine_allows_it(
    machines: list[MachineUnderTest],
) -> None:
    laptop, server, _ = machines

    async def look() -> None:
        async with Session(server.home, "Bob") as bob:

            async def show() -> None:
                shown: set[str] = set()

                def unanswered() -> list[Any]:
                    asks = [push for push in bob.pushes if push["push"] == "ask"]
                    return [push for push in asks if push["id"] not in shown]

                while True:
                    for push in await bob.until(unanswered):
                        shown.add(push["id"])
                        answer = {"lines": [f"{push['by']} looks"]}
                        await bob.client.request(ANSWER, id=push["id"], response=answer)

            showing = asyncio.get_running_loop().create_task(show())
            fields = {"agent": "Bob", "kind": "screen", "request": {}, "timeout": 20}

            def peek(**more: Any) -> Any:
                asks = {"machine": "server", "asked": "ask", "fields": {**fields, **more}}
                return laptop.ask(ELSEWHERE, timeout=30, **asks)["answer"]

            with pytest.raises(RelayError, match="server: laptop may not see screens here"):
                await asyncio.to_thread(peek)
            server.ask(LINK_ALLOW, machine="laptop", rights=["peek"])
            answer = await asyncio.to_thread(peek)
            assert answer == {"response": {"lines": ["person looks"]}}
            # What is allowed is that, and nothing that calls itself so.
            with pytest.raises(RelayError, match="may not interrupt here"):
                await asyncio.to_thread(peek, kind="interrupt")
            with pytest.raises(RelayError, match="'ask' cannot be asked over a link"):
                await asyncio.to_thread(peek, kind="hooks")
            assert await asyncio.to_thread(peek, op="stop", auth=None) == answer
            showing.cancel()

    asyncio.run(look())
    with pytest.raises(RelayError, match="'stop' cannot be asked over a link"):
        laptop.ask(ELSEWHERE, machine="server", asked="stop", fields={}, timeout=20)


def test_an_answer_from_elsewhere_says_who_gave_it(machines: list[MachineUnderTest]) -> None:
    laptop, server, _ = machines
    server.ask(LINK_ALLOW, machine="laptop", rights=["answer"])

    def elsewhere(op: Any, **fields: Any) -> Any:
        asked = {"machine": "server", "asked": str(op), "fields": fields}
        return laptop.ask(ELSEWHERE, timeout=30, **asked)["answer"]

    asks: Any = {"id": "question-1", "what": "sure?", "chosen": 0, "since_ms": 1}
    asks["choices"] = [{"key": "y", "label": "Yes"}, {"key": "n", "label": "No"}]

    async def answer() -> None:
        async with Session(server.home, "Bob") as bob:
            await bob.client.request(AGENT_STATE, state="idle", question=asks)
            [item] = (await asyncio.to_thread(elsewhere, ITEMS))["rows"]
            given: Any = {"id": item["id"], "choice": "yes", "note": "go on", "by": "Eve"}
            async with asyncio.TaskGroup() as tasks:
                going = tasks.create_task(asyncio.to_thread(elsewhere, ITEM_ANSWER, **given))
                [push] = await bob.until(lambda: [p for p in bob.pushes if p["push"] == "ask"])
                await bob.client.request(ANSWER, id=push["id"], response={"gone": True})
            assert going.result()["by"] == f"{ME}@laptop"

    asyncio.run(answer())
    [[meta]] = query(server.home.ledger, "SELECT meta_json FROM events WHERE kind='answer'", 2).rows
    stored = json.loads(str(meta))["meta"]
    assert (stored["by"], stored["note"]) == (f"{ME}@laptop", "go on")


async def no_progress(seconds: float) -> None:
    """Nobody looks."""


def test_everyone_and_a_channel_are_one_copy_a_machine_given_out_there(
    machines: list[MachineUnderTest],
) -> None:
    laptop, server, _ = machines

    def is_known() -> bool:
        names = {one["name"] for one in laptop.ask(AGENTS)["elsewhere"]}
        return names == {"Ann@server", "Bob@server"}

    async def talk() -> None:
        async with (
            Session(server.home, "Ann") as ann,
            Session(server.home, "Bob") as bob,
            Session(laptop.home, "Cid") as cid,
        ):
            await bob.client.request(by_name("channel_join"), channel="#build")
            await asyncio.to_thread(until, is_known)
            tools = ToolCaller(cid.client, {}, {}, "/")
            shown = json.loads(await tools.call("agents", {}, no_progress))
            assert shown["elsewhere"] == [
                {"name": "Ann@server", "here": True},
                {"name": "Bob@server", "here": True},
            ]
            await asyncio.to_thread(laptop.send, "*", "to all")
            for one in (ann, bob, cid):
                await one.until(one.delivered)
            await asyncio.to_thread(laptop.send, "#build", "to some")
            await bob.until(lambda: len(bob.delivered()) == 2)
            assert len(ann.delivered()) == len(cid.delivered()) == 1

    asyncio.run(talk())
    given = {
        ("*@server", "server: given to 2 there"),
        ("#build@server", "server: given to 1 there"),
    }

    def far() -> set[tuple[str, str]]:
        rows = laptop.ask(SENT, limit=9)["rows"]
        return {(row["to"], row["reason"]) for row in rows if "@" in row["to"]}

    until(lambda: far() == given)


def test_a_code_works_once_and_a_name_is_taken_once(machines: list[MachineUnderTest]) -> None:
    laptop, server, third = machines
    with pytest.raises(UsageError, match="this machine is laptop, and its server is at 127.0.0.1"):
        laptop.ask(LINK_NEW, address="10.0.0.1")
    code = laptop.ask(LINK_NEW)["code"]
    with pytest.raises(UsageError, match="a machine called server already"):
        third.ask(LINK_JOIN, code=code, name="server")
    third.ask(LINK_JOIN, code=code, name="third")
    assert not third.folder.path.joinpath("server.key").exists()
    fourth = MachineUnderTest(Path(third.home.root).parent, "fourth")
    try:
        with pytest.raises(UsageError, match="used already, or is too old"):
            fourth.ask(LINK_JOIN, code=code, name="fourth")
    finally:
        stop_broker(fourth.home)
    until(lambda: {row["name"] for row in server.ask(LINK)["machines"]} == {"laptop", "third"})
    server.send(f"{ME}@third", "between guests")
    until(lambda: third.inbox() == ["between guests"])


def test_of_two_that_join_with_one_code_at_once_one_is_taken(
    machines: list[MachineUnderTest],
) -> None:
    laptop, _, third = machines
    code = laptop.ask(LINK_NEW)["code"]
    fourth = MachineUnderTest(Path(third.home.root).parent, "fourth")

    def join(machine: MachineUnderTest) -> str:
        try:
            machine.ask(LINK_JOIN, code=code, name=machine.name)
        except UsageError as error:
            assert "used already, or is too old" in error.message
            return ""
        return machine.name

    try:
        with ThreadPoolExecutor(2) as both:
            taken = {name for name in both.map(join, (third, fourth)) if name}
        assert len(taken) == 1
        wanted = {"server"} | taken
        until(lambda: {row["name"] for row in laptop.ask(LINK)["machines"]} == wanted)
    finally:
        end(fourth)


def test_a_clock_that_is_an_hour_behind_changes_no_order(
    machines: list[MachineUnderTest],
) -> None:
    laptop, _, third = machines
    run = (
        "import sys, time; now = time.time; time.time = lambda: now() - 3600;"
        "from relay.broker.main import main; sys.exit(main())"
    )
    broker = subprocess.Popen([sys.executable, "-c", run, "--home", third.home.root])
    until(lambda: Path(third.home.broker_socket).exists())
    third.ask(LINK_JOIN, code=laptop.ask(LINK_NEW)["code"], name="third")
    bodies = [f"m{number}" for number in range(4)]
    for body in bodies:
        laptop.send(f"{ME}@third", body)
        third.send(f"{ME}@laptop", body)
    laptop.send(f"{ME}@third", "last")
    until(lambda: third.inbox() == [*bodies, "last"])
    until(lambda: laptop.inbox() == bodies)
    third.ask(READ, ids=[row["id"] for row in third.ask(INBOX, limit=9)["rows"]])
    until(lambda: {state for state, _ in laptop.sent()} == {"seen"})
    times = [row["seen_ms"] / 1000 for row in third.ask(LINK)["machines"]]
    assert max(times) < time.time() - 3000  # its clock was wrong
    stop_broker(third.home)
    broker.wait(SOON)


def test_of_many_machines_each_hears_of_ten_a_second() -> None:
    assert [seconds_between(count) for count in (2, 100, 1000)] == [10, 10, 100]


@pytest.mark.parametrize("version", ["2.10.29", "1.4.1", "unknown"])
def test_a_server_that_is_too_old_is_refused(version: str) -> None:
    with pytest.raises(UsageError, match=f"nats-server {version}; it must be 2.11"):
        refuse_old(version)
    refuse_old("2.11.0")
    refuse_old("3.0.0")


def test_a_removed_machine_does_nothing_any_more(machines: list[MachineUnderTest]) -> None:
    laptop, server, _ = machines
    laptop.ask(LINK_REMOVE, machine="server")
    until(lambda: not server.ask(LINK)["connected"])
    server.send(f"{ME}@laptop", "still there")
    until(lambda: "uthorization" in server.ask(LINK)["problem"])
    assert laptop.inbox() == []
    with pytest.raises(RelayError, match="no machine is called server"):
        laptop.send(f"{ME}@server", "x")


def test_the_server_lets_nobody_speak_as_another(machines: list[MachineUnderTest]) -> None:
    laptop, server, _ = machines
    refused: set[str] = set()

    async def forge() -> None:
        async def failed(error: Exception) -> None:
            if "ermissions" in str(error):
                refused.add(str(error))

        client = await nats.connect(
            f"tls://{server.folder.read().address}",
            tls=context_for(server.folder.read().certificate),
            tls_handshake_first=True,
            nkeys_seed_str=server.folder.seed().decode(),
            inbox_prefix="_INBOX_server",
            error_cb=failed,
        )
        row = {"n": 1, "before": 0, "id": "0" * 26, "sender": "Al", "to": [ME], "body": "forged"}
        # The server may have just read its users again, and closed the connection.
        while len(refused) < 7:
            with suppress(nats.errors.Error):
                for subject in (
                    "relay.laptop.server.m",
                    "relay.third.laptop.m",
                    "live.laptop.third",
                    "_INBOX_laptop.answer",
                    "$JS.API.STREAM.DELETE.RELAY",
                ):
                    await client.publish(subject, json.dumps(row).encode())
                await client.subscribe("relay.>")
                await client.subscribe("_INBOX_laptop.>")
                await client.flush()
            await asyncio.sleep(0.05)
        await client.close()

    asyncio.run(asyncio.wait_for(forge(), SOON))
    server.send(f"{ME}@laptop", "true")
    until(lambda: laptop.inbox() == ["true"])


def test_a_server_that_speaks_without_tls_is_told_nothing(machines: list[MachineUnderTest]) -> None:
    laptop, server, _ = machines
    port = int(server.folder.read().address.rpartition(":")[2])
    stop_broker(laptop.home)
    info = {"version": "2.15.1", "max_payload": 1 << 20, "nonce": "n", "auth_required": True}
    with socket.create_server(("127.0.0.1", port)) as door:
        client, _ = door.accept()
        with client:
            client.sendall(b"INFO %s\r\n" % json.dumps(info).encode())
            client.settimeout(SOON)
            heard = client.recv(1)
    assert heard == b"\x16"  # TLS begins


def test_a_message_of_a_mebibyte(machines: list[MachineUnderTest]) -> None:
    laptop, server, _ = machines
    body = "\n" * 1000 + "ä" * (512 * 1024 - 500)
    laptop.send(f"{ME}@server", body)
    until(lambda: server.inbox() == [body])


def test_a_full_stream_is_said_and_nothing_is_lost(machines: list[MachineUnderTest]) -> None:
    laptop, server, _ = machines

    async def limit(most: int) -> None:
        link = laptop.folder.read()
        client = await nats.connect(
            f"tls://{link.address}",
            tls=context_for(link.certificate),
            tls_handshake_first=True,
            nkeys_seed_str=laptop.folder.seed().decode(),
        )
        stream = client.jetstream()
        config = (await stream.stream_info("RELAY")).config
        config.max_msgs = most
        await stream.update_stream(config)
        await client.close()

    stop_broker(server.home)
    asyncio.run(limit(3))
    for number in range(6):
        laptop.send(f"{ME}@server", f"m{number}")
    until(lambda: "the stream on laptop is full" in laptop.ask(LINK)["problem"])
    asyncio.run(limit(-1))
    until(lambda: server.inbox() == [f"m{number}" for number in range(6)])


@pytest.mark.parametrize("cycles", [int(os.environ.get("RELAY_LINK_CYCLES", "5"))])
def test_kills_partitions_and_lost_stores_lose_double_and_disorder_nothing(
    machines: list[MachineUnderTest], cycles: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    laptop, server, _ = machines
    monkeypatch.setenv("COLUMNS", "80")  # as in many a shell: ps cuts its lines there
    expected: list[str] = []
    for cycle in range(cycles):
        for _ in range(3):
            expected.append(f"m{len(expected)}")
            laptop.send(f"{ME}@server", expected[-1])
        match cycle % 5:
            case 0:  # a partition, and its end
                pid = signal_server(laptop, signal.SIGSTOP)
                laptop.send(f"{ME}@server", f"m{len(expected)}")
                expected.append(f"m{len(expected)}")
                os.kill(pid, signal.SIGCONT)
            case 1:
                signal_server(laptop, signal.SIGKILL)
            case 2:  # the server loses all that it had
                signal_server(laptop, signal.SIGKILL)
                shutil.rmtree(laptop.folder.path / "store", ignore_errors=True)
            case 3:
                kill_broker(server.home)
                server.ask(LINK)  # starts it again
            case 4:
                kill_broker(laptop.home)
    # A broker that was killed is started by the next who asks it for something.
    until(lambda: laptop.ask(LINK) and len(server.inbox()) >= len(expected))
    assert server.inbox() == expected
    until(lambda: all(one == ("delivering", "queued at server") for one in laptop.sent()))


@pytest.mark.parametrize(
    "step", ["nats.aio.msg:Msg.ack", "relay.features.link.far_inbox:FarInbox.reply"]
)
def test_a_receiver_that_is_killed_when_it_has_stored_and_not_said_so_loses_and_doubles_nothing(
    machines: list[MachineUnderTest], step: str
) -> None:
    laptop, server, _ = machines
    stop_broker(server.home)
    module, _, method = step.partition(":")
    kind, _, name = method.partition(".")
    run = (
        f"import os, signal, sys; from {module} import {kind};"
        f"{kind}.{name} = lambda *_: os.kill(os.getpid(), signal.SIGKILL);"
        "from relay.broker.main import main; sys.exit(main())"
    )
    broker = subprocess.Popen([sys.executable, "-c", run, "--home", server.home.root])
    until(lambda: Path(server.home.broker_socket).exists())
    laptop.send(f"{ME}@server", "m0")
    laptop.send(f"{ME}@server", "m1")
    assert broker.wait(SOON) == -signal.SIGKILL
    count = "SELECT count(*) FROM events WHERE body IN ('m0', 'm1')"
    [[stored]] = query(server.home.ledger, count, 1).rows
    assert stored in (1, 2)
    assert "queued at server" not in {reason for _, reason in laptop.sent()}
    until(lambda: server.inbox() == ["m0", "m1"])  # the first look starts a broker again
    until(lambda: set(laptop.sent()) == {("delivering", "queued at server")})
    assert server.inbox() == ["m0", "m1"]


def test_one_link_is_left_and_another_one_begins(machines: list[MachineUnderTest]) -> None:
    laptop, server, _ = machines
    server.ask(LINK_REMOVE, machine="server")
    assert server.ask(LINK)["name"] == ""
    with pytest.raises(RelayError):
        server.send(f"{ME}@laptop", "x")


def test_a_broker_without_a_link_imports_nothing_of_nats() -> None:
    code = (
        "import sys, relay.broker.main, relay.features.link.broker;"
        "print(*({'nats', 'nkeys', 'cryptography', 'relay.features.link.wire'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == []


def test_without_a_link_nothing_of_it_is_there(tmp_path: Path) -> None:
    alone = MachineUnderTest(tmp_path, "alone")
    try:
        assert alone.ask(LINK)["name"] == ""
        assert not alone.folder.path.exists()
        with pytest.raises(RelayError, match="cannot be a name"):
            alone.send("Bob@server", "x")
    finally:
        stop_broker(alone.home)


def joined_through(
    code: Code, machine: MachineUnderTest, is_cut: Callable[[int, bytes], bool]
) -> int:
    """Join through a proxy that ends connection n (the first: 0) when ``is_cut(n, data)`` of what
    the server says, and of "" as it begins. Returns how many connections there were."""
    host, _, port = code.address.rpartition(":")
    number = 0

    def between(door: socket.socket) -> None:
        nonlocal number
        with suppress(OSError):
            while True:
                client, _ = door.accept()
                number += 1
                if is_cut(number - 1, b""):
                    client.close()
                    continue
                server = socket.create_connection((host, int(port)))
                never = (lambda data: False, partial(is_cut, number - 1))
                for one, other, cut in zip((client, server), (server, client), never, strict=True):
                    Thread(target=carry, args=(one, other, cut), daemon=True).start()

    def carry(one: socket.socket, other: socket.socket, cut: Callable[[bytes], bool]) -> None:
        with one:
            with suppress(OSError):
                while (data := one.recv(65536)) and not cut(data):
                    other.sendall(data)
            for side in (one, other):
                with suppress(OSError):
                    side.shutdown(socket.SHUT_RDWR)

    with socket.create_server(("127.0.0.1", 0)) as door:
        Thread(target=between, args=(door,), daemon=True).start()
        through = replace(code, address=f"127.0.0.1:{door.getsockname()[1]}")
        assert machine.ask(LINK_JOIN, code=str(through), name="third")["machines"]
    return number


def test_a_join_whose_connection_ends_before_an_answer_is_tried_again(
    machines: list[MachineUnderTest],
) -> None:
    laptop, _, third = machines
    code = Code.read(laptop.ask(LINK_NEW)["code"])
    # The first connection fetches the certificate, the second one asks.
    assert joined_through(code, third, lambda number, data: number == 1) > 2


def test_a_join_whose_connection_ends_when_it_is_done_is_done(
    machines: list[MachineUnderTest],
) -> None:
    laptop, _, third = machines
    code = Code.read(laptop.ask(LINK_NEW)["code"])

    def is_cut(number: int, data: bytes) -> bool:
        return number == 1 and "third" in laptop.folder.read().machines

    assert joined_through(code, third, is_cut) > 2
    until(lambda: {row["name"] for row in third.ask(LINK)["machines"]} == {"laptop", "server"})
    third.send(f"{ME}@laptop", "I am in")
    until(lambda: laptop.inbox() == ["I am in"])
