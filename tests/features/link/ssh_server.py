"""A real SSH server, and an ``ssh`` on PATH that knows nothing of this machine's own keys."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any


class SshServer:
    """Listens on a port of 127.0.0.1: runs commands with ``env``, and forwards connections."""

    def __init__(self, root: Path, env: dict[str, str]) -> None:
        import asyncssh  # not among the packages of the quick tests, which read this file

        root.mkdir()
        host_key, key = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(2))
        host_key.write_private_key(root / "host_key")
        key.write_private_key(root / "key")
        (root / "key").chmod(0o600)
        (root / "authorized_keys").write_bytes(key.export_public_key())
        public = host_key.export_public_key().decode()
        (root / "known_hosts").write_text(f"server {public}\n")
        (root / "config").write_text(
            "Host *\n HostName 127.0.0.1\n HostKeyAlias server\n IdentitiesOnly yes\n"
            f" IdentityFile {root}/key\n UserKnownHostsFile {root}/known_hosts\n"
        )
        #: The folder for PATH.
        self.bin = root / "bin"
        self.bin.mkdir()
        program = self.bin / "ssh"
        program.write_text(f'#!/bin/sh\nexec /usr/bin/ssh -F {root}/config "$@"\n')
        program.chmod(0o755)
        self.port = 0
        self._command = [sys.executable, "-m", __name__, str(root), json.dumps(env)]

    def __enter__(self) -> SshServer:
        """It can be entered again, at the same port."""
        command = [*self._command, str(self.port)]
        self._server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._server.stdout is not None
        self.port = int(self._server.stdout.readline())
        return self

    def __exit__(self, *_: object) -> None:
        """End it, with all connections."""
        self._server.kill()
        self._server.communicate()


async def serve(root: Path, env: dict[str, str], port: int) -> None:
    """Serve for ever."""
    import asyncssh

    async def run(process: Any) -> None:
        command = ["sh", "-c", process.command]
        done = await asyncio.to_thread(
            subprocess.run, command, env=env, stdin=subprocess.DEVNULL, capture_output=True
        )
        process.stdout.write(done.stdout)
        process.stderr.write(done.stderr)
        process.exit(done.returncode)

    forwarding = {"connection_requested": lambda *_: True}
    server = await asyncssh.listen(
        "127.0.0.1",
        port,
        server_factory=type("Server", (asyncssh.SSHServer,), forwarding),
        server_host_keys=[str(root / "host_key")],
        authorized_client_keys=str(root / "authorized_keys"),
        process_factory=run,
        encoding=None,
    )
    print(server.get_port(), flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), json.loads(sys.argv[2]), int(sys.argv[3])))
