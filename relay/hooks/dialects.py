"""Translates events and their inputs between relay and the engines and models of others. Pure.

relay's names of events are those of Gemini CLI; Claude Code has others for the same events. What
stands in an input beyond the other engine's own fields is left there: hooks ignore further fields.
Sources: the hook references of Claude Code and Gemini CLI.

Hooks get a model's request and response in the stable form of Gemini CLI: a request is ``{model,
messages: [{role, content}], config, toolConfig}`` with the roles user, model and system and content
as text; a response is ``{text, candidates: [{content: {role, parts: [text]}, finishReason}],
usageMetadata}``. Roles and texts are read from the forms of Gemini (contents, candidates), OpenAI
(messages, choices) and Anthropic (messages, content); settings and counts are passed on where they
have the hooks' form. No wrapped agent reports its model's requests: these events are fired by
programs that use the engine themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from relay.core.errors import RelayError
from relay.core.plain import shown
from relay.hooks.events import EVENTS, HookEventName
from relay.hooks.hook_types import Dialect

_BY_CLAUDE = {spec.claude: event for event, spec in EVENTS.items() if spec.claude}

#: What each engine calls the project's folder in its hooks' environment. Gemini CLI sets Claude
#: Code's variable, too, for hooks that have moved.
PROJECT_VARIABLES: dict[Dialect, tuple[str, ...]] = {
    Dialect.RELAY: (),
    Dialect.CLAUDE: ("CLAUDE_PROJECT_DIR",),
    Dialect.GEMINI: ("GEMINI_PROJECT_DIR", "CLAUDE_PROJECT_DIR"),
}


def spelled(event: HookEventName, dialect: Dialect) -> str:
    """What ``dialect`` calls ``event``; relay's own name where it has none."""
    return (EVENTS[event].claude if dialect is Dialect.CLAUDE else "") or event.value


def event_in(name: str, dialect: Dialect) -> HookEventName | None:
    """The event that ``dialect`` calls ``name``, with its case; None where it is none of ours."""
    if dialect is Dialect.CLAUDE:
        return _BY_CLAUDE.get(name)
    if name not in list(HookEventName):
        return None
    event = HookEventName(name)
    return event if dialect is Dialect.RELAY or EVENTS[event].gemini else None


def spelled_input(
    event: HookEventName, payload: Mapping[str, Any], dialect: Dialect
) -> dict[str, Any]:
    """The input of ``event`` in the names of ``dialect``: a new dict, whose values are shared."""
    spoken = dict(payload)
    spoken["hook_event_name"] = spelled(event, dialect)
    if dialect is Dialect.RELAY:
        return spoken
    if event is HookEventName.AFTER_AGENT:
        # Theirs is true in a turn that a hook has prolonged, so that it is not prolonged for ever.
        spoken.setdefault("stop_hook_active", False)
    if dialect is Dialect.CLAUDE:
        _add_claude(event, spoken)
    return spoken


def _add_claude(event: HookEventName, spoken: dict[str, Any]) -> None:
    if event is HookEventName.AFTER_TOOL and isinstance(spoken.get("duration"), int | float):
        spoken.setdefault("duration_ms", round(spoken["duration"] * 1000))
    elif event is HookEventName.AFTER_AGENT and "prompt_response" in spoken:
        spoken.setdefault("last_assistant_message", spoken["prompt_response"])
    elif event is HookEventName.PRE_COMPRESS:
        spoken.setdefault("custom_instructions", "")


_REQUEST, _RESPONSE = "llm_request", "llm_response"
#: Where the conversation stands: Gemini; OpenAI and Anthropic.
_LISTS = ("contents", "messages")
#: Who speaks, in the words of the hooks' form; and the roles of tools, which are left out.
_SPEAKERS = {
    "user": "user",
    "model": "model",
    "assistant": "model",
    "system": "system",
    "developer": "system",
}
_TOOLS = ("tool", "function")


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
    key = next((key for key in _LISTS if key in request), None)
    if key is None:
        raise TranslationError(f"{_REQUEST} has no {' or '.join(_LISTS)}: its form is not known")
    found = request[key]
    # One that stands alone, as a string or object, is a list of one.
    entries = [found] if isinstance(found, str | Mapping) else _sequence(found, key, _REQUEST)
    spoken = [_said(entry) for entry in entries]
    hook: dict[str, Any] = {"model": model or "", "messages": [one for one in spoken if one]}
    return hook | _objects(request, "config", "toolConfig")


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


def _response(reply: Mapping[str, Any]) -> dict[str, Any]:
    if "choices" in reply:
        found = _sequence(reply["choices"], "choices", _RESPONSE)
        candidates = [_choice(_mapping(one, f"a choice in {_RESPONSE}")) for one in found]
    elif "candidates" in reply:
        found = _sequence(reply["candidates"], "candidates", _RESPONSE)
        candidates = [_candidate(_mapping(one, f"a candidate in {_RESPONSE}")) for one in found]
    elif "content" in reply:
        candidates = [_answer(reply["content"], reply.get("stop_reason"))]
    elif reply and not reply.keys() & {"text", "usageMetadata"}:
        raise TranslationError(
            f"{_RESPONSE} has no choices, candidates, content or text: its form is not known"
        )
    else:
        candidates = []
    hook: dict[str, Any] = {"candidates": candidates}
    text = "".join(candidates[0]["content"]["parts"]) if candidates else reply.get("text")
    if isinstance(text, str) and text:
        hook["text"] = text
    return hook | _objects(reply, "usageMetadata")


def _choice(choice: Mapping[str, Any]) -> dict[str, Any]:
    message = choice.get("message") or choice.get("delta") or {}
    body = _mapping(message, f"a message in {_RESPONSE}").get("content")
    return _answer(body, choice.get("finish_reason"))


def _candidate(candidate: Mapping[str, Any]) -> dict[str, Any]:
    body = _mapping(candidate.get("content") or {}, f"the content in {_RESPONSE}").get("parts")
    return _answer(body, candidate.get("finishReason"))


def _answer(body: object, reason: object) -> dict[str, Any]:
    """One candidate; why the model stopped is in the service's own word."""
    one: dict[str, Any] = {"content": {"role": "model", "parts": _texts(body, _RESPONSE)}}
    return one | ({"finishReason": reason} if isinstance(reason, str) else {})


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


def _objects(fields: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """The fields of these names that are objects, as they are."""
    return {name: fields[name] for name in names if isinstance(fields.get(name), Mapping)}


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
