"""What is typed into the console's prompt: whom it goes to, or which verb it is; and how it can go
on. Pure: words in, what is asked for out.

``@Bob text`` and ``#build text`` go to them, ``/VERB …`` is a verb, and anything else goes to the
agent that is chosen, or answers the item that is being answered.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from relay.cli.verbs import ALIASES
from relay.core.errors import NotFound, UsageError, did_you_mean, nearest
from relay.core.visible import visible
from relay.features.console.console_state import FINAL, ConsoleState
from relay.protocol.agent_ops import ASK
from relay.protocol.item_ops import ITEM_ANSWER, is_yes_or_no, left_out
from relay.protocol.message_ops import CANCEL, SEND
from relay.protocol.op import Op
from relay.ui.row_view import choices_of

Json = dict[str, Any]
#: The verbs of relay's command line, and what they do.
Verbs = Mapping[str, str]

#: The console's own verbs: what follows, and what they do. ``relay`` knows more, see ``RelayVerb``.
OWN = {
    "send": ("NAME TEXT", "write to an agent, a channel or a person"),
    "reply": ("TEXT", "answer the last message that came to you, in its thread"),
    "answer": ("[WHO] CHOICE", "answer a question; --all: approvals, held messages"),
    "cancel": ("ID", "withdraw a message that has not been delivered yet"),
    "interrupt": ("[NAME]", "stop what an agent is doing"),
    "screen": ("[NAME]", "look at an agent's screen, beside the traffic"),
    "find": ("WORDS", "search all messages"),
    "only": ("[NAME]", "show the traffic of one agent, or of all again"),
    "whole": ("", "show messages in full, or a line of each"),
    "agents": ("[WORDS]", "list only the agents that have these words, or all again"),
    "items": ("", "show what waits for you, one after the other"),
    "help": ("", "the keys and commands"),
    "quit": ("", "leave; agents keep running"),
}
#: Other words for them.
_MEANT = {"peek": "screen", "search": "find", "exit": "quit", "q": "quit", "?": "help"}
#: Verbs that the console had, and what to use instead.
_GONE = frozenset({"allow", "refuse", "held", "approve"})
_ANSWERS = "/items lists what waits for you; /answer NAME yes (or no) answers it"
#: Verbs whose first word is a name, an item's agent, or a message's id.
_NAMES = frozenset({"send", "interrupt", "screen", "only", "attach", "peek", "transcript"})
_NAMES |= {"release", "wait", "ask", "inbox", "sent", "spawn", "resume"}
_IDS = frozenset({"cancel", "show"})


@dataclass(frozen=True)
class BrokerRequest:
    """Something that the broker is asked for; ``done`` is said when it has answered."""

    op: Op[..., Any, Any]
    fields: Json = field(default_factory=dict)
    done: str = ""


@dataclass(frozen=True)
class OwnVerb:
    """Something that the console does itself: a verb of ``OWN``, and what follows it."""

    verb: str
    rest: str = ""


@dataclass(frozen=True)
class RelayVerb:
    """A verb of relay's command line, which gets the terminal until it has ended."""

    argv: tuple[str, ...]


Asked = BrokerRequest | OwnVerb | RelayVerb


def read(text: str, state: ConsoleState, verbs: Verbs) -> Asked | None:
    """What ``text`` asks for, None for nothing. ``verbs`` are those of relay's command line.

    Raises UsageError and NotFound, whose words are for the person.
    """
    text = text.strip()
    if not text:
        return None
    if text[0] == "/":
        verb, _, rest = text[1:].partition(" ")
        return _verb(verb, rest.strip(), state, verbs)
    if text[0] in "@#":
        to, _, body = text.partition(" ")
        to = to.removeprefix("@").removeprefix("relay:").removesuffix(":")
        return _send(to, body, "@NAME TEXT")
    if state.answering:
        return _about(_item(state.answering, state), text)
    if text == "q":
        return OwnVerb("quit")
    waiting = state.item_of(state.chosen) if state.chosen else None
    if waiting is not None and text.lower() in _keys(waiting):
        # Meant as an answer, it would arrive as a message, long after.
        raise UsageError(
            f"{state.chosen} waits for an answer",
            hint=f"^R, or /answer {state.chosen} {text}; @{state.chosen} {text} sends it",
        )
    if not state.chosen:
        raise UsageError("say to whom: @NAME TEXT, or choose an agent with the arrows")
    return _send(state.chosen, text, "TEXT")


def _send(to: str, body: str, usage: str, **fields: object) -> BrokerRequest:
    targets = [name for name in to.split(",") if name]
    if not targets or not body.strip():
        raise UsageError(f"a message needs a name and a text: {usage}")
    return BrokerRequest(
        SEND, {"to": targets[0] if len(targets) == 1 else targets, "body": body.strip(), **fields}
    )


