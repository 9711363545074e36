"""aider's own history of its chats: a file in the project, in Markdown. Pure.

    # aider chat started at 2026-01-31 12:00:00

    #### what the person asked

    what the model said

    > what aider itself showed

It marks nothing that it holds: a heading or a quotation of the model's looks like one of these.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

_CHAT = "# aider chat started at "
#: Characters after which a turn goes on as another one: anybody can write such a file.
_PART = 1 << 20


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """One question and its answer; ``chat_ms`` is when the chat was begun, 0 if unknown."""

    prompt: str
    text: str
    chat_ms: int


def chat_turns(lines: Iterable[str]) -> Iterator[ChatTurn]:
    """The turns, the oldest first."""
    prompt: list[str] = []
    text: list[str] = []
    chat_ms = size = 0

    def turn() -> Iterator[ChatTurn]:
        asked, said = "\n".join(prompt).strip(), "\n".join(text).strip()
        prompt.clear()
        text.clear()
        if asked or said:
            yield ChatTurn(asked, said, chat_ms)

    for whole in lines:
        line = whole.rstrip()
        size += len(line) + 1
        if size > _PART:
            yield from turn()
            size = 0
        if line.startswith(_CHAT):
            yield from turn()
            chat_ms = _milliseconds(line.removeprefix(_CHAT))
        elif line == "####" or line.startswith("#### "):
            if any(text):
                yield from turn()
            prompt.append(line[5:])
        elif line != ">" and not line.startswith("> "):
            text.append(line)
    yield from turn()


def _milliseconds(told: str) -> int:
    try:
        return int(datetime.fromisoformat(told).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        return 0
