"""``relay confine`` by the real kernel: what programs try outside is refused, all inside works."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from relay.features.confine import landlock
from tests.support import wait_until

RELAY = str(Path(sys.executable).with_name("relay"))
LINUX = pytest.mark.skipif(not landlock.version(), reason="this kernel has no Landlock")
Done = subprocess.CompletedProcess[str]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a file in ``src``, which may be written, and others that may not."""
    root = tmp_path / "project"
    for name in ("src/sub", "docs"):
        (root / name).mkdir(parents=True)
    (root / "docs" / "a").write_text("as it was\n")
    (root / "src" / "b").write_text("old\n")
    subprocess.run(["git", "init", "-q"], cwd=root, check=True, timeout=30)
    monkeypatch.chdir(root)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return root


def confined(*words: str, **how: object) -> Done:
    """Run a program that may write ``src``."""
    command = [RELAY, "confine", "--write", "src", "--", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **how)  # type: ignore[call-overload, no-any-return]


def state(root: Path) -> dict[str, str]:
    """All that lies outside of ``src``, with what is in it."""
    found = {}
    for folder, folders, files in os.walk(root):
        if folder == str(root):
            folders.remove("src")
        for name in (*folders, *files):
            path = Path(folder, name)
            text = path.read_bytes().hex() if path.is_file() and not path.is_symlink() else ""
            found[str(path)] = text
    return found


#: Each a line of a shell that writes outside of ``src``, by a way of its own.
OUTSIDE = [
    "echo x > docs/a",
    "echo x >> docs/a",
    "echo x > docs/new",
    'python3 -c \'open("docs/a", "w")\'',
    'perl -e \'open(F, ">", "docs/a") or exit 1\'',
    "dd if=/dev/zero of=docs/a count=1",
    "sed -i s/as/AS/ docs/a",
    "echo x | tee docs/a",
    "truncate -s 0 docs/a",
    "cp src/b docs/a",
    "mv src/b docs/",
    "mv docs/a src/",
    "rm docs/a",
    "rm -r docs",
    "mkdir docs/sub",
    "mkfifo docs/pipe",
    "ln -s a docs/link",
    "ln docs/a src/hard && echo x > src/hard",
    "ln -s ../docs src/there && echo x > src/there/a",
    "mv src src2",
    "mv docs src/",
    "git add src",
    "git checkout -b other",
    "(setsid sh -c 'sleep 0.2; echo x > docs/a' &) ; sleep 0.6",
    "python3 - <<'END'\nimport os\nos.rename('docs/a', 'docs/c')\nEND",
    "tar cf docs/t.tar src",
    "cd / && echo x > $OLDPWD/docs/a",
    "echo x > /proc/self/cwd/docs/a",
    "sh -c 'exec 3<docs && cd /proc/self/fd/3 && echo x > a'",
    "unshare -rm sh -c 'echo x > docs/a'",
    "relay confine --write docs -- sh -c 'echo x > docs/a'",
]


@LINUX
def test_nothing_outside_is_changed_by_any_program(project: Path) -> None:
    before = state(project)
    path = f"{Path(RELAY).parent}{os.pathsep}{os.environ['PATH']}"
    for line in OUTSIDE:
        (project / "src" / "b").write_text("old\n")
        confined("bash", "-c", line, env={**os.environ, "PATH": path})
        assert state(project) == before, line


@LINUX
def test_everything_inside_works(project: Path) -> None:
    done = confined(
        *("bash", "-ec"),
        "echo new > src/b; cp docs/a src/sub/; mv src/sub/a src/a; sed -i s/as/AS/ src/a\n"
        "ln src/a src/hard; ln -s a src/link; mkdir src/x; rmdir src/x; mkfifo src/pipe\n"
        "python3 -c 'import tempfile; tempfile.NamedTemporaryFile()'; tar cf src/t.tar docs\n"
        "echo x > $TMPDIR/t; echo x > /dev/null; echo x > /dev/shm/relay-$$; rm /dev/shm/relay-$$\n"
        "echo said > /dev/stdout; rm src/b",
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "said\n", "")
    assert (project / "src" / "a").read_text() == "AS it was\n"


