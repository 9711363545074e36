"""The Gemini API (generateContent, streamGenerateContent), as Gemini CLI speaks it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from tests.real_agents.ids import new_id
from tests.real_agents.request import Asked, Turn, plain, result_block, text_block
from tests.real_agents.steps import Answer, Beat, Close, Piece, Say, Think, Tool
from tests.real_agents.tools import ToolSpec

NAME = "gemini"
_USAGE = {"promptTokenCount": 100, "candidatesTokenCount": 20, "totalTokenCount": 120}


def read(body: dict[str, Any], path: str) -> Asked:
    """What a request says; the model and whether to stream stand in its path."""
    model, _, verb = path.rpartition("/")[2].partition(":")
    turns = [
        Turn(content.get("role") == "model", [_block(part) for part in content.get("parts") or []])
        for content in body.get("contents") or []
    ]
    functions = [f for t in body.get("tools") or [] for f in t.get("functionDeclarations") or []]
    offered = [
        ToolSpec(str(f["name"]), f.get("parametersJsonSchema") or f.get("parameters") or {})
        for f in functions
    ]
    system = plain((body.get("systemInstruction") or {}).get("parts"))
    return Asked(system, turns, offered, model, verb.startswith("stream"))


def events(answer: Answer, beats: Iterable[Beat]) -> Iterator[dict[str, Any]]:
    """The stream of one answer."""
    for beat in beats:
        if isinstance(beat, Piece):
            thought = {"thought": True} if isinstance(beat.block, Think) else {}
            yield _content(answer, [{"text": beat.text, **thought}])
        elif isinstance(beat, Close) and isinstance(beat.block, Tool):
            yield _content(answer, [_call(beat.block)])
    yield _content(answer, [{"text": ""}], "STOP")


def whole(answer: Answer) -> dict[str, Any]:
    """One answer that is not streamed."""
    parts: list[dict[str, Any]] = []
    for block in answer.blocks:
        if isinstance(block, Say):
            parts.append({"text": block.text})
        elif isinstance(block, Tool):
            parts.append(_call(block))
    return _content(answer, parts, "STOP")


def frame(event: dict[str, Any]) -> str:
    return f"data: {json.dumps(event)}\n\n"


def failure(status: int, message: str) -> dict[str, Any]:
    kinds = {400: "INVALID_ARGUMENT", 429: "RESOURCE_EXHAUSTED", 503: "UNAVAILABLE"}
    kind = kinds.get(status, "INTERNAL")
    return {"error": {"code": status, "message": message, "status": kind}}


def _block(part: dict[str, Any]) -> dict[str, Any]:
    if "functionResponse" in part:
        return result_block(json.dumps(part["functionResponse"].get("response")))
    if "text" in part and not part.get("thought"):
        return text_block(part["text"])
    return {"type": "other"}


def _call(call: Tool) -> dict[str, Any]:
    function = {"id": new_id("fc"), "name": call.name, "args": call.input}
    return {"functionCall": function, "thoughtSignature": "c2NyaXB0ZWQ="}


def _content(
    answer: Answer, parts: list[dict[str, Any]], finish: str | None = None
) -> dict[str, Any]:
    candidate: dict[str, Any] = {"index": 0, "content": {"role": "model", "parts": parts}}
    if finish:
        candidate["finishReason"] = finish
    return {
        "candidates": [candidate],
        "usageMetadata": _USAGE,
        "modelVersion": answer.model,
        "responseId": new_id("gemini"),
    }
