"""One wrapped run from its first descriptor to its exit status: what ``relay wrap`` calls."""

from __future__ import annotations

import os
import stat
import sys

from relay.core import descriptors, signals
from relay.core.json_text import dumps
from relay.core.signals import signal
from relay.protocol import frames, nested_wrap
from relay.pump import agent_process, tty
from relay.pump.loop import Pump
from relay.pump.monitor import Program
from relay.pump.outer_terminal import OuterTerminal, RecordedTerminal
from relay.pump.session_link import SessionLink
from relay.pump.spawn import SessionStarter, leave_behind

_CAUGHT = (*signals.FORWARDED, signal.SIGWINCH, signal.SIGCONT, signal.SIGCHLD)


def run(
    program: Program,
    mark: str,
    session: SessionStarter,
    facts: dict[str, object],
    exclusive: bool = True,
    keys_recorded: bool = False,
    title: str = "",
) -> int:
    """Run ``program`` until it ends; returns its exit status, -n for signal n.

    ``mark`` says whose agent it is (see relay.core.processes).
    ``facts`` are the fields of HELLO that do not change: run_id, name, command, cwd, started_ms.
    ``exclusive``: this process has nothing else to do and exits afterwards, so what only the agent
    needs is closed here. ``title`` is shown as the window's until the agent sets one, and what
    was there before is put back at the end. ``keys_recorded``: the session gets what is typed.
    Raises OSError when no process or terminal is to be had.
    """
    extra = descriptors.inherited() if exclusive else []
    signals_fd, wake = os.pipe()
    os.set_blocking(signals_fd, False)
    os.set_blocking(wake, False)
    caught = signals.catch(_CAUGHT, wake)
    terminals = tuple(fd for fd in (0, 1, 2) if os.isatty(fd))
    pair = outer_descriptors()
    console = None
    if pair is not None:
        console = RecordedTerminal(*pair) if keys_recorded else OuterTerminal(*pair)
    path: str | None = None
    outer = ""  # the run around this one, on the same terminal
    if console is None:
        agent = agent_process.start_monitored(program, mark)
        master = -1
    else:
        master, slave = _open_terminal(console)
        path = os.ttyname(slave)
        session.tell_terminal(console.name())
        outer = "" if console.background or 1 not in terminals else os.environ.get("RELAY_RUN", "")
        if outer:  # the wrap around this one need not hear what is heard here
            _write(nested_wrap.begins(outer, os.getpid()))
        agent = agent_process.start_monitored(
            program, mark, slave, console.keys, terminals, not console.background
        )
        os.close(slave)
    descriptors.close(extra)
    titled = bool(title) and console is not None and 1 in terminals and not console.background
    if titled and console is not None:
        # Kept by the terminal meanwhile. Before anything of the agent's: its own title wins.
        console.write(b"\033[22;2t\033]2;" + title.encode() + b"\a")
    if exclusive:
        _take_name(os.path.basename(program.argv[0]))
        # Pipes that the agent has are not held open by us; our own messages need stderr.
        descriptors.release_stdio(tuple(fd for fd in (0, 1) if fd not in terminals))
    size = console.size if console is not None and 1 in terminals else tty.Size()

    def hello(offset: int, packed: bytes, restarts: int) -> bytes:
        fields = {**facts, "protocol": frames.PROTOCOL, "pid": agent.pid, "tty": path}
        fields.update(zip(("cols", "rows", "xpixel", "ypixel"), _unpack(packed), strict=True))
        fields["written"] = pump.input.gate.certain
        return dumps({**fields, "offset": offset, "restarts": restarts}).encode()

    link = SessionLink(session.start, hello, size.packed(), session.give_up, session.store)
    pump = Pump(agent, link, signals_fd, console, master, path)
    if isinstance(console, RecordedTerminal):
        console.record(link, master)
    try:
        status = pump.run()
    except BaseException:
        pump.jobs.leave()  # whatever went wrong, the person gets the terminal back
        raise
    if titled and console is not None and not console.gone:
        console.write(b"\033[23;2t")
    if pump.close():
        leave_behind(link)
    if outer:
        _write(nested_wrap.ends(outer, os.getpid()))
    _say(pump, session, program)
    if not exclusive:
        signals.give_back(caught)
        descriptors.close([signals_fd, wake])
        link.close()
        if console is not None:
            console.close()
    if os.WIFSIGNALED(status):
        return -os.WTERMSIG(status)
    return os.WEXITSTATUS(status)


def outer_descriptors() -> tuple[int, int] | None:
    """Where the outer terminal is read and written, if the agent is to have one of its own.

    Not when stdout is a pipe: what reads it may be a pager that wants the keys and the modes of the
    terminal for itself, and there is no screen to read.
    """
    if os.isatty(1):
        return (0 if os.isatty(0) else 1), 1
    mode = os.fstat(1).st_mode
    if os.isatty(0) and not stat.S_ISFIFO(mode) and not stat.S_ISSOCK(mode):
        return 0, 0
    return None


def _open_terminal(console: OuterTerminal) -> tuple[int, int]:
    """(master, slave) with the outer terminal's modes and size; the master does not block."""
    master, slave = os.openpty()
    if console.modes.original is not None:
        tty.set_modes(slave, console.modes.original)
    console.measure()
    tty.write_size(slave, console.size)
    os.set_blocking(master, False)
    return master, slave


def _write(mark: bytes) -> None:
    try:
        os.write(1, mark)
    except OSError:
        return  # the terminal is gone


def _take_name(name: bytes) -> None:
    """Show ``name`` as this process's own, before its arguments, where the system allows it.

    tmux and others name a pane after the first argument of the process that leads the terminal's
    foreground, which is us. The arguments lie in memory that is ours to write.
    """
    try:
        with open("/proc/self/comm", "wb") as file:
            file.write(name[:15])
        with open("/proc/self/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        start, end = int(fields[45]), int(fields[46])
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            memory.seek(start)
            words = memory.read(end - start).partition(b"\0")[2].rstrip(b"\0")
            shown = (name + b"\0" + words)[: end - start - 1]
            memory.seek(start)
            memory.write(shown.ljust(end - start, b"\0"))
    except (OSError, ValueError, IndexError, OverflowError):
        return  # no /proc, or one that is closed to us: it goes by the interpreter's name


def _unpack(packed: bytes) -> list[int]:
    return [int.from_bytes(packed[at : at + 2], "big") for at in (0, 2, 4, 6)]


def _say(pump: Pump, session: SessionStarter, program: Program) -> None:
    """What the person should know, now that the terminal is theirs again."""
    from relay.core.visible import visible

    lines = []
    if pump.failure:
        name = os.fsdecode(program.path)
        lines.append(f"cannot run {name}: {os.strerror(pump.failure)}")
    if pump.link.dropped:
        lines.append(f"the session was given up: {pump.link.dropped}")
        lines.append(f"from then on nothing was heard and nothing delivered; see {session.log}")
    try:
        for line in lines:
            print(f"relay: {visible(line)}", file=sys.stderr)
        sys.stderr.flush()
    except OSError:
        return  # stderr is gone, and with it whom to tell
