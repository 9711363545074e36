"""How it ends: statuses, signals, closed terminals, killed wrappers."""

from __future__ import annotations

import fcntl
import os
import signal

from tests.fidelity.behaviours import behaviour
from tests.fidelity.stage import Stage
from tests.pump.outer import alive

#: Says which signals came, and ends at the first with 9. The kernel ends the input of a terminal
#: that is closed a moment before it sends SIGHUP.
_LISTENER = """
import select
def heard(number, frame):
    tell(signal.Signals(number).name)
    if number != signal.SIGUSR1: os._exit(9)
for name in SIGNALS:
    signal.signal(getattr(signal, name), heard)
show('pid', os.getpid())
write(b'READY')
try:
    while hear(): pass
except OSError: pass
while 'SIGHUP' in SIGNALS: select.select([], [], [], 0.01)
os._exit(3)
"""
_DEFAULT = """
signal.signal(signal.SIGINT, signal.SIG_DFL)
show('pid', os.getpid())
write(b'READY')
while os.read(0, 100): pass
"""


def _shells(status: int) -> int:
    """The status as a shell would have it: 128 + n for signal n."""
    return 128 - status if status < 0 else status


def _wrapper(stage: Stage) -> int:
    assert stage.terminal.process is not None
    return stage.terminal.process.pid


def _begin(stage: Stage, source: str) -> int:
    """Start the child, wait until it reads, and return its pid."""
    stage.terminal.seen.clear()
    (stage.folder / "pid").unlink(missing_ok=True)
    stage.start(stage.child(source))
    stage.terminal.until(b"READY")
    return int(stage.shown("pid"))


@behaviour("ends", "exit status 0, 1, 77 and 255", expect=[0, 1, 77, 255])
def exit_status(stage: Stage) -> list[int]:
    return [stage.run(stage.child(f"os._exit({status})")) for status in (0, 1, 77, 255)]


@behaviour("ends", "death by signal n is 128 + n: TERM, KILL, SEGV, INT, PIPE")
def death_by_signal(stage: Stage) -> list[int]:
    seen = []
    for name in ("SIGTERM", "SIGKILL", "SIGSEGV", "SIGINT", "SIGPIPE"):
        number = int(getattr(signal, name))
        source = (
            "import resource\n"
            "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\n"
            f"if {number} != signal.SIGKILL: signal.signal({number}, signal.SIG_DFL)\n"
            f"os.kill(os.getpid(), {number})\n"
        )
        seen.append(_shells(stage.run(stage.child(source))) - number)
    assert len(seen) == 5
    return seen


def _signalled(stage: Stage, name: str) -> list[object]:
    before = stage.terminal.modes()
    _begin(stage, _LISTENER.replace("SIGNALS", repr([name])))
    os.kill(_wrapper(stage), getattr(signal, name))
    stage.told(name)
    handled: list[object] = [_shells(stage.terminal.wait(stage.limit))]
    handled.append(stage.terminal.modes() == before)
    pid = _begin(stage, _DEFAULT)
    os.kill(_wrapper(stage), getattr(signal, name))
    ended = _shells(stage.terminal.wait(stage.limit))
    return [*handled, ended, stage.terminal.modes() == before, alive(pid)]


@behaviour("ends", "SIGTERM to the wrapper: the child gets it, the terminal is restored")
def terminated(stage: Stage) -> list[object]:
    return _signalled(stage, "SIGTERM")


@behaviour("ends", "SIGHUP to the wrapper: the child gets it, the terminal is restored")
def hung_up(stage: Stage) -> list[object]:
    return _signalled(stage, "SIGHUP")


@behaviour("ends", "SIGINT and SIGQUIT sent to the wrapper reach the child")
def interrupted(stage: Stage) -> list[object]:
    return [*_signalled(stage, "SIGINT"), *_signalled(stage, "SIGQUIT")]


@behaviour("ends", "SIGUSR1 to the wrapper reaches the child, which goes on", expect=[3])
def user_signal(stage: Stage) -> list[object]:
    _begin(stage, _LISTENER.replace("SIGNALS", "['SIGUSR1']"))
    os.kill(_wrapper(stage), signal.SIGUSR1)
    stage.told("SIGUSR1")
    stage.terminal.type(b"\x04")
    return [stage.terminal.wait(stage.limit)]


