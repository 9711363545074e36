"""The frame around every verb: help, wrong words, faults."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from relay.broker.client import connect
from relay.cli import command_line, send, verbs
from relay.cli.parser import Parser
from relay.core.message import MODES
from relay.core.paths import Home
from tests.cli.fixtures import Run


def test_every_verb_is_declared_by_the_module_that_is_listed_with_it() -> None:
    for name in verbs.every().keys() - {"wrap"}:
        assert name in verbs.group_of(name).verbs


def test_the_modes_of_send_are_those_of_messages() -> None:
    assert send.MODES == MODES


def test_what_people_type_is_no_verb_and_leads_to_one() -> None:
    assert not verbs.MEANT.keys() & verbs.every().keys()
    assert set(verbs.MEANT.values()) - {"--version"} <= verbs.every().keys()


def test_help_is_a_verb_too(relay: Run) -> None:
    assert relay("help").stdout == relay("--help").stdout
    for words in (["send"], ["hooks", "list"], ["help"]):
        assert relay("help", *words).stdout == relay(*words, "--help").stdout != ""
    assert "usage: relay wrap" in relay("help", "wrap").stdout


def test_each_verb_stands_once_in_the_help() -> None:
    rows = [line.split()[0] for line in verbs.help_text().splitlines() if line[:2] == "  "]
    listed = rows[rows.index("wrap") : rows.index("-h,")]
    assert sorted(listed) == sorted(verbs.every())
    assert verbs.ALIASES.keys() & verbs.every().keys() == set()


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("ls --json", "agents --json"),
        ("help kill", "help release"),
        ("memory", "memory list"),
        ("hooks --json", "hooks list --json"),
        ("ledger --json", "ledger query --json"),
        ("config", "config show"),
        ("channel", "channel list"),
    ],
)
def test_a_usual_name_and_a_group_by_itself_are_understood(
    relay: Run, words: str, meant: str
) -> None:
    done, expected = relay(*words.split()), relay(*meant.split())
    assert done.stdout + done.stderr != ""
    assert (done.returncode, done.stdout) == (expected.returncode, expected.stdout)
    assert done.stderr == expected.stderr


def test_help_has_examples(relay: Run) -> None:
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
        (["xyzzy"], "relay help lists the commands"),
        (["PS"], "did you mean relay agents?"),
        (["list"], "did you mean relay agents?"),
        (["log"], "did you mean relay history?"),
        (["recv"], "did you mean relay inbox?"),
        (["reply"], "did you mean relay send?"),
        (["restart"], "did you mean relay reload?"),
        (["team"], "did you mean relay up?"),
        (["help", "snd"], "did you mean relay send?"),
        (["help", "nothing"], "relay help lists the commands"),
        (["send", "--to", "Cara", "hi"], "relay send --help"),
        (["completions", "csh"], "did you mean zsh?"),
        (["send", "Bob", "hi", "--form", "X"], "did you mean --from?"),
        (["hooks", "log", "--agents=Bob"], "did you mean --agent?"),
        (["send", "Bob", "hi", "--mode", "stear"], "did you mean steer?"),
        (["broker", "rnu"], "did you mean relay broker run?"),
        (["agent"], "it has: check"),
        (["send"], "usage: relay send TO [TEXT] [options]"),
        (["help", "send", "x"], "usage: relay send TO [TEXT] [options]"),
        (
            ["memory", "xyzzy"],
            "it has: save, search, list, show, forget, stats, setup, export, import",
        ),
        (["-v"], "did you mean --version?"),
        (["-V"], "did you mean --version?"),
        (["doctor", "x"], "relay doctor --help"),
        (["send", "Bob", "two", "words"], "put quotes around a text of several words"),
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
    monkeypatch.setattr(command_line, "_run", broken)
    assert command_line.main(["agents"]) == 1
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err and "cli.log" in printed.err
    assert "ZeroDivisionError: a bug" in (isolated_home / "log" / "cli.log").read_text()
    assert command_line.main(["agents", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "internal"


def test_common_verbs_import_nothing_slow(broker_home: Home) -> None:
    """What each of these would add to the start is in bench/start.py."""
    slow = ("argparse", "asyncio", "collections", "enum", "json", "re", "socket", "typing")
    code = (
        "import sys\n"
        "base = set(sys.modules)\n"
        "from relay.__main__ import main\n"
        "main(sys.argv[1:])\n"
        f"print([m for m in {slow!r} if m in set(sys.modules) - base])\n"
    )
    with connect(broker_home):
        for words in (["--version"], ["agents"], ["send", "Bob", "hi", "--offline"]):
            done = subprocess.run(
                [sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=60
            )
            assert done.stdout.endswith("[]\n"), done.stdout + done.stderr


def test_a_port_is_any_port_and_one_in_use_is_told(relay: Run) -> None:
    assert "'65536' is not a port: 1 to 65535" in relay("web", "--port", "65536").stderr
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = relay("web", "--port", port)
    assert done.returncode == 1
    assert f"port {port} of 127.0.0.1 cannot be used: Address already in use" in done.stderr


def test_help_is_laid_out_as_wide_as_the_terminal_is() -> None:
    parser = Parser("relay go", description="One.\n\nTwo, and more.", examples="relay go x")
    parser.add_argument("to", nargs="*", metavar="TO", help="where")
    parser.add_argument("how", metavar="HOW", help="by which of many ways, in some words more")
    parser.add_argument("--a-long-option", metavar="VALUE", help="what it is for")
    parser.add_argument("-q", action="store_true")
    assert parser.help_text(50).splitlines() == [
        *("One.", "", "Two, and more.", "", "usage: relay go [TO …] HOW [options]", ""),
        "arguments:",
        "  TO                    where",
        "  HOW                   by which of many ways, in",
        "                        some words more",
        *("", "options:", "  --a-long-option VALUE"),
        "                        what it is for",
        "  -q",
        "  -h, --help            show this help",
        *("", "examples:", "  relay go x"),
    ]
    assert parser.parse(["x", "y", "z"]).to == ["x", "y"]
