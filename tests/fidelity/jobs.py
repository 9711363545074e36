"""Job control: stopping, and going on with the terminal."""

from __future__ import annotations

import os
import re
import shlex
import signal

from tests.fidelity.behaviours import behaviour
from tests.fidelity.stage import PROMPT, Stage
from tests.pump.outer import alive

#: Answers lines until the end of its input.
_COOKED = r"""
write(b'READY')
while data := os.read(0, 65536):
    write(b'<' + repr(data).encode() + b'>\n')
os._exit(3)
"""
#: A full-screen program: ^Z gives the screen and the modes back before it stops.
_TUI = r"""
before = termios.tcgetattr(0)

def enter():
    tty.setraw(0)
    write(b'\x1b[?1049hREADY')

def leave():
    write(b'\x1b[?1049l')
    termios.tcsetattr(0, termios.TCSADRAIN, before)

enter()
while (key := os.read(0, 1)) != b'q':
    if key == b'\x1a':
        leave()
        STOP
        enter()
    else:
        write(b'<' + repr(key).encode() + b'>')
leave()
os._exit(3)
"""


def _job(stage: Stage, source: str) -> None:
    """Have a shell, and the wrapped child in it as the short command ./job."""
    command = shlex.join(stage.wrapper.command(stage.child(source)))
    job = stage.folder / "job"
    job.write_text(f"#!/bin/sh\nexec {command}\n")
    job.chmod(0o755)
    stage.shell()


def _ask(stage: Stage, line: str) -> str:
    """What the shell prints for a line."""
    stage.enter(line)
    answer = stage.prompt().partition(b"\n")[2].rpartition(PROMPT)[0]
    return answer.decode().replace("\r\n", "\n").strip()


def _press(stage: Stage, keys: bytes, shown: bytes) -> bytes:
    stage.terminal.seen.clear()
    stage.terminal.type(keys)
    return stage.terminal.until(shown)


def _jobs(stage: Stage, state: str = "") -> str:
    """The shell's list of jobs, without process ids; with ``state``, once it says that."""

    def look() -> str:
        return re.sub(r" *\b\d{2,} ", " ", _ask(stage, "jobs -l"))  # padded to five digits

    if state:
        stage.until(lambda: state in look(), f"a job that is {state}")
    return look()


def _foreground(stage: Stage) -> None:
    """Continue the job; returns once the terminal is its own."""
    stage.enter("fg")
    stage.terminal.until(b"./job\r\n")
    shell = stage.terminal.process
    assert shell is not None
    stage.until(lambda: os.tcgetpgrp(stage.terminal.master) != shell.pid, "another foreground")


def _status(stage: Stage) -> str:
    return _ask(stage, "echo $?")


def _modes(stage: Stage) -> str:
    return _ask(stage, "stty -g")


@behaviour("job control", "^Z on a line program returns to the shell, fg resumes it with input")
def stopped_line_program(stage: Stage) -> list[object]:
    _job(stage, _COOKED)
    modes = _modes(stage)
    stage.enter("./job")
    stage.terminal.until(b"READY")
    _press(stage, b"first\r", b"<b'first\\n'>")
    _press(stage, b"\x1a", PROMPT)
    seen: list[object] = [_status(stage), _jobs(stage), _modes(stage) == modes]
    assert "Stopped" in str(seen), seen
    for words in (b"second", b"third"):
        _foreground(stage)
        _press(stage, words + b"\r", b"<b'%s\\n'>" % words)
        _press(stage, b"\x1a", PROMPT)
    _foreground(stage)
    _press(stage, b"last\r", b"<b'last\\n'>")
    _press(stage, b"\x04", PROMPT)
    return [*seen, _status(stage), _jobs(stage), _modes(stage) == modes]


