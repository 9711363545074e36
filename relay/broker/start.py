"""Starting the broker from a client, so that it outlives the client."""

from __future__ import annotations

import _socket
import errno
import os
import time

from relay.core import json_text
from relay.core.build import newer_program, program
from relay.core.descriptors import is_own_peer
from relay.core.errors import BrokerUnavailable, RelayError
from relay.core.files import is_locked, lock_holder, open_private
from relay.core.paths import Home
from relay.core.processes import AGENT, PERSON, ancestry, mark, marks_above, peer, peer_pid, side_of
from relay.protocol.broker import Json, error_from

#: How long a client tries to reach a broker, by default. Seconds.
DEADLINE = 10.0
_AGAIN_AFTER = 1.0
#: A broker whose socket was removed has made it again within so many seconds.
_SOCKET_WAIT = 6.0
#: The code of the error where no broker runs, and none is to be started.
NONE_RUNS = "no_broker"
#: Bytes without which a broker cannot begin.
_NEEDS = 1024 * 1024
UNREACHED, SILENT = "the broker cannot be reached", "the broker does not answer"

_RUN = (
    "import sys; sys.path.append(sys.argv.pop(1));"
    "from relay.broker.main import main; sys.exit(main())"
)


class Starter:
    """Decides when to start a broker, between one try to connect and the next.

    Ask ``next_pause`` after each refused connection: it starts a broker when it is time to, and
    says how long to wait before the next try. Raises the reason once there is one.
    """

    def __init__(
        self, home: Home, *, start: bool, deadline: float, last: Json | None = None
    ) -> None:
        """``last``: the hello of the broker that answered before. If it was of a newer relay, that
        relay is started again, not ours."""
        self._home = home
        self._last = last or {}
        self._start = start
        self._deadline = time.monotonic() + deadline
        self._socket_by = min(self._deadline, time.monotonic() + _SOCKET_WAIT)
        self._begun = time.time()
        self._started_at: float | None = None
        self._may_start: bool | None = None  # decided when it is first needed
        self._pause = 0.005

    def next_pause(self, error: OSError) -> float:
        """Seconds until the next try. Raises RelayError when another try is useless."""
        if isinstance(error, PermissionError):
            raise _shut(self._home) from error
        now = time.monotonic()
        if not self._start:
            if not is_locked(self._home.broker_lock):
                raise BrokerUnavailable(
                    _liar(error) or "no broker is running",
                    hint="any other command starts it, or relay broker run",
                    code=NONE_RUNS,
                ) from error
            if now > self._socket_by:
                raise silent(self._home, _liar(error) or UNREACHED) from error
            return 0.1  # a broker is starting, or makes its socket again
        if self._may_start is None:
            self._may_start = may_start(self._home)
        reason = failure_since(self._home, self._begun)
        if reason is not None:
            raise reason
        if now > self._deadline:
            if not self._may_start:
                raise BrokerUnavailable(
                    _liar(error) or "no broker is running, and an agent starts none",
                    hint="its session does within seconds, if it runs",
                ) from error
            raise silent(self._home, _liar(error) or UNREACHED) from error
        if self._may_start and (self._started_at is None or now - self._started_at > _AGAIN_AFTER):
            self._home.create()
            if _is_first(self._home):
                newer = newer_program(self._last.get("program"), self._last.get("version"))
                launch(self._home, newer) if newer else launch(self._home)
                self._started_at = now
        self._pause = min(self._pause * 1.5, 0.1)
        return self._pause


def stopped(home: Home) -> BrokerUnavailable | None:
    """That the broker does not run on, as after SIGSTOP; None where it does."""
    from relay.core.files import holders  # on use: it is rarely needed

    for one in holders(home.broker_lock):
        if one.is_broker and one.is_stopped:
            return BrokerUnavailable(
                f"{one.named} is stopped",
                hint=f"kill -CONT {one.pid} resumes it; relay broker stop ends it",
            )
    return None


def silent(home: Home, why: str = UNREACHED) -> BrokerUnavailable:
    """Why the broker does not answer, and what to do about it; ``why`` where that is unknown."""
    from relay.core.files import holders  # on use: it is rarely needed

    if error := stopped(home):
        return error
    for one in holders(home.broker_lock):
        does = "holds the broker's lock, and is not a broker"
        if one.is_broker:  # a broker older than the signed lock cannot be proven
            does = "does not answer" if why in (UNREACHED, SILENT) else "is of an older relay"
        return BrokerUnavailable(
            f"{one.named} {does}",
            hint="relay broker stop ends it, and the next command starts a broker",
        )
    if is_full(home):  # then nothing more could be written to the log
        return BrokerUnavailable(f"{why}: no space is left at {home.root}", hint="make room there")
    return BrokerUnavailable(why, hint=f"look into {home.broker_log}")


def is_full(home: Home) -> bool:
    """Whether the disk has no room for a broker."""
    try:
        disk = os.statvfs(home.root)
    except OSError:
        return False
    return disk.f_bavail * disk.f_frsize < _NEEDS


def _shut(home: Home) -> RelayError:
    """Why this user may not connect to the broker's socket."""
    for path in (home.broker_socket, home.run, home.root):
        try:
            if os.stat(path).st_uid not in (os.geteuid(), 0):
                return BrokerUnavailable(
                    f"the broker's socket {home.broker_socket} belongs to another user",
                    hint="set RELAY_HOME to a directory of your own",
                )
        except OSError:
            continue  # the folder above it cannot be searched
    return RelayError(
        f"the state directory {home.root} cannot be used: no permission to use"
        f" {home.broker_socket}",
        hint=f"chmod -R u+rwX {home.root}, or set RELAY_HOME to a directory that you can write to",
        code="state_dir",
    )


