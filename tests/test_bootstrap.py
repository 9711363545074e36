"""The set-up from a fresh clone: what it decides, without installing anything."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pexpect
import pytest

from relay import bootstrap
from relay.bootstrap import SetupError
from tests.conftest import KINDS


def test_the_wheel_in_the_clone_is_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    pip = bootstrap.pip_for(Path(sys.executable))
    shown = subprocess.run([*pip, "--version"], capture_output=True, text=True, timeout=60)
    assert shown.stdout.startswith("pip ") and ".ci/wheels" in shown.stdout
    monkeypatch.setattr(bootstrap, "ROOT", Path("/nonexistent"))
    with pytest.raises(SetupError, match="the clone is incomplete"):
        bootstrap.pip_for(Path(sys.executable))


def test_a_python_that_is_too_old_is_told_so_in_words_that_it_can_read() -> None:
    first = (bootstrap.ROOT / "relay" / "__init__.py").read_text()
    # What Python 2.7 and 3.6 cannot read begins with these.
    assert "from __future__" not in first and "->" not in first.replace("# type: (str) ->", "")
    assert first.isascii() and ":=" not in first and ' f"' not in first and "(*" not in first
    ast.parse(first, feature_version=(3, 4))
    old = "import sys; sys.version_info = (2, 7, 18); sys.version = '2.7.18 (old)'; import relay"
    done = subprocess.run([sys.executable, "-c", old], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("relay: Python 3.11 or newer is needed, and this is 2.7.18")
    assert done.stderr.count("\n") == 1


def test_a_missing_clone_is_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(bootstrap, "ROOT", tmp_path)
    with pytest.raises(SetupError, match="not a clone"):
        bootstrap.check_clone()


def test_unknown_words_show_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert bootstrap.main(["fly"]) == 2
    assert "relay.bootstrap demo" in capsys.readouterr().err
    assert bootstrap.main(["setup", "wings"]) == 1
    assert "wings is not an extra; there are vectors, " in capsys.readouterr().err


def test_a_failing_step_shows_its_output(capsys: pytest.CaptureFixture[str]) -> None:
    steps = bootstrap.Steps()
    with pytest.raises(SetupError, match="installing failed, see above"), steps.step("installing"):
        steps.run(["sh", "-c", "echo what happened; exit 3"])
    said = capsys.readouterr().err
    assert said.startswith("relay: installing …\n") and "what happened" in said


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("OSError: [Errno 28] No space left on device", "the disk is full\n  make room"),
        ("WARNING: Retrying (Retry(total=0)) after connection broken by", "cannot be reached"),
        (
            "Error: [Errno 13] Permission denied: '/usr/.venv'",
            "Permission denied: '/usr/.venv'\n  ",
        ),
    ],
)
def test_a_failure_with_a_usual_cause_is_a_sentence_with_a_way_out(
    line: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = bootstrap.Steps()
    with pytest.raises(SetupError) as failure, steps.step("installing"):
        steps.run(["sh", "-c", f'echo "ERROR: much more"; echo "{line}"; exit 1'])
    assert said in str(failure.value) and "much more" not in capsys.readouterr().err


def test_an_interrupted_set_up_says_how_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(extras: set[str]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(bootstrap, "set_up", interrupted)
    assert bootstrap.main(["demo"]) == 130
    assert capsys.readouterr().err == "\nrelay: interrupted. To go on, run the same line again.\n"


def test_a_step_on_a_terminal_is_one_line_that_changes_in_place() -> None:
    program = (
        "from relay.bootstrap import Steps\n"
        "steps = Steps()\n"
        "with steps.step('installing relay'):\n"
        "    steps.run(['echo', 'Collecting h11>=0.14 (from relay-wrap)'])\n"
    )
    child = pexpect.spawn(sys.executable, ["-c", program], dimensions=(24, 80), timeout=60)
    shown = child.read().decode()
    child.close()
    assert "\r\x1b[Krelay: installing relay … collecting h11>=0.14\r" in shown
    assert shown.endswith("\r\x1b[Krelay: installing relay (0 s)\r\n") and shown.count("\n") == 1


def test_all_is_the_quick_tests_and_every_other_one() -> None:
    quick, *rest = bootstrap.commands("test", "--all")
    assert bootstrap.commands("test") == [quick]
    assert bootstrap.commands("test", "--rest") == rest
    assert [words[words.index("-m", 3) + 1] for words in rest[1:]] == [
        "alone and not smoke",
        "agents",
    ]
    assert bootstrap.commands("test", "-k", "one")[0][-3:] == ["pytest", "-k", "one"]
    assert bootstrap.commands("setup", "mem0") == []


@pytest.mark.parametrize("kind", bootstrap.FOLDERS)
def test_the_tests_of_a_kind_are_where_they_are_looked_for(kind: str) -> None:
    marked = {
        file.relative_to(bootstrap.ROOT).as_posix()
        for file in (bootstrap.ROOT / "tests").rglob("test_*.py")
        if f"mark.{kind}\n" in file.read_text()
    }
    marked |= {f"tests/{folder}/" for folder, name in KINDS.items() if name == kind}
    assert [file for file in marked if not file.startswith((*bootstrap.FOLDERS[kind],))] == []


def test_only_tests_need_more_than_the_light_set_up() -> None:
    assert bootstrap.extras_of("demo") == bootstrap.extras_of("setup") == set()
    assert bootstrap.extras_of("setup", "mem0") == {"mem0"}
    assert bootstrap.extras_of("test") == {"test"}
    assert bootstrap.extras_of("test", "--all") == bootstrap.extras_of("test", "-k", "x")
    assert {"all", "mem0", "languages"} < bootstrap.joined("test") < bootstrap.joined("all-tests")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """What pip is asked to install into an environment of the test's, which has a Python."""
    monkeypatch.setattr(bootstrap, "VENV", tmp_path)
    (tmp_path / "bin").mkdir()
    for name in ("python", "relay"):
        (tmp_path / "bin" / name).symlink_to("/bin/true")
    targets: list[str] = []
    run = lambda _, command: targets.append(command[-1].removeprefix(str(bootstrap.ROOT)))  # noqa: E731
    monkeypatch.setattr(bootstrap.Steps, "run", run)
    return targets


