"""Whether a shell is itself in front in its terminal, or a program that was started from it.

What is typed goes to the foreground process group. A message for a shell must not go to the editor
or to the agent that runs in it: Enter there might save a file or approve a command.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys

from relay.agents.shell import SHELLS

# struct proc_bsdinfo of macOS' <sys/proc_info.h>: what is read of it, and how large it is.
_PROC_PIDTBSDINFO = 3
_BSDINFO_SIZE = 136
_COMM_AT, _GROUP_AT, _FRONT_AT = 48, 100, 112


def shell_in_front(pid: int) -> bool | None:
    """Whether the shell ``pid`` has the terminal to itself.

    None where that cannot be told: no such process, no way to ask, or ``pid`` is no shell any more
    (``exec claude``).
    """
    if sys.platform == "darwin":
        found = _darwin(pid)
    else:
        found = _linux(pid)
    if found is None:
        return None
    name, group, front = found
    if front > 0 and group != front:
        return False
    return True if front > 0 and name.lstrip("-") in SHELLS else None


def _linux(pid: int) -> tuple[str, int, int] | None:
    """Name, process group and the terminal's foreground group: proc(5), /proc/PID/stat."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            stat = file.read()
    except OSError:
        return None
    # The name stands in parentheses and may hold any character.
    name, closed, rest = stat.partition(b"(")[2].rpartition(b")")
    fields = rest.split()
    if not closed or len(fields) < 6:
        return None
    return os.fsdecode(name), int(fields[2]), int(fields[5])


def _darwin(pid: int) -> tuple[str, int, int] | None:
    """The same from libproc."""
    try:
        libproc = ctypes.CDLL("/usr/lib/libproc.dylib")
        buffer = ctypes.create_string_buffer(_BSDINFO_SIZE)
        size = libproc.proc_pidinfo(
            pid, _PROC_PIDTBSDINFO, ctypes.c_uint64(0), buffer, _BSDINFO_SIZE
        )
    except (OSError, AttributeError):
        return None
    if size != _BSDINFO_SIZE:
        return None
    name = os.fsdecode(buffer.raw[_COMM_AT : _COMM_AT + 16].split(b"\0")[0])
    (group,) = struct.unpack_from("=I", buffer.raw, _GROUP_AT)
    (front,) = struct.unpack_from("=I", buffer.raw, _FRONT_AT)
    return name, group, front
