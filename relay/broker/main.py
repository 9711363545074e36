"""``python -m relay.broker``: become the broker of one RELAY_HOME, unless there is one."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import resource
import signal
import socket
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from relay.broker.start import open_socket, silent, starting_file
from relay.core.errors import EXIT_USAGE, DamagedFile, RelayError, StorageError, error_fields
from relay.core.files import (
    lock_open_file,
    open_private,
    sign_lock,
    unlink_if_there,
    write_atomically,
)
from relay.core.log import Log
from relay.core.paths import Home
from relay.core.visible import visible
from relay.ledger.store import Ledger
from relay.ledger.transactions import MARK, set_aside

if TYPE_CHECKING:
    from relay.broker.server import BrokerServer

#: How long a second broker waits for the lock of one that is ending. Seconds.
_LOCK_WAIT = 7.0
#: How often to check that the socket is where clients look for it. Seconds.
_SOCKET_LOOK = 1.0
#: Descriptors that a broker needs beside those of its own parts.
_CLIENTS_MIN = 32


def main(argv: list[str] | None = None) -> int:
    """Run until nobody needs the broker. Exit status 0 also if another broker runs already."""
    match sys.argv[1:] if argv is None else argv:
        case []:
            home = Home.from_env()
        case ["--home", folder]:
            home = Home(folder)
        case _:
            sys.stderr.write("usage: python -m relay.broker [--home FOLDER]\n")
            return EXIT_USAGE
    log = Log(home.broker_log, masked)
    try:
        return run(home, log)
    except RelayError as error:
        log.write(f"cannot start: {error.message}")
        sys.stderr.write(f"relay: {visible(error.message)}\n")
        return error.exit_status
    except Exception:
        fault = log.fault()
        sys.stderr.write(f"relay: {visible(fault.line)}\n")
        return fault.exit_status


def masked(text: str) -> str:
    """A line of the log without secrets."""
    from relay.directive.redact import redact  # on use: most brokers log only that they serve

    return redact(text)


def run(home: Home, log: Log) -> int:
    """Take the lock, serve, clean up. Raises RelayError when it cannot start."""
    for path in home.create():
        log.write(f"others could write to {path}: it is closed to them now")
    lock = None
    try:
        try:
            lock = _elect(home)
            if lock is None:
                log.write("another broker is running")
                return 0
            ledger = _open(home, log)
            try:
                _serve(home, log, ledger, lock)
            finally:
                ledger.close()
        except RelayError as error:
            _say_why(home, error)
            raise
    finally:
        if lock is not None:
            os.close(lock)
    return 0


def _open(home: Home, log: Log) -> Ledger:
    """Open the ledger; start a new one where it is damaged. Raises StorageError."""
    try:
        return Ledger(home.ledger)
    except StorageError as error:
        # Where the mark lies beside it, it was a ledger, and its beginning is overwritten.
        if not isinstance(error, DamagedFile) and not (
            "other_file" in error.details and os.path.exists(home.ledger + MARK)
        ):
            raise
        log.write(error.message)
        told = set_aside(home.ledger)
        ledger = Ledger(home.ledger)
        ledger.tell(told)
        return ledger


def failure_file(home: Home) -> str:
    """The file in which a broker that cannot start leaves the reason for its client."""
    return os.path.join(home.run, "broker.failed")


def _say_why(home: Home, error: RelayError) -> None:
    record = {"at": time.time(), "error": error_fields(error)}
    with suppress(OSError):  # the disk may be full; it is in the log too
        write_atomically(failure_file(home), json.dumps(record), durable=False)


def _elect(home: Home) -> int | None:
    """The lock's descriptor, or None when another broker holds it. Raises BrokerUnavailable for a
    holder that does not serve.
    """
    lock = open_private(home.broker_lock, os.O_RDWR | os.O_CREAT)
    deadline = time.monotonic() + _LOCK_WAIT
    while not _locked(lock, home.broker_lock):
        if _answers(home):
            os.close(lock)
            return None
        if time.monotonic() > deadline:
            os.close(lock)
            raise silent(home)
        time.sleep(0.05)  # the other one starts or stops; there is no event to wait for
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


def _locked(fd: int, path: str) -> bool:
    try:
        # Elsewhere than on Linux both locks are one: its own flock would keep it from signing.
        return (sys.platform != "linux" or lock_open_file(fd)) and sign_lock(fd)
    except OSError as error:
        os.close(fd)
        raise RelayError(
            f"cannot lock {path}: {error.strerror}",
            hint="set RELAY_HOME to a directory on a local disk",
        ) from error


def _answers(home: Home) -> bool:
    try:
        open_socket(home).close()
    except (OSError, RelayError):
        return False  # nobody listens, or something that is no broker
    return True


def listen(home: Home) -> socket.socket:
    """The listening socket. Only the holder of the lock may call this: an existing one is stale."""
    unlink_if_there(home.broker_socket)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        listener.bind(home.broker_socket)
    except OSError as error:
        listener.close()
        raise RelayError(
            f"cannot listen on {home.broker_socket}: {error.strerror}",
            hint="set RELAY_HOME to a directory on a local disk",
            code="state_dir",
        ) from error
    finally:
        os.umask(mask)
    listener.listen(256)
    listener.setblocking(False)
    return listener


def _serve(home: Home, log: Log, ledger: Ledger, lock: int) -> None:
    from relay.broker.loop_guard import HOPS_MAX, RATE_MAX, LoopGuard
    from relay.broker.server import IDLE, BrokerLimits, BrokerServer
    from relay.broker.stored_bytes import MIB, STORED_MAX, StoredBytes

    async def serve() -> None:
        guard = LoopGuard(
            int(_number("RELAY_HOPS_MAX", HOPS_MAX)), int(_number("RELAY_RATE_MAX", RATE_MAX))
        )
        limits = BrokerLimits(
            idle=_number("RELAY_BROKER_IDLE", IDLE),
            connections_max=_connections_max(),
            guard=guard,
            stored=StoredBytes(int(_number("RELAY_STORED_MAX", STORED_MAX / MIB) * MIB)),
        )
        try:
            broker = BrokerServer(home, ledger, log, limits)
        except DamagedFile as error:
            log.write(error.message)
            ledger.mend()
            broker = BrokerServer(home, ledger, log, limits)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, broker.stop)
        # Requests are many small objects without cycles: the collector need not look so often.
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)
        listener = listen(home)
        watch = loop.create_task(_keep_socket(home, log, broker, lock))
        try:
            for path in (failure_file(home), starting_file(home)):
                unlink_if_there(path)
            log.write("serving")
            await broker.serve(listener)
        finally:
            watch.cancel()
            listener.close()
            unlink_if_there(home.broker_socket)

    asyncio.run(serve())
    try:
        ledger.checkpoint()
    except RelayError as error:
        log.write(f"the log stays where it is: {error.message}")
    log.write("ended")


async def _keep_socket(home: Home, log: Log, broker: BrokerServer, lock: int) -> None:
    """Make the socket again where it was removed or replaced. The lock is held meanwhile; if the
    lock file was removed, another broker can start, and this one ends."""
    own, problem = _inode(home.broker_socket), ""
    while not broker.stopping:
        await asyncio.sleep(_SOCKET_LOOK)
        if broker.stopping:
            return
        held = os.fstat(lock)
        if _inode(home.broker_lock) != (held.st_dev, held.st_ino):
            log.write("the lock was removed: another broker may begin, so this one ends")
            broker.stop()
            return
        if _inode(home.broker_socket) == own:
            continue
        try:
            home.create()
            await broker.listen_at(listen(home))
        except (OSError, RelayError) as error:
            if str(error) != problem:
                problem = str(error)
                log.write(f"the socket was removed, and cannot be made again: {problem}")
            continue
        own, problem = _inode(home.broker_socket), ""
        log.write("the socket was removed: it is made again")


def _inode(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path, follow_symlinks=False)
    except OSError:
        return 0, 0
    return status.st_dev, status.st_ino


def _connections_max() -> int:
    """As many connections as there are descriptors for. Raises RelayError for too few."""
    from relay.broker.connection import CONNECTIONS_MAX
    from relay.broker.server import DESCRIPTORS

    wanted = CONNECTIONS_MAX + DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if soft < DESCRIPTORS + _CLIENTS_MIN:
            raise RelayError(
                f"the broker needs {DESCRIPTORS + _CLIENTS_MIN} open files, and the hard limit here"
                f" is {soft}",
                hint="run relay in a shell with a higher hard limit (ulimit -Hn shows it)",
                code="too_few_files",
            )
        return min(wanted, soft) - DESCRIPTORS
    return CONNECTIONS_MAX


def _number(variable: str, default: float) -> float:
    """The number in an environment variable; ``default`` unless it is 0 or more."""
    try:
        value = float(os.environ.get(variable) or default)
    except ValueError:
        return default
    return value if 0 <= value < float("inf") else default
