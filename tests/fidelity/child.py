"""What the child finds when it starts: its terminal, its processes, its inheritance."""

from __future__ import annotations

import os
import re
import shlex
from typing import Any

from tests.fidelity.behaviours import behaviour
from tests.fidelity.stage import Stage


def _from_shell(stage: Stage, source: str, before: str = "") -> Any:
    """What ``source`` shows as "it" when a shell with job control runs it, as a person would."""
    stage.shell()
    stage.enter(f"{before}{stage.line(stage.child(source))}")
    value = stage.shown("it")
    stage.prompt()
    return value


@behaviour("child", "stdin, stdout and stderr are the same terminal", expect=[True, True, True, 1])
def three_terminals(stage: Stage) -> Any:
    ttys = "[os.isatty(fd) for fd in (0, 1, 2)]"
    same = "len({os.fstat(fd).st_rdev for fd in (0, 1, 2)})"
    return _from_shell(stage, f"show('it', [*{ttys}, {same}])")


@behaviour("child", "it is the controlling terminal", expect=True)
def controlling_terminal(stage: Stage) -> Any:
    source = """
mine = os.open("/dev/tty", os.O_RDWR)
# tcgetpgrp(3) refuses every terminal but the controlling one.
show("it", os.tcgetpgrp(mine) == os.tcgetpgrp(0) == os.tcgetpgrp(1))
"""
    return _from_shell(stage, source)


@behaviour("child", "it leads the foreground process group", expect=[True, True])
def foreground(stage: Stage) -> Any:
    pid = "os.getpid()"
    return _from_shell(stage, f"show('it', [os.getpgrp() == {pid}, os.tcgetpgrp(0) == {pid}])")


@behaviour("child", "it does not lead the session, so that it can be stopped", expect=False)
def leader(stage: Stage) -> Any:
    return _from_shell(stage, "show('it', os.getsid(0) == os.getpid())")


@behaviour("child", "TERM is unchanged", expect="xterm-256color")
def term(stage: Stage) -> Any:
    stage.run(stage.child("show('it', os.environ['TERM'])"))
    return stage.shown("it")


@behaviour("child", "no file descriptors but 0, 1 and 2", expect=[0, 1, 2])
def descriptors(stage: Stage) -> Any:
    source = """
found = []
for fd in range(256):
    try:
        os.fstat(fd)
        found.append(fd)
    except OSError:
        pass
show("it", found)
"""
    stage.run(stage.child(source))
    return stage.shown("it")


@behaviour("child", "no signal is ignored or blocked", expect=["Blk", "Ign"], proc=True)
def signals(stage: Stage) -> list[str]:
    # Not Python: it ignores some itself.
    stage.run(["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"])
    return re.findall(r"Sig(Blk|Ign):\s+0+\r", stage.terminal.seen.decode())


_ARGUMENTS = [
    *("", " ", "two words", "line\nbreak\r", "\t", "--", "--name", "-h", "--help", "-x=1"),
    *("$HOME", "`id`", "'", '"', "\\", "*", "@file", "%s", "é", "\udcff\udcfe", "😀", "\x1b[0m"),
]


@behaviour(
    "child",
    "arguments arrive verbatim: empty, spaces, line breaks, options, not UTF-8",
    expect=[os.fsencode(argument).hex() for argument in _ARGUMENTS],
)
def arguments(stage: Stage) -> Any:
    child = stage.child("show('it', [os.fsencode(argument).hex() for argument in sys.argv[1:]])")
    stage.run([*child, *_ARGUMENTS])
    return stage.shown("it")


@behaviour(
    "child", "the environment is unchanged, except for names that begin with RELAY_", proc=True
)
def environment(stage: Stage) -> dict[str, str]:
    return _environment(stage)


@behaviour("child", "the same where no locale is set", proc=True)
def environment_without_a_locale(stage: Stage) -> dict[str, str]:
    del stage.env["LANG"]  # an interpreter may add one to its own environment then
    return _environment(stage)


def _environment(stage: Stage) -> dict[str, str]:
    # As from a shell: sh(1) adds this one where it is missing.
    stage.env["PWD"] = str(stage.folder)
    stage.env.update({"ODD": "\udcff", "EMPTY": "", "LINES": "7", "PYTHONHASHSEED": "0"})
    stage.run(stage.child("tell('it', open('/proc/self/environ', 'rb').read())"))
    entries = stage.told("it").decode(errors="surrogateescape").split("\0")[:-1]
    found = dict(entry.split("=", 1) for entry in entries)
    assert len(found) == len(entries), "a name stands twice"
    assert {"ODD", "EMPTY", "HOME"} <= set(found), "the child's environment has not been read"
    # Two runs have two folders.
    return {
        name: value.replace(str(stage.folder), "FOLDER")
        for name, value in found.items()
        if name == "RELAY_HOME" or not name.startswith("RELAY_")
    }


@behaviour(
    "child",
    "umask, folder, limits and niceness are inherited",
    expect=[0o27, "sub", [200, 4096], [0, 0], 5],
)
def inheritance(stage: Stage) -> Any:
    (stage.folder / "sub").mkdir()
    source = """
import resource
limits = [list(resource.getrlimit(n)) for n in (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE)]
folder = os.path.relpath(os.getcwd(), FOLDER)
show("it", [os.umask(0), folder, *limits, os.nice(0)])
"""
    wrapped = shlex.join(stage.wrapper.command(stage.child(source)))
    limits = "ulimit -S -n 200; ulimit -H -n 4096; ulimit -c 0"
    stage.bare(["bash", "-c", f"umask 027; {limits}; cd sub; exec nice -n 5 {wrapped}"])
    stage.terminal.wait(stage.limit)
    return stage.shown("it")
