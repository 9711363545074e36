"""The set-up from a fresh clone: what it decides, without installing anything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from relay import bootstrap
from relay.bootstrap import SetupError
from tests.conftest import KINDS


def test_the_wheel_in_the_clone_is_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    pip = bootstrap.pip_for(Path(sys.executable))
    shown = subprocess.run([*pip, "--version"], capture_output=True, text=True, timeout=60)
    assert shown.stdout.startswith("pip ") and ".ci/wheels" in shown.stdout
    monkeypatch.setattr(bootstrap, "ROOT", Path("/nonexistent"))
    with pytest.raises(SetupError, match="the clone is not whole"):
        bootstrap.pip_for(Path(sys.executable))


def test_an_old_python_and_a_missing_clone_are_explained(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 1))
    with pytest.raises(SetupError, match=r"Python 3\.11 or newer"):
        bootstrap.check_python()
    monkeypatch.undo()
    monkeypatch.setattr(bootstrap, "ROOT", tmp_path)
    with pytest.raises(SetupError, match="not a clone"):
        bootstrap.check_python()


def test_unknown_words_show_the_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert bootstrap.main(["fly"]) == 2
    assert "relay.bootstrap demo" in capsys.readouterr().err


def test_a_failing_step_shows_its_output(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SetupError, match="this step failed"):
        bootstrap.run(["sh", "-c", "echo what happened; exit 3"])
    assert "what happened" in capsys.readouterr().err


def test_all_is_the_quick_tests_and_every_other_one() -> None:
    quick, *rest = bootstrap.commands("test", "--all")
    assert bootstrap.commands("test") == [quick]
    assert bootstrap.commands("test", "--rest") == rest
    assert [words[words.index("-m", 3) + 1] for words in rest[1:]] == [
        "alone and not smoke",
        "agents",
    ]
    assert bootstrap.commands("test", "-k", "one")[0][-3:] == ["pytest", "-k", "one"]
    assert bootstrap.commands("setup")[0][-1] == "--version"


@pytest.mark.parametrize("kind", bootstrap.FOLDERS)
def test_the_tests_of_a_kind_are_where_they_are_looked_for(kind: str) -> None:
    marked = {
        file.relative_to(bootstrap.ROOT).as_posix()
        for file in (bootstrap.ROOT / "tests").rglob("test_*.py")
        if f"mark.{kind}\n" in file.read_text()
    }
    marked |= {f"tests/{folder}/" for folder, name in KINDS.items() if name == kind}
    assert [file for file in marked if not file.startswith((*bootstrap.FOLDERS[kind],))] == []


def test_only_the_quick_tests_do_with_a_small_set_up() -> None:
    assert bootstrap.extra_of("demo") == bootstrap.extra_of("setup") == ""
    assert bootstrap.extra_of("test") == "test"
    assert bootstrap.extra_of("test", "--all") == bootstrap.extra_of("test", "-k", "x")


def test_a_failure_in_either_part_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "check_python", lambda: None)
    monkeypatch.setattr(bootstrap, "set_up", lambda extra: None)
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
