"""Landlock: this process, and all that it starts, writes only below some places, for good.

It is a program, too: ``python -I -S landlock.py [PLACE …] -- FILE ARGV0 [ARG …]`` confines itself
and becomes FILE. It imports nothing of relay's, and only C modules, because an agent waits for it.

A place is a folder with all below it, or a file. Reading is free. What each version of the kernel's
interface adds stands in VERSIONS.
"""

from __future__ import annotations

import errno
import os
import struct
import sys

#: The numbers of the system calls are the same on every machine but alpha.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION = 1
_RULE_PATH_BENEATH = 1
_PR_SET_NO_NEW_PRIVS = 38

_WRITE_FILE, _TRUNCATE, _IOCTL_DEV = 1 << 1, 1 << 14, 1 << 15
_REFER = 1 << 13
#: Removing folders and files; making devices, folders, files, sockets, pipes, block devices, links.
_CHANGE_FOLDER = sum(1 << bit for bit in range(4, 13))
#: What a file that is not a folder can be allowed.
_OF_A_FILE = _WRITE_FILE | _TRUNCATE | _IOCTL_DEV
_ABSTRACT_SOCKETS, _SIGNALS = 1 << 0, 1 << 1

#: Version -> (the rights that it adds, the scopes that it adds, what a kernel before it lets
#: through, or forbids though it is allowed).
VERSIONS: dict[int, tuple[int, int, str]] = {
    1: (_WRITE_FILE | _CHANGE_FOLDER, 0, ""),
    2: (_REFER, 0, "a file cannot be moved from one folder to another, not even where it may"),
    3: (_TRUNCATE, 0, "files elsewhere can be emptied (truncate)"),
    5: (_IOCTL_DEV, 0, "devices elsewhere can be controlled (ioctl)"),
    6: (
        0,
        _ABSTRACT_SOCKETS | _SIGNALS,
        "signals and abstract sockets reach the processes outside",
    ),
}


def version() -> int:
    """The kernel's version of Landlock, found by asking it; 0 where there is none."""
    if sys.platform != "linux":
        return 0
    try:
        return max(0, _system_call(_CREATE_RULESET, 0, 0, _ASK_VERSION))
    except (OSError, ImportError, AttributeError):  # no Landlock, or a Python without ctypes
        return 0


def weaknesses(present: int) -> list[str]:
    """What this version does not hold, or holds too tightly."""
    return [said for number, (_, _, said) in VERSIONS.items() if number > present and said]


def rights(present: int) -> tuple[int, int]:
    """(what is forbidden but where it is allowed, the scopes) by this version."""
    forbidden = scopes = 0
    for number, (added, scope, _) in VERSIONS.items():
        if number <= present:
            forbidden |= added
            scopes |= scope
    return forbidden, scopes


def confine(places: list[str], present: int) -> None:
    """Let this process, and all that it starts, write below ``places`` alone from now on.

    They are real paths: one that somebody has made a link meanwhile is refused. The terminal that
    it has as standard input or output stays its own. Raises OSError with the place that is not
    there, or where the kernel refuses.
    """
    forbidden, scopes = rights(present)
    form = struct.pack("=QQQ", forbidden, 0, scopes)  # an older kernel wants zeros beyond its own
    ruleset = _system_call(_CREATE_RULESET, form, len(form), 0)
    try:
        for place in places:
            fd = os.open(place, os.O_PATH | os.O_CLOEXEC)
            if os.readlink(f"/proc/self/fd/{fd}") != place:
                raise OSError(errno.ELOOP, "it leads elsewhere", place)
            _allow(ruleset, fd, forbidden)
        for fd in filter(os.isatty, (0, 1, 2)):
            _allow(ruleset, os.open(f"/proc/self/fd/{fd}", os.O_PATH | os.O_CLOEXEC), forbidden)
        _keep_privileges()
        _system_call(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, fd: int, forbidden: int) -> None:
    """Let the process write what ``fd`` stands for, which is closed."""
    try:
        folder = os.fstat(fd).st_mode & 0o170000 == 0o040000
        allowed = forbidden if folder else forbidden & _OF_A_FILE
        rule = struct.pack("=Qi", allowed, fd)
        _system_call(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, rule, 0)
    finally:
        os.close(fd)


def _keep_privileges() -> None:
    """Without it the kernel lets nobody restrict himself: a program that gains rights as it starts
    (sudo) would get them confined."""
    call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def _system_call(number: int, *arguments: int | bytes) -> int:
    return call("syscall", number, *arguments)


def call(name: str, *arguments: int | bytes) -> int:
    """Call a function of the C library; numbers are passed as long, bytes by their address. Raises
    OSError. By the C module: ``ctypes`` takes four times as long to import."""
    import _ctypes

    class Long(_ctypes._SimpleCData):  # type: ignore[type-arg,misc,unused-ignore]
        _type_ = "l"

    class Function(_ctypes.CFuncPtr):
        _flags_ = 1 | 8  # FUNCFLAG_CDECL | FUNCFLAG_USE_ERRNO
        _restype_ = Long

    library = _ctypes.dlopen(None, 0)  # type: ignore[arg-type,unused-ignore]
    passed = [one if isinstance(one, bytes) else Long(one) for one in arguments]
    _ctypes.set_errno(0)
    result: int = Function(_ctypes.dlsym(library, name))(*passed)
    if result < 0:
        number = _ctypes.get_errno() or errno.EINVAL
        raise OSError(number, os.strerror(number))
    return result


def become(file: str, argv: list[str]) -> OSError:
    """Replace this process by a program; returns why that is impossible. A script without an
    interpreter line goes to /bin/sh, as every shell does it."""
    import _signal  # type: ignore[import-not-found,unused-ignore]

    for name in ("SIGPIPE", "SIGXFSZ"):  # Python ignores them, and programs expect the default
        _signal.signal(getattr(_signal, name), _signal.SIG_DFL)
    try:
        os.execv(file, argv)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            return error
    try:
        os.execv("/bin/sh", ["/bin/sh", file, *argv[1:]])
    except OSError as error:
        return error


def main(words: list[str]) -> int:
    """The program; see above. Nothing is started that is not confined."""
    places, program = words[: words.index("--")], words[words.index("--") + 1 :]
    try:
        confine(places, version())
    except OSError as error:
        sys.stderr.write(
            f"relay: {program[1]} is not started, because it cannot be confined: {error}\n"
        )
        return 1
    failure = become(program[0], program[1:])
    sys.stderr.write(f"relay: cannot run {program[1]}: {failure.strerror}\n")
    return 127 if failure.errno == errno.ENOENT else 126


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
