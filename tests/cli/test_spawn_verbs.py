"""``relay spawn``, ``relay resume`` and ``relay release``, as far as no agent has to run for it."""

from __future__ import annotations

import io
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from relay.app import spawning
from relay.app.spawning import ENDED, Spawned, resumable, spawn
from relay.broker.client import connect
from relay.cli import spawn_verbs, status
from relay.config import names
from relay.config.spawned_agents import Spawn, keep
from relay.core.errors import NotFound, RelayError, Timeout, UsageError
from relay.core.paths import Home
from relay.protocol.agent_ops import AGENT_STATE, REGISTER, SPAWN
from tests.broker.support import register, registration
from tests.cli.verbs import printed_json, verbs_of
from tests.support import unchecked

verbs, status_verbs = verbs_of(spawn_verbs), verbs_of(status)
HELPER = Spawn("Bob", ["claude", "-p", "a b"], "/", parent="Lead")


@pytest.fixture
def started(broker_home: Home, monkeypatch: pytest.MonkeyPatch) -> list[Spawn]:
    """What is started, which never is; Bob has lost his terminal."""
    broker_home.create()
    keep(broker_home, HELPER, 1, "run")
    found: list[Spawn] = []

    def start(home: Home, wanted: Spawn, **_: object) -> Spawned:
        found.append(wanted)
        if wanted.conversation == "nothing-said":
            raise RelayError("it has ended", hint="\nNo conversation nothing-said\nbye", code=ENDED)
        return Spawned(wanted.name, 1, "idle", "")

    monkeypatch.setattr(spawn_verbs, "spawn", start)
    monkeypatch.setattr(spawning, "spawn", start)
    monkeypatch.setattr(spawn_verbs, "release", lambda *_, **__: "killed")  # this is its process
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    return found


def test_a_helper_of_an_agent_is_brought_back_by_its_name_and_a_yes(
    started: list[Spawn], capsys: pytest.CaptureFixture[str]
) -> None:
    verbs("resume", "--json")
    [row] = printed_json(capsys)
    said = "was started by the agent Lead; relay resume Bob brings it back as yours ("
    assert row["error"].startswith(said)
    with pytest.raises(UsageError, match="must be confirmed"):
        verbs("resume", "Bob")
    assert started == []
    verbs("resume", "Bob", "--yes")
    assert started == [HELPER]


