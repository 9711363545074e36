"""The texts in what is sent to a model and in what it answers, whichever service it is. Pure.

An entry is one message: Gemini's ``{role, parts}`` or ``{role, content}`` of the others, where
parts and content are a string or a list of strings and blocks. Only text is seen here; images,
calls of tools, their results and a model's thoughts are kept, but neither read nor changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

from relay.core.errors import RelayError
from relay.core.plain import shown

#: Who speaks, in the words of the hooks' form; who is not here is a tool.
_SPEAKERS = {
    "user": "user",
    "model": "model",
    "assistant": "model",
    "system": "system",
    "developer": "system",
}
Said = tuple[str, str]


class TranslationError(RelayError):
    """A model's request or response whose form is not known."""

    code = "translation"


def mapping(value: object, name: str) -> Mapping[str, Any]:
    """``value``, if it is an object. Raises TranslationError; ``name`` says what it is."""
    if not isinstance(value, Mapping):
        raise TranslationError(f"{name} is {shown(value)}, not an object")
    return value


def sequence(value: object, name: str) -> Sequence[Any]:
    """``value``, if it is a list; () for None. Raises TranslationError."""
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise TranslationError(f"{name} is {shown(value)}, not a list")
    return value


def said(entry: object, name: str) -> Said | None:
    """Who says what in ``entry``; None where there is no text of user, model or system."""
    if isinstance(entry, str):
        return ("user", entry)
    fields = mapping(entry, name)
    role = fields.get("role", "user")
    if not isinstance(role, str):
        raise TranslationError(f"the role in {name} is {shown(role)}, not a text")
    text = "".join(texts(_body(fields), name))
    speaker = _SPEAKERS.get(role)
    return (speaker, text) if speaker and text else None


def texts(body: object, name: str) -> list[str]:
    """The text parts of the body of a message, in order."""
    parts = [body] if isinstance(body, str | Mapping) else sequence(body, f"the content in {name}")
    return [text for text in map(_part_text, parts) if text is not None]


def with_text(entry: object, text: str) -> Any:
    """``entry`` with ``text`` for its own; what is no text stays where it is."""
    if not isinstance(entry, Mapping):
        return text
    key = "parts" if "parts" in entry else "content"
    return {**entry, key: body_with(_body(entry), text)}


def body_with(body: object, text: str) -> Any:
    """The body of a message with ``text`` where its first text was."""
    if isinstance(body, str) or body is None:
        return text
    new: list[Any] = []
    placed = False
    parts: Sequence[Any] = body if isinstance(body, list | tuple) else [body]
    for part in parts:
        if _part_text(part) is None:
            new.append(part)
        elif not placed:
            placed = True
            new.append(text if isinstance(part, str) else {**part, "text": text})
    return new if placed else [*new, {"text": text}]


def rewritten(entries: Sequence[Any], wanted: Sequence[Said], name: str, make: Any) -> list[Any]:
    """``entries`` so that their texts are ``wanted``. What has no text keeps its neighbours.

    ``make(speaker, text)`` gives an entry for a text that was not there.
    """
    old = [(entry, said(entry, name)) for entry in entries]
    places = [at for at, (_entry, what) in enumerate(old) if what is not None]
    seen = [what for _entry, what in old if what is not None]
    new = [entry for entry, _what in old[: places[0] if places else len(old)]]
    for kind, a, b, c, d in SequenceMatcher(None, seen, wanted, autojunk=False).get_opcodes():
        for step in range(max(b - a, d - c)):
            here, there = a + step < b, c + step < d
            entry = old[places[a + step]][0] if here else None
            if there and (kind == "equal" or (here and seen[a + step][0] == wanted[c + step][0])):
                new.append(entry if kind == "equal" else with_text(entry, wanted[c + step][1]))
            elif there:
                new.append(make(*wanted[c + step]))
            if here:
                end = places[a + step + 1] if a + step + 1 < len(places) else len(old)
                new += [entry for entry, _what in old[places[a + step] + 1 : end]]
    return new


def _body(fields: Mapping[str, Any]) -> Any:
    return fields["parts"] if "parts" in fields else fields.get("content")


def _part_text(part: object) -> str | None:
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping) and isinstance(part.get("text"), str) and not part.get("thought"):
        return str(part["text"])
    return None
