"""A model's request and response in the form that hooks get, whichever service's it is. Pure.

The hooks' form is the stable one of Gemini CLI: a request is ``{model, messages: [{role, content}],
config, toolConfig}`` with the roles user, model and system and content as text; a response is
``{text, candidates: [{content: {role, parts: [text]}, finishReason, index}], usageMetadata}``.
The forms of Gemini (contents, candidates), OpenAI (messages or input, choices) and Anthropic
(messages, content) are read; what is in the hooks' form already stays as it is. No wrapped agent
tells of its model: these events are fired by programs that use the engine themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from relay.core.errors import RelayError
from relay.core.plain import shown
from relay.hooks.hook_types import ToolMode

_REQUEST, _RESPONSE = "llm_request", "llm_response"
#: Where the conversation stands: Gemini; OpenAI and Anthropic; OpenAI's responses.
_LISTS = ("contents", "messages", "input")
#: Who speaks, in the words of the hooks' form; and the roles of tools, which are left out.
_SPEAKERS = {
    "user": "user",
    "model": "model",
    "assistant": "model",
    "system": "system",
    "developer": "system",
}
_TOOLS = ("tool", "function")
#: The hooks' name of a setting, and what it is called where there is no ``config``.
_SETTINGS = {
    "temperature": ("temperature",),
    "maxOutputTokens": ("max_tokens", "max_completion_tokens", "max_output_tokens"),
    "topP": ("top_p",),
    "topK": ("top_k",),
    "stopSequences": ("stop_sequences", "stop"),
    "candidateCount": ("n",),
    "presencePenalty": ("presence_penalty",),
    "frequencyPenalty": ("frequency_penalty",),
}
_USAGE = {
    "promptTokenCount": ("prompt_tokens", "input_tokens"),
    "candidatesTokenCount": ("completion_tokens", "output_tokens"),
    "totalTokenCount": ("total_tokens",),
}
_CHOICES = {"auto": ToolMode.AUTO, "none": ToolMode.NONE}  # any other word demands a call
#: Why a model stopped, in the hooks' words. One that calls a tool has stopped, too.
_REASONS = {
    "stop": "STOP",
    "end_turn": "STOP",
    "stop_sequence": "STOP",
    "tool_calls": "STOP",
    "tool_use": "STOP",
    "length": "MAX_TOKENS",
    "max_tokens": "MAX_TOKENS",
    "content_filter": "SAFETY",
    "refusal": "SAFETY",
}


class TranslationError(RelayError):
    """A model's request or response whose form is not known."""

    code = "translation"


def to_hook(payload: Mapping[str, Any]) -> dict[str, Any]:
    """``payload`` with its llm_request and llm_response in the hooks' form; a new dict.

    Raises TranslationError for a form that is not known.
    """
    new = dict(payload)
    if _REQUEST in new:
        new[_REQUEST] = _request(_mapping(new[_REQUEST], _REQUEST))
    if _RESPONSE in new:
        new[_RESPONSE] = _response(_mapping(new[_RESPONSE], _RESPONSE))
    return new


def _request(request: Mapping[str, Any]) -> dict[str, Any]:
    model = request.get("model")
    if model is not None and not isinstance(model, str):
        raise TranslationError(f"the model in {_REQUEST} is {shown(model)}, not a text")
    key = next((key for key in _LISTS if request.get(key) is not None), None)
    if key is None and "messages" not in request:
        raise TranslationError(f"{_REQUEST} has no {', '.join(_LISTS)}: its form is not known")
    key = key or "messages"
    found = request.get(key)
    # One that stands alone, as a string or object, is a list of one.
    entries = [found] if isinstance(found, str | Mapping) else _sequence(found, key, _REQUEST)
    spoken = [_said(entry) for entry in entries]
    hook: dict[str, Any] = {"model": model or "", "messages": [one for one in spoken if one]}
    config = _config(request)
    tools = _tools(request)
    return hook | ({"config": config} if config else {}) | ({"toolConfig": tools} if tools else {})


def _said(entry: object) -> dict[str, str] | None:
    """Who says what in a message; None where there is no text of user, model or system."""
    if isinstance(entry, str):
        return {"role": "user", "content": entry}
    fields = _mapping(entry, _REQUEST)
    role = fields.get("role", "user")
    if not isinstance(role, str):
        raise TranslationError(f"the role in {_REQUEST} is {shown(role)}, not a text")
    body = fields["parts"] if "parts" in fields else fields.get("content")
    if role not in _SPEAKERS and role not in _TOOLS:
        raise TranslationError(f"the role in {_REQUEST} is {shown(role)}, which is not known")
    speaker, text = _SPEAKERS.get(role), "".join(_texts(body, _REQUEST))
    return {"role": speaker, "content": text} if speaker and text else None


