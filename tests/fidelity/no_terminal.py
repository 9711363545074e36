"""Without a terminal, or with only some of it: pipes and files are the child's as they are."""

from __future__ import annotations

import hashlib
import shlex
from typing import Any

from tests.fidelity.behaviours import Observe, behaviour
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


_READS = f"""
import hashlib
show("ttys", {_TTYS})
tell("sum", hashlib.sha256(read(1 << 30)).hexdigest().encode())
write(b"said")
"""


@behaviour(
    "no terminal",
    "stdin a pipe: 300 KB of lines are read, and the output is in the terminal",
    expect=[_DIGEST, True],
)
def stdin_a_pipe(stage: Stage) -> list[object]:
    _in_shell(stage, "cat lines |", _READS, "")
    return [stage.told("sum").decode(), b"said" in stage.terminal.seen]


@behaviour("no terminal", "stdin a pipe: the child sees that too", expect=[False, True, True])
def stdin_is_the_pipe(stage: Stage) -> Any:
    _in_shell(stage, "cat lines |", _READS, "")
    return stage.shown("ttys")


_WRITES = f"""
show("ttys", {_TTYS})
write(open(os.path.join(FOLDER, "lines"), "rb").read())
write(b"aside", 2)
os._exit(6)
"""


def _redirection(name: str, after: str) -> None:
    def written(stage: Stage) -> str:
        _in_shell(stage, "", _WRITES, after)
        return hashlib.sha256((stage.folder / "out").read_bytes()).hexdigest()

    def beside(stage: Stage) -> list[object]:
        _in_shell(stage, "", _WRITES, after)
        seen = stage.terminal.seen
        return [stage.shown("ttys"), b"aside" in seen, b"line" in seen]

    def status(stage: Stage) -> int:
        return _in_shell(stage, "", _WRITES, after)

    what = f"stdout a {name}"
    ttys = [True, False, True]
    rows: list[tuple[str, str, Observe, object]] = [
        ("verbatim", f"{what}: the output arrives verbatim", written, _DIGEST),
        (
            "beside",
            f"{what}: the child sees that too, and stderr is separate",
            beside,
            [ttys, True, False],
        ),
        ("status", f"{what}: the exit status is kept", status, 6),
    ]
    for key, sentence, run, expect in rows:
        behaviour("no terminal", sentence, expect=expect, name=f"{what} {key}")(run)


_redirection("pipe", "| cat > out")
_redirection("file", "> out")


@behaviour(
    "no terminal",
    "stderr a file: its output is in the file, and not in the terminal",
    expect=[[True, True, False], b"aside", True, False],
)
def stderr_a_file(stage: Stage) -> list[object]:
    _in_shell(stage, "", _WRITES, "2> err")
    seen = stage.terminal.seen
    err = (stage.folder / "err").read_bytes()
    return [stage.shown("ttys"), err, b"line 7499" in seen, b"aside" in seen]


_FILTERS = f"show('ttys', {_TTYS})\nwrite(read(1 << 30))\nwrite(b'aside', 2)\nos._exit(6)"


@behaviour("no terminal", "no terminal at all: stdin and stdout verbatim", expect=_DIGEST)
def filter_without_a_terminal(stage: Stage) -> str:
    done = stage.piped(stage.child(_FILTERS), _LINES)
    return hashlib.sha256(done.stdout).hexdigest()


@behaviour(
    "no terminal",
    "no terminal at all: the child sees that too, and stderr is separate",
    expect=[b"aside", [False, False, False]],
)
def no_terminal_at_all(stage: Stage) -> list[object]:
    done = stage.piped(stage.child(_FILTERS), _LINES)
    return [done.stderr, stage.shown("ttys")]


@behaviour("no terminal", "no terminal at all: the exit status is kept", expect=6)
def status_without_a_terminal(stage: Stage) -> int:
    return stage.piped(stage.child(_FILTERS), _LINES).returncode


def _yes(stage: Stage) -> int:
    wrapped = shlex.join(stage.wrapper.command(["yes"]))
    stage.bare(["bash", "-c", f"{wrapped} | head -1; exit ${{PIPESTATUS[0]}}"])
    return stage.terminal.wait(stage.limit)


@behaviour("no terminal", "`WRAPPER yes | head -1` ends after the line", expect=b"y\r\n")
def a_reader_that_goes_away(stage: Stage) -> bytes:
    _yes(stage)
    return bytes(stage.terminal.seen)


@behaviour("no terminal", "and ends as by SIGPIPE", expect=128 + 13)
def status_of_a_broken_pipe(stage: Stage) -> int:
    return _yes(stage)
