"""A model's request and response in the form that hooks get, and back. Pure.

The hooks' form is the stable one of Gemini CLI: a request is ``{model, messages: [{role, content}],
config, toolConfig}`` with the roles user, model and system and content as text; a response is
``{text, candidates: [{content: {role, parts: [text]}, finishReason, index}], usageMetadata}``.
On the other side stand the forms of Gemini (contents, candidates), of OpenAI (messages or input,
choices) and of Anthropic (messages, content). What is in that form already stays as it is.

Unlike Gemini CLI's own translation, nothing that hooks do not see is lost on the way back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relay.hooks.replies import reply_from_hook, reply_to_hook
from relay.hooks.requests import request_from_hook, request_to_hook
from relay.hooks.utterances import TranslationError, mapping

__all__ = ["TranslationError", "from_hook", "to_hook"]

_REQUEST = "llm_request"
_RESPONSE = "llm_response"


def to_hook(payload: Mapping[str, Any]) -> dict[str, Any]:
    """``payload`` with its llm_request and llm_response in the hooks' form; a new dict.

    Raises TranslationError for a form that is not known.
    """
    new = dict(mapping(payload, "the input"))
    if _REQUEST in new:
        new[_REQUEST] = request_to_hook(mapping(new[_REQUEST], _REQUEST))
    if _RESPONSE in new:
        new[_RESPONSE] = reply_to_hook(mapping(new[_RESPONSE], _RESPONSE))
    return new


def from_hook(payload: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """``payload``, in the hooks' form, in that of ``base``, which hooks were given: a new dict.

    llm_request and llm_response may have only the keys that are replaced; what they do not say is
    taken from ``base``. Where nothing was changed the result equals ``base``. Raises
    TranslationError.
    """
    new = dict(mapping(payload, "the output"))
    before = mapping(base, "the input")
    if _REQUEST in new:
        old = mapping(before.get(_REQUEST, {}), _REQUEST)
        new[_REQUEST] = request_from_hook(mapping(new[_REQUEST], _REQUEST), old)
    if _RESPONSE in new:
        old = mapping(before.get(_RESPONSE, {}), _RESPONSE)
        new[_RESPONSE] = reply_from_hook(mapping(new[_RESPONSE], _RESPONSE), old)
    return new
