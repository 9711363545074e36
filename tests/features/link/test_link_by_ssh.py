"""A link through ssh: a real ssh client and a real SSH server, on which no port is open."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from relay.core.errors import UsageError
from relay.features.link.by_ssh import SshWay
from relay.features.link.ops import LINK, LINK_NEW, LINK_REMOVE
from tests.broker.support import kill_broker
from tests.features.link.ssh_server import SshServer
from tests.features.link.test_link import ME, MachineUnderTest, end, free_port, running, until

pytest.importorskip("nats", reason="relay[link] is not installed")
if not shutil.which("ssh"):
    pytest.skip("there is no ssh here", allow_module_level=True)
pytestmark = pytest.mark.process


class Far:
    """laptop, and server, which is reached by ssh alone."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.laptop = MachineUnderTest(root, "laptop")
        self.server = MachineUnderTest(root, "server")
        self.at_home = root / "user" / ".local" / "bin"
        self.at_home.mkdir(parents=True)
        relay = self.at_home / "relay"
        relay.write_text(f'#!/bin/sh\nexec {sys.executable} -m relay "$@"\n')
        relay.chmod(0o755)
        there = {
            "HOME": str(root / "user"),
            "PATH": "/usr/bin:/bin",
            "RELAY_HOME": self.server.home.root,
        }
        self.ssh = SshServer(root / "ssh", there)
        monkeypatch.setenv("PATH", f"{self.ssh.bin}:{os.environ['PATH']}")

    @property
    def address(self) -> str:
        return f"ssh://me@server:{self.ssh.port}"

    def join(self, address: str = "") -> str:
        """What ``relay link join`` prints."""
        command = [sys.executable, "-m", "relay", "link", "join", address or self.address]
        done = subprocess.run(
            [*command, "--name", "laptop"],
            env={**os.environ, "RELAY_HOME": self.laptop.home.root},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
        )
        return done.stdout

    def tunnels(self) -> list[str]:
        """The command lines of the ssh that carry a connection."""
        return [line for line in running().splitlines() if f"-p {self.ssh.port} -W" in line]


@pytest.fixture
def far(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Far]:
    far = Far(tmp_path_factory.mktemp("s"), monkeypatch)
    with ExitStack() as ends:
        for machine in (far.server, far.laptop):
            ends.callback(end, machine)
        ends.enter_context(far.ssh)
        yield far


def test_join_by_ssh_begins_a_link_there_and_goes_on_when_ssh_was_away(far: Far) -> None:
    # A link that begins by ssh has the usual port, which another test may use.
    far.server.ask(LINK_NEW, name="server", address=f"127.0.0.1:{free_port()}")
    assert "this machine is laptop, linked with server" in far.join()
    laptop, server = far.laptop, far.server
    assert laptop.ask(LINK)["server"] == far.address
    assert '"host": "127.0.0.1"' in server.folder.conf.read_text()
    laptop.send(f"{ME}@server", "m0")
    until(lambda: server.inbox() == ["m0"])
    server.send(f"{ME}@laptop", "yes")
    until(lambda: laptop.inbox() == ["yes"])
    far.ssh.__exit__()
    until(lambda: f"{far.address}: ssh: connect to host" in laptop.ask(LINK)["problem"])
    assert not laptop.ask(LINK)["connected"]
    laptop.send(f"{ME}@server", "m1")
    far.ssh.__enter__()
    until(lambda: server.inbox() == ["m0", "m1"])


def test_an_ssh_ends_with_its_broker_and_with_the_link(far: Far) -> None:
    far.server.ask(LINK_NEW, name="server", address=f"127.0.0.1:{free_port()}")
    far.join()
    assert len(far.tunnels()) == 1
    kill_broker(far.laptop.home)
    until(lambda: not far.tunnels())
    far.laptop.ask(LINK)
    until(lambda: len(far.tunnels()) == 1)
    far.laptop.ask(LINK_REMOVE, machine="laptop")
    assert far.tunnels() == []


def test_what_is_missing_there_is_said_with_what_to_do(far: Far) -> None:
    (far.at_home / "relay").unlink()
    said = far.join()
    assert f"{far.address} has no relay that ssh finds" in said
    assert "pipx install 'relay-wrap[link]'" in said
    (far.ssh.bin.parent / "key").unlink()
    said = far.join()
    assert f"ssh does not get to {far.address}: " in said
    assert "me@127.0.0.1: Permission denied (publickey)." in said
    assert f"try: ssh -p {far.ssh.port} me@server true" in said
    assert far.laptop.ask(LINK)["name"] == ""


@pytest.mark.parametrize(
    "address",
    [
        "ssh://-oProxyCommand=touch${IFS}x",
        "ssh://-oProxyCommand=x@host",
        "ssh://me@-lroot",
        "ssh://me@host:0",
        "ssh://me@host:22 -oProxyCommand=x",
        "ssh://host;touch x",
        "ssh://$(touch x)@host",
        "ssh://host/x",
        "ssh://me@host\n-oProxyCommand=x",
        "ssh://",
        "host",
    ],
)
def test_what_ssh_would_take_for_an_option_is_no_address(address: str) -> None:
    with pytest.raises(UsageError, match="is not an address"):
        SshWay.read(address)


def test_an_address_has_a_user_and_a_port_where_they_are_given() -> None:
    for address in ("ssh://host", "ssh://me@host", "ssh://me@host:2222", "ssh://me@[::1]:2222"):
        assert str(SshWay.read(address)) == address
    command = SshWay.read("ssh://me@[::1]:2222").command("-N")
    assert command[-8:] == ["BatchMode=yes", "-l", "me", "-p", "2222", "-N", "--", "::1"]
