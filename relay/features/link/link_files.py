"""What a link keeps beside the ledger, in ``link/`` of RELAY_HOME: who this machine is, its key,
and where the server runs here its certificate, its users and its store."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import secrets
import socket
import ssl
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from relay.core.errors import RelayError, UsageError
from relay.core.message import BODY_MAX

#: How long a code may be used. Seconds.
CODE_LIFE = 600
#: The stream, and what it may hold at most. Bytes.
STREAM = "RELAY"
STREAM_BYTES = 256 * BODY_MAX
#: A body of 1 MiB, as JSON.
PAYLOAD = 8 * BODY_MAX
PORT = 7422
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
_PREFIX = "relay1:"


def machine_name(given: str | None) -> str:
    """A machine's name: as given, or the host's. Raises UsageError."""
    name = given or re.sub("[^a-z0-9-]+", "-", socket.gethostname().split(".")[0].lower()).strip(
        "-"
    )
    if not is_name(name):
        raise UsageError(
            f"{name!r} cannot be a machine's name",
            hint="lower-case letters, digits and - (at most 32): --name NAME",
        )
    return name


def is_name(name: str) -> bool:
    """Whether a machine can be called so."""
    return _NAME.fullmatch(name) is not None


@dataclass(slots=True)
class Link:
    """This machine in a link. ``machines`` (where the server runs): public keys by name."""

    name: str
    address: str  # host:port
    host: str  # the machine that runs the server; "": none of them
    certificate: str  # PEM
    machines: dict[str, str] = field(default_factory=dict)
    secret: str = ""  # of the code that may be used
    until: float = 0.0
    ssh: str = ""  # the way there, where it goes through ssh: ssh://…
    urls: list[str] = field(default_factory=list)  # of a server that is not relay's
    creds: str = ""  # the file that says who this machine is there

    @property
    def server(self) -> str:
        """Where the server is, for a person."""
        return self.ssh or ", ".join(self.urls) or self.address

    @property
    def hosts(self) -> bool:
        """Whether the server runs here."""
        return self.host == self.name


@dataclass(frozen=True, slots=True)
class Code:
    """What a code says."""

    address: str
    pin: str  # SHA-256 of the certificate, hex
    secret: str
    host: str  # the machine that runs the server

    def __str__(self) -> str:
        fields = [self.address, self.pin, self.secret, self.host]
        text = json.dumps(fields, separators=(",", ":"))
        return _PREFIX + base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")

    @classmethod
    def read(cls, text: str) -> Code:
        """Raises UsageError."""
        try:
            packed = text.strip().removeprefix(_PREFIX)
            fields = json.loads(base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4)))
            if len(fields) == 4 and all(isinstance(one, str) for one in fields):
                code = cls(*fields)
                if code.host == machine_name(code.host):
                    return code
        except (ValueError, TypeError, RelayError):
            pass
        raise UsageError("this is not a code from relay link new", hint="copy all of it: relay1:…")


class LinkFolder:
    """``link/`` of RELAY_HOME. Nobody else may read it."""

    def __init__(self, root: str) -> None:
        self.path = Path(root) / "link"
        self.conf = self.path / "server.conf"
        self.pid = self.path / "server.pid"
        self._link = self.path / "link.json"
        self._seed = self.path / "machine.seed"

    @property
    def exists(self) -> bool:
        """Whether this machine is in a link."""
        return self._link.exists()

    def read(self) -> Link:
        """Raises OSError and ValueError."""
        return Link(**json.loads(self._link.read_text()))

    def write(self, link: Link) -> None:
        """Keep it."""
        self._write(self._link, json.dumps(asdict(link)))

    def forget(self) -> None:
        """The machine is in no link any more: its key goes, too."""
        for one in (self._link, self._seed):
            one.unlink(missing_ok=True)

    def _write(self, path: Path, text: str) -> None:
        self.path.mkdir(mode=0o700, exist_ok=True)
        new = path.with_suffix(".new")
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)

    def seed(self) -> bytes:
        """The private key of this machine, which never leaves it; made at its first use."""
        if not self._seed.exists():
            import nkeys  # type: ignore[import-untyped]

            key = nkeys.encode_seed(secrets.token_bytes(32), nkeys.PREFIX_BYTE_USER)
            self._write(self._seed, bytes(key).decode())
        return self._seed.read_bytes()

    def public_key(self) -> str:
        """The public key."""
        import nkeys

        return bytes(nkeys.from_seed(bytearray(self.seed())).public_key).decode()

    def certificate(self) -> str:
        """The server's certificate, made by relay. It is known by its hash, not by a name."""
        import datetime

        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "relay link")])
        born = datetime.datetime(2020, 1, 1)  # clocks may be wrong
        made = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(born)
            .not_valid_after(born + datetime.timedelta(days=36500))
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
        )
        encoding = serialization.Encoding.PEM
        secret = key.private_bytes(
            encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        self._write(self.path / "server.key", secret.decode())
        text = made.public_bytes(encoding).decode()
        self._write(self.path / "server.crt", text)
        return text

    def write_server(self, link: Link) -> None:
        """The server's configuration: who may do what. Each machine speaks as itself and hears what
        is for it; the server checks that."""
        users = [_user(link, name, key) for name, key in link.machines.items()]
        if link.secret and link.until > time.time():
            users.append(
                {
                    "user": "join",
                    "password": link.secret,
                    "permissions": {
                        "publish": {"allow": ["join"]},
                        "subscribe": {"allow": ["_INBOX_join.>"]},
                    },
                }
            )
        port = link.address.rpartition(":")[2]
        conf = {
            "host": "127.0.0.1" if is_local(link.address) else "0.0.0.0",
            "port": int(port),
            "max_payload": PAYLOAD,
            "max_pending": 4 * PAYLOAD,
            "pid_file": str(self.pid),
            "jetstream": {"store_dir": str(self.path / "store")},
            "tls": {
                "cert_file": str(self.path / "server.crt"),
                "key_file": str(self.path / "server.key"),
                # Who could say that there is no TLS, in the server's place, would be told all.
                "handshake_first": True,
            },
            "authorization": {"users": users},
        }
        self._write(self.conf, json.dumps(conf, indent=1))


def _user(link: Link, name: str, key: str) -> dict[str, object]:
    if name == link.host:
        return {"nkey": key}
    return {"nkey": key, "permissions": rights_on_server(name)}


def rights_on_server(name: str) -> dict[str, Any]:
    """What a machine of this name may say and hear on the server."""
    publish = [
        f"relay.{name}.*.m",
        f"relay.{name}.*.r",
        f"live.{name}.*",
        f"presence.{name}",
        f"$JS.ACK.{STREAM}.{name}.>",
    ]
    hear = [f"_INBOX_{name}.>", f"live.*.{name}", "presence.*"]
    return {
        "publish": {"allow": publish},
        "subscribe": {"allow": hear},
        # What another machine asks may be answered, though its inbox is not to be written to.
        "allow_responses": {"max": 1, "expires": "2m"},
    }


def pin_of(certificate: str) -> str:
    """The hash by which a server is known."""
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(certificate)).hexdigest()


def context_for(certificate: str) -> ssl.SSLContext:
    """TLS with the one server that has this certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(cadata=certificate)
    return context


def is_local(address: str) -> bool:
    """Whether ``HOST:PORT`` is reached from that machine alone: others come by ssh."""
    return address.startswith(("localhost:", "127."))


def fetch_certificate(code: Code) -> str:
    """The certificate of the server at the code's address. A thread's work. Raises UsageError where
    it is not the one that the code names, and OSError."""
    host, _, port = code.address.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection((host, int(port)), timeout=20) as plain,
        context.wrap_socket(plain) as secure,
    ):
        der = secure.getpeercert(binary_form=True)
    if der is None or hashlib.sha256(der).hexdigest() != code.pin:
        raise UsageError(
            f"the server at {code.address} is another one than the code names",
            hint="make a new code there: relay link new",
        )
    return ssl.DER_cert_to_PEM_cert(der)
