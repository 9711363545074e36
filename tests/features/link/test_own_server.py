"""A link by a server of NATS that a team has: users by JWT, with the rights that relay names."""

from __future__ import annotations

import base64
import json
import secrets
import socket
import subprocess
import sysconfig
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from relay.core.errors import RelayError, UsageError
from relay.features.link.ops import LINK, LINK_USE
from relay.features.link.own_server import needs, read_urls
from tests.features.link.test_link import ME, MachineUnderTest, end, free_port, until

nkeys: Any = pytest.importorskip("nkeys", reason="relay[link] is not installed")
pytestmark = pytest.mark.process


class Signer:
    """Somebody who signs: the operator, an account; or a user."""

    def __init__(self, kind: str) -> None:
        prefix = {
            "operator": nkeys.PREFIX_BYTE_OPERATOR,
            "account": nkeys.PREFIX_BYTE_ACCOUNT,
            "user": nkeys.PREFIX_BYTE_USER,
        }[kind]
        self.kind = kind
        self.seed = bytes(nkeys.encode_seed(secrets.token_bytes(32), prefix))
        self._pair = nkeys.from_seed(bytearray(self.seed))
        self.public = bytes(self._pair.public_key).decode()

    def token(self, of: Signer, **fields: Any) -> str:
        """A JWT for ``of``."""
        claims = {
            "iss": self.public,
            "sub": of.public,
            "iat": int(time.time()),
            "nats": {"type": of.kind, "version": 2, **fields},
        }
        parts = [{"typ": "JWT", "alg": "ed25519-nkey"}, claims]
        text = ".".join(_packed(json.dumps(part).encode()) for part in parts)
        return f"{text}.{_packed(bytes(self._pair.sign(text.encode())))}"


def _packed(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


class TeamServer:
    """nats-server with one account, and TLS by a certificate of the team's own."""

    def __init__(self, root: Path) -> None:
        self._root = root
        operator, self._account = Signer("operator"), Signer("account")
        system = Signer("account")
        every = dict.fromkeys(("subs", "data", "payload", "conn", "leaf", "imports", "exports"), -1)
        stored = dict.fromkeys(("mem_storage", "disk_storage", "streams", "consumer"), -1)
        limits = {**every, **stored, "wildcards": True}
        self.port = free_port()
        self.certificate = root / "server.crt"
        _make_certificate(root)
        conf = {
            "host": "127.0.0.1",
            "port": self.port,
            "jetstream": {"store_dir": str(root / "store")},
            "operator": operator.token(operator),
            "resolver": "MEMORY",
            "resolver_preload": {
                self._account.public: operator.token(self._account, limits=limits),
                system.public: operator.token(system),
            },
            "system_account": system.public,
            "tls": {"cert_file": str(self.certificate), "key_file": str(root / "server.key")},
        }
        (root / "server.conf").write_text(json.dumps(conf))

    def __enter__(self) -> TeamServer:
        program = Path(sysconfig.get_path("scripts"), "nats-server")
        with open(self._root / "log", "ab") as log:
            command = [str(program), "-c", str(self._root / "server.conf")]
            self._server = subprocess.Popen(command, stdout=log, stderr=log)
        until(lambda: "Server is ready" in (self._root / "log").read_text())
        return self

    def __exit__(self, *_: object) -> None:
        self._server.kill()
        self._server.wait()

    def creds(self, name: str, but: str = "") -> str:
        """A file for the machine ``name``, which may do what relay asks for ``but`` for this."""
        wanted = needs(name)
        user = Signer("user")
        kinds = {"pub": wanted["publish"]["allow"], "sub": wanted["subscribe"]["allow"]}
        token = self._account.token(
            user,
            **{
                kind: {"allow": [one for one in all_ if one != but]} for kind, all_ in kinds.items()
            },
            resp={"max": 1, "ttl": 120_000_000_000},
            **dict.fromkeys(("subs", "data", "payload"), -1),
        )
        file = self._root / f"{name}.creds"
        parts = {"NATS USER JWT": token, "USER NKEY SEED": user.seed.decode()}
        text = [
            f"-----BEGIN {of}-----\n{part}\n------END {of}------\n" for of, part in parts.items()
        ]
        file.write_text("\n".join(text))
        return str(file)


def _make_certificate(root: Path) -> None:
    import datetime
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "team")])
    now = datetime.datetime(2020, 1, 1)
    at = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(days=36500))
        .add_extension(at, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    form = serialization.Encoding.PEM
    plain = serialization.NoEncryption()
    (root / "server.crt").write_bytes(made.public_bytes(form))
    (root / "server.key").write_bytes(
        key.private_bytes(form, serialization.PrivateFormat.PKCS8, plain)
    )


@pytest.fixture
def team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TeamServer]:
    with TeamServer(tmp_path) as server:
        monkeypatch.setenv("SSL_CERT_FILE", str(server.certificate))
        yield server