@LINUX
def test_it_reaches_no_process_outside_with_a_signal(project: Path) -> None:
    done = confined("bash", "-c", f"kill -0 {os.getpid()}; echo $?; kill -0 $$; echo $?")
    assert done.stdout == "1\n0\n"


@LINUX
def test_relays_state_and_what_shells_run_are_closed_though_caches_are_open(
    project: Path, isolated_home: Path
) -> None:
    home = Path(os.environ["HOME"])
    (home / ".cache").mkdir()
    isolated_home.mkdir()
    lines = ["echo x > ~/.cache/a", "echo x > ~/.bashrc", "mkdir ~/.config"]
    lines += [f"echo x > {isolated_home}/trust.json"]
    done = confined(
        "bash", "-c", "; ".join(f"({line}) 2>&- && echo ok || echo no" for line in lines)
    )
    assert done.stdout.split() == ["ok", "no", "no", "no"]
    # A cache that holds relay's state is left out.
    inside = str(home / ".cache" / "relay")
    env = {**os.environ, "RELAY_HOME": inside}
    assert confined("sh", "-c", "echo x > ~/.cache/b", env=env).returncode != 0


@LINUX
@pytest.mark.parametrize(
    ("line", "path"),
    [
        ("echo x > docs/new", "docs/new"),
        ("rm docs/a", "docs/a"),
        ('python3 -c \'open("docs/a", "w")\'', "docs/a"),
        ("mv src/b docs/b", "docs/b"),
        ("tee docs/a < src/b", "docs/a"),
        ("git add src", ".git/index.lock"),
    ],
)
def test_a_refused_write_is_named_where_stderr_is_a_file(
    project: Path, line: str, path: str
) -> None:
    with open(project / "src" / "log", "w+") as log:
        command = [RELAY, "confine", "--write", "src", "--", "sh", "-c", line]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=log, timeout=60)
        log.seek(0)
        last = log.read().splitlines()[-1]
    assert done.returncode != 0
    named = last.removesuffix(" was not written: the program is confined").removeprefix("relay: ")
    assert named in (path, str(project / path)), last


@LINUX
@pytest.mark.parametrize(
    ("line", "works"),
    [
        ("sed -i s/a/b/ docs/a", False),
        ("cd docs && sed s/a/b/ a > $TMPDIR/a && cp $TMPDIR/a a", True),
    ],
)
def test_a_file_alone_is_written_and_not_replaced(project: Path, line: str, works: bool) -> None:
    with open(project / "src" / "log", "w+") as log:
        command = [RELAY, "confine", "--write", "docs/a", "--", "sh", "-c", line]
        done = subprocess.run(command, stderr=log, timeout=60)
        log.seek(0)
        assert (done.returncode == 0) is works
        assert ("can be written but not replaced" in log.read()) is not works


@LINUX
def test_a_failure_of_its_own_is_not_explained(project: Path) -> None:
    with open(project / "src" / "log", "w+") as log:
        command = [
            RELAY,
            "confine",
            "--write",
            "src",
            "--",
            "sh",
            "-c",
            "cat none; echo 1 >&2; exit 3",
        ]
        assert subprocess.run(command, stderr=log, timeout=60).returncode == 3
        log.seek(0)
        assert "relay:" not in log.read()


@LINUX
@pytest.mark.parametrize("log", [False, True], ids=["in its place", "as a child"])
def test_status_and_signals_are_the_programs(project: Path, log: bool) -> None:
    with open(project / "src" / "log", "w") as file:
        stderr = file if log else subprocess.PIPE
        command = [RELAY, "confine", "--write", "src", "--", "sh", "-c"]
        assert subprocess.run([*command, "exit 9"], stderr=stderr, timeout=60).returncode == 9
        ended = subprocess.run([*command, "kill -KILL $$"], stderr=stderr, timeout=60)
        assert ended.returncode == -signal.SIGKILL
        program = subprocess.Popen(
            [*command, "trap 'echo got > src/got; exit 4' TERM; echo > src/ready; sleep 60 & wait"],
            stderr=stderr,
        )
        wait_until((project / "src" / "ready").exists)
        program.terminate()
        assert program.wait(30) == 4 and (project / "src" / "got").exists()
        if program.stderr:
            program.stderr.close()