def _verb(verb: str, rest: str, state: ConsoleState, verbs: Verbs) -> Asked:
    verb = _MEANT.get(verb) or ALIASES.get(verb, verb)
    first, _, more = rest.partition(" ")
    match verb:
        case "send":
            return _send(first, more, "/send NAME TEXT")
        case "reply":
            line = state.last_to_me()
            if line is None:
                raise NotFound("nobody has written to you yet")
            return _send(line.sender, rest, "/reply TEXT", thread=line.thread)
        case "answer":
            return _answer(rest, first, more.strip(), state)
        case "cancel" if rest:
            line = state.message(rest)
            return BrokerRequest(CANCEL, {"id": line.id if line else rest}, "withdrawn")
        case "interrupt":
            name = rest or state.chosen
            fields = {"agent": name, "kind": "interrupt", "request": {}}
            return BrokerRequest(ASK, _named(fields, name), f"{name} is interrupted")
        case "attach" if not rest and state.chosen:
            return RelayVerb(("attach", state.chosen))
        case "help" if rest and first not in OWN:
            return RelayVerb(("help", first))
        case _ if verb in OWN:
            if not rest and verb == "cancel":
                raise UsageError(f"/{verb} {OWN[verb][0]}")
            return OwnVerb(verb, rest)
        case _ if verb in verbs:
            try:
                return RelayVerb((verb, *shlex.split(rest)))
            except ValueError as error:
                raise UsageError(f"a quotation mark is not closed: {error}") from None
    if verb in _GONE:
        raise UsageError(f"there is no command /{verb} any more", hint=_ANSWERS)
    known = sorted({*OWN, *verbs})
    begun = [name for name in known if name.startswith(verb)]
    if len(begun) == 1 and begun[0] in OWN:
        return _verb(begun[0], rest, state, verbs)
    near = begun if verb else []
    near = near[:6] or [name for name in (nearest(verb, known),) if name]
    hint = f"did you mean /{' or /'.join(near)}?" if near else "Tab after / lists them"
    raise UsageError(f"there is no command /{verb}", hint=hint)


def _answer(rest: str, first: str, more: str, state: ConsoleState) -> BrokerRequest:
    named = state.item_of(first) if more else None
    if first == "--all" and more:
        ids = [id_ for id_, item in state.items.items() if is_yes_or_no(item)]
        left = visible(left_out(state.items.values()))
        if not ids:
            raise NotFound("no approval or held message waits", hint=f"{left}: ^R" if left else "")
        return BrokerRequest(ITEM_ANSWER, {"id": ids, "choice": more}, left)
    if named is not None:
        return _about(named, more)
    if not rest:
        raise UsageError("/answer [NAME|--all] CHOICE")
    if state.answering:
        return _about(_item(state.answering, state), rest)
    if len(state.items) == 1:
        return _about(next(iter(state.items.values())), rest)
    if not state.items:
        raise NotFound("nothing waits for your answer")
    who = sorted({visible(item["agent"]) for item in state.items.values()})
    raise UsageError(f"say whom you answer: /answer NAME {rest}", hint=did_you_mean(first, who))


def _about(item: Json, words: str) -> BrokerRequest:
    """The answer to an item: a choice's key, yes or no, behind which a remark may stand; or the
    words of a choice."""
    first, _, note = words.partition(" ")
    fields = {"id": item["id"], "choice": words}
    if first.lower() in _keys(item):
        fields = {"id": item["id"], "choice": first, **({"note": note.strip()} if note else {})}
    return BrokerRequest(ITEM_ANSWER, fields)


def _keys(item: Json) -> set[str]:
    return {str(one["key"]).lower() for one in item.get("choices") or ()} | {"yes", "no"}


def _item(id_: str, state: ConsoleState) -> Json:
    item = state.items.get(id_)
    if item is None:
        raise NotFound("what you answer is over by now")
    return item


def _named(fields: Json, name: str) -> Json:
    if not name:
        raise UsageError("say which agent, or choose one with the arrows")
    return fields


def completions(text: str, state: ConsoleState, verbs: Verbs) -> Iterator[tuple[str, int, str]]:
    """How ``text``, what stands before the cursor, can go on: (what replaces its end, how many
    characters that has, a remark)."""
    if text.startswith("/") and " " not in text:
        for verb, said in {**verbs, **{name: said for name, (_, said) in OWN.items()}}.items():
            if verb.startswith(text[1:]):
                yield f"/{verb} ", len(text), said
        return
    word = text.rpartition(" ")[2]
    if text.startswith(("@", "#")) and " " not in text:
        before, _, part = word.rpartition(",")
        for name, said in _targets(state):
            mark = "" if before or name.startswith("#") else "@"
            if name.lower().startswith(part.lstrip("@").lower()):
                yield f"{mark}{name}" + ("" if before else " "), len(part), said
        return
    if not text.startswith("/"):
        return
    verb, _, rest = text[1:].partition(" ")
    verb = _MEANT.get(verb, verb)
    if " " in rest:
        if verb == "answer":
            yield from _choices(state.item_of(rest.split()[0]), word)
        return
    if verb == "answer":
        for item in state.items.values():
            name = visible(item["agent"])
            if name.lower().startswith(word.lower()):
                yield f"{name} ", len(word), choices_of(item)
        yield from _choices(state.item_of(state.answering), word)
    elif verb in _IDS:
        for line in reversed(state.lines):
            mine = verb == "show" or line.sender == state.me and line.state() not in FINAL
            if line.kind == "message" and mine and line.id[-8:].startswith(word.upper()):
                yield line.id[-8:], len(word), f"{', '.join(line.to)}: {line.text[:50]}"
    elif verb in _NAMES:
        for name, said in _targets(state):
            if name.lower().startswith(word.lower()):
                yield f"{name} ", len(word), said


def _targets(state: ConsoleState) -> Iterator[tuple[str, str]]:
    for row in state.listed():
        yield row["name"], row["state"]
    for role in sorted({role for row in state.agents.values() for role in row.get("roles") or ()}):
        if role not in state.agents:
            yield visible(role), "role"
    joined = {name for row in state.agents.values() for name in row.get("channels") or ()}
    for name in sorted({*state.channels, *map(visible, joined)}):
        yield name, "channel"


def _choices(item: Json | None, word: str) -> Iterator[tuple[str, int, str]]:
    if item is None:
        return
    for one in item.get("choices") or [{"key": "yes", "label": ""}, {"key": "no", "label": ""}]:
        if str(one["key"]).startswith(word):
            yield str(one["key"]), len(word), visible(one["label"])
