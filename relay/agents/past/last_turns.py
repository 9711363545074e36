"""The last turns of a conversation, from the transcript that the agent itself writes.

Only the end of the file is read, which may still be written, and nothing is kept.
"""

from __future__ import annotations

import os
import stat
from typing import Any

from relay.agents.json_lines import object_in
from relay.agents.past.past_reader import MakeReader
from relay.agents.past.rollout_turns import CodexTurns
from relay.agents.past.transcript_turns import ClaudeTurns
from relay.protocol.past_turns import CLAUDE, CODEX
from relay.protocol.turns import TurnState

#: What reads a program's transcript.
READERS: dict[str, MakeReader] = {CLAUDE: ClaudeTurns, CODEX: CodexTurns}
#: Bytes at the end of a file that are read, and characters of one text.
TAIL_MAX, TEXT_MAX = 4 * 1024 * 1024, 32 * 1024

Json = dict[str, Any]


def last_turns(kind: str, path: str, count: int) -> list[Json]:
    """The last ``count`` turns in the file, the oldest first. Raises OSError.

    Each has prompt, text, tools (how many were called), state, model, started_ms and ended_ms.
    """
    reader = READERS[kind]({})
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            return []
        size = status.st_size
        file.seek(max(0, size - TAIL_MAX))
        lines = file.read(TAIL_MAX).split(b"\n")
    for line in lines[1 if size > TAIL_MAX else 0 :]:
        record = object_in(line.decode("utf-8", "replace"))
        try:
            if record is not None:
                reader.read(record)
        except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError):
            continue  # its form is not ours to promise
    goes_on = {one.id for one in reader.running.values() if one.state == TurnState.RUNNING}
    reader.release()
    rows = reader.take()
    turns: dict[str, Json] = {
        one.id: {"prompt": "", "text": "", "tools": 0, "started_ms": one.started_ms}
        for one in rows.turns
        if "/" not in one.conversation  # a sub-agent's
    }
    for message in rows.messages:
        if (turn := turns.get(message.turn)) is not None:
            name = "text" if message.role == "assistant" else "prompt"
            turn[name] = f"{turn[name]}\n{message.content}".strip()[-TEXT_MAX:]
    for end in rows.ends:
        if (turn := turns.get(end.turn)) is not None:
            state = TurnState.RUNNING.value if end.turn in goes_on else end.state
            turn.update(state=state, model=end.model, ended_ms=end.ended_ms, tools=end.calls)
    return list(turns.values())[-count:]
