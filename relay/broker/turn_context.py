"""What a persona is told: the system prompt, the history, extracted data and the message. Pure.

Apart from the engine, so that it can be tried by itself.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relay.core.queue_modes import collected_text

#: Before what had begun already.
AGAIN = (
    "(This is sent again: the last try ended before it was answered. Look at what is done already.)"
)


@dataclass(frozen=True, slots=True)
class AskedMessage:
    """One of the messages that a turn is about."""

    id: str
    sender: str
    channel: str
    text: str
    system_prompt: str | None = None
    extracted: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Assembled:
    """``prompt`` has the history, ``resumed_prompt`` has not, ``body`` is for a wrapped agent."""

    system_prompt: str | None
    prompt: str
    resumed_prompt: str
    body: str


def assemble(
    messages: Sequence[AskedMessage],
    history: Sequence[tuple[str, str]],
    *,
    summarised: int = 0,
    attempt: int = 0,
) -> Assembled:
    """All that belongs to one turn. ``attempt``: earlier tries that may have begun."""
    text = collected_text([(one.id, one.sender, one.text) for one in messages], summarised)
    for one in messages:
        if one.extracted:
            data = json.dumps(one.extracted, indent=1, ensure_ascii=False)
            text += f"\n\n## Extracted context\n```json\n{data}\n```"
    if attempt:
        text = f"{AGAIN}\n{text}"
    said = "\n\n".join(f"{role}: {words}" for role, words in history)
    prompt = f"What was said before:\n\n{said}\n\n---\n\n{text}" if said else text
    system = messages[0].system_prompt
    return Assembled(system, prompt, text, f"{system}\n\n{text}" if system else text)
