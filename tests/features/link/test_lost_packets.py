"""Two machines with a network each (Linux namespaces), between which packets get lost."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from relay.features.link.ops import LINK, LINK_JOIN, LINK_NEW
from relay.ledger.reading import query
from relay.protocol.broker_ops import STATUS
from tests.broker.support import stop_broker
from tests.features.link.test_link import ME, MachineUnderTest, until

pytest.importorskip("nats", reason="relay[link] is not installed")

_ADDRESSES = {"left": "10.77.0.1", "right": "10.77.0.2"}
#: The broker, to which a machine that has been silent for 7 seconds is away.
_BROKER = (
    "import sys; from relay.features.link import machines;"
    "machines.TELL, machines.AWAY = 1.0, 7.0;"
    "from relay.broker.main import main; sys.exit(main())"
)


def has_namespaces() -> bool:
    """Whether this system lets its users make networks."""
    if not all(map(shutil.which, ("unshare", "nsenter", "ip"))):
        return False
    made = "ip link add left type veth peer name right"
    return subprocess.run(["unshare", "-rn", "sh", "-c", made], capture_output=True).returncode == 0


def _card(end: str) -> str:
    """The address of the network card at this end of the cable; of another one elsewhere."""
    return f"02:00:00:00:00:0{(*_ADDRESSES, end).index(end)}"


class Network:
    """A cable between the networks of two machines, by a shell in the left one."""

    def __init__(self) -> None:
        self._shell = subprocess.Popen(
            ["unshare", "-rn", "sh"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._there = self._say("unshare -n sh -c 'echo $$; exec sleep 600' &")
        self._run("ip link set lo up")
        self._run("ip link add left type veth peer name right")
        self._run(f"ip link set right netns {self._there}")
        for end, address in _ADDRESSES.items():
            self._run(f"ip link set {end} address {_card(end)} up", end)
            self._run(f"ip address add {address}/24 dev {end}", end)

    def _say(self, line: str) -> str:
        assert self._shell.stdin is not None and self._shell.stdout is not None
        self._shell.stdin.write(f"{line}\n")
        self._shell.stdin.flush()
        return self._shell.stdout.readline().strip()

    def _run(self, command: str, end: str = "left") -> None:
        assert self._say(f"{self._at(end)}{command} && echo done") == "done"

    def _at(self, end: str) -> str:
        return f"nsenter -t {self._there} -n " if end == "right" else ""

    def start_broker(self, machine: MachineUnderTest, end: str) -> None:
        command = shlex.join([sys.executable, "-c", _BROKER, "--home", machine.home.root])
        self._say(f"{self._at(end)}{command} >/dev/null 2>&1 & echo started")
        until(lambda: os.path.exists(machine.home.broker_socket))

    def lose_packets(self, *, all_of_them: bool) -> None:
        """Send packets to a card that is not there, without a word to the sender; or to the right
        one again."""
        for end, other in (("left", "right"), ("right", "left")):
            card = _card("nowhere" if all_of_them else other)
            what = f"{_ADDRESSES[other]} lladdr {card} dev {end} nud permanent"
            self._run(f"ip neighbour replace {what}", end)

    def close(self) -> None:
        self._say(f"kill {self._there}; echo done")
        assert self._shell.stdin is not None and self._shell.stdout is not None
        self._shell.stdin.close()
        self._shell.stdout.close()
        self._shell.wait(30)


@pytest.fixture
def network() -> Iterator[Network]:
    if not has_namespaces():
        pytest.skip("networks cannot be made here")
    made = Network()
    yield made
    made.close()


@pytest.mark.parametrize("sleeps", [False, True], ids=["a partition", "a laptop that sleeps"])
def test_messages_wait_until_packets_arrive_again(
    network: Network, tmp_path_factory: pytest.TempPathFactory, sleeps: bool
) -> None:
    root = tmp_path_factory.mktemp("m")
    server, laptop = MachineUnderTest(root, "server"), MachineUnderTest(root, "laptop")
    with ExitStack() as ends:
        for machine, end in ((server, "left"), (laptop, "right")):
            network.start_broker(machine, end)
            ends.callback(stop_broker, machine.home)
        made = server.ask(LINK_NEW, name="server", address=_ADDRESSES["left"])
        laptop.ask(LINK_JOIN, code=made["code"], name="laptop")

        def is_here() -> bool:
            return all(one["here"] for one in server.ask(LINK)["machines"])

        until(is_here)

        def is_seen_and_not_written() -> bool:
            """A disk would never rest if each presence of each machine were stored."""
            [[stored]] = query(server.home.ledger, "SELECT seen_ms FROM link_machines", 1).rows
            return bool(server.ask(LINK)["machines"][0]["seen_ms"] != stored)

        until(is_seen_and_not_written)
        broker = laptop.ask(STATUS)["pid"]
        bodies = [f"m{number}" for number in range(4)]
        network.lose_packets(all_of_them=True)
        if sleeps:
            laptop.send(f"{ME}@server", "m0")
            os.kill(broker, signal.SIGSTOP)
        for body in bodies:
            server.send(f"{ME}@laptop", body)
            if not sleeps:
                laptop.send(f"{ME}@server", body)
        until(lambda: not is_here())
        if not sleeps:
            until(lambda: not laptop.ask(LINK)["connected"])
        assert server.inbox() == []
        network.lose_packets(all_of_them=False)
        os.kill(broker, signal.SIGCONT)
        until(lambda: laptop.inbox() == bodies)
        until(lambda: server.inbox() == (["m0"] if sleeps else bodies))
        until(lambda: {state for state, _ in server.sent() + laptop.sent()} == {"delivering"})
