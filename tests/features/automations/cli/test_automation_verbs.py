"""``relay automation`` as its user meets it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from relay.broker.client import connect
from relay.config.trust import user_config
from relay.core.agent_names import owner_name
from relay.core.errors import RelayError
from relay.core.paths import Home
from relay.features.automations.ops import AUTOMATION_ENABLE
from tests.broker.support import register, stop_broker
from tests.cli.fixtures import Run
from tests.support import wait_until

INSIDE = {"RELAY_RUN": "run-1", "RELAY_TOKEN": "secret"}
FILE = """
automation = {{
    "name": "{name}",
    "description": "says so",
    "triggers": {{"principal": {{"relationship": "family"}}, "event": {{"channels": ["sms"]}}}},
    "handler": lambda ctx: {result},
}}
"""
EVENT = {"channel": "sms", "sender": "+1555"}


def written(folder: Path, name: str = "codes", result: str = "True", stem: str = "") -> str:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{stem or name}.py"
    path.write_text(FILE.format(name=name, result=result))
    return str(path)


def shown(relay: Run, *words: str) -> Any:
    done = relay("automation", *words, "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_a_file_is_registered_and_shown(relay: Run, tmp_path: Path) -> None:
    assert "no automation is registered" in relay("automation", "list").stderr
    path = written(tmp_path / "shop" / ".relay" / "automations")
    said = relay("automation", "register", path).stdout
    assert said.splitlines()[:2] == [
        "codes: active, version 1",
        "  runs for: relationship family; channels sms",
    ]
    assert str(tmp_path / "shop") in said
    [row] = shown(relay, "list")
    assert (row["status"], row["circuit"], row["file"]) == ("active", "closed", "same")
    assert row["registered_by"].startswith(f"{owner_name()}, ")
    assert (row["folder"], row["path"]) == (str(tmp_path / "shop"), path)
    about = shown(relay, "info", "codes")
    assert about["health"]["window"]["runs"] == 0 and about["versions"][0]["version"] == 1
    assert relay("automation", "info", "codes", "--source").stdout.strip() == (
        Path(path).read_text().strip()
    )
    assert "last 100:    no runs" in relay("automation", "info", "codes").stdout
    assert "it has not run" in relay("automation", "runs", "codes").stderr
    unknown = relay("automation", "info", "code")
    assert unknown.returncode == 3 and "did you mean 'codes'?" in unknown.stderr


def test_who_registers_for_tool_calls_learns_which_agents_report_them(
    relay: Run, tmp_path: Path
) -> None:
    path = Path(written(tmp_path))
    assert "tool calls" not in relay("automation", "register", str(path)).stderr
    calls = path.read_text().replace('"codes"', '"calls"')
    path.write_text(calls.replace('"channels": ["sms"]', '"types": ["tool_call"]'))
    said = relay("automation", "register", str(path)).stderr
    assert "agents that start from now on report their tool calls" in said


def test_who_registers_learns_that_nobody_has_the_name_of_a_persona(
    relay: Run, isolated_home: Path, tmp_path: Path
) -> None:
    told = "no persona or agent is called nobody: add it to relay.config.py or start it"
    path = Path(written(tmp_path, result="{'fire': True, 'agent': 'nobody'}"))
    assert told in relay("automation", "register", str(path)).stderr
    path.write_text(f"{path.read_text()}# edited")
    assert told in relay("automation", "update", str(path), "--yes").stderr
    with register(Home(str(isolated_home)), "nobody"):
        assert told not in relay("automation", "register", str(path)).stderr


def test_an_edited_file_runs_once_it_is_taken(relay: Run, tmp_path: Path) -> None:
    path = written(tmp_path)
    other = written(tmp_path, "other")
    for one in (path, other):
        relay("automation", "register", one)
    written(tmp_path, result="False")
    before = Path(other).read_text()
    assert shown(relay, "list")[0]["file"] == "edited"
    assert "relay automation update codes takes the new one" in relay("automation", "list").stdout
    assert "lambda ctx: True" in relay("automation", "info", "codes", "--source").stdout
    assert relay("automation", "update").returncode == 2  # nobody agrees
    for words in ((path,), ("codes",), ("--yes",)):
        done = relay("automation", "update", *words)
        assert '+    "handler": lambda ctx: False,' in done.stderr
        assert done.returncode == (0 if words == ("--yes",) else 2)  # nobody agrees
    assert done.stdout == "codes: active, version 2\n"
    assert "lambda ctx: False" in relay("automation", "info", "codes", "--source").stdout
    assert "no file was edited" in relay("automation", "update").stderr
    assert "(as it was)" in relay("automation", "update", path).stdout
    Path(other).write_text(before.replace("other", "codes"))
    done = relay("automation", "update", "other", "--yes")
    assert done.returncode == 2 and "calls its automation codes, not other" in done.stderr
    Path(other).unlink()
    assert "the file is not there: version 1 runs" in relay("automation", "list").stdout
    assert [one["version"] for one in shown(relay, "info", "codes")["versions"]] == [2, 1]


def test_it_is_switched_off_and_on_and_deleted(relay: Run, tmp_path: Path) -> None:
    relay("automation", "register", written(tmp_path))
    relay("automation", "disable", "codes", "--reason", "too many")
    assert "too many" in relay("automation", "list").stdout
    assert [one["name"] for one in shown(relay, "list", "--status", "disabled")] == ["codes"]
    assert shown(relay, "list", "--status", "active") == []
    assert relay("automation", "enable", "codes").stdout == "codes is active\n"
    assert shown(relay, "delete", "codes")["status"] == "deleted"
    assert shown(relay, "list") == []
    assert len(shown(relay, "list", "--status", "deleted")) == 1
    assert relay("automation", "register", written(tmp_path)).returncode == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1", "has no automation"),
        ("raise ValueError('broken')\nautomation = None", "broken"),
        ("automation = {'name': 'A b', 'description': 'x'}", "name cannot be 'A b'"),
        ("", "is empty"),
        ("#" * 300_000, "more than 262144 bytes"),
    ],
    ids=("none", "raises", "name", "empty", "large"),
)
def test_what_cannot_be_loaded_is_refused(relay: Run, tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "wrong.py"
    path.write_text(text)
    done = relay("automation", "register", str(path))
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr
    assert shown(relay, "list") == []


def test_a_bare_name_is_looked_for_where_automations_are_kept(
    relay: Run, broker_home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path / ".relay" / "automations", "here")
    for name in ("here", "there"):
        written(Path(broker_home.root) / "automations", name)
    folders = {name: shown(relay, "register", f"{name}.py")["folder"] for name in ("here", "there")}
    assert folders == {"here": str(tmp_path), "there": None}


def test_a_link_widens_nothing(relay: Run, tmp_path: Path) -> None:
    kept, elsewhere = tmp_path / "shop" / ".relay" / "automations", tmp_path / "lib"
    for name in ("linked", "moved"):
        written(elsewhere, name)
    kept.mkdir(parents=True)
    (kept / "linked.py").symlink_to(elsewhere / "linked.py")
    written(kept, "moved")
    for name in ("linked", "moved"):
        row = shown(relay, "register", str(kept / f"{name}.py"))
        assert row["folder"] == str(tmp_path / "shop")
    written(elsewhere, "moved", "False")
    done = relay("automation", "update", str(elsewhere / "moved.py"), "--yes")
    assert done.returncode == 2 and "would be for all events" in done.stderr


def test_a_second_one_of_the_name_is_refused(relay: Run, tmp_path: Path) -> None:
    relay("automation", "register", written(tmp_path))
    done = relay("automation", "register", written(tmp_path))
    assert done.stdout.splitlines()[0] == "codes: active, version 1 (as it was)"
    done = relay("automation", "register", written(tmp_path, stem="again"))
    assert done.returncode == 2 and "relay automation update codes" in done.stderr


def test_runs_are_shown_with_their_errors_and_logs(relay: Run, tmp_path: Path) -> None:
    relay("person", "add", "Mom", "--relationship", "family", "--address", "sms:+1555")
    path = tmp_path / "codes.py"
    handler = "def handler(ctx):\n    ctx.log.info('saw %s', ctx.event.content)\n"
    handler += "    return {'fire': False, 'disable': 1 / (ctx.event.content != 'bad') > 0}\n"
    path.write_text(
        handler + FILE.format(name="codes", result="0").replace("lambda ctx: 0", "handler")
    )
    relay("automation", "register", str(path))
    for content in ("bad", "good"):
        event = {"channel": "sms", "sender": "+1555", "content": content}
        relay("ingest", "event", json.dumps(event))
    wait_until(lambda: len(shown(relay, "runs", "codes")) == 2, what="both runs")
    _, bad, why, good, log = relay("automation", "runs", "codes").stdout.splitlines()
    assert "failed" in bad and "nothing, disabled itself" in good
    assert why.lstrip().startswith("ZeroDivisionError: division by zero (line 3); ")
    assert log.strip() == "INFO: saw good"
    assert "saw good" in relay("automation", "runs", "codes", "--limit", "1").stdout
    [row] = shown(relay, "runs", "codes", "--errors-only")
    assert row["error"].startswith("ZeroDivisionError") and "saw bad" in row["log"]
    assert "it disabled itself" in relay("automation", "list").stdout
    about = shown(relay, "info", "codes")["health"]["window"]
    assert (about["runs"], about["errors"], about["fires"]) == (2, 1, 0)


def test_one_that_rests_after_errors_is_shown_as_resting(relay: Run, tmp_path: Path) -> None:
    relay("person", "add", "Mom", "--relationship", "family", "--address", "sms:+1555")
    relay("automation", "register", written(tmp_path, result="1 / 0"))
    for number in range(6):
        relay("ingest", "event", json.dumps(EVENT | {"content": str(number)}))
    wait_until(lambda: shown(relay, "info", "codes")["skipped"] == 1, what="the open circuit")
    for verb in (("list",), ("info", "codes")):
        said = relay("automation", *verb).stdout
        assert "circuit open until 20" in said and ", after 5 errors in a row" in said
    assert "automations: 1 resting" in relay("status").stdout


def test_status_says_what_stands_still_without_a_broker(
    relay: Run, broker_home: Home, tmp_path: Path
) -> None:
    relay("automation", "register", written(tmp_path))
    path = Path(written(tmp_path, "beat"))
    path.write_text(path.read_text().replace("{", "{'schedule': {'every': '1h'},", 1))
    assert "every 1h" in relay("automation", "register", str(path)).stdout
    assert "stand still" not in relay("status").stdout
    stop_broker(broker_home)
    said = relay("status", merged=True).stdout
    assert "automations: no broker runs, so 2 stand still, 1 of them with a schedule" in said
    assert "relay automation list starts it" in said
    assert "not running" in relay("status").stdout
    relay("automation", "list")
    assert "stand still" not in relay("status").stdout


# -- agents


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    """An automation that leaves a file beside it when it is loaded, and its name."""
    path = tmp_path / "From_Bob.py"
    mark = f"open({str(tmp_path / 'loaded')!r}, 'w').close()\n"
    path.write_text(mark + FILE.format(name="codes", result="True"))
    return path


def test_what_an_agent_registers_is_loaded_once_the_person_says_so(
    relay: Run, broker_home: Home, marks: Path
) -> None:
    loaded = marks.parent / "loaded"
    with register(broker_home, "Bob"):
        done = relay("automation", "register", str(marks), env=INSIDE)
        assert "from_bob: paused, version 1" in done.stdout, done.stderr
        [row] = shown(relay, "list", "--status", "paused", "--by", "bob")
        assert (row["registered_by"], row["loaded"]) == ("Bob", False)
        for words in (("enable", "from_bob", "--yes"), ("delete", "from_bob"), ("update",)):
            relay("automation", *words, env=INSIDE)
        refused = relay("automation", "enable", "from_bob", "--yes", env=INSIDE)
        assert refused.returncode == 1 and "only the person" in refused.stderr
        assert relay("automation", "list", env=INSIDE).returncode == 0
        assert relay("automation", "enable", "from_bob").returncode == 2  # nobody agrees
        done = relay("automation", "update", "from_bob", "--yes")
        assert done.returncode == 2 and "was never loaded" in done.stderr
        assert not loaded.exists()
    told = relay("inbox").stdout
    assert "Bob has registered the automation from_bob" in told, told
    assert "automations: 1 paused" in relay("status").stdout
    marks.write_text("raise SystemExit")
    done = relay("automation", "enable", "from_bob", "--yes")
    assert done.stdout == "codes is active\n", done.stderr
    assert row["sha256"] in done.stderr and "the file was edited: what was" in done.stderr
    assert loaded.exists()
    assert [one["name"] for one in shown(relay, "list", "--status", "active")] == ["codes"]


def test_only_what_the_person_was_shown_is_loaded(
    relay: Run, broker_home: Home, marks: Path
) -> None:
    with register(broker_home, "Bob"):
        relay("automation", "register", str(marks), env=INSIDE)
    with connect(broker_home) as client, pytest.raises(RelayError, match="has the hash"):
        client.request(AUTOMATION_ENABLE, name="from_bob", sha256="0" * 64)
    assert not (marks.parent / "loaded").exists()


def test_an_agent_learns_the_line_of_its_mistake_and_nothing_of_the_file_is_run(
    broker_home: Home, relay: Run, tmp_path: Path
) -> None:
    mark, path = tmp_path / "mark", tmp_path / "draft.py"
    text = f"open({str(mark)!r}, 'w')\n" + FILE.format(name="draft", result="True")
    path.write_text(text.replace("lambda ctx", "lambda"))
    place = f"{path}:7: the handler is called with one argument"
    with register(broker_home, "Bob"):
        for word in ("check", "register"):
            done = relay("automation", word, str(path), env=INSIDE)
            assert done.returncode == 2 and place in done.stderr
        assert shown(relay, "list") == []
    path.write_text(text)
    assert str(path) in relay("automation", "check", str(path), env=INSIDE).stdout
    assert shown(relay, "check", str(path)) == {"path": str(path)}
    assert not mark.exists()


def test_agents_register_a_bounded_number(
    relay: Run, broker_home: Home, marks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relay.features.automations.ops_automations.UNSEEN_MAX", 1)
    with register(broker_home, "Bob"):
        relay("automation", "register", str(marks), env=INSIDE)
        more = marks.with_name("more.py")
        more.write_text(marks.read_text())
        done = relay("automation", "register", str(more), env=INSIDE)
    assert done.returncode == 1 and "wait for the person already" in done.stderr


def test_a_configuration_keeps_agents_from_registering(
    relay: Run, broker_home: Home, marks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(marks.parent / "xdg"))
    config = Path(user_config())
    config.parent.mkdir(parents=True)
    config.write_text('config = {"automations": {"agents": False}}')
    assert relay("trust", str(config)).returncode == 0
    with register(broker_home, "Bob"):
        done = relay("automation", "register", str(marks), env=INSIDE)
    assert done.returncode == 1 and "agents may not register automations here" in done.stderr
    assert relay("automation", "register", str(marks)).returncode == 0


# -- trying out


def test_a_trial_shows_what_would_follow_and_stores_nothing(relay: Run, tmp_path: Path) -> None:
    relay("person", "add", "Mom", "--relationship", "family", "--address", "sms:+1555")
    result = "{'fire': True, 'agent': 'atlas', 'context': {'prompt': 'Help.', 'data': {'a': 1}}}"
    relay("automation", "register", written(tmp_path, result=result))
    event = {"channel": "sms", "sender": "+1555", "content": "the code?"}
    file = tmp_path / "event.json"
    file.write_text(json.dumps(event))
    told = shown(relay, "test", "codes", "--event", json.dumps(event))
    assert told["matches"] and told["error"] is None
    assert told["principal"]["relationship"] == "family"
    assert told["event"]["metadata"]["person"]["name"] == "Mom"
    dispatch = told["dispatch"]
    assert (dispatch["persona"], dispatch["session"]) == ("atlas", "sms:dm:+1555")
    assert (dispatch["prompt"], dispatch["extracted"]) == ("Help.", {"a": 1})
    assert dispatch["permissions"]["level"] == "minimal"
    for words, stdin in (((str(file),), ""), (("-",), json.dumps(event))):
        said = relay("automation", "test", "codes", "--event", *words, stdin=stdin).stdout
        assert "event:       message on sms from Mom (known)" in said
        assert "persona:     atlas" in said and "prompt:      Help." in said
        assert "waits:       nobody is called atlas" in said
    tables = ("events", "dispatches", "automation_runs", "automation_state")
    counts = " UNION ALL ".join(f"SELECT count(*) n FROM {name}" for name in tables)
    found = json.loads(relay("ledger", "query", counts, "--json").stdout)
    assert [one["n"] for one in found] == [0, 0, 0, 0]
    stored = json.loads(relay("ingest", "event", json.dumps(event), "--json").stdout)["id"]
    assert shown(relay, "test", "codes", "--event", stored[-8:])["event"]["id"] == stored
    wait_until(lambda: shown(relay, "runs", "codes"), what="the run")
    assert shown(relay, "runs", "codes")[0]["waits"] == "nobody is called atlas"
    assert (
        "nobody is called atlas (relay broker queue)" in relay("automation", "runs", "codes").stdout
    )


def test_a_trial_without_an_event_is_a_tick_of_its_clock(relay: Run, tmp_path: Path) -> None:
    path = tmp_path / "beat.py"
    path.write_text(
        "automation = {'name': 'beat', 'description': 'x', 'schedule': {'every': '30m'},"
        " 'handler': lambda ctx: ctx.event.metadata['schedule'] == 'beat'}"
    )
    assert "over" not in relay("automation", "register", str(path)).stdout
    told = shown(relay, "test", "beat")
    assert (told["matches"], told["result"]["fire"]) == (True, True)
    assert (told["event"]["channel"], told["principal"]["type"]) == ("timer", "system")
    relay("automation", "register", written(tmp_path))
    path.write_text(path.read_text().replace("'every': '30m'", "'at': '2020-01-01'"))
    assert relay("automation", "update", "beat", "--yes").returncode == 0
    assert "at 2020-01-01; which is over" in relay("automation", "list").stdout
    done = relay("automation", "test", "codes")
    assert done.returncode == 2 and "codes needs an event to be tried with" in done.stderr


def test_a_trial_says_what_does_not_match_and_what_fails(relay: Run, tmp_path: Path) -> None:
    relay("automation", "register", written(tmp_path, result="ctx.nothing"))
    done = relay("automation", "test", "codes", "--event", '{"content": "hi"}', merged=True)
    assert done.returncode == 1
    assert (
        "it would not be run for this event: these triggers do not match: principal.relationship,"
        " event.channels" in done.stdout
    )
    assert f"message on relay from {owner_name()} (owner)" in done.stdout
    assert "error:       AttributeError" in done.stdout
    for wrong, said in (
        ("no.json", "cannot be read"),
        ("{", "is not JSON"),
        ("{}x", "is not JSON"),
        ('{"unknown": 1}', "an event has no 'unknown'"),
        ("ABCDEF", "there is no message"),
    ):
        done = relay("automation", "test", "codes", "--event", wrong)
        assert done.returncode in (2, 3) and said in done.stderr
