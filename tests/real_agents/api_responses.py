"""The OpenAI responses API, as Codex speaks it."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterable, Iterator
from typing import Any

from tests.real_agents.ids import new_id
from tests.real_agents.request import Asked, Turn, plain, result_block, text_block
from tests.real_agents.steps import Answer, Beat, Block, Close, Open, Piece, Say, Think, Tool
from tests.real_agents.tools import ToolSpec

NAME = "responses"
CALLS = ("function_call", "custom_tool_call", "local_shell_call")
#: What the program tells its model about a sandbox, and how a call asks to leave it.
SANDBOXED = '<permission_profile type="managed">'
LEAVE = {
    "sandbox_permissions": "require_escalated",
    "justification": "May I run this?",
}
_USAGE = {
    "input_tokens": 100,
    "input_tokens_details": {"cached_tokens": 0},
    "output_tokens": 20,
    "output_tokens_details": {"reasoning_tokens": 0},
    "total_tokens": 120,
}


def read(body: dict[str, Any], path: str) -> Asked:
    """What a request says."""
    system, turns = [str(body.get("instructions") or "")], []
    given = body.get("input") or []
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    for item in items:
        kind, role = item.get("type", "message"), item.get("role", "user")
        if kind == "message" and role in ("system", "developer"):
            system.append(plain(item.get("content")))
        elif kind == "message":
            turns.append(Turn(role == "assistant", [text_block(plain(item.get("content")))]))
        elif kind in CALLS:
            turns.append(Turn(True, []))
        elif kind.removesuffix("_output") in CALLS:
            turns.append(Turn(False, [result_block(plain(item.get("output")))]))
    sandboxed = SANDBOXED in "".join(plain(turn.blocks) for turn in turns)
    # Newer models are offered their tools in the conversation, by namespaces.
    tools = [*(body.get("tools") or []), *(t for item in items for t in _tools_of(item))]
    offered = [_offered(tool, sandboxed) for tool in tools]
    model, stream = str(body.get("model")), bool(body.get("stream"))
    return Asked("\n".join(system), turns, offered, model, stream)


def events(answer: Answer, beats: Iterable[Beat]) -> Iterator[dict[str, Any]]:
    """The stream of one response."""
    numbers = itertools.count()
    response = _response(answer.model, [], "in_progress")

    def event(kind: str, **more: Any) -> dict[str, Any]:
        return {"type": kind, "sequence_number": next(numbers), **more}

    yield event("response.created", response=response)
    yield event("response.in_progress", response=response)
    output: list[dict[str, Any]] = []
    item: dict[str, Any] = {}
    for beat in beats:
        at = {"output_index": len(output)}
        if isinstance(beat, Open):
            item = _item(beat.block)
            yield event("response.output_item.added", **at, item=_empty(item))
            for kind, more in _opening(beat.block):
                yield event(kind, **at, item_id=item["id"], **more)
        elif isinstance(beat, Piece):
            for kind, more in _piece(beat):
                yield event(kind, **at, item_id=item["id"], **more)
        elif isinstance(beat, Close):
            for kind, more in _ending(beat.block):
                yield event(kind, **at, item_id=item["id"], **more)
            yield event("response.output_item.done", **at, item=item)
            output.append(item)
    done = {**response, **_response(answer.model, output, "completed"), "id": response["id"]}
    yield event("response.completed", response=done)


def whole(answer: Answer) -> dict[str, Any]:
    """One response that is not streamed."""
    return _response(answer.model, [_item(block) for block in answer.blocks], "completed")


def frame(event: dict[str, Any]) -> str:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"


def failure(status: int, message: str) -> dict[str, Any]:
    return {"error": {"type": "server_error", "message": message, "code": str(status)}}


def _tools_of(item: dict[str, Any]) -> list[dict[str, Any]]:
    if item.get("type") not in ("additional_tools", "namespace"):
        return []
    tools = item.get("tools") or []
    return [*tools, *(inner for tool in tools for inner in _tools_of(tool))]


def _offered(tool: dict[str, Any], sandboxed: bool) -> ToolSpec:
    name, schema = str(tool.get("name") or tool.get("type")), tool.get("parameters") or {}
    may_leave = sandboxed and "sandbox_permissions" in (schema.get("properties") or {})
    return ToolSpec(name, schema, LEAVE if may_leave else {})


def _response(model: str, output: list[dict[str, Any]], status: str) -> dict[str, Any]:
    return {
        "id": new_id("resp"),
        "object": "response",
        "created_at": int(time.time()),
        "status": status,
        "model": model,
        "output": output,
        "usage": _USAGE if status == "completed" else None,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }


def _item(block: Block) -> dict[str, Any]:
    """A block as it is when it is complete."""
    if isinstance(block, Say):
        part = {"type": "output_text", "text": block.text, "annotations": []}
        message = {"type": "message", "id": new_id("msg"), "role": "assistant"}
        return {**message, "status": "completed", "content": [part]}
    if isinstance(block, Think):
        summary = [{"type": "summary_text", "text": block.text}]
        return {"type": "reasoning", "id": new_id("rs"), "summary": summary}
    server, _, name = block.name.rpartition("/")  # "mcp__relay/send": a tool of a namespace
    head = {"id": new_id("fc"), "call_id": new_id("call"), "name": name}
    if server:
        head["namespace"] = server
    if set(block.input) == {"input"}:  # a tool that takes plain text
        return {"type": "custom_tool_call", **head, **block.input, "status": "completed"}
    arguments = json.dumps(block.input)
    return {"type": "function_call", **head, "arguments": arguments, "status": "completed"}


def _empty(item: dict[str, Any]) -> dict[str, Any]:
    """The item as it is when it begins."""
    blank: dict[str, Any] = {"content": [], "summary": [], "arguments": "", "input": ""}
    begun = {key: blank.get(key, value) for key, value in item.items()}
    return {**begun, "status": "in_progress"} if "status" in item else begun


def _opening(block: Block) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(block, Say):
        part = {"type": "output_text", "text": "", "annotations": []}
        yield "response.content_part.added", {"content_index": 0, "part": part}
    elif isinstance(block, Think):
        part = {"type": "summary_text", "text": ""}
        yield "response.reasoning_summary_part.added", {"summary_index": 0, "part": part}


def _piece(beat: Piece) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(beat.block, Say):
        yield "response.output_text.delta", {"content_index": 0, "delta": beat.text}
    else:
        yield "response.reasoning_summary_text.delta", {"summary_index": 0, "delta": beat.text}


def _ending(block: Block) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(block, Say):
        part = {"type": "output_text", "text": block.text, "annotations": []}
        yield "response.output_text.done", {"content_index": 0, "text": block.text}
        yield "response.content_part.done", {"content_index": 0, "part": part}
    elif isinstance(block, Think):
        yield "response.reasoning_summary_text.done", {"summary_index": 0, "text": block.text}
    elif isinstance(block, Tool) and set(block.input) != {"input"}:
        arguments = json.dumps(block.input)
        yield "response.function_call_arguments.delta", {"delta": arguments}
        yield "response.function_call_arguments.done", {"arguments": arguments}
