"""Signals for the pump: the C module itself, because ``signal`` imports ``enum`` (4 ms)."""

from __future__ import annotations

import os

try:
    import _signal as signal  # type: ignore[import-not-found,unused-ignore]
except ImportError:  # an interpreter that has it in Python only
    import signal  # type: ignore[no-redef,unused-ignore]

__all__ = ("FORWARDED", "catch", "default_for_exec", "kill", "signal", "stop_self")

#: Passed on to the agent when somebody sends them to relay.
FORWARDED: tuple[int, ...] = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGTSTP,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_ENDINGS: tuple[int, ...] = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
#: What Python itself ignores at start-up; a program expects the default.
_PYTHON_IGNORES: tuple[int, ...] = tuple(
    getattr(signal, name) for name in ("SIGPIPE", "SIGXFSZ", "SIGXFZ") if hasattr(signal, name)
)

_CHILD_IGNORED = signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN


def _noted(number: int, frame: object) -> None:
    """The handler: nothing. The number is in the wake-up pipe."""


Caught = tuple[int, list[tuple[int, object]]]


def catch(numbers: tuple[int, ...], wakeup: int) -> Caught:
    """Have the signals written to the file descriptor ``wakeup`` (non-blocking), one byte each.

    One that was ignored when relay started (``nohup``) stays ignored, for the agent too. Returns
    what ``give_back`` needs.
    """
    before = [(number, signal.getsignal(number)) for number in numbers]
    previous = signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    for number in numbers:
        if number == signal.SIGCHLD or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _noted)
    return previous, before


def give_back(caught: Caught) -> None:
    """Put the handlers back that were there before ``catch``."""
    previous, before = caught
    signal.set_wakeup_fd(previous)
    for number, handler in before:
        if handler is not None:
            signal.signal(number, handler)


def default_for_exec() -> None:
    """Undo what Python changed. Caught signals become default by exec itself."""
    for number in _PYTHON_IGNORES:
        signal.signal(number, signal.SIG_DFL)
    if _CHILD_IGNORED:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)


def kill(target: int, number: int) -> None:
    """Send a signal; a process that has gone or is not ours (set-user-id) is no error."""
    try:
        os.kill(target, number)
    except OSError:
        return


def stop_self(number: int) -> None:
    """Stop as the agent was stopped, by signal ``number``, and return once continued.

    Returns at once where nobody could continue us: in an orphaned process group the kernel ignores
    the terminal's stop signals. SIGSTOP it never ignores, so that is for a shell's own child only.
    """
    if number == signal.SIGSTOP and _has_a_shell():
        os.kill(os.getpid(), number)
        return
    if number == signal.SIGSTOP:
        number = signal.SIGTSTP
    before = signal.getsignal(number)
    signal.signal(number, signal.SIG_DFL)
    try:
        os.kill(0, number)
    finally:
        signal.signal(number, before)


def _has_a_shell() -> bool:
    """Whether our parent does job control, by its looks: same session, another process group."""
    parent = os.getppid()
    try:
        return os.getsid(parent) == os.getsid(0) and os.getpgid(parent) != os.getpgrp()
    except OSError:
        return False


def from_terminal() -> bool:
    """Whether what a terminal key sends reached our whole process group: it is its foreground."""
    try:
        fd = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(fd) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(fd)


def plain_interrupt() -> None:
    """Let Ctrl-C end us without a traceback until the agent is there to hear it."""
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


class EndedBySignal(BaseException):
    """A signal that ends this process, raised so that what it has made is removed first."""

    def __init__(self, number: int) -> None:
        self.number = number


def raise_endings() -> None:
    """Raise EndedBySignal for a signal that would end us, until ``catch`` or ``end_plainly``."""
    for number in _ENDINGS:
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _raise_ended)


def end_plainly() -> None:
    """Undo ``raise_endings``."""
    for number in _ENDINGS:
        if signal.getsignal(number) is _raise_ended:
            signal.signal(number, signal.SIG_DFL)


def _raise_ended(number: int, frame: object) -> None:
    end_plainly()  # a second one ends us at once
    raise EndedBySignal(number)


def die_of(number: int) -> None:
    """End as the agent did, by signal ``number``, and tell whom a key would have told as well.

    Without relay the terminal sends it to the whole group: to the script we run in, to make.
    """
    signal.signal(number, signal.SIG_DFL)
    try:
        ours = os.tcgetpgrp(1) == os.getpgrp()
    except OSError:
        ours = False
    os.kill(0 if ours else os.getpid(), number)


def forget() -> None:
    """In a copy of the pump that becomes something else: its signals are its own again."""
    signal.set_wakeup_fd(-1)
    for number in (*FORWARDED, signal.SIGCHLD, signal.SIGCONT, signal.SIGWINCH):
        signal.signal(number, signal.SIG_DFL)
