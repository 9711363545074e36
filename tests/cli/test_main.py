"""The frame around every verb: help, wrong words, faults."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from relay.cli import main as cli
from tests.cli.conftest import Run


def test_every_module_that_is_listed_adds_its_verbs() -> None:
    _, verbs = cli.build()
    assert {"send", "inbox", "sent", "show", "history", "agents", "status", "broker"} <= set(verbs)


def test_help_begins_with_examples(relay: Run) -> None:
    for words in (["--help"], ["send", "--help"], ["broker", "-h"]):
        done = relay(*words)
        assert done.returncode == 0 and "examples:" in done.stdout
        assert done.stderr == ""
    assert relay("--help").stdout.index("relay send Bob") < 1500
    assert relay().returncode == 2


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["sned", "Bob", "hi"], "did you mean relay send?"),
        (["warp"], "did you mean relay wrap?"),
        (["xyzzy"], "relay --help lists the verbs"),
        (["send", "Bob", "hi", "--form", "X"], "did you mean --from?"),
        (["history", "--agents=Bob"], "did you mean --agent?"),
        (["send", "Bob", "hi", "--mode", "stear"], "did you mean steer?"),
        (["broker", "rnu"], "did you mean run?"),
        (["broker"], "relay broker --help"),
        (["-v"], "did you mean --version?"),
        (["doctor", "x"], "relay doctor --help"),
        (["send", "Bob", "two", "words"], "put a text of several words into quotes"),
        (["send", "Bob", "--wait", "30", "hi"], "write it with =: --wait=30"),
        (["send", "Bob", "hi", "--wait", "1.5m"], "write it with =: --wait=1.5m"),
    ],
)
def test_unknown_words_get_a_suggestion(relay: Run, words: list[str], hint: str) -> None:
    done = relay(*words)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].strip() == hint


def test_a_fault_is_one_line_and_a_log(
    isolated_home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_: list[str]) -> int:
        raise ZeroDivisionError("a bug")

    (isolated_home / "log").mkdir(parents=True)
    monkeypatch.setattr(cli, "_run", broken)
    assert cli.main(["agents"]) == 1
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err and "cli.log" in printed.err
    assert "ZeroDivisionError: a bug" in (isolated_home / "log" / "cli.log").read_text()
    assert cli.main(["agents", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "internal"
