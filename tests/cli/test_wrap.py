"""``relay wrap``: the command line, and every way of not starting."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from relay.cli import wrap
from relay.config.names import claim
from relay.core.errors import UsageError
from relay.core.paths import Home
from tests.pump.outer import DRIVER, Fake, stop_sessions


def relay(*argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "relay", "wrap", *argv],
        capture_output=True,
        text=True,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        timeout=60,
        check=False,
    )


def test_nothing_starts_with_the_folder_of_another_user(tmp_path: Path) -> None:
    folder, ran = tmp_path / "theirs", tmp_path / "ran"
    folder.mkdir()
    if os.getuid() == 0:
        os.chown(folder, 4711, -1)
    else:
        folder = Path("/usr/share")  # of root
    done = relay("--", "touch", str(ran), RELAY_HOME=str(folder))
    assert done.returncode == 1 and not ran.exists()
    assert done.stderr.startswith(f"relay: {folder} belongs to another user, so relay does not use")
    assert "Traceback" not in done.stderr


def test_a_second_config_does_not_take_the_place_of_the_first() -> None:
    for second in (["--config", "b.py"], ["--config=a.py"]):
        with pytest.raises(UsageError, match="--config is given twice"):
            wrap.parsed(["--config", "a.py", *second, "true"])
    assert wrap.parsed(["--config", "a.py", "x", "--config", "b"]).config == "a.py"


@pytest.mark.parametrize(
    ("argv", "given", "command"),
    [
        (["claude", "--name", "x"], {}, ["claude", "--name", "x"]),
        (["--name", "A", "--", "-odd"], {"name": "A"}, ["-odd"]),
        (["--name=A", "--task=a=b", "c"], {"name": "A", "task": "a=b"}, ["c"]),
        (["--no-primer", "c", "--", "d"], {"no_primer": True}, ["c", "--", "d"]),
        (["--name", "--", "c"], {"name": "--"}, ["c"]),
    ],
    ids=["bare", "after dashes", "with =", "flag", "value of dashes"],
)
def test_options_end_at_the_command(
    argv: list[str], given: dict[str, object], command: list[str]
) -> None:
    options = wrap.parsed(argv)
    assert options.command == command
    found = {name: getattr(options, name) for name in ("name", "task", "no_primer")}
    assert found == {"name": None, "task": None, "no_primer": False} | given


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--nmae", "A", "c"], "did you mean --name?"),
        (["-x", "c"], "relay wrap --help"),
        (["--name"], "relay wrap --help"),
        (["--no-primer=1", "c"], "relay wrap --help"),
    ],
)
def test_mistakes(argv: list[str], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        wrap.parsed(argv)
    assert says in caught.value.hint


def test_help_and_usage() -> None:
    done = relay("--help")
    assert max(map(len, done.stdout.splitlines())) < 80
    assert done.returncode == 0 and "examples:\n  relay wrap claude" in done.stdout
    assert relay().returncode == 2
    assert relay("--nmae", "A", "c").returncode == 2


def test_commands_that_cannot_run(tmp_path: Path, isolated_home: Path) -> None:
    done = relay("no-such-program")
    assert done.returncode == 127 and "command not found: no-such-program" in done.stderr
    (tmp_path / "plain").write_text("echo")
    assert relay(str(tmp_path / "plain")).returncode == 126
    assert relay(str(tmp_path)).returncode == 126
    assert relay(str(tmp_path / "none")).returncode == 127
    assert relay("--config", str(tmp_path / "none"), "true").returncode == 2
    assert not isolated_home.exists()  # nothing was started, nothing was made


@pytest.mark.parametrize("what", ["home", "names", "run"])
def test_no_place_for_files_of_relays_keeps_an_agent_from_starting(
    isolated_home: Path, tmp_path: Path, what: str
) -> None:
    """As with a full or a read-only disk: the program runs, bare."""
    root = isolated_home
    if what == "home":
        (tmp_path / "file").write_text("")
        root = tmp_path / "file" / "home"
    else:
        Home(str(root)).create()
        (root / what).rmdir()
        (root / what).write_text("")
    script = tmp_path / "script"  # without an interpreter's line
    script.write_text("echo runs as ${RELAY_AGENT-nobody}; exit 7\n")
    script.chmod(0o755)
    done = relay(str(script), RELAY_HOME=str(root))
    assert (done.returncode, done.stdout) == (7, "runs as nobody\n")
    (said,) = done.stderr.splitlines()
    assert said.startswith("relay: script runs without relay (no name, no messages, no")
    assert "RELAY_HOME" in said


def test_where_relay_has_no_place_nothing_is_started_in_a_governed_folder(
    isolated_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project" / ".orchestration").mkdir(parents=True)
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path / "project")
    done = relay("echo", "hello", RELAY_HOME=str(tmp_path / "file" / "home"))
    assert (done.returncode, done.stdout) == (1, "")
    assert "echo is not started" in done.stderr and "RELAY_HOME" in done.stderr


def test_where_there_is_no_terminal_emulator_a_program_runs_bare(
    isolated_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "libghostty-vt.so"
    library.write_text("none")
    done = relay("sh", "-c", "echo hello; exit 7", PYGHOSTTY_LIB=str(library))
    assert (done.returncode, done.stdout) == (7, "hello\n")
    (line,) = done.stderr.splitlines()
    assert "sh runs without relay" in line and "pyghostty" in line and "relay doctor" in line
    (tmp_path / "project" / ".orchestration").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project")
    done = relay("echo", "hello", PYGHOSTTY_LIB=str(library))
    assert (done.returncode, done.stdout) == (1, "")
    assert "echo is not started" in done.stderr and "pyghostty" in done.stderr


def test_a_full_disk_keeps_no_agent_from_starting(isolated_home: Path) -> None:
    Home(str(isolated_home)).create()
    done = subprocess.run(
        ["/bin/sh", "-c", 'ulimit -f 0; exec "$@"', "sh"]
        + [sys.executable, "-m", "relay", "wrap", "--name", "Bob", "--", "echo", "hello"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "hello\n")
    assert "echo runs without relay" in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_name_that_is_taken(isolated_home: Path) -> None:
    home = Home(str(isolated_home))
    home.create()
    holder = claim(home, "Bob", "bash")
    done = relay("--name", "bob", "touch", str(isolated_home / "started"))
    holder.release()
    assert done.returncode == 1
    assert str(os.getpid()) in done.stderr and "bob-2" in done.stderr
    assert not (isolated_home / "started").exists()


@pytest.mark.parametrize(
    ("script", "status", "out", "err"),
    [
        ('echo "ran $1"; exit 9\n', 9, b"ran so\n", b""),
        ("#!/no/such/interpreter\n", 126, b"", b"cannot run"),
    ],
    ids=["without an interpreter's line", "with a broken one"],
)
def test_a_script_is_run_as_a_shell_runs_it(
    tmp_path: Path, script: str, status: int, out: bytes, err: bytes
) -> None:
    (tmp_path / "script").write_text(script)
    (tmp_path / "script").chmod(0o755)
    fake = Fake(tmp_path / "fake")
    done = subprocess.run(
        [sys.executable, DRIVER, str(tmp_path / "script"), "so"],
        capture_output=True,
        env={**os.environ, "FAKE": str(fake.folder)},
        timeout=60,
        check=False,
    )
    stop_sessions(fake)
    assert (done.returncode, done.stdout) == (status, out)
    assert err in done.stderr and b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("options", "feature"),
    [
        (["--confine"], "confine"),
        (["--intent", "INT-001"], "confine"),
        (["--record", "file"], "recording"),
    ],
)
def test_without_the_feature_that_holds_it_nothing_is_started(
    options: list[str], feature: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.app.start_door.opened", lambda choices, cwd: [])
    with pytest.raises(UsageError, match=f"relay's feature {feature} is not installed"):
        wrap.wrap(wrap.parsed([*options, "true"]))