@LINUX
def test_a_program_that_gains_rights_gains_none(project: Path) -> None:
    done = confined("grep", "NoNewPrivs", "/proc/self/status")
    assert done.stdout.split()[-1] == "1"


@LINUX
def test_a_descriptor_that_the_caller_has_opened_stays_open(project: Path) -> None:
    line = f"exec 3>docs/given; {RELAY} confine -- sh -c 'echo x >&3; echo y > docs/given'"
    subprocess.run(["bash", "-c", line], stderr=subprocess.DEVNULL, timeout=60)
    assert (project / "docs" / "given").read_text() == "x\n"


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--write", "none", "--", "true"], 2, "none is not there yet"),
        (["--write", "src/b/", "--", "true"], 2, "src/b/ is a file, not a folder"),
        (["--write", "src/*.py", "--", "true"], 2, "a pattern cannot be used here"),
        (["--write", "a\nb", "--", "true"], 2, "a^Jb has a character that cannot be shown"),
        (["--write", "", "--", "true"], 2, "an empty path names no place"),
        (["--intent", "INT-1", "--", "true"], 1, "is not in a governed project"),
        (["--write", "src", "--", "no-such-program"], 127, "command not found"),
        (["--write", "src"], 2, "COMMAND is missing"),
    ],
    ids=["absent", "file", "glob", "newline", "empty", "ungoverned", "program", "none"],
)
def test_what_cannot_be_is_said_in_a_sentence(
    project: Path, words: list[str], status: int, said: str
) -> None:
    done = subprocess.run([RELAY, "confine", *words], capture_output=True, text=True, timeout=60)
    if landlock.version():
        assert done.returncode == status and said in done.stderr
    assert done.returncode != 0 and done.stderr.startswith("relay: ")
    assert "Traceback" not in done.stderr


MASKED = """
import sys
from relay.features.confine import confinement, landlock
landlock.version = lambda: {version}
from relay.__main__ import main
sys.exit(main({words!r}))
"""


def masked(version: int, *words: str) -> Done:
    """The command line under a kernel of that version of Landlock."""
    command = [sys.executable, "-c", MASKED.format(version=version, words=list(words))]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_without_landlock_nothing_is_started_and_the_doctor_says_so(project: Path) -> None:
    done = masked(0, "confine", "--", "touch", "src/made")
    assert done.returncode == 1 and "cannot confine a program" in done.stderr
    assert not (project / "src" / "made").exists()
    assert "no program can be confined" in masked(0, "doctor").stdout


@LINUX
@pytest.mark.parametrize(
    ("version", "line", "weaker"),
    [
        (1, "mv src/b src/sub/ && rm src/sub/b", "cannot be moved from one folder to another"),
        (2, """python3 -c 'import os; os.truncate("docs/a", 0)' && ! rm docs/a""", "emptied"),
        (5, "kill -0 $PPID", "signals"),
    ],
)
def test_an_older_kernel_holds_less_and_that_is_said(
    project: Path, version: int, line: str, weaker: str
) -> None:
    if landlock.version() >= version:
        done = masked(version, "confine", "--write", "src", "--", "sh", "-c", line)
        assert done.returncode == 0 and weaker in done.stderr, done.stderr
        assert masked(version, "confine", "--", "sh", "-c", "echo x > docs/a").returncode != 0
    said = " ".join(masked(version, "doctor").stdout.split())
    assert f"Landlock, version {version}" in said and weaker in said
    assert weaker not in " ".join(masked(7, "doctor").stdout.split())