def starting_file(home: Home) -> str:
    """The file that exists from the start of a broker until it serves."""
    return os.path.join(home.run, "broker.starting")


def _is_first(home: Home) -> bool:
    """Whether no other client has just started a broker: of many that miss it only one does.

    On a busy machine the one that starts takes longer than that, and holds the lock meanwhile.
    """
    path = starting_file(home)
    try:
        age = time.time() - os.stat(path).st_mtime
        if 0 <= age < _AGAIN_AFTER or (0 <= age < DEADLINE and is_locked(home.broker_lock)):
            return False
    except OSError:
        pass
    say_starting(home)
    return True


def say_starting(home: Home) -> None:
    """Keep other clients from starting a broker for a second, because this one does."""
    path = starting_file(home)
    try:
        os.close(open_private(path, os.O_WRONLY | os.O_CREAT))
        os.utime(path)
    except OSError:
        return  # the broker says why


def failure_since(home: Home, begun: float) -> RelayError | None:
    """Why the last broker that was started could not serve, where that was after ``begun``, in
    seconds since the epoch."""
    try:
        path = os.path.join(home.run, "broker.failed")
        with open(path, encoding="utf-8") as file:
            record = json_text.loads(file.read())
        return error_from(record["error"]) if record["at"] >= begun else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def may_start(home: Home) -> bool:
    """Whether this process may start the broker of ``home``.

    An agent may not start the broker that passes on its own messages: its environment could hold
    other limits, or other code. In another RELAY_HOME it may.
    """
    # An agent in a sandbox cannot see its ancestors, but its environment says whose it is.
    if (os.environ.get("RELAY_SOCKET") or "").startswith(home.run + os.sep):
        return False
    name, line = mark(home.root), ancestry(os.getpid())
    if not line or any(process.is_marked and process.name == name for process in line):
        return False
    from relay.config.names import is_elsewhere  # on use: most verbs find a broker that runs

    return not is_elsewhere(home)


class NotTheBroker(ConnectionRefusedError):
    """Something other than the broker listens at its socket. It counts as nobody, so that the next
    broker takes its place."""


def _liar(error: OSError) -> str:
    """What listens in the broker's place, in words; "" for nothing."""
    return error.strerror or "" if isinstance(error, NotTheBroker) else ""


def _prove(connection: _socket.socket, home: Home) -> None:
    """Raise NotTheBroker unless the kernel proves that the other end is the broker: it runs and
    holds the lock. Raise BrokerUnavailable if an agent started it, unless this process is that
    agent's. Clients trust whatever passes: see docs/security.md.
    """
    pid, line = peer_pid(connection), peer(connection)
    if pid == 0 and os.environ.get("RELAY_RUN"):
        return  # a sandbox with process numbers of its own: see docs/security.md
    if not line:
        why = "runs in another container" if pid == 0 else "has ended, or hides whose it is"
        raise NotTheBroker(errno.ECONNREFUSED, f"what listens at {home.broker_socket} {why}")
    holder = lock_holder(home.broker_lock) if pid != os.getpid() else pid
    if holder != pid:
        raise NotTheBroker(
            errno.ECONNREFUSED,
            f"what listens at {home.broker_socket} (process {pid}) does not hold the broker's lock",
        )
    # Our own ancestors only where it matters: most brokers are below no run.
    if side_of(line) is AGENT and side_of(line, tuple(marks_above(os.getpid()))) is not PERSON:
        raise BrokerUnavailable(
            f"the broker at {home.broker_socket} was started by an agent",
            hint=f"end it, and the next command starts another: kill {pid}",
        )


def launch(home: Home, of: list[str] | None = None) -> None:
    """Start a broker that is nobody's child and has no terminal; ``of``: that of another relay."""
    # Imported on use: most verbs find a broker that runs.
    import subprocess

    python, root = of or program()
    try:
        with open(home.broker_log, "ab", opener=open_private) as log:
            # The shell ends at once, so the broker is not the client's to reap. -P: nothing in
            # the directory where the client happens to run may take a module's place.
            subprocess.run(
                ["/bin/sh", "-c", '"$@" &', "sh"]
                + [python, "-P", "-c", _RUN, root, "--home", home.root],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=home.root,
                start_new_session=True,
                timeout=DEADLINE,
                check=True,
            )
    except (OSError, subprocess.SubprocessError) as error:
        raise BrokerUnavailable(
            f"the broker cannot be started: {error}", hint="try relay broker run"
        ) from error


def open_socket(home: Home) -> _socket.socket:
    """A connected socket; the other end is our own user's broker. Raises OSError, RelayError.

    The C class itself: the ``socket`` module imports ``enum`` and ``selectors`` (5 ms).
    """
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        connection.settimeout(DEADLINE)
        connection.connect(home.broker_socket)
        if not is_own_peer(connection):
            raise BrokerUnavailable(
                f"the broker at {home.broker_socket} belongs to another user",
                hint="set RELAY_HOME to a directory of your own",
            )
        _prove(connection, home)
    except BaseException:
        connection.close()
        raise
    return connection
