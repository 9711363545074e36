"""Without a terminal, or with only some of it: pipes and files are the child's as they are."""

from __future__ import annotations

import hashlib
import shlex

from tests.fidelity.behaviours import behaviour
from tests.fidelity.stage import Stage

_LINES = b"".join(b"line %d of a file that somebody pipes in\n" % n for n in range(7500))
_DIGEST = hashlib.sha256(_LINES).hexdigest()
_TTYS = "[os.isatty(fd) for fd in (0, 1, 2)]"


def _in_shell(stage: Stage, before: str, source: str, after: str) -> int:
    """Run ``before WRAP child after`` in bash, in the terminal; the status of the wrapper."""
    (stage.folder / "lines").write_bytes(_LINES)
    wrapped = shlex.join(stage.wrapper.command(stage.child(source)))
    line = f"{before} {wrapped} {after}\nstatuses=(${{PIPESTATUS[@]}})\n"
    # The wrapper's place in the pipeline is that of what comes before it.
    place = 1 if before else 0
    stage.bare(["bash", "-c", f"{line}exit ${{statuses[{place}]}}"])
    return stage.terminal.wait(stage.limit)


@behaviour(
    "no terminal",
    "stdin a pipe: 300 KB of lines are read, the output is in the terminal",
    expect=[[False, True, True], _DIGEST, True, 6],
)
def stdin_a_pipe(stage: Stage) -> list[object]:
    source = f"""
import hashlib
show("ttys", {_TTYS})
tell("sum", hashlib.sha256(read(1 << 30)).hexdigest().encode())
write(b"said")
os._exit(6)
"""
    status = _in_shell(stage, "cat lines |", source, "")
    said = b"said" in stage.terminal.seen
    return [stage.shown("ttys"), stage.told("sum").decode(), said, status]


_WRITES = f"""
show("ttys", {_TTYS})
write(open(os.path.join(FOLDER, "lines"), "rb").read())
write(b"aside", 2)
os._exit(6)
"""
_WRITTEN = [[True, False, True], _DIGEST, True, False, 6]


@behaviour("no terminal", "stdout a pipe: verbatim, stderr apart, status kept", expect=_WRITTEN)
def stdout_a_pipe(stage: Stage) -> list[object]:
    return _redirected(stage, "| cat > out")


@behaviour("no terminal", "stdout a file: verbatim, stderr apart, status kept", expect=_WRITTEN)
def stdout_a_file(stage: Stage) -> list[object]:
    return _redirected(stage, "> out")


def _redirected(stage: Stage, after: str) -> list[object]:
    status = _in_shell(stage, "", _WRITES, after)
    written = hashlib.sha256((stage.folder / "out").read_bytes()).hexdigest()
    seen = stage.terminal.seen
    return [stage.shown("ttys"), written, b"aside" in seen, b"line" in seen, status]


@behaviour(
    "no terminal",
    "stderr a file: what goes there is not in the terminal",
    expect=[[True, True, False], b"aside", True, False, 6],
)
def stderr_a_file(stage: Stage) -> list[object]:
    status = _in_shell(stage, "", _WRITES, "2> err")
    seen = stage.terminal.seen
    err = (stage.folder / "err").read_bytes()
    return [stage.shown("ttys"), err, b"line 7499" in seen, b"aside" in seen, status]


@behaviour(
    "no terminal",
    "no terminal at all: stdin, stdout, stderr and status are the child's",
    expect=[6, _DIGEST, b"aside", [False, False, False]],
)
def no_terminal_at_all(stage: Stage) -> list[object]:
    source = f"show('ttys', {_TTYS})\nwrite(read(1 << 30))\nwrite(b'aside', 2)\nos._exit(6)"
    done = stage.piped(stage.child(source), _LINES)
    written = hashlib.sha256(done.stdout).hexdigest()
    return [done.returncode, written, done.stderr, stage.shown("ttys")]


@behaviour("no terminal", "the end of `WRAPPER yes | head -1`", expect=[b"y\r\n", 141])
def a_reader_that_goes_away(stage: Stage) -> list[object]:
    wrapped = shlex.join(stage.wrapper.command(["yes"]))
    stage.bare(["bash", "-c", f"{wrapped} | head -1; exit ${{PIPESTATUS[0]}}"])
    status = stage.terminal.wait(stage.limit)
    return [bytes(stage.terminal.seen), status]