def _tui(stage: Stage, stop: str) -> list[object]:
    _job(stage, _TUI.replace("STOP", stop))
    modes = _modes(stage)
    stage.enter("./job")
    stage.terminal.until(b"READY")
    _press(stage, b"a", b"<b'a'>")
    seen: list[object] = []
    for key in (b"z", b"\x03"):
        shown = _press(stage, b"\x1a", PROMPT)
        seen += [b"\x1b[?1049l" in shown, _status(stage), _jobs(stage), _modes(stage) == modes]
        stage.enter("fg")
        stage.terminal.until(b"\x1b[?1049hREADY")
        seen.append(_press(stage, key, b"'>").decode())
    assert "Stopped" in str(seen) and "x03" in str(seen), seen
    _press(stage, b"q", PROMPT)
    return [*seen, _status(stage), _modes(stage) == modes]


@behaviour("job control", "a full-screen program that stops its group: the shell, then fg")
def stopped_group(stage: Stage) -> list[object]:
    return _tui(stage, "os.kill(0, signal.SIGTSTP)")


@behaviour("job control", "a full-screen program that stops itself: the shell, then fg")
def stopped_itself(stage: Stage) -> list[object]:
    return _tui(stage, "os.kill(os.getpid(), signal.SIGTSTP)")


@behaviour("job control", "a full-screen program that stops itself with SIGSTOP, then fg")
def stopped_hard(stage: Stage) -> list[object]:
    return _tui(stage, "os.kill(0, signal.SIGSTOP)")


@behaviour("job control", "a program that catches SIGTSTP, puts the modes right and stops")
def caught_stop(stage: Stage) -> list[object]:
    source = (
        "before = termios.tcgetattr(0)\n"
        "def stop(*_):\n"
        "    termios.tcsetattr(0, termios.TCSADRAIN, before)\n"
        "    signal.signal(signal.SIGTSTP, signal.SIG_DFL)\n"
        "    os.kill(os.getpid(), signal.SIGTSTP)\n"
        "    begin()\n"
        "def begin():\n"
        "    signal.signal(signal.SIGTSTP, stop)\n"
        "    tty.setcbreak(0)\n"
        "    write(b'READY')\n"
        "begin()\n"
        "while (key := hear(1)) != b'q': write(b'<' + repr(key).encode() + b'>')\n"
        "termios.tcsetattr(0, termios.TCSADRAIN, before)\n"
    )
    _job(stage, source)
    modes = _modes(stage)
    stage.enter("./job")
    stage.terminal.until(b"READY")
    _press(stage, b"\x1a", PROMPT)
    seen: list[object] = [_status(stage), _jobs(stage), _modes(stage) == modes]
    stage.enter("fg")
    stage.terminal.until(b"READY")
    seen.append(_press(stage, b"k", b"'>").decode())
    _press(stage, b"q", PROMPT)
    return [*seen, _status(stage), _modes(stage) == modes]


@behaviour("job control", "in the background it stops when it reads; fg gives it its input")
def background_reader(stage: Stage) -> list[object]:
    _job(stage, _COOKED)
    stage.enter("./job")
    stage.terminal.until(b"READY")
    _press(stage, b"first\r", b"<b'first\\n'>")
    _press(stage, b"\x1a", PROMPT)
    _ask(stage, "bg")
    seen: list[object] = [_jobs(stage, "Stopped (tty input)")]
    _foreground(stage)
    _press(stage, b"second\r", b"<b'second\\n'>")
    _press(stage, b"\x04", PROMPT)
    return [*seen, _status(stage)]


@behaviour("job control", "started in the background it stops when it reads; fg gives it input")
def started_in_the_background(stage: Stage) -> list[object]:
    _job(stage, _COOKED)
    modes = _modes(stage)
    stage.enter("./job &")
    stage.terminal.until(b"READY")
    seen: list[object] = [_jobs(stage, "Stopped (tty input)"), _modes(stage) == modes]
    _foreground(stage)
    _press(stage, b"first\r", b"<b'first\\n'>")
    _press(stage, b"\x04", PROMPT)
    return [*seen, _status(stage), _modes(stage) == modes]


_WRITER = """
tell('up')
wait('go')
write(b'background words\\n')
tell('written')
wait('end')
os._exit(9)
"""


