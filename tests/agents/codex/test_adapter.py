"""Codex's own queue, with a program in its place that speaks as ``codex app-server`` does."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sqlite3
import sys
from pathlib import Path

import pytest

from relay.agents.base import ChannelClosed
from relay.agents.codex.adapter import CodexChannel
from relay.agents.codex.source import CodexSource

THREAD = "01a201fd-d59b-7a33-88eb-2169a534f011"
#: Answers what it is asked, after a remark of its own, and writes down what was queued.
SERVER = """\
import json, os, sys
assert sys.argv[1:] == ["app-server"], sys.argv
for line in sys.stdin:
    asked = json.loads(line)
    print(json.dumps({"method": "configWarning", "params": {}}), flush=True)
    if asked["method"] == "thread/queue/add" and "REFUSE" in line:
        print(json.dumps({"id": asked["id"], "error": {"message": "no such thread"}}), flush=True)
        continue
    if asked["method"] == "thread/queue/add":
        if "END" in line:
            sys.exit()
        with open(os.environ["QUEUED"], "a") as file:
            file.write(line)
    print(json.dumps({"id": asked["id"], "result": {}}), flush=True)
"""


class Queue:
    def __init__(self, folder: Path) -> None:
        self.program = folder / "codex"
        self.program.write_text(f"#!{sys.executable}\n{SERVER}")
        self.program.chmod(0o755)
        self.file = folder / "queued"
        self.database = folder / "queue_1.sqlite"
        self.source = CodexSource(0)
        self.source.saved.path = f"/rollout-2026-01-31-{THREAD}.jsonl"
        self.door = CodexChannel(
            str(self.program), str(folder), {**os.environ, "QUEUED": str(self.file)}, self.source
        )
        self.door.found(str(self.database))

    @property
    def queued(self) -> list[dict[str, object]]:
        with contextlib.suppress(FileNotFoundError):
            return [json.loads(line)["params"] for line in self.file.read_text().splitlines()]
        return []

    def lies(self, payload: str, thread: str = THREAD) -> None:
        """A message in the database, as Codex 0.169.0 keeps it."""
        with contextlib.closing(sqlite3.connect(self.database)) as database:
            database.execute(
                "CREATE TABLE IF NOT EXISTS queued_items (id TEXT, thread_id TEXT,"
                " payload_json TEXT, queue_order INTEGER, created_at_ms INTEGER,"
                " updated_at_ms INTEGER)"
            )
            row = ("1", thread, payload, 1, 0, 0)
            database.execute("INSERT INTO queued_items VALUES (?, ?, ?, ?, ?, ?)", row)
            database.commit()


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    return Queue(tmp_path)


def test_a_message_is_queued_whole(queue: Queue) -> None:
    text = "Relay message [AB]\n" + "x" * 500_000 + "é\u2028'\"\\"
    asyncio.run(queue.door.submit(text, "[AB]"))
    [queued] = queue.queued
    assert queued["threadId"] == THREAD
    assert queued["input"] == [{"type": "text", "text": text}]
    assert queued["clientUserMessageId"]


@pytest.mark.parametrize("text", ["REFUSE it", "END before the answer"])
def test_what_is_not_taken_is_said(queue: Queue, text: str) -> None:
    with pytest.raises(ChannelClosed):
        asyncio.run(queue.door.submit(text, "[AB]"))


def test_what_lies_in_the_queue_was_taken_whatever_was_answered(queue: Queue) -> None:
    queue.lies('{"UserInput":{"content":[{"type":"text","text":"Relay message [AB] END"}]}}')
    asyncio.run(queue.door.submit("Relay message [AB] END", "[AB]"))


def test_a_program_that_is_gone(queue: Queue) -> None:
    queue.program.unlink()
    with pytest.raises(ChannelClosed):
        asyncio.run(queue.door.submit("hello", "[AB]"))


def test_it_is_open_while_its_queue_is_looked_into(queue: Queue) -> None:
    assert queue.door.available
    queue.source.saved.interrupted = True
    assert not queue.door.available
    queue.source.saved.interrupted, queue.source.saved.path = False, None
    assert not queue.door.available
    with pytest.raises(ChannelClosed):
        asyncio.run(queue.door.submit("hello", "[AB]"))


def test_what_waits_is_known(queue: Queue) -> None:
    assert not queue.door.waits("[AB]")
    assert not queue.database.exists()
    queue.lies("Relay message [CD]")
    queue.lies("Relay message [AB]", thread="another")
    assert queue.door.waits("[CD]")
    assert not queue.door.waits("[AB]")
