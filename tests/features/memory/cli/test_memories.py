"""``relay memory`` as a user or a script meets it."""

from __future__ import annotations

import json
import os
import pty
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from relay.broker.client import connect
from relay.core.paths import Home
from relay.features.memory import moves
from relay.features.memory.ops import MEMORY_STATS
from relay.features.memory.records import TIME_MAX
from tests.cli.fixtures import Run
from tests.cli.test_docs_messages import run_examples
from tests.support import wait_until

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
    assert again.stdout == done.stdout and "saved already" in again.stderr
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
    both = relay("memory", "save", "x", "--agent", "Ada", "--scope", "user", "--json")
    assert "leave one of them out" in parsed(both, 2)["error"]["hint"]


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
    assert "did you mean relay memory search" in relay("memory", "serch", "x").stderr


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
    assert "put quotes around" in relay("memory", "save", "two", "words").stderr
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
    assert "6 already there" in relay("memory", "import", "-", stdin=file.read_text()).stderr


def test_an_import_that_is_none_says_which_line(relay: Run, tmp_path: Path) -> None:
    file = tmp_path / "broken.jsonl"
    file.write_text('\n{"id": 1}\n')
    assert "'id' is not a text" in relay("memory", "import", str(file)).stderr
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
    assert "there are more" in relay("memory", "list", "--limit", "3").stderr


def test_nothing_there_is_said_on_stderr(relay: Run) -> None:
    done = relay("memory", "list")
    assert (done.stdout, done.returncode) == ("", 0) and "no memories here yet" in done.stderr
    assert "nothing found" in relay("memory", "search", "x").stderr


RELAY = (sys.executable, "-m", "relay", "memory")


def row(number: int, **fields: object) -> dict[str, object]:
    stamp = {"scope": "user", "owner": "", "created_ms": number, "updated_ms": number}
    return {"id": f"k{number:05}", "text": f"fact {number}", **stamp, **fields}


def lines(*rows: object) -> str:
    return "".join(json.dumps(one) + "\n" for one in rows)


# -- export


def test_a_file_that_is_there_is_replaced_only_when_asked_to(relay: Run, tmp_path: Path) -> None:
    file = tmp_path / "kept.jsonl"
    file.write_text("the backup of yesterday\n")
    relay("memory", "import", "-", stdin=lines(row(1)))
    error = parsed(relay("memory", "export", str(file), "--json"), 2)["error"]
    assert error["code"] == "exists" and "--force" in error["hint"]
    assert file.read_text() == "the backup of yesterday\n"
    link = tmp_path / "link.jsonl"
    link.symlink_to(file)
    assert relay("memory", "export", str(link)).returncode == 2
    assert "1 memory is in" in relay("memory", "export", str(link), "--force").stderr
    assert link.is_symlink() and json.loads(file.read_text())["text"] == "fact 1"
    assert sorted(os.listdir(tmp_path))[:2] == ["kept.jsonl", "link.jsonl"]
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".part")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_one_that_is_ended_leaves_no_part(number: signal.Signals, tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from relay.features.memory.moves import export_target\n"
        "with export_target(sys.argv[1], replace=True) as target:\n"
        "    target.write('half')\n"
        "    target.flush()\n"
        "    print('begun', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    file = tmp_path / "kept.jsonl"
    file.write_text("the backup of yesterday\n")
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None and process.stdout.readline() == b"begun\n"
    process.send_signal(number)
    process.communicate(timeout=30)
    assert process.returncode in (-signal.SIGINT, 128 + number)
    assert file.read_text() == "the backup of yesterday\n"
    assert sorted(os.listdir(tmp_path)) == ["kept.jsonl", "shop"]


def test_a_pipe_is_written_and_stays_a_pipe(relay: Run, tmp_path: Path) -> None:
    relay("memory", "import", "-", stdin=lines(row(1), row(2)))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    assert relay("memory", "export", str(pipe)).returncode == 0
    reader.join(30)
    assert len(read[0].splitlines()) == 2 and stat.S_ISFIFO(os.stat(pipe).st_mode)
    assert "folder" in relay("memory", "export", str(tmp_path), "--force").stderr


def test_a_disk_that_is_full_is_said(relay: Run) -> None:
    if not os.path.exists("/dev/full"):
        return  # Linux has it
    relay("memory", "import", "-", stdin=lines(row(1)))
    for words, unbuffered in (["export"], ""), (["list", "--json"], "1"):
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [*RELAY, *words],
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                timeout=60,
                env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            )
        assert done.returncode == 1 and "cannot be written: No space left" in done.stderr