@behaviour("job control", "output of a background job appears, and the shell keeps its modes")
def background_writer(stage: Stage) -> list[object]:
    _job(stage, _WRITER)
    modes = _modes(stage)
    stage.enter("./job &")
    stage.told("up")
    stage.go("go")
    stage.terminal.until(b"background words\r")
    seen: list[object] = [_modes(stage) == modes, _ask(stage, "echo shell")]
    stage.go("end")
    return [*seen, _ask(stage, "wait %1; echo $?").splitlines()[-1]]


@behaviour("job control", "with tostop set, output stops a background job; fg lets it out")
def tostop(stage: Stage) -> list[object]:
    _job(stage, _WRITER)
    _ask(stage, "stty tostop")
    stage.enter("./job &")
    stage.told("up")
    stage.go("go")
    seen: list[object] = [_jobs(stage, "Stopped (tty output)"), stage.has("written")]
    stage.enter("fg")
    stage.terminal.until(b"background words\r\n")
    stage.go("end")
    stage.prompt()
    return [*seen, _status(stage)]


_SAYS_WHEN_CONTINUED = """
show('pid', os.getpid())
signal.signal(signal.SIGCONT, lambda *_: write(b"<continued>"))
"""


@behaviour("job control", "kill -STOP of the child is a stopped job, kill -CONT a running one")
def stopped_from_outside(stage: Stage) -> list[object]:
    source = (
        "import select\n"
        "while not os.path.exists(os.path.join(FOLDER, 'read')):\n"
        "    write(b'.')\n"
        "    select.select([], [], [], 0.05)\n"
    )
    _job(stage, _SAYS_WHEN_CONTINUED + source + _COOKED)
    stage.enter("./job")
    stage.terminal.until(b"....")
    pid = stage.shown("pid")
    os.kill(pid, signal.SIGSTOP)
    stage.prompt()
    seen: list[object] = [_status(stage), _jobs(stage)]
    os.kill(pid, signal.SIGCONT)
    stage.terminal.until(b"<continued>")
    seen.append(_jobs(stage, "Running"))
    stage.terminal.seen.clear()
    stage.terminal.until(b"....")  # what it writes in the background
    _foreground(stage)
    (stage.folder / "read").touch()
    _press(stage, b"words\r", b"<b'words\\n'>")
    _press(stage, b"\x04", PROMPT)
    return [*seen, _status(stage)]


@behaviour("job control", "kill -STOP and -CONT of the child where no shell waits for it")
def stopped_without_a_shell(stage: Stage) -> list[object]:
    stage.start(stage.child(_SAYS_WHEN_CONTINUED + _COOKED))
    stage.terminal.until(b"READY")
    pid = stage.shown("pid")
    os.kill(pid, signal.SIGSTOP)
    stage.until(lambda: stopped(pid), "a stopped child")
    os.kill(pid, signal.SIGCONT)
    stage.terminal.type(b"words\r")
    stage.terminal.until(b"<b'words\\n'>")
    stage.terminal.until(b"<continued>")
    stage.terminal.type(b"\x04")
    return [stage.terminal.wait(stage.limit), stage.terminal.seen.count(b"<continued>")]


def stopped(pid: int) -> bool:
    """Whether the process is stopped."""
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "T"


@behaviour("job control", "a pipeline is stopped and continued as a whole")
def stopped_pipeline(stage: Stage) -> list[object]:
    _job(stage, _COOKED)
    stage.enter("./job | cat")
    stage.terminal.until(b"READY")
    _press(stage, b"first\r", b"<b'first\\n'>")
    _press(stage, b"\x1a", PROMPT)
    seen: list[object] = [_jobs(stage)]
    stage.enter("fg")
    stage.terminal.until(b"./job | cat\r\n")
    _press(stage, b"second\r", b"<b'second\\n'>")
    _press(stage, b"\x04", PROMPT)
    return [*seen, _ask(stage, "echo ${PIPESTATUS[0]}")]


