"""The OpenAI chat completions API, as Qwen Code, opencode and aider speak it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from typing import Any

from tests.real_agents.ids import new_id
from tests.real_agents.request import Asked, Turn, plain, result_block, text_block
from tests.real_agents.steps import Answer, Beat, Close, Piece, Say, Tool
from tests.real_agents.tools import ToolSpec

NAME = "chat"
_USAGE = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}


def read(body: dict[str, Any], path: str) -> Asked:
    """What a request says."""
    system, turns = [], []
    for message in body["messages"]:
        text = plain(message.get("content"))
        if message["role"] in ("system", "developer"):
            system.append(text)
        elif message["role"] == "tool":
            turns.append(Turn(False, [result_block(text)]))
        else:
            turns.append(Turn(message["role"] == "assistant", [text_block(text)]))
    functions = [tool.get("function", tool) for tool in body.get("tools") or []]
    offered = [ToolSpec(str(f.get("name", "")), f.get("parameters") or {}) for f in functions]
    model, stream = str(body.get("model")), bool(body.get("stream"))
    return Asked("\n".join(system), turns, offered, model, stream)


def events(answer: Answer, beats: Iterable[Beat]) -> Iterator[dict[str, Any]]:
    """The stream of one completion; the end mark is ``{}``."""
    head = _head(answer, "chat.completion.chunk")

    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        return {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    yield chunk({"role": "assistant", "content": ""})
    calls = 0
    for beat in beats:
        if isinstance(beat, Piece):
            said = isinstance(beat.block, Say)
            yield chunk({"content" if said else "reasoning_content": beat.text})
        elif isinstance(beat, Close) and isinstance(beat.block, Tool):
            whole_call = _call(beat.block)
            arguments = whole_call["function"].pop("arguments")
            whole_call["function"]["arguments"] = ""
            yield chunk({"tool_calls": [{"index": calls, **whole_call}]})
            more = {"index": calls, "function": {"arguments": arguments}}
            yield chunk({"tool_calls": [more]})
            calls += 1
    yield chunk({}, _finish(answer))
    yield {**head, "choices": [], "usage": _USAGE}
    yield {}


def whole(answer: Answer) -> dict[str, Any]:
    """One completion that is not streamed."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.text or None}
    if answer.calls:
        message["tool_calls"] = [_call(call) for call in answer.calls]
    choice = {"index": 0, "message": message, "finish_reason": _finish(answer)}
    return {**_head(answer, "chat.completion"), "choices": [choice], "usage": _USAGE}


def frame(event: dict[str, Any]) -> str:
    return f"data: {json.dumps(event) if event else '[DONE]'}\n\n"


def failure(status: int, message: str) -> dict[str, Any]:
    return {"error": {"type": "api_error", "message": message, "code": status}}


def _head(answer: Answer, kind: str) -> dict[str, Any]:
    created = int(time.time())
    return {"id": new_id("chatcmpl"), "object": kind, "created": created, "model": answer.model}


def _finish(answer: Answer) -> str:
    return "tool_calls" if answer.calls else "stop"


def _call(call: Tool) -> dict[str, Any]:
    function = {"name": call.name, "arguments": json.dumps(call.input)}
    return {"id": new_id("call"), "type": "function", "function": function}
