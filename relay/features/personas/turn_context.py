"""What a persona is told: the system prompt, the history, extracted data and the message. Pure.

The message comes last: whatever it says, it cannot pass for a part that stands before it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from relay.core.errors import RelayError
from relay.core.message import BODY_MAX
from relay.core.queue_modes import collected_text, marked

#: Characters of what was said before, and of a message there that is cut: 8000 and 1000 tokens.
HISTORY_MAX, CUT_MAX = 32_000, 4000
#: Characters of the line for what is left out.
LINE_MAX = 200
#: Before what had begun already.
AGAIN = (
    "(This is sent again: the last try ended before it was answered. Look at what is done already.)"
)
_BEFORE = "What was said in this conversation before:"


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
    """``prompt`` has the history, ``resumed_prompt`` has not; ``body`` is for a wrapped agent: all
    but the history, which it has itself."""

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
    """All that belongs to one turn. ``history`` is (role, text), the newest last; the first
    ``summarised`` messages are not given in full; ``attempt``: earlier tries that may have begun.

    Of what is larger than a message may be, more of the oldest are shortened. Raises RelayError
    where that is not enough.
    """
    before = bounded_history(history)
    while True:
        made = _assemble(messages, before, summarised, attempt)
        if (size := len(made.body.encode(errors="surrogatepass"))) <= BODY_MAX:
            return made
        if summarised == len(messages):
            raise RelayError(
                f"what it is told beside the message is too long: {size} bytes, and a message has"
                f" at most {BODY_MAX}"
            )
        summarised += (len(messages) - summarised + 1) // 2


def _assemble(
    messages: Sequence[AskedMessage], before: str, summarised: int, attempt: int
) -> Assembled:
    text = collected_text([(one.id, one.sender, one.text) for one in messages], summarised)
    sections = [AGAIN] if attempt else []
    for one in messages[summarised:]:
        if one.extracted:
            data = json.dumps(one.extracted, ensure_ascii=False)
            sections.append(f"## Extracted context\n\n```json\n{data}\n```")
    asked = "\n\n".join([*sections, "## Message", text] if sections else [text])
    prompt = f"## {_BEFORE}\n\n{before}\n\n## Now\n\n{asked}" if before else asked
    prompts = dict.fromkeys(one.system_prompt for one in messages if one.system_prompt)
    system = "\n\n".join(prompts) or None
    return Assembled(system, prompt, asked, f"{system}\n\n{asked}" if system else asked)


def bounded_history(history: Sequence[tuple[str, str]], room: int = HISTORY_MAX) -> str:
    """The newest turns of ``history`` that fit, whole ones, and a line for what is left out. Each
    line of a text is marked, so that none can look like the next turn."""
    turns: list[list[tuple[str, str]]] = []
    for role, text in history:
        if role == "user" or not turns:
            turns.append([])
        turns[-1].append((role, text))
    kept: list[str] = []
    for turn in reversed(turns):
        words = _words(turn)
        if len(words) > room and not kept:
            words = _words([(role, _cut(text)) for role, text in turn])
        if len(words) > room:
            break
        room -= len(words)
        kept.append(words)
    left = len(turns) - len(kept)
    if left:
        first = " ".join(turns[0][0][1].split())
        shown = first if len(first) <= LINE_MAX else f"{first[:LINE_MAX]}…"
        count = "1 earlier turn is" if left == 1 else f"{left} earlier turns are"
        kept.append(f"({count} left out; the conversation began with: {shown})")
    return "\n\n".join(reversed(kept))


def _words(turn: Sequence[tuple[str, str]]) -> str:
    return "\n\n".join(f"{role}:\n{marked(text)}" for role, text in turn)


def _cut(text: str) -> str:
    half = CUT_MAX // 2
    return text if len(text) <= CUT_MAX else f"{text[:half]} […] {text[-half:]}"
