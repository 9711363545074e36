"""What agents said, found in their own histories on this machine."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import pytest

from tests.cli.fixtures import Run

RECORDED = Path(__file__).parents[3] / "agents"
ID = "acd59cb6-07b3-4848-8d68-3e5a650598f6"


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of a person with an agent of each kind."""
    home = tmp_path / "home of mine"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME", "GEMINI_CLI_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    return home


def _save(path: Path, *records: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record, separators=(",", ":")) + "\n" for record in records))


def _time(second: int) -> str:
    return f"2026-11-28T05:19:{second:02}.000Z"


def _claude(own: Path) -> None:
    said = {"role": "assistant", "id": "m1", "content": [{"type": "text", "text": "Kiwi, found."}]}
    common = {"sessionId": ID, "cwd": "/srv/a b", "version": "2"}
    asked = {"role": "user", "content": "where is it?"}
    _save(
        own / ".claude" / "projects" / "-srv-a" / f"{ID}.jsonl",
        {"type": "user", "uuid": "u1", "timestamp": _time(1), "message": asked, **common},
        {
            **{"type": "assistant", "uuid": "u2", "parentUuid": "u1", "timestamp": _time(2)},
            **{"message": said, **common},
        },
    )


def _codex(own: Path) -> None:
    said = {"type": "message", "role": "assistant", "id": "x"}
    content = [{"type": "output_text", "text": "The KIWI was found."}]
    asked = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "?"}]}
    _save(
        own / ".codex" / "sessions" / "2026" / f"rollout-2026-11-28T05-19-28-{ID}.jsonl",
        {"timestamp": _time(1), "type": "session_meta", "payload": {"id": ID, "cwd": "/srv/c"}},
        {"timestamp": _time(2), "type": "response_item", "payload": asked},
        {"timestamp": _time(3), "type": "response_item", "payload": {**said, "content": content}},
    )


def _gemini(own: Path) -> None:
    project = own / ".gemini" / "tmp" / "project"
    _save(
        project / "chats" / "session-2026-11-28T05-19-acd59cb6.jsonl",
        {"sessionId": ID, "kind": "main"},
        {"id": "1", "timestamp": _time(4), "type": "user", "content": [{"text": "found a kiwi?"}]},
    )
    (project / ".project_root").write_text("/srv/g\n")


def _qwen(own: Path) -> None:
    said = {"role": "user", "parts": [{"text": "I found\x1b[2J a kiwi"}]}
    record = {"uuid": "1", "parentUuid": None, "sessionId": ID, "timestamp": _time(5)}
    _save(
        own / ".qwen" / "projects" / "-srv-q" / "chats" / f"{ID}.jsonl",
        {**record, "type": "user", "cwd": "/srv/q", "message": said},
    )


def _opencode(own: Path) -> None:
    folder = own / ".local" / "share" / "opencode"
    folder.mkdir(parents=True)
    db = sqlite3.connect(folder / "opencode.db")
    db.execute("CREATE TABLE session (id TEXT, directory TEXT)")
    db.execute("CREATE TABLE part (session_id TEXT, time_created INTEGER, data TEXT)")
    db.execute("INSERT INTO session VALUES ('ses_1', '/srv/o')")
    data = json.dumps({"type": "text", "text": "kiwi found"})
    db.execute("INSERT INTO part VALUES ('ses_1', 1795843196000, ?)", (data,))
    db.commit()
    db.close()


def _aider(project: Path) -> None:
    project.mkdir()
    (project / ".aider.chat.history.md").write_text(
        "\n# aider chat started at 2026-11-28 05:19:00\n\n> Aider v0.86.2\n"
        "\n#### is there a kiwi?  \n\nI found no\n\n> Tokens: 1 kiwi found\n"
        "\n#### look again  \n\nThe kiwi is found.\n"
    )


def test_all_agents_are_searched_and_each_conversation_comes_with_what_resumes_it(
    relay: Run, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for make in (_claude, _codex, _gemini, _qwen, _opencode):
        make(own)
    project = own / "project"
    _aider(project)
    monkeypatch.chdir(project)
    found = json.loads(relay("search", "found", "Kiwi", "--json").stdout)
    assert {row["kind"]: row["resume"] for row in found} == {
        "claude": f"cd '/srv/a b' && claude --resume {ID}",
        "codex": f"cd /srv/c && codex resume {ID}",
        "gemini": f"cd /srv/g && gemini --resume {ID}",
        "qwen": f"cd /srv/q && qwen --resume {ID}",
        "opencode": "cd /srv/o && opencode --session ses_1",
        "aider": f"cd '{project}' && aider --restore-chat-history",
    }
    [aider] = (row for row in found if row["kind"] == "aider")
    assert (aider["messages"], aider["snippet"]) == (1, "The kiwi is [found].")
    assert [row["created_at"] for row in found] == sorted(
        (row["created_at"] for row in found), reverse=True
    )
    assert relay("search", "kiwi", "plum").returncode == 3


def test_what_was_said_cannot_act_on_the_terminal_and_what_is_damaged_is_counted(
    relay: Run, own: Path
) -> None:
    _qwen(own)
    folder = own / ".claude" / "projects" / "-srv-a"
    shutil.copytree(RECORDED / "claude" / "recorded" / "projects" / "-srv-demo", folder)
    (folder / "damaged.jsonl").write_text(f'{{"sessionId": "{ID}"}}\n{{"kiwi": found\n')
    data = own / ".local" / "share" / "opencode"
    data.mkdir(parents=True)
    (data / "opencode.db").write_text("no database, but a kiwi")
    done = relay("search", "kiwi", "found")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout and "qwen  /srv/q" in done.stdout
    assert "opencode.db" in done.stderr and "1 line was skipped" in done.stderr