@behaviour("ends", "the terminal is closed: the child gets SIGHUP, and all is gone within seconds")
def terminal_closed(stage: Stage) -> list[object]:
    pid = _begin(stage, _LISTENER.replace("SIGNALS", "['SIGHUP']"))
    stage.terminal.hang_up()
    stage.told("SIGHUP", drain=False)
    assert stage.terminal.process is not None
    status = stage.terminal.process.wait(stage.limit)
    stage.until(lambda: not alive(pid), "the end of the child", drain=False)
    return [_shells(status), alive(pid)]


@behaviour("ends", "the terminal is closed: a child without a handler is gone within seconds")
def terminal_closed_by_default(stage: Stage) -> list[object]:
    pid = _begin(stage, "tty.setraw(0)\n" + _DEFAULT)
    stage.terminal.hang_up()
    assert stage.terminal.process is not None
    status = stage.terminal.process.wait(stage.limit)
    stage.until(lambda: not alive(pid), "the end of the child", drain=False)
    return [_shells(status), alive(pid)]


@behaviour("ends", "the terminal is closed: a child that ignores SIGHUP finds its input at an end")
def terminal_closed_and_ignored(stage: Stage) -> list[object]:
    source = (
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "write(b'READY')\n"
        "try:\n    data = os.read(0, 100)\nexcept OSError as error:\n    data = b''\n"
        "show('end', data.hex())\n"
        "wait('go')\n"
        "show('still', True)\n"
    )
    stage.start(stage.child(source))
    stage.terminal.until(b"READY")
    stage.terminal.hang_up()
    end = stage.shown("end", drain=False)
    stage.go("go")
    return [end, stage.shown("still", drain=False)]


@behaviour("ends", "SIGKILL to the wrapper: the modes are as before, the child is gone")
def killed(stage: Stage) -> list[object]:
    before = stage.terminal.modes()
    pid = _begin(stage, _DEFAULT)
    os.kill(_wrapper(stage), signal.SIGKILL)
    stage.until(lambda: not alive(pid), "the end of the child")
    stage.until(lambda: stage.terminal.modes() == before, "the modes of before")
    return [stage.terminal.wait(stage.limit)]


@behaviour("ends", "the child is gone, a grandchild holds the terminal: the end is at once")
def grandchild(stage: Stage) -> list[object]:
    source = (
        "write(b'last words')\n"
        "if os.fork(): os._exit(4)\n"
        "show('pid', os.getpid())\n"
        "wait('go')\n"
        "show('still', True)\n"
    )
    # A shell between, as in real life: the end of a terminal's own leader hangs its group up.
    stage.shell()
    stage.enter(stage.line(stage.child(source)))
    shown = b"last words" in stage.prompt()
    stage.enter("echo status-$?.")
    stage.terminal.until(b"status-4.")
    pid = stage.shown("pid")
    lives = alive(pid)
    stage.go("go")
    return [shown, lives, stage.shown("still")]


@behaviour("ends", "terminal modes and O_NONBLOCK are exactly as found", expect=[True] * 5)
def as_found(stage: Stage) -> list[object]:
    def state() -> list[object]:
        return [stage.terminal.modes(), fcntl.fcntl(stage.terminal.slave, fcntl.F_GETFL)]

    before = state()
    seen: list[object] = [stage.run(stage.child("write(b'words')")) == 0, state() == before]
    _begin(stage, _DEFAULT)
    seen.append(state()[1] == before[1])
    stage.terminal.type(b"\x03")
    stage.terminal.wait(stage.limit)
    seen.append(state() == before)
    source = "m = termios.tcgetattr(0)\ntty.setraw(0)\ntermios.tcsetattr(0, termios.TCSADRAIN, m)"
    stage.run(stage.child(source))
    return [*seen, state() == before]


@behaviour("ends", "the last output is complete before the wrapper ends", expect=True)
def last_lines(stage: Stage) -> bool:
    stage.shell()
    (stage.folder / "many").write_bytes(b"many words\n" * 5000)
    source = "write(open(os.path.join(FOLDER, 'many'), 'rb').read())\nos._exit(0)"
    stage.enter(stage.line(stage.child(source)) + "; echo after")
    shown = stage.terminal.until(b"\nafter")
    return shown.count(b"many words\r\n") == 5000
