"""A source of Qwen Code that is fed, and what it hears; the screens that it is shown."""

from __future__ import annotations

import json
from typing import Any

from relay.agents.profile import find_profile
from relay.agents.qwen.source import QwenSource
from relay.core.message import AgentState
from relay.core.source_events import Line, SourceEvent, StateChange

IDLE = ["─" * 40, ">", "─" * 40]
WORKS = ["  ⠏ Thinking (3s · esc to cancel)", *IDLE]
STOPPED = ["  ● Request cancelled.", "", *IDLE]
ASKS = ["Allow execution of: 'touch'?", "1. Yes", "2. No"]


def lines(events: list[SourceEvent]) -> list[str]:
    return [event.text for event in events if isinstance(event, Line)]


def states(events: list[SourceEvent]) -> list[AgentState]:
    return [event.state for event in events if isinstance(event, StateChange)]


class Heard:
    """A source and what came of what it was fed."""

    def __init__(self, *, started: float = 0.0) -> None:
        self.source = QwenSource(started, profile=find_profile("qwen")[0])
        self.events: list[SourceEvent] = []
        self.now = 100.0
        self._uuid = 0

    def feed(self, *lines: str) -> list[SourceEvent]:
        fed = [event for line in lines for event in self.source.transcript(line, self.now)]
        self.events += fed
        return fed

    def see(self, rows: list[str], seconds: float = 0.0) -> list[SourceEvent]:
        self.now += seconds
        seen = self.source.glance(rows, self.now)
        self.events += seen
        return seen

    def tell(self, kind: str, **more: Any) -> list[SourceEvent]:
        self._uuid += 1
        own = {"uuid": f"u{self._uuid}", "session_id": "s", "parent_tool_use_id": None}
        return self.feed(json.dumps({"type": kind, **own, **more}, separators=(",", ":")))

    def stream(self, kind: str, **more: Any) -> list[SourceEvent]:
        return self.tell("stream_event", event={"type": kind, **more})

    def begin(self) -> None:
        self.tell("system", subtype="session_start")
        self.see(IDLE)
        self.prompt("a question")

    def prompt(self, text: str) -> list[SourceEvent]:
        content = [{"type": "text", "text": text}]
        return self.tell("user", message={"role": "user", "content": content})

    def open(self, kind: str = "text") -> list[SourceEvent]:
        return self.stream("content_block_start", index=0, content_block={"type": kind})

    def text(self, text: str) -> list[SourceEvent]:
        delta = {"type": "text_delta", "text": text}
        return self.stream("content_block_delta", index=0, delta=delta)

    def close(self) -> list[SourceEvent]:
        return self.stream("content_block_stop", index=0)

    def said(self, tokens: int, kind: str = "text") -> list[SourceEvent]:
        usage = {"input_tokens": tokens, "output_tokens": 0}
        return self.tell("assistant", message={"content": [{"type": kind}], "usage": usage})

    def stop(self) -> list[SourceEvent]:
        return self.stream("message_stop")

    def chat(self, name: str, **event: Any) -> list[SourceEvent]:
        told = {"event.name": f"qwen-code.{name}", "prompt_id": "s########0", **event}
        head = {"uuid": "x", "sessionId": "s", "timestamp": "2026-11-22T06:16:27.109Z"}
        body = {"subtype": "ui_telemetry", "systemPayload": {"uiEvent": told}}
        return self.feed(json.dumps({**head, "type": "system", **body}, separators=(",", ":")))