@pytest.fixture
def machines(
    tmp_path_factory: pytest.TempPathFactory, team: TeamServer
) -> Iterator[list[MachineUnderTest]]:
    """Three that are in no link yet."""
    root = tmp_path_factory.mktemp("t")
    found = [MachineUnderTest(root, name) for name in ("laptop", "server", "third")]
    with ExitStack() as ends:
        for one in found:
            ends.callback(end, one)
        yield found


def use(machine: MachineUnderTest, team: TeamServer, **fields: Any) -> Any:
    asked = {"urls": f"tls://127.0.0.1:{team.port}", "name": machine.name, **fields}
    return machine.ask(LINK_USE, **asked)


def test_machines_that_may_do_what_relay_names_and_nothing_else_write_to_each_other(
    machines: list[MachineUnderTest], team: TeamServer
) -> None:
    laptop, server, _ = machines
    for one in (laptop, server):
        # The first address is of a server of the cluster that is away.
        urls = f"tls://127.0.0.1:{free_port()},tls://127.0.0.1:{team.port}"
        use(one, team, urls=urls, creds=team.creds(one.name))
    until(lambda: [one["here"] for one in laptop.ask(LINK)["machines"]] == [True])
    until(lambda: [one["here"] for one in server.ask(LINK)["machines"]] == [True])
    laptop.send(f"{ME}@server", "are you there?")
    until(lambda: server.inbox() == ["are you there?"])
    until(lambda: laptop.sent() == [("delivering", "queued at server")])


def test_what_a_server_does_not_allow_is_named(
    machines: list[MachineUnderTest], team: TeamServer
) -> None:
    laptop, server, third = machines
    for machine, subject in (
        (laptop, "$JS.API.STREAM.CREATE.RELAY"),
        (server, "presence.*"),
    ):
        with pytest.raises(RelayError, match="ermissions") as refused:
            use(machine, team, creds=team.creds(machine.name, but=subject))
        assert subject.lower() in refused.value.message.lower()
        assert refused.value.hint.startswith(f"relay link use --needs --name {machine.name}")
        assert machine.ask(LINK)["name"] == ""
    # What is refused later is said where the machines are listed.
    use(third, team, creds=team.creds("third", but="presence.third"))
    until(lambda: 'presence.third"' in third.ask(LINK)["problem"].lower())


def test_two_machines_of_one_name_are_told(
    machines: list[MachineUnderTest], team: TeamServer
) -> None:
    laptop, server, _ = machines
    for one in (laptop, server):
        use(one, team, creds=team.creds("laptop"), name="laptop")
    told = "another machine is called laptop"
    until(lambda: told in laptop.ask(LINK)["problem"])
    until(lambda: told in server.ask(LINK)["problem"])


def test_a_server_without_tls_is_not_told_who_we_are(
    machines: list[MachineUnderTest], team: TeamServer
) -> None:
    laptop, *_ = machines
    heard: list[bytes] = []
    info = {"version": "2.15.1", "max_payload": 1 << 20, "nonce": "n", "auth_required": True}

    def pretend(door: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = door.accept()
                with client:
                    client.sendall(b"INFO %s\r\n" % json.dumps(info).encode())
                    while data := client.recv(4096):
                        heard.append(data)

    with socket.create_server(("127.0.0.1", 0)) as door:
        Thread(target=pretend, args=(door,), daemon=True).start()
        url = f"tls://127.0.0.1:{door.getsockname()[1]}"
        with pytest.raises(RelayError, match="the server speaks no TLS"):
            use(laptop, team, urls=url, creds=team.creds("laptop"))
        door.shutdown(socket.SHUT_RDWR)
    assert heard == []


@pytest.mark.parametrize(
    "url", ["", "host:4222", "http://host", "nats://", "tls://h:x", "tls://h/path", "tls://h,"]
)
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="is not an address of NATS"):
        read_urls(url)


def test_an_address_has_no_password() -> None:
    assert read_urls("tls://h, nats://[::1]:4") == ["tls://h:4222", "nats://[::1]:4"]
    with pytest.raises(UsageError, match="has no user or password"):
        read_urls("nats://u:p@h")