def _config(request: Mapping[str, Any]) -> dict[str, Any]:
    for key in ("config", "generationConfig"):
        config = request.get(key)
        if isinstance(config, Mapping):
            return {name: config[name] for name in _SETTINGS if config.get(name) is not None}
    if "contents" in request:
        return {}
    found = _renamed(request, _SETTINGS)
    if isinstance(found.get("stopSequences"), str):
        found["stopSequences"] = [found["stopSequences"]]
    return found


def _tools(request: Mapping[str, Any]) -> dict[str, Any]:
    """Which tools the model may call."""
    inner = request.get("config")
    for holder in (request, inner if isinstance(inner, Mapping) else {}):
        config = holder.get("toolConfig")
        if isinstance(config, Mapping):
            nested = config.get("functionCallingConfig")
            config = nested if isinstance(nested, Mapping) else config
            known = ("mode", "allowedFunctionNames")
            return {key: config[key] for key in known if config.get(key) is not None}
    choice = request.get("tool_choice")
    if isinstance(choice, str):
        return {"mode": _CHOICES.get(choice, ToolMode.ANY).value}
    if choice is None:
        return {}
    choice = _mapping(choice, f"tool_choice in {_REQUEST}")
    function = choice.get("function")
    name = function.get("name") if isinstance(function, Mapping) else choice.get("name")
    mode = _CHOICES.get(str(choice.get("type")), ToolMode.ANY).value
    return {"mode": mode} | ({"allowedFunctionNames": [name]} if isinstance(name, str) else {})


def _response(reply: Mapping[str, Any]) -> dict[str, Any]:
    if "choices" in reply:
        found = _sequence(reply["choices"], "choices", _RESPONSE)
        candidates = [_choice(_mapping(one, f"a choice in {_RESPONSE}")) for one in found]
    elif reply and not reply.keys() & {"candidates", "content", "text", "usageMetadata"}:
        raise TranslationError(
            f"{_RESPONSE} has no choices, candidates, content or text: its form is not known"
        )
    elif "candidates" in reply or "content" not in reply:
        found = _sequence(reply.get("candidates"), "candidates", _RESPONSE)
        candidates = [_candidate(_mapping(one, f"a candidate in {_RESPONSE}")) for one in found]
    else:
        candidates = [_answer(reply["content"], reply.get("stop_reason"), None)]
    hook: dict[str, Any] = {"candidates": candidates}
    text = "".join(candidates[0]["content"]["parts"]) if candidates else reply.get("text")
    if isinstance(text, str) and text:
        hook["text"] = text
    meta, usage = reply.get("usageMetadata"), reply.get("usage")
    if isinstance(meta, Mapping):
        counts = {name: meta[name] for name in _USAGE if meta.get(name) is not None}
    else:
        counts = _renamed(usage, _USAGE) if isinstance(usage, Mapping) else {}
    return hook | ({"usageMetadata": counts} if counts else {})


def _choice(choice: Mapping[str, Any]) -> dict[str, Any]:
    message = choice.get("message") or choice.get("delta") or {}
    body = _mapping(message, f"a message in {_RESPONSE}").get("content")
    return _answer(body, choice.get("finish_reason"), choice.get("index"))


def _candidate(candidate: Mapping[str, Any]) -> dict[str, Any]:
    body = _mapping(candidate.get("content") or {}, f"the content in {_RESPONSE}").get("parts")
    one = _answer(body, candidate.get("finishReason"), candidate.get("index"))
    if candidate.get("safetyRatings") is not None:
        one["safetyRatings"] = candidate["safetyRatings"]
    return one


def _answer(body: object, reason: object, index: object) -> dict[str, Any]:
    one: dict[str, Any] = {"content": {"role": "model", "parts": _texts(body, _RESPONSE)}}
    if isinstance(reason, str):
        one["finishReason"] = _REASONS.get(reason, reason if reason.isupper() else "OTHER")
    if index is not None:
        one["index"] = index
    return one


def _texts(body: object, where: str) -> list[str]:
    """The texts of a message's body; images, calls of tools and a model's thoughts are left out."""
    parts = [body] if isinstance(body, str | Mapping) else _sequence(body, "the content", where)
    found = []
    for part in parts:
        if isinstance(part, Mapping) and not part.get("thought"):
            part = part.get("text")
        if isinstance(part, str):
            found.append(part)
    return found


def _renamed(fields: Mapping[str, Any], names: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """The fields that stand under one of the ``names``, by the hooks' name for each."""
    found = {}
    for name, spellings in names.items():
        value = next((fields[word] for word in spellings if fields.get(word) is not None), None)
        if value is not None:
            found[name] = value
    return found


def _mapping(value: object, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TranslationError(f"{name} is {shown(value)}, not an object")
    return value


def _sequence(value: object, name: str, where: str) -> Sequence[Any]:
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise TranslationError(f"{name} in {where} is {shown(value)}, not a list")
    return value
