"""The Anthropic messages API, as Claude Code speaks it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from tests.real_agents.ids import new_id
from tests.real_agents.request import Asked, Turn, plain, text_block
from tests.real_agents.steps import Answer, Beat, Block, Close, Open, Say, Think
from tests.real_agents.tools import ToolSpec

NAME = "anthropic"
_USAGE = {
    "input_tokens": 100,
    "output_tokens": 20,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 0,
}


def read(body: dict[str, Any], path: str) -> Asked:
    """What a request says."""
    turns = [Turn(m["role"] == "assistant", _blocks(m["content"])) for m in body["messages"]]
    offered = [
        ToolSpec(str(tool.get("name", "")), tool.get("input_schema") or {})
        for tool in body.get("tools") or []
    ]
    model, stream = str(body.get("model")), bool(body.get("stream"))
    return Asked(plain(body.get("system")), turns, offered, model, stream)


def events(answer: Answer, beats: Iterable[Beat]) -> Iterator[dict[str, Any]]:
    """The stream of one message."""
    yield {"type": "message_start", "message": _head(answer.model)}
    index = 0
    for beat in beats:
        if isinstance(beat, Open):
            start = _opening(beat.block)
            yield {"type": "content_block_start", "index": index, "content_block": start}
        elif isinstance(beat, Close):
            for delta in _ending(beat.block):
                yield {"type": "content_block_delta", "index": index, "delta": delta}
            yield {"type": "content_block_stop", "index": index}
            index += 1
        else:
            kind = "text" if isinstance(beat.block, Say) else "thinking"
            delta = {"type": f"{kind}_delta", kind: beat.text}
            yield {"type": "content_block_delta", "index": index, "delta": delta}
    reason = {"stop_reason": _stop_reason(answer), "stop_sequence": None}
    yield {"type": "message_delta", "delta": reason, "usage": {"output_tokens": 20}}
    yield {"type": "message_stop"}


def whole(answer: Answer) -> dict[str, Any]:
    """One message that is not streamed."""
    content: list[dict[str, Any]] = []
    for block in answer.blocks:
        if isinstance(block, Say):
            content.append(text_block(block.text))
        elif not isinstance(block, Think):
            content.append({**_opening(block), "input": block.input})
    return {**_head(answer.model), "content": content, "stop_reason": _stop_reason(answer)}


def frame(event: dict[str, Any]) -> str:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"


def failure(status: int, message: str) -> dict[str, Any]:
    kinds = {429: "rate_limit_error", 529: "overloaded_error"}
    return {
        "type": "error",
        "error": {"type": kinds.get(status, "api_error"), "message": message},
    }


def _blocks(content: Any) -> list[dict[str, Any]]:
    return [text_block(content)] if isinstance(content, str) else list(content)


def _head(model: str) -> dict[str, Any]:
    return {
        "id": new_id("msg"),
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": dict(_USAGE),
    }


def _stop_reason(answer: Answer) -> str:
    return "tool_use" if answer.calls else "end_turn"


def _opening(block: Block) -> dict[str, Any]:
    if isinstance(block, Say):
        return text_block("")
    if isinstance(block, Think):
        return {"type": "thinking", "thinking": "", "signature": ""}
    return {"type": "tool_use", "id": new_id("toolu"), "name": block.name, "input": {}}


def _ending(block: Block) -> list[dict[str, Any]]:
    """What a block's last pieces are, after its text."""
    if isinstance(block, Say):
        return []
    if isinstance(block, Think):
        return [{"type": "signature_delta", "signature": "c2NyaXB0ZWQ="}]
    return [{"type": "input_json_delta", "partial_json": json.dumps(block.input)}]
