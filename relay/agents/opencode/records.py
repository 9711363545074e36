"""What opencode's server says of sessions, messages and parts, read with care. Pure.

The forms are opencode's own (1.18): an event is ``{"type", "properties"}``; a message has an
``info`` (``id, sessionID, role, time{created,completed}, parentID, error, summary, agent, model``)
and parts (``id, messageID, sessionID, type, text, time{start,end}, synthetic``). Ids of one kind
sort by the time at which they were made.
"""

from __future__ import annotations

from typing import Any

#: Statuses with which a model refuses for longer than the next try (no credit, no right, a limit).
_REFUSING = frozenset({401, 402, 403, 429})


def table(value: Any) -> dict[str, Any]:
    """``value`` if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def word(value: Any) -> str:
    """``value`` if it is a string, else an empty one."""
    return value if isinstance(value, str) else ""


def moment(time: Any, name: str) -> float | None:
    """A time of opencode's (milliseconds since the epoch), None where it is missing."""
    value = table(time).get(name)
    return float(value) if isinstance(value, int | float) else None


def trouble(error: Any) -> tuple[str, bool]:
    """What is wrong in a message's or session's ``error``, and whether the next try is likely to
    meet it too. Empty for what the person did (Esc) and for what concerns this one answer."""
    name, data = word(table(error).get("name")), table(table(error).get("data"))
    if name in ("", "MessageAbortedError", "MessageOutputLengthError", "ContextOverflowError"):
        return "", False
    said = " ".join(word(data.get("message")).split())[:200]
    if name == "ProviderAuthError":
        return f"the model's provider refuses: {said}" if said else "the provider refuses", True
    if name != "APIError":
        return "", False
    status = data.get("statusCode")
    what = f"the API answers with an error ({status})" if status else "the API cannot be reached"
    if status == 429:
        what = "a usage limit is reached"
    if status == 400 or status == 413 or status == 422:
        return "", False  # something is wrong with this request, not with the model
    return f"{what}: {said}" if said else what, status in _REFUSING


def asked_for(request: dict[str, Any]) -> str:
    """What a permission or question waits for, as a reason."""
    permission = word(request.get("permission"))
    return f"asks to use {permission}" if permission else "asks the person a question"
