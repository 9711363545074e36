"""What waits for the person, in one shape: approvals of calls, held messages, agents' questions.

A file of its own, below those that know of such things: they say what has begun to wait and what is
over, and whoever follows (``watch``) is told. Questions and approvals are kept here, held messages
in the ledger.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from relay.broker.batch import Accepted
from relay.broker.watchers import Watchers
from relay.core.errors import UsageError
from relay.core.ids import new_ulid
from relay.ledger.schema import Row
from relay.protocol.broker import Json

#: The kind of the event that stores what the person has answered.
ANSWER = "answer"
#: Choices of one question, characters of what it asks and of one choice.
CHOICES_MAX, WHAT_MAX, LABEL_MAX = 30, 16_100, 400
_YES_NO = [{"key": "yes", "label": "Yes"}, {"key": "no", "label": "No"}]
_MEANS = {
    "yes": ("yes", "allow", "approve", "accept", "ok", "trust", "proceed", "continue"),
    "no": ("no", "reject", "deny", "decline", "refuse", "cancel", "don't", "stop"),
}
_MEANS |= {"y": _MEANS["yes"], "n": _MEANS["no"]}


class OpenItems:
    """The questions and approvals that wait now. Belongs to the broker's loop."""

    def __init__(self, watchers: Watchers) -> None:
        self._watchers = watchers
        self._open: dict[str, Json] = {}
        self._asks: dict[str, str] = {}  # by the lower-case name of an agent its question's id
        self._answers: dict[str, tuple[str, str]] = {}  # what is being typed, and by whom

    def rows(self) -> list[Json]:
        """All of them, the oldest first."""
        return sorted(self._open.values(), key=lambda one: int(one["since_ms"]))

    def open(self, item: Json) -> None:
        """This waits for the person, or is another now."""
        if self._open.get(item["id"]) != item:
            self._open[item["id"]] = item
            self._watchers.item(item, open_=True)

    def close(self, id_: str, answer: str | None = None, by: str = "") -> None:
        """This waits no more; ``answer``: what was said, and by whom."""
        if (item := self._open.pop(id_, None)) is not None:
            said = self._answers.pop(id_, (answer, by))
            self._watchers.item(item, open_=False, answer=said[0], by=said[1])

    def held(self, rows: Iterable[Row]) -> None:
        """These deliveries are held for the person."""
        for item in held_items(rows):
            self._watchers.item(item, open_=True)

    def decided(self, rows: Iterable[Row], answer: str, by: str) -> None:
        """The person has decided on these."""
        for item in held_items(rows):
            self._watchers.item(item, open_=False, answer=answer, by=by)

    def asks(self, agent: str, question: object) -> None:
        """The agent asks this on its screen, as its session says; None: nothing, or no more."""
        key, before = agent.lower(), self._asks.get(agent.lower())
        item = _question(agent, question) if isinstance(question, dict) else None
        if before is not None and (item is None or item["id"] != before):
            del self._asks[key]
            self.close(before)
        if item is not None and (item["id"] not in self._open or item["id"] == before):
            self._asks[key] = item["id"]
            self.open(item)

    def answering(self, id_: str, answer: str | None, by: str = "") -> None:
        """This answer is on its way to the agent; None: it was not taken."""
        if answer is None:
            self._answers.pop(id_, None)
        elif id_ in self._open:
            self._answers[id_] = answer, by


def approval_item(shown: Json) -> Json:
    """The item of a call that waits for its approval."""
    lines = [f"{shown['tool']}: {shown['what']}", shown["why"]]
    lines += [f"intent {shown['intent']}"] if shown["intent"] else []
    return {
        "id": shown["id"],
        "agent": shown["agent"],
        "kind": "approval",
        "what": "\n".join(filter(None, lines)),
        "choices": _YES_NO,
        "chosen": None,
        "since_ms": shown["asked_ms"],
        "until_ms": shown["until_ms"],
    }


def held_items(rows: Iterable[Row]) -> list[Json]:
    """The items of held deliveries: one for each message."""
    found: dict[str, Json] = {}
    for row in rows:
        to = [*found.get(row["id"], {"to": []})["to"], row["to"]]
        found[row["id"]] = {"row": row, "to": to}
    return [
        {
            "id": id_,
            "agent": one["row"]["from"],
            "kind": "held",
            "what": f"to {', '.join(one['to'])}: {one['row']['body']}\n({one['row']['reason']})",
            "choices": _YES_NO,
            "chosen": None,
            "since_ms": one["row"]["created_ms"],
            "until_ms": None,
        }
        for id_, one in found.items()
    ]


def choice_of(item: Json, words: object) -> int:
    """Which of its choices ``words`` mean: a key, a label or its beginning, yes or no.

    Raises UsageError with the choices.
    """
    said = words.strip().casefold() if isinstance(words, str) else ""
    keys = [str(one["key"]).casefold() for one in item["choices"]]
    labels = [str(one["label"]).casefold() for one in item["choices"]]
    if said in keys:
        return keys.index(said)
    if said in labels:
        return labels.index(said)
    if said in _MEANS:
        fits = [n for n, label in enumerate(labels) if label.startswith(_MEANS[said])]
        if fits:
            return fits[0]
    begun = [n for n, label in enumerate(labels) if said and label.startswith(said)]
    if len(begun) == 1:
        return begun[0]
    shown = "; ".join(f"{one['key']}: {one['label']}" for one in item["choices"])
    if not shown:
        raise UsageError(
            "relay does not see what can be chosen there",
            hint=f"answer it at its own terminal: relay attach {item['agent']}",
        )
    raise UsageError(f"{str(words)[:100]!r} is none of its choices", hint=shown)


def answer_event(
    item: Json, label: str, owner: str, by: str, now_ms: int, *, note: str = "", failed: str = ""
) -> Accepted:
    """The event that stores an answer; ``failed``: why it was not taken after all."""
    meta = {"item": item["id"], "agent": item["agent"], "kind": item["kind"], "by": by}
    meta |= {"what": item["what"][:WHAT_MAX], "note": note, "failed": failed}
    return Accepted(
        request=None,
        id=new_ulid(now_ms),
        given=False,
        kind=ANSWER,
        sender=owner,
        origin="person",
        body=label,
        meta=json.dumps({"meta": {key: one for key, one in meta.items() if one}}),
    )


def _question(agent: str, fields: Json) -> Json | None:
    """The item of what a session says; None for what it cannot mean."""
    id_, chosen, since = fields.get("id"), fields.get("chosen"), fields.get("since_ms")
    choices: Any = fields.get("choices")
    if not isinstance(id_, str) or not isinstance(choices, list) or type(since) is not int:
        return None
    return {
        "id": id_[:32],
        "agent": agent,
        "kind": "question",
        "what": str(fields.get("what") or "")[:WHAT_MAX],
        "choices": [
            {"key": str(one.get("key"))[:20], "label": str(one.get("label"))[:LABEL_MAX]}
            for one in choices[:CHOICES_MAX]
            if isinstance(one, dict)
        ],
        "chosen": chosen if type(chosen) is int else None,
        "since_ms": since,
        "until_ms": None,
    }