@behaviour("job control", "a stopped job that is sent SIGTERM ends, child and all", expect=[True])
def killed_while_stopped(stage: Stage) -> list[object]:
    _job(stage, _SAYS_WHEN_CONTINUED + _COOKED)
    modes = _modes(stage)
    stage.enter("./job")
    stage.terminal.until(b"READY")
    job, pid = os.tcgetpgrp(stage.terminal.master), stage.shown("pid")
    _press(stage, b"\x1a", PROMPT)
    for number in (signal.SIGTERM, signal.SIGCONT):  # as kill(1) of a shell does
        os.killpg(job, number)
    stage.until(lambda: not alive(pid), "the end of the child")
    # The shell says "Terminated", or of a wrapper that ends with the same status "Exit 143".
    stage.until(lambda: not _jobs(stage), "a shell without jobs")
    return [_modes(stage) == modes]


@behaviour("job control", "a shell that is closed takes its stopped job with it", expect=[True])
def closed_while_stopped(stage: Stage) -> list[object]:
    _job(stage, _SAYS_WHEN_CONTINUED + _COOKED)
    stage.enter("./job")
    stage.terminal.until(b"READY")
    pid = stage.shown("pid")
    _press(stage, b"\x1a", PROMPT)
    stage.terminal.hang_up()
    assert stage.terminal.process is not None
    stage.terminal.process.wait(stage.limit)
    stage.until(lambda: not alive(pid), "the end of the child", drain=False)
    return [not alive(pid)]


@behaviour("job control", "a program that resizes while it is stopped sees the new size at fg")
def resized_while_stopped(stage: Stage) -> list[object]:
    _job(stage, _COOKED.replace("repr(data)", "repr([data, *size()])"))
    stage.enter("./job")
    stage.terminal.until(b"READY")
    _press(stage, b"\x1a", PROMPT)
    stage.terminal.resize(91, 37, 910, 740)
    _foreground(stage)
    seen = _press(stage, b"words\r", b"]>").rpartition(b"<")[2].decode()
    assert "37" in seen, seen
    _press(stage, b"\x04", PROMPT)
    return [seen]


@behaviour("job control", "a stopped child that is killed from outside ends the job")
def killed_from_outside(stage: Stage) -> list[object]:
    _job(stage, _SAYS_WHEN_CONTINUED + _COOKED)
    stage.enter("./job")
    stage.terminal.until(b"READY")
    _press(stage, b"\x1a", PROMPT)
    os.kill(stage.shown("pid"), signal.SIGKILL)
    stage.until(lambda: not _jobs(stage), "a shell without jobs")
    return [_ask(stage, "echo shell")]


@behaviour("job control", "in the background without a shell, a reader ends instead of stopping")
def orphaned_reader(stage: Stage) -> list[object]:
    _job(stage, "show('pid', os.getpid())\nwait('go')\nread(1)")
    _ask(stage, "(./job </dev/tty &)")
    pid = stage.shown("pid")
    stage.go("go")
    stage.until(lambda: not alive(pid), "the end of the child")
    return [_ask(stage, "echo shell")]


#: Dies of SIGINT, but not before the shell around it has had its own: a script that hears of the
#: death first goes on, with or without relay.
_INTERRUPTED = r"""
def interrupted(number, frame):
    tell('interrupted')
    wait('go')
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, interrupted)
write(b'READY')
while True:
    hear()
"""


def _loop(stage: Stage, start: str) -> list[object]:
    _job(stage, _INTERRUPTED)
    (stage.folder / "loop").write_text("for n in 1 2; do ./job; done\n")
    stage.enter(start)
    stage.terminal.until(b"READY")
    stage.terminal.seen.clear()
    stage.terminal.type(b"\x03")
    stage.told("interrupted")
    stage.go("go")
    shown = stage.terminal.until(PROMPT)
    return [b"READY" in shown, _status(stage)]


@behaviour("job control", "^C ends a shell's loop with the program in it", expect=[False, "130"])
def interrupted_loop(stage: Stage) -> list[object]:
    return _loop(stage, "for n in 1 2; do ./job; done")


@behaviour("job control", "^C ends a script with the program in it", expect=[False, "130"])
def interrupted_script(stage: Stage) -> list[object]:
    return _loop(stage, "bash ./loop")