def test_what_was_installed_once_stays_and_is_not_installed_again(installed: list[str]) -> None:
    for extras in (set(), set(), {"mcp"}, {"mem0"}, {"mcp"}, set(), {"test"}, {"all"}, {"vectors"}):
        bootstrap.set_up({*extras})
    assert installed == ["", "[mcp]", "[mcp,mem0]", "[mcp,mem0,test]"]


def test_an_environment_that_starts_nothing_any_more_is_made_anew(
    installed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bootstrap.set_up({"mcp"})
    moved = bootstrap.VENV.parent / "moved"
    bootstrap.VENV.rename(moved)
    monkeypatch.setattr(bootstrap, "VENV", moved)
    bootstrap.set_up(set())
    (moved / "bin" / "python").unlink()
    bootstrap.set_up(set())
    assert installed == ["[mcp]", *[str(moved), "[mcp]"] * 2]


def test_a_relay_that_a_change_has_broken_costs_nothing_that_is_installed(
    installed: list[str],
) -> None:
    bootstrap.set_up(set())
    program = bootstrap.VENV / "bin" / "relay"
    program.unlink()
    program.symlink_to("/bin/false")
    bootstrap.set_up(set())
    assert installed == [""]
    program.unlink()
    bootstrap.set_up(set())
    assert installed == ["", ""]


def test_the_set_up_ends_with_what_puts_the_command_on_the_path(
    installed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert bootstrap.main(["setup"]) == 0
    folder = bootstrap.VENV / "bin"
    assert capsys.readouterr().out == (
        f"relay is installed in {folder}. To use it in a terminal:\n\n"
        f'    export PATH={folder}:"$PATH"\n\n'
    )


def test_a_failure_in_either_part_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "set_up", lambda extras: None)
    again = ["false"]
    monkeypatch.setattr(bootstrap, "failed_again", lambda: again)
    for codes in ([["false"], ["true"]], [["true"], ["false"]]):
        monkeypatch.setattr(bootstrap, "commands", lambda *_, codes=codes: codes)
        assert bootstrap.main(["test"]) == 1
    again = ["true"]
    assert bootstrap.main(["test", "--all"]) == 0  # the real agents' passed when they were alone
    assert bootstrap.main(["test", "-k", "x"]) == 1
    monkeypatch.setattr(bootstrap, "commands", lambda *_: [["true"], ["true"]])
    assert bootstrap.main(["test"]) == 0
