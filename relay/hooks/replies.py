"""What a model answers, in the hooks' form and in that of its service. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relay.core.plain import shown
from relay.hooks.utterances import TranslationError, body_with, mapping, sequence, texts

_NAME = "llm_response"
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
_USAGE = {
    "promptTokenCount": ("prompt_tokens", "input_tokens"),
    "candidatesTokenCount": ("completion_tokens", "output_tokens"),
    "totalTokenCount": ("total_tokens",),
}


def reply_to_hook(reply: Mapping[str, Any]) -> dict[str, Any]:
    """``reply`` in the hooks' form. Raises TranslationError."""
    if "choices" in reply:
        candidates = [_choice(one) for one in sequence(reply["choices"], f"choices in {_NAME}")]
    elif "candidates" in reply or "content" not in reply:
        found = sequence(reply.get("candidates"), f"candidates in {_NAME}")
        candidates = [_candidate(one) for one in found]
    else:
        candidates = [_one(reply["content"], reply.get("stop_reason"), None)]
    hook: dict[str, Any] = {"candidates": candidates}
    text = "".join(candidates[0]["content"]["parts"]) if candidates else reply.get("text")
    if isinstance(text, str) and text:
        hook["text"] = text
    usage = _usage(reply)
    if usage:
        hook["usageMetadata"] = usage
    return hook


def reply_from_hook(hook: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with the texts that ``hook``, in the hooks' form, has otherwise.

    ``text`` alone is the text of the first candidate. The usage is what it was: it is a fact.
    Raises TranslationError.
    """
    before = reply_to_hook(base)
    wanted = _wanted(hook, before)
    if wanted is None:
        return dict(base)
    if "choices" in base:
        found = sequence(base["choices"], _NAME)
        return {**base, "choices": [_into_choice(*pair) for pair in _pairs(found, wanted)]}
    if "candidates" in base or "content" not in base:
        found = sequence(base.get("candidates"), _NAME)
        new = {**base, "candidates": [_into_candidate(*pair) for pair in _pairs(found, wanted)]}
        first = wanted[0] if wanted else ""
        return new if first is None or "text" not in base else {**new, "text": first}
    changed = wanted[0] if wanted else ""
    return (
        dict(base) if changed is None else {**base, "content": body_with(base["content"], changed)}
    )


def _wanted(hook: Mapping[str, Any], before: Mapping[str, Any]) -> list[str | None] | None:
    """The text of each candidate, None for one that stays; None where all of them stay."""
    old = ["".join(one["content"]["parts"]) for one in before["candidates"]]
    new = old
    if hook.get("candidates") not in (None, before["candidates"]):
        found = sequence(hook["candidates"], f"candidates in {_NAME}")
        new = ["".join(_candidate(one)["content"]["parts"]) for one in found]
    if new == old and hook.get("text") not in (None, before.get("text")):
        if not isinstance(hook["text"], str):
            raise TranslationError(f"the text in {_NAME} is {shown(hook['text'])}, not a text")
        new = [hook["text"], *old[1:]]
    if new == old:
        return None
    return [None if at < len(old) and text == old[at] else text for at, text in enumerate(new)]


def _pairs(found: Any, wanted: list[str | None]) -> list[tuple[Any, str | None]]:
    """Each candidate that is left with its new text; {} for one that was not there."""
    return [(found[at] if at < len(found) else {}, text) for at, text in enumerate(wanted)]


def _into_choice(choice: Any, text: str | None) -> Any:
    if text is None:
        return choice
    key = "delta" if "delta" in choice else "message"
    message = choice.get(key) or {"role": "assistant"}
    return {**choice, key: {**message, "content": body_with(message.get("content"), text)}}


def _into_candidate(candidate: Any, text: str | None) -> Any:
    if text is None:
        return candidate
    content = candidate.get("content") or {"role": "model", "parts": []}
    return {
        **candidate,
        "content": {**content, "parts": body_with(content.get("parts") or [], text)},
    }


def _choice(choice: object) -> dict[str, Any]:
    fields = mapping(choice, f"a choice in {_NAME}")
    message = fields.get("message") or fields.get("delta") or {}
    body = mapping(message, f"a message in {_NAME}").get("content")
    return _one(body, fields.get("finish_reason"), fields.get("index"))


def _candidate(candidate: object) -> dict[str, Any]:
    fields = mapping(candidate, f"a candidate in {_NAME}")
    body = mapping(fields.get("content") or {}, f"the content in {_NAME}").get("parts")
    one = _one(body, fields.get("finishReason"), fields.get("index"))
    if fields.get("safetyRatings") is not None:
        one["safetyRatings"] = fields["safetyRatings"]
    return one


def _one(body: object, reason: object, index: object) -> dict[str, Any]:
    one: dict[str, Any] = {"content": {"role": "model", "parts": texts(body, _NAME)}}
    if isinstance(reason, str):
        one["finishReason"] = _REASONS.get(reason, reason if reason.isupper() else "OTHER")
    if index is not None:
        one["index"] = index
    return one


def _usage(reply: Mapping[str, Any]) -> dict[str, Any]:
    usage = reply.get("usageMetadata")
    if isinstance(usage, Mapping):
        return {name: usage[name] for name in _USAGE if usage.get(name) is not None}
    usage = reply.get("usage")
    if not isinstance(usage, Mapping):
        return {}
    found = {}
    for name, spellings in _USAGE.items():
        value = next((usage[word] for word in spellings if usage.get(word) is not None), None)
        if value is not None:
            found[name] = value
    return found