def test_what_is_brought_back_without_a_question_is_what_the_ledger_has(
    started: list[Spawn], broker_home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    """An agent can write the files of RELAY_HOME."""
    with connect(broker_home) as client:
        client.request(SPAWN, name="Ann", command=["claude", "-p"], cwd="/", options=[])
    keep(broker_home, Spawn("Ann", ["touch", "/tmp/evil"], "/tmp"), 1, "run")
    keep(broker_home, Spawn("Eve", ["touch", "/tmp/evil"], "/"), 1, "run")
    verbs("resume", "--json")
    assert started == [Spawn("Ann", ["claude", "-p"], "/")]
    errors = {row["name"]: row.get("error") for row in printed_json(capsys)}
    assert errors["Eve"].startswith("is not in the ledger, so an agent may have written it")
    with pytest.raises(UsageError, match="must be confirmed"):
        verbs("resume", "Eve")
    assert len(started) == 1


def test_what_stands_in_a_record_beyond_what_spawn_writes_is_left_out(broker_home: Home) -> None:
    home = broker_home
    home.create()
    written = ("--hear", "--task", "--mcp", "--ungoverned", "x", "--join", "build", "--confine")
    places = ("--write", "/a", "--write", "/b", "--record")
    keep(home, Spawn("Bob", ["true"], "/", written + places), 1, "run")
    [(back, is_known)] = resumable(home, ["Bob"])
    assert not is_known
    kept = ("--hear", "--task", "--mcp", "--join", "build", "--confine", "--write", "/a")
    assert back.options == (*kept, "--write", "/b")


def test_one_that_ran_in_the_persons_terminal_is_started_as_it_was_after_a_yes(
    started: list[Spawn], broker_home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same program with its own arguments, in the same folder and conversation."""
    said = {"kind": "claude", "command": "'/my tools/claude' --model x", "roles": ["review"]}
    with connect(broker_home) as client:
        client.request(REGISTER, **{**registration("Ann", cwd="/src"), **said})
        client.request(AGENT_STATE, state="idle", source="structured", conversation="12ab-34")
        with pytest.raises(NotFound, match="Ann is running"):
            verbs("resume", "Ann")
        client.request(AGENT_STATE, state="gone")
    verbs("resume")
    assert "Ann ran in your own terminal: relay resume Ann starts" in capsys.readouterr().err
    started.clear()
    with pytest.raises(UsageError, match="must be confirmed"):
        verbs("resume", "ann")
    assert "'/my tools/claude' --model x --role review in /src" in capsys.readouterr().err
    verbs("resume", "ann", "--yes")
    program = ["/my tools/claude", "--model", "x"]
    ann = Spawn("Ann", program, "/src", ("--role", "review"), conversation="12ab-34")
    assert started == [ann]
    assert capsys.readouterr().out == "Ann: idle, in its last conversation\n"


def test_one_whose_program_has_not_kept_its_conversation_starts_afresh_and_that_is_said(
    started: list[Spawn], broker_home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such as one to which nothing was said before the machine went down."""
    words, last = ["claude"], "nothing-said"
    status_verbs("status")  # no broker runs yet
    told = capsys.readouterr()
    assert told.out.startswith("no agent runs\n")
    assert told.err.startswith("relay resume brings back Bob (the terminal is gone)\n")
    keep(broker_home, Spawn("Ann", words, "/", conversation=last), 1, "run")
    with connect(broker_home) as client:
        client.request(SPAWN, name="Ann", command=words, cwd="/", options=[], conversation=last)
        client.request(REGISTER, **registration("Ann"))
        client.request(AGENT_STATE, state="gone")
    status_verbs("agents")
    assert "relay resume brings back Ann (the terminal is gone)" in capsys.readouterr().err
    verbs("resume", "Ann")
    assert [one.conversation for one in started] == ["nothing-said", ""]
    assert capsys.readouterr().out == "Ann: idle, started fresh (No conversation nothing-said)\n"


def test_aider_which_has_no_ids_goes_on_with_what_was_said_in_its_folder(
    broker_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker_home.create()
    keep(broker_home, Spawn("Ada", ["aider", "--model", "x"], "/"), 1, "run")
    [(back, _)] = resumable(broker_home, ["Ada"])
    words = spawning._words_of(broker_home, back)
    assert words == ["aider", "--restore-chat-history", "--model", "x"]
    again = replace(back, command=[*words, "a.py"])
    assert spawning._words_of(broker_home, again) == [*words, "a.py"]


def test_what_confines_it_is_kept_with_places_as_from_here(
    started: list[Spawn], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    places = ("--write", "a", "--write", "/b")
    verbs("spawn", "Bob", "--confine", *places, "--cwd", "/", "--", "claude")
    assert started[0].options == ("--confine", "--write", str(tmp_path / "a"), "--write", "/b")
    with pytest.raises(UsageError, match="--write needs --confine or --intent"):
        verbs("spawn", "Bob", "--write", "a", "--", "claude")


def test_a_configuration_that_does_not_apply_is_named_at_the_start(
    started: list[Spawn], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "relay.config.py").write_text("config = {}\n")
    verbs("spawn", "Bob", "--cwd", str(tmp_path), "--", "claude")
    assert f"relay: {tmp_path}/relay.config.py is not trusted" in capsys.readouterr().err


def test_in_a_script_the_end_of_an_agent_in_a_terminal_says_what_to_add(
    started: list[Spawn],
) -> None:
    claim = names.claim(Home.from_env(), "Bob", "true", "another run")
    with pytest.raises(UsageError) as refused:
        verbs("release", "Bob", "--now")
    claim.release()
    assert refused.value.line == "Bob was not spawned: to end it in its terminal, add --yes"


def test_a_name_can_be_an_option_and_several_are_written_in_either_way(
    started: list[Spawn], broker_home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    verbs("spawn", "--name", "Ann", "--", "claude", "-p")
    verbs("spawn", "Eve", "--", "claude", "-p")
    assert [(one.name, one.command) for one in started] == [
        ("Ann", ["claude", "-p"]),
        ("Eve", ["claude", "-p"]),
    ]
    for words in (["spawn"], ["spawn", "--", "claude"], ["release"]):
        with pytest.raises(UsageError):
            verbs(*words)
    for name in ("Ann", "Eve"):
        keep(broker_home, Spawn(name, ["true"], "/"), os.getpid(), "run")
    claims = [names.claim(broker_home, name, "true", "run") for name in ("Ann", "Eve")]
    for words in (["--all"], ["Ann", "Eve"], ["Ann,Eve"]):
        capsys.readouterr()
        verbs("release", *words, "--json")
        assert [row["name"] for row in printed_json(capsys)] == ["Ann", "Eve"]
    for claim in claims:
        claim.release()


def test_what_an_agent_asks_at_its_start_is_shown_with_the_command_that_answers_it(
    started: list[Spawn],
    broker_home: Home,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    blocked = Spawned("Bob", 1, "blocked", "asks: Trust it?")
    monkeypatch.setattr(spawn_verbs, "spawn", lambda *_, **__: blocked)
    choices = [{"key": "1", "label": "No, exit"}, {"key": "2", "label": "Yes"}]
    question = {"id": "01J" + "0" * 23, "what": "Trust it?", "chosen": 0, "since_ms": 1}
    with register(broker_home, "Bob") as bob:
        unchecked(bob).request(
            AGENT_STATE, state="blocked", question={**question, "choices": choices}
        )
        verbs("spawn", "Bob", "--", "claude")
        told = capsys.readouterr()
        # On a terminal the person is asked; no choice leaves it for later.
        terminal = io.StringIO("9\n\n")
        monkeypatch.setattr(terminal, "isatty", lambda: True)
        monkeypatch.setattr(sys, "stdin", terminal)
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        verbs("spawn", "Bob", "--", "claude")
    asked = capsys.readouterr().err.splitlines()
    assert asked[0].startswith("Bob asks: 1 or 2? (Enter: later) relay: '9' is not one of")
    assert asked[1].endswith("(Enter: later) Bob asks: relay answer Bob 1 or 2")
    shown = told
    assert "  | Trust it?\n  > 1: No, exit\n    2: Yes\n" in shown.out
    assert shown.err.splitlines() == ["Bob asks: relay answer Bob 1 or 2"]


def test_where_no_session_registers_that_is_said(
    broker_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    words, silent = os.pipe()
    monkeypatch.setattr(spawning, "_start_host", lambda *_: (words, 1))
    with pytest.raises(Timeout, match="Bob is running, but had not registered with relay"):
        spawn(broker_home, Spawn("Bob", ["true"], "/"), wait=0.1)
    os.close(silent)