def test_a_stream_that_the_caller_closed(broker_home: Home) -> None:
    for words, closed, status, said in (
        ("stats", ">&-", 1, "cannot be written"),
        ("show zzzz --json", ">&-", 3, ""),
        ("save -", "<&-", 2, "the text is empty"),
        ("save", "<&-", 2, "the text is empty"),
        ("import -", "<&-", 0, "0 new"),
        ("save fact", "2>&-", 0, ""),
        ("list", "2>&-", 0, ""),
    ):
        script = f'exec "$0" -m relay memory {words} {closed}'
        done = subprocess.run(
            ["sh", "-c", script, sys.executable], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == status and said in done.stderr, words
        assert "Traceback" not in done.stderr and "fault" not in done.stderr


# -- import


def test_bad_lines_are_named_and_the_good_ones_kept(relay: Run, tmp_path: Path) -> None:
    bad: list[tuple[bytes, str]] = [
        (b"not JSON", "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b'{"id": "cut o', "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"17", "it is not an object"),
        (lines(row(1, text="\ud800")).encode().strip(), "not valid Unicode"),
        (lines(row(1, session="\x1b[2J")).encode().strip(), "cannot be a session"),
        (b"x" * moves.LINE_MAX, "too long"),
        (b"x" * (3 * moves.LINE_MAX + 7), "too long"),
    ]
    for number, (line, reason) in enumerate(bad):
        file = tmp_path / f"{number}.jsonl"
        one, two = (lines(row(10 * number + n)).encode() for n in (1, 2))
        file.write_bytes(one + b"\n" + line + b"\n" + two)
        error = parsed(relay("memory", "import", str(file), "--json"), 2)["error"]
        [found] = error["lines"]
        assert found["line"] == 3 and reason in found["reason"]
        assert (error["code"], error["new"], error["bad"]) == ("bad_lines", 2, 1)
    count = parsed(relay("memory", "stats", "--json"))["count"]
    assert count == 2 * len(bad)
    done = relay("memory", "import", "-", stdin="x\n" * 12_345)
    assert "line 2 (it is not JSON)" in done.stderr and "and 12335 more" in done.stderr


def test_one_that_was_cut_off_goes_on(relay: Run, broker_home: Home) -> None:
    whole = lines(*map(row, range(1300)))
    importing = subprocess.Popen(
        [*RELAY, "import", "-"], stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert importing.stdin is not None
    importing.stdin.write(whole[: len(whole) * 11 // 13])
    importing.stdin.flush()
    with connect(broker_home) as client:
        wait_until(lambda: client.request(MEMORY_STATS)["count"] == 1000)
    importing.send_signal(signal.SIGINT)
    said = importing.communicate(timeout=30)[1]
    assert importing.returncode == -signal.SIGINT
    # The answer to the second page may have been on its way.
    told = "cut off; so far: {} new, 0 already there; run it again to go on\n"
    assert said in (told.format(500), told.format(1000))
    done = relay("memory", "import", "-", stdin=whole)
    assert done.stderr == "300 new, 1000 already there\n"
    assert relay("memory", "import", "-", stdin=whole).stderr == "0 new, 1300 already there\n"
    exported = relay("memory", "export").stdout.splitlines()
    assert [json.loads(one)["text"] for one in exported] == [f"fact {n}" for n in range(1300)]


def test_what_is_there_with_another_content_is_counted_and_stays(relay: Run) -> None:
    relay("memory", "import", "-", stdin=lines(row(1)))
    done = relay("memory", "import", "-", stdin=lines(row(1, text="another"), row(2)))
    assert "1 new, 0 already there, 1 that are there with another content" in done.stderr
    assert "fact 1" in relay("memory", "show", "k00001").stdout


def test_the_latest_time_is_shown_everywhere_on_earth(relay: Run) -> None:
    latest = lines(row(1, created_ms=TIME_MAX, updated_ms=TIME_MAX))
    assert relay("memory", "import", "-", stdin=latest).returncode == 0
    for zone in ("Etc/GMT-14", "Etc/GMT+12"):
        for words in (("list",), ("show", "k00001"), ("list", "--json"), ("forget", "k00001")):
            done = relay("memory", *words, env={"TZ": zone})
            assert done.returncode == 0 and "fact" in done.stdout + done.stderr, done.stderr
        relay("memory", "import", "-", stdin=latest)


def test_what_was_imported_cannot_steer_the_terminal(relay: Run) -> None:
    text, meta = "\x1b[31mred\rfact", {"\x1b[2J": "\x1b[2J"}
    relay("memory", "import", "-", stdin=lines(row(1, text=text, meta=meta)))
    for words in (("list",), ("show", "k00001"), ("search", "fact")):
        out = relay("memory", *words).stdout
        assert "^[[31mred" in out and "\x1b" not in out and "\r" not in out


# -- setup


def test_a_setup_that_is_ended_leaves_no_pip(tmp_path: Path, broker_home: Home) -> None:
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip" / "__init__.py").touch()
    told = tmp_path / "told"
    (tmp_path / "pip" / "__main__.py").write_text(
        "import os, signal, time\n"
        f"with open({str(told) + '.part'!r}, 'w') as file:\n"
        "    file.write(str(os.getpid()))\n"
        f"os.rename({str(told) + '.part'!r}, {str(told)!r})\n"
        "signal.pause()\n"
    )
    process = subprocess.Popen(
        [*RELAY, "setup"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(lambda: told.exists() or process.poll() is not None)
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=30)[1]
    if "numpy" in said:
        assert process.returncode == 1  # there is nothing to fetch without it
        return
    assert process.returncode == 128 + signal.SIGTERM, said
    with pytest.raises(ProcessLookupError):
        os.kill(int(told.read_text()), 0)


# -- in a terminal


def in_terminal(*words: str, stdout: Any = None) -> tuple[int, str]:
    """The status, and what appeared in a terminal that is stderr (and stdout, unless given)."""
    outer, inner = pty.openpty()
    process = subprocess.Popen(
        [*RELAY, *words],
        stdin=subprocess.DEVNULL,
        stdout=inner if stdout is None else stdout,
        stderr=inner,
    )
    os.close(inner)
    shown = b""
    try:
        while data := os.read(outer, 65536):
            shown += data
    except OSError:  # its last writer has gone
        pass
    finally:
        os.close(outer)
        status = process.wait(60)
    return status, shown.decode()


def test_a_bar_is_drawn_in_a_terminal_and_nowhere_else(relay: Run, tmp_path: Path) -> None:
    file = tmp_path / "all.jsonl"
    file.write_text(lines(*map(row, range(600))))
    status, shown = in_terminal("import", str(file))
    assert status == 0 and "500 memories" in shown
    assert shown.endswith("\r600 new, 0 already there\r\n")
    status, shown = in_terminal("export", str(tmp_path / "copy.jsonl"))
    assert status == 0 and "600 of 600 memories" in shown
    status, shown = in_terminal("export", stdout=subprocess.DEVNULL)
    assert status == 0 and "600 of 600" in shown
    status, shown = in_terminal("export")  # there the lines themselves appear
    assert status == 0 and "600 of 600" not in shown and shown.count("\n") == 600
    for words in (("import", str(file)), ("export", str(tmp_path / "other.jsonl"))):
        done = relay("memory", *words)
        assert "#" not in done.stderr and "\r" not in done.stderr


def test_the_examples_of_the_page(
    relay: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_examples("memory.md", relay, tmp_path, monkeypatch)
