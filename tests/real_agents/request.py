"""One request to the scripted model, alike for every API that it came by."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from tests.real_agents.tools import ToolSpec

#: What the programs themselves put around what was said.
REMINDER = re.compile(
    r"<(system-reminder|environment_context|session_context|user_instructions"
    r"|permissions instructions)>.*?</\1>",
    re.DOTALL,
)
#: The instructions of what programs ask for themselves: by Qwen Code, with tools; by aider, whose
#: conversation has none.
SIDE = re.compile(r"managed memory \w+ subagent|Git commit messages|Briefly summarize")
#: What Codex asks for its own, in the words of a prompt: a title.
TITLE = re.compile(r"Do not answer the request\.\s+User prompt:")


@dataclass(frozen=True)
class Turn:
    """One message of a conversation: whether the model said it, and its content blocks.

    A block is ``{"type": "text", "text": …}``, ``{"type": "tool_result", "content": …}`` or
    something else, which is not text.
    """

    own: bool
    blocks: list[dict[str, Any]]


@dataclass(frozen=True)
class Asked:
    """What a request says, read from its API's form."""

    system: str
    turns: list[Turn]
    offered: list[ToolSpec]
    model: str
    stream: bool


@dataclass
class Request:
    """One request for a message, as it came.

    ``by`` is the name in the URL that ``ScriptedModel.url_for`` gave, ``toolless`` whether it was
    given for an agent that has no tools; ``done`` and ``aborted`` tell how the answer ended.
    """

    body: dict[str, Any]
    asked: Asked
    api: str
    by: str = ""
    toolless: bool = False
    done: bool = field(default=False)
    aborted: bool = field(default=False)

    @property
    def tools(self) -> list[str]:
        return [tool.name for tool in self.asked.offered]

    @property
    def system(self) -> str:
        return self.asked.system

    @property
    def newest(self) -> list[dict[str, Any]]:
        """The content blocks that follow the model's last own message."""
        blocks: list[dict[str, Any]] = []
        for turn in reversed(self.asked.turns):
            if turn.own:
                break
            blocks = turn.blocks + blocks
        return blocks

    @property
    def after_tool(self) -> bool:
        """Whether a tool's result is what the model has to answer, and nobody said anything."""
        texts = [b["text"] for b in self.newest if b.get("type") == "text"]
        spoken = any(REMINDER.sub("", text).strip() for text in texts)
        return not spoken and any(b.get("type") == "tool_result" for b in self.newest)

    @property
    def last_text(self) -> str:
        """All text of the newest blocks, reminders and tool results included."""
        return "\n".join(plain([block]) for block in self.newest)

    @property
    def said(self) -> str:
        """The newest text without what the program itself put around it."""
        return REMINDER.sub("", self.last_text).strip()

    @property
    def side(self) -> bool:
        """Whether the program asks for itself (a title, a check), outside the conversation."""
        if not self.tools and not self.toolless:
            return True
        return bool(SIDE.search(self.system[:600]) or TITLE.search(self.said))


def plain(value: Any) -> str:
    """The text in a content value, however deep."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "\n".join(plain(item) for item in value)
    if isinstance(value, dict):
        return plain(value.get("text", value.get("content", "")))
    return ""


def text_block(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def result_block(text: str) -> dict[str, Any]:
    return {"type": "tool_result", "content": text}
