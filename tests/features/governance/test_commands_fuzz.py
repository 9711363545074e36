"""Lines that change a file in a real shell are never taken for ones that only read.

And a line whose changes are said to be known changes nothing else. The shell stands so deep in a
folder of its own that no line can lead out of it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from relay.features.governance.commands import CommandKind, CommandUse, classify
from relay.features.governance.intents import GovernanceSettings

PLAIN = GovernanceSettings()
SHELLS = [shell for name in ("bash", "zsh") if (shell := shutil.which(name))]
#: More folders than a line has words.
DEPTH = 30

COMMANDS = st.sampled_from(
    [
        *("cat", "cat", "ls", "echo", "echo", "rm", "mv", "cp", "cp -r", "sort", "uniq", "find ."),
        *("sed", "sed -n", "sed -i", "tee", "touch", "mkdir -p", "rmdir", "xargs", "bash -c"),
        *("sh -c", "eval", "env", "command", "cd sub", "cd ..", "cd", "test", "[", "[[", "grep"),
        *("head", "ln -s", "ln", "true", "false", "printf", "export", "set", "exec", "read x"),
        *("for PATH in .; do", "read PATH <<< .", "for i in a b.txt; do", "done", "if", "then"),
        *("fi", "while", "{", "}", "! true", "x=a", "x='b.txt -i'", "x='1 touch new'", "x=-onew"),
        *("(", "! cd sub", "time", "timeout 1", "timeout $x cat", "tac", "wc", "date", "dd of=new"),
        *("chmod +x", "awk", "sort --key=$x", "git -C a$x log", "env A=$x cat", "xargs -I{} awk"),
        *("truncate -s 0", "unlink", "git diff --no-index", "seq 3", "base64", "diff", "cut -c1"),
    ]
)
# fmt: off
WORDS = st.sampled_from([
    "a", "a", "b.txt", "sub/a", "sub", "link", "new", "new", "new2", "*", "?", "{a,new}", ".", "..",
    "-ob.txt", "-o", "-i", "-n", "-e", "-r", "-f", "-t", "-T", "-rf", "-x", "-", "--", "-eq", "-v",
    "-exec cat {} \\;", "-exec touch new \\;", "-delete", "-fprint new", "+", "{}", "\\;", "1p",
    "'s/x/y/'", "'w new'", "'s/x/y/w new'", "'1e touch new'", "'{print > \"new\"}'", "'{print}'",
    "$x", '"$x"', "a$x", "--key=$x", "${x:=new}", "$((1+1))", "$((x))", "'a[$(touch new)]'",
    "> new", ">> a", "< a", "2>&1", "&> new", ">| b.txt", "<> new", "2> new", "> $x", "> *",
    "<<E\nfoo\nE\n", "<<'E'\nx\nE\n", "<<-E\n\tx\n\tE\n", "<<-E\n\tE\nrm a\n-E\n", "<<< a",
    "$(cat a)", "`rm a`", "$(rm a)", "<(rm a)", ">(tee new)", "'rm a'", '"touch new"',
    "'cd sub && rm a'", "$'new'", "~", "~/new", "'~'", "=", "x=rm", "PATH=.", "]", "]]", "1",
    "\\", "\\\n", "#", "'", '"', "$(", ")", "`", "((", "))", "{", "}",
])
# fmt: on
JOINTS = st.sampled_from(
    [" ; ", " && ", " || ", " | ", " & ", "\n", " |& ", " ", "\\\n", ") ", "; fi ; "]
)
PARTS = st.tuples(COMMANDS, st.lists(WORDS, max_size=4), JOINTS).map(
    lambda part: " ".join([part[0], *part[1]]) + part[2]
)
LINES = st.lists(PARTS, min_size=1, max_size=4).map("".join)
MANY = settings(
    max_examples=int(os.environ.get("RELAY_FUZZ", "50")),
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@given(st.text(max_size=60) | LINES)
def test_no_line_makes_it_fail(line: str) -> None:
    assert isinstance(classify(line, PLAIN), CommandUse)


@MANY
@given(LINES)
def test_nothing_changes_but_what_is_told(line: str) -> None:
    use = classify(line, PLAIN)
    if use.kind not in (CommandKind.READ, CommandKind.WRITE):
        return
    for shell in SHELLS:
        with tempfile.TemporaryDirectory() as made:
            top = Path(made).resolve()
            folder = top.joinpath(*map(str, range(DEPTH)))
            (folder / "sub").mkdir(parents=True)
            for name in ("a", "b.txt", "-ob.txt", "sub/a", "sub/b.txt"):
                (folder / name).write_text(f"x {name}\n")
            (folder / "ls").write_text("echo x > new\n")
            (folder / "ls").chmod(0o700)
            (folder / "link").symlink_to("sub")
            told = told_paths(use, folder, top)
            before = snapshot(top)
            run([shell, "-c", line], folder, top)
            after = snapshot(top)
            changed = {
                path for path in before.keys() | after.keys() if before.get(path) != after.get(path)
            }
            wrong = {path for path in changed if not any(covers(one, path) for one in told)}
            assert not wrong, (shell, line, use, wrong)


#: Pieces of sed's scripts, of which some hide where an expression ends.
PIECES = st.lists(
    st.sampled_from(
        [*"/|,;#es[]\\pwdq1$!&{}^*+ I:@y\n", "s/", "s,", "s|", "/e", ",e", "|e", "w f", "e id"]
        + ["[^", "\\/", "[[:", "[[.", "\\n", "\\c", "\\x5d", "1p", "$d", "é", "\\cs"]
    ),
    max_size=14,
).map("".join)
EXPRESSIONS = st.tuples(st.sampled_from("/,|#@:"), PIECES, PIECES, PIECES).map(
    lambda parts: "s{0}{1}{0}{2}{0}{3}".format(*parts)
)


@settings(MANY, max_examples=MANY.max_examples * 20)
@example("s/[/X/;s,],/touch f/e#,", "")
@given(st.lists(PIECES | EXPRESSIONS, max_size=3).map(";".join), st.sampled_from(["", "-E "]))
def test_no_script_of_sed_that_reads_has_a_command_that_sed_refuses_in_its_sandbox(
    script: str, option: str
) -> None:
    line = f"sed {option}{shlex.quote(script)} a"
    if "\0" in script or classify(line, PLAIN).kind is not CommandKind.READ:
        return
    words = ["sed", "--sandbox", *option.split(), script, os.devnull]
    said = subprocess.run(words, capture_output=True, check=False, text=True, errors="replace")
    assert "sandbox" not in said.stderr, said.stderr


def told_paths(use: CommandUse, folder: Path, home: Path) -> set[str]:
    """Where the line may change something, as the gate takes it."""
    told = [*use.writes, *use.deletes, *use.trees]
    for source, to in (*use.moves, *use.copies):
        target = at(folder, home, to)
        told.append(to + "/" + Path(source).name if os.path.isdir(target) else to)
    told += [source for source, _ in use.moves]
    paths = {at(folder, home, one) for one in told}
    named = {os.path.join(os.path.realpath(os.path.dirname(one)), Path(one).name) for one in paths}
    return paths | named | {os.path.realpath(one) for one in paths}


def at(folder: Path, home: Path, path: str) -> str:
    if path == "~" or path.startswith("~/"):
        path = str(home) + path[1:]
    return os.path.join(folder, path)


def covers(told: str, path: str) -> bool:
    """A folder stands for all below it; one that is not there yet for those above it."""
    return path == told or path.startswith(told + "/") or told.startswith(path + "/")


def snapshot(top: Path) -> dict[str, str]:
    found = {}
    for folder, folders, files in os.walk(top):
        for name in folders + files:
            path = os.path.join(folder, name)
            if os.path.islink(path):
                found[path] = "-> " + os.readlink(path)
            elif os.path.isdir(path):
                found[path] = "folder"
            elif os.path.isfile(path):
                found[path] = f"{os.stat(path).st_mode} {Path(path).read_bytes()!r}"
    return found


def run(command: list[str], folder: Path, home: Path) -> None:
    env = {"PATH": os.environ["PATH"], "HOME": str(home), "LC_ALL": "C"}
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=env,
        stdin=quiet,
        stdout=quiet,
        stderr=quiet,
        start_new_session=True,
    )
    try:
        with suppress(subprocess.TimeoutExpired):
            process.wait(2)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # also what it has left in the background
        process.wait()
