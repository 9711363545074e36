"""``relay replay``: what it prints, and what it says of files that are no recordings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from relay.config.settings import Settings
from relay.config.trust import is_trusted, read_config, trust
from relay.core.asciicast import CastEvent, Header, read
from relay.core.errors import NotFound, RelayError, UsageError
from relay.core.paths import Home
from relay.features.recording import replay
from relay.features.recording.replay import Finding, Replay
from relay.hooks.registry import Registry
from relay.screen.source import ScreenSource
from relay.session.door import SessionFacts
from relay.session.feature_parts import SessionModules
from relay.session.handler_lanes import register
from tests.cli.fixtures import Run
from tests.cli.verbs import printed_json, verbs_of
from tests.screen.screens import CASTS
from tests.screen.test_recordings import SAID

HEADER = {"version": 2, "width": 80, "height": 24, "title": "Ann"}


def cast(path: Path, *texts: str, relay: dict[str, str] | None = None) -> str:
    """A recording in which each text is written a second after the one before."""
    lines: list[object] = [{**HEADER, **({"relay": relay} if relay else {})}]
    lines += [[float(at), "o", text.replace("\n", "\r\n")] for at, text in enumerate(texts)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


def test_rows_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = cast(
        tmp_path / "a", "@relay:Bob [mode:steer] one\ntwo\n", "@relay:Cy <<<\nnever closed\n"
    )
    assert verbs_of(replay)("replay", path) == 0
    printed = capsys.readouterr()
    rows = printed.out.splitlines()
    assert rows[0].split() == ["TIME", "DIRECTIVE", "HANDLER", "TEXT"]
    assert rows[1].split("  ")[0].startswith("0.3")
    assert "@relay\\:Bob [mode:steer]" in rows[1] and rows[1].endswith("one …")
    assert "relay (built-in)" in rows[1]
    assert "@relay\\:Cy" in rows[2] and "never" in rows[3]
    assert printed.err == ""


def test_rows_for_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = cast(tmp_path / "a", "@relay:Bob [thread:t1] one\ntwo\n", "tell @relay:Bob\n")
    assert verbs_of(replay)("replay", path, "--json", "--misses") == 0
    first, second = printed_json(capsys)
    assert 0 <= first.pop("time") < 1
    assert first == {
        "from": "Ann",
        "directive": "@relay:Bob",
        "attributes": {"thread": "t1"},
        "block": False,
        "body": "one\ntwo",
        "handlers": ["relay (built-in)"],
        "fires": True,
        "missed": False,
        "why": "",
    }
    assert (second["directive"], second["fires"], second["missed"]) == (
        "tell @relay:Bob",
        False,
        True,
    )


def test_nothing_fires(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = cast(tmp_path / "a", "hello\n")
    assert verbs_of(replay)("replay", path) == 0
    printed = capsys.readouterr()
    assert printed.out == "" and "--misses" in printed.err


def test_an_agent_that_reports_itself_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = cast(tmp_path / "a", "@relay:Bob x\n", relay={"agent": "Ann", "profile": "claude"})
    assert verbs_of(replay)("replay", path) == 0
    assert "what it reports itself" in capsys.readouterr().err


def test_handlers_count_once_their_file_is_trusted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "relay.config.py"
    config.write_text("def ship(target): open('ran', 'w')\npatterns = {'deploy': ship}\n")
    path = cast(tmp_path / "a", "@deploy:staging\n")
    run = verbs_of(replay)
    assert run("replay", path, "--json") == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == [] and "not trusted" in printed.err
    home, file = Home.from_env(), read_config(str(config))
    trust(home, file.path, file.sha256)
    assert is_trusted(home, file.path, file.sha256)
    for words in ((), ("--config", str(config))):
        assert run("replay", path, "--json", *words) == 0
        assert [row["handlers"] for row in printed_json(capsys)] == [["ship [relay.config.py]"]]
    assert not (tmp_path / "ran").exists()


def test_in_a_flood_the_namespaces_of_the_configuration_are_heard(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "relay.config.py"
    config.write_text("patterns = {'deploy': lambda target: None}\n")
    file = read_config(str(config))
    trust(Home.from_env(), file.path, file.sha256)
    flood = "nothing that matters\n" * 60_000
    path = cast(tmp_path / "a", flood + "@deploy:staging\n" + flood)
    assert verbs_of(replay)("replay", path, "--json") == 0
    assert [row["directive"] for row in printed_json(capsys)] == ["@deploy:staging"]


def test_the_option_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as gone:
        verbs_of(replay)("replay", cast(tmp_path / "a"), "--source=lines")
    assert gone.value.hint.endswith("leave the option out")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "line 1: the file is empty"),
        ("#!/bin/sh\n", "line 1: "),
        ('{"version": 1}\n', "version 1"),
        (json.dumps(HEADER) + '\n[0, "o", "x"]\n{}\n[1, "o", "y"]\n', "line 3: "),
    ],
)
def test_what_is_no_recording(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "a"
    path.write_text(text)
    with pytest.raises(RelayError, match=says) as caught:
        verbs_of(replay)("replay", str(path))
    assert caught.value.exit_status == 1 and "relay wrap --record" in caught.value.hint


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        verbs_of(replay)("replay", str(tmp_path / "none"))
    with pytest.raises(RelayError, match="cannot read"):
        verbs_of(replay)("replay", str(tmp_path))
    (tmp_path / "binary").write_bytes(bytes(range(256)) * 10)
    with pytest.raises(RelayError, match="line 1"):
        verbs_of(replay)("replay", str(tmp_path / "binary"))


def test_the_command_line(relay: Run, tmp_path: Path) -> None:
    path = Path(cast(tmp_path / "a", "@relay:Bob one\n"))
    done = relay("replay", "-", stdin=path.read_text())
    assert (done.returncode, done.stderr) == (0, "") and "@relay\\:Bob" in done.stdout
    done = relay("replay", str(tmp_path / "b"), "--json")
    assert done.returncode == 3 and json.loads(done.stdout)["error"]["code"] == "not_found"
    status = json.loads(relay("broker", "status", "--json").stdout)
    assert status["running"] is False


# -- Recordings of real agents and small ones made up: what would fire, when, and why not.

#: The recorded agents cannot write ``>>>`` so that it shows (docs/screen.md): from Dana on
#: everything stands in a block that is never closed.
HEARD = [line for line in SAID if line != "@relay:Dana <<<"]


def registry() -> Registry:
    handlers = Registry()
    register(handlers)
    SessionModules().register(handlers, SessionFacts("", {}, {}, Settings()))
    return handlers


def replayed(
    events: list[CastEvent], *, handlers: Registry | None = None, relay: bool = True
) -> list[Finding]:
    header = Header(2, 80, 24, "T", "", None, {"agent": "T"} if relay else {})
    player = Replay(ScreenSource(80, 24), handlers or registry(), header, misses=True)
    player.run(events)
    return player.found


def said(text: str, at: float = 0.0) -> CastEvent:
    return CastEvent(at, "o", text.replace("\n", "\r\n"))


@pytest.mark.parametrize("name", ["claude-80x24", "codex-80x24"])
def test_the_recordings_fire_what_they_always_did(name: str) -> None:
    with (CASTS / f"{name}.cast").open(encoding="utf-8") as lines:
        header, events = read(lines)
        player = Replay(ScreenSource(80, 24), registry(), header, misses=True)
        player.run(events)
    fired = [found for found in player.found if found.fires]
    assert [f"{found.directive} {found.body}".split("\n")[0] for found in fired] == HEARD
    handlers = {found.handlers for found in fired}
    assert handlers == {("relay (built-in)",), ("memory (built-in)",)}
    assert [found.at for found in player.found] == sorted(found.at for found in player.found)
    refused = [found for found in player.found if not found.fires and not found.missed]
    assert [found.directive for found in refused] == ["@relay:Dana"]
    assert "never closed" in refused[0].why
    missed = {found.directive: found.why for found in player.found if found.missed}
    assert "@relay:Last final words" not in missed  # the block ended with the next words typed
    assert any("TypedByUser" in line and "typed" in why for line, why in missed.items())


def test_time_is_the_recordings() -> None:
    found = replayed([said("@relay:Bob one\n", 100.0), said("@relay:Bob two\n", 200.0)])
    assert [one.body for one in found] == ["one", "two"]
    # A message is complete once the screen rests, not when the next thing happens.
    assert [int(one.at) for one in found] == [100, 200]


def test_what_is_heard_when_the_recording_ends_counts() -> None:
    assert [one.body for one in replayed([said("@relay:Bob no newline")])] == ["no newline"]


def test_who_handles_it() -> None:
    handlers = registry()

    def deploy(target: str) -> None:
        raise AssertionError("nothing runs")

    handlers.add_pattern("deploy", "staging", deploy, source="/x/relay.config.py")
    found = replayed(
        [said("@deploy:staging now [x]\n\n@deploy:stagign now\n\n@relay:Bob [mode:steer] hi\n")],
        handlers=handlers,
    )
    assert [one.handlers for one in found] == [
        ("deploy [relay.config.py]",),
        (),
        ("relay (built-in)",),
    ]
    assert "did you mean 'staging'?" in found[1].why and not found[1].missed
    assert found[2].attributes == {"mode": "steer"}


def test_why_lines_did_not_fire() -> None:
    text = "tell @relay:Bob\n```\n@relay:In fence\n```\n@relya:Bob x\n"
    whys = [(one.directive, one.why) for one in replayed([said(text)])]
    assert [line for line, _ in whys] == ["tell @relay:Bob", "@relay:In fence", "@relya:Bob x"]
    assert ["begin" in whys[0][1], "fence" in whys[1][1], "did you mean" in whys[2][1]] == [
        True
    ] * 3


def test_a_person_who_types_is_not_the_agent() -> None:
    echo = said("@relay:Bob typed\n", 1.1)
    keys = [CastEvent(1.0, "k", "typed"), CastEvent(1.05, "k", "entered")]
    assert [one.fires for one in replayed([echo])] == [True]
    assert not any(one.fires for one in replayed([*keys, echo]))
    # A recording of another program's making knows the keys themselves.
    typed = CastEvent(1.0, "i", "@relay:Bob typed\r")
    assert not any(one.fires for one in replayed([typed, echo], relay=False))
    # In relay's own the reports count, as they do live.
    assert [one.fires for one in replayed([typed, echo])] == [True]


def test_what_relay_typed_is_not_the_agent() -> None:
    words = CastEvent(1.0, "w", "\x1b[200~@relay:Bob echoed\x1b[201~")
    assert not any(one.fires for one in replayed([words, said("@relay:Bob echoed\n", 1.1)]))


def test_a_resize_is_one_for_the_screen() -> None:
    long = "@relay:Bob " + "word " * 30
    narrow = [CastEvent(0.0, "r", "40x10"), said(long + "\n", 0.1)]
    assert [one.body for one in replayed(narrow)] == [long[11:].strip()]
    assert replayed([CastEvent(0.0, "r", "nonsense"), said("x\n")]) == []
