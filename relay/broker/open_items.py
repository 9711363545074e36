"""What waits for the person: one list of items, and one way to answer each of them.

Each kind of item is kept by the part that knows it: see relay.broker.door. An answer is stored
before anything follows from it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from relay.broker.batch import Accepted, AnyRequest, Batch, ClientRequest, Served, serve
from relay.broker.door import YES_NO, ItemAnswer, ItemKind
from relay.broker.kernel import Kernel
from relay.broker.ops_hooks import SessionRequests
from relay.broker.ops_query import fitting
from relay.core.errors import NotFound, UsageError, nearest
from relay.core.ids import new_ulid
from relay.protocol.agent_ops import ShownQuestion
from relay.protocol.broker import Json
from relay.protocol.item_ops import (
    ITEM_ANSWER,
    ITEMS,
    Item,
    ItemAnswered,
    ItemAnswerRequest,
    ItemAnswers,
    ItemsAnswer,
    is_yes_or_no,
)

#: The kind of the event that stores what the person has answered.
ANSWER = "answer"
#: Choices of one question, characters of what it asks, and of one choice.
CHOICES_MAX, WHAT_MAX, LABEL_MAX = 30, 16_100, 400
#: Seconds that an agent's session may take to type an answer.
TYPING = 40.0
_MEANS = {
    "yes": ("yes", "allow", "approve", "accept", "ok", "trust", "proceed", "continue"),
    "no": ("no", "reject", "deny", "decline", "refuse", "cancel", "don't", "stop"),
}
_MEANS |= {"y": _MEANS["yes"], "n": _MEANS["no"]}


class ItemOps:
    """The ops ``items`` and ``item_answer``."""

    def __init__(self, kernel: Kernel, kinds: Mapping[str, ItemKind]) -> None:
        """``kinds``: the kernel's, beside those of features."""
        self._directory = kernel.directory
        self._windows = kernel.windows
        self._features = kernel.features
        self._kinds = {**kernel.features.item_kinds(), **kinds}

    def ops(self) -> list[Served]:
        return [serve(ITEMS, self.items), serve(ITEM_ANSWER, self.answer)]

    def items(self, request: AnyRequest, batch: Batch) -> ItemsAnswer:
        """What waits for the person, the oldest first."""
        self._directory.check_person(request, "see what waits for them")
        rows, more = fitting(self._waiting())
        return {"rows": rows, "more": more}

    def answer(self, request: ClientRequest[ItemAnswerRequest], batch: Batch) -> ItemAnswers | None:
        """The person answers all items that are named, or none."""
        who = self._directory.check_person(request, "answer what an agent asks")
        fields = request.fields
        if self._directory.is_broker(request.client):
            who = fields.get("by", who)
        note, given = fields.get("note") or "", fields["id"]
        waiting = self._waiting()
        items = []
        for part in given if isinstance(given, list) else [given]:
            item = _meant(part, waiting)
            if item is None:
                what = f"{part[:100]} is not asking you anything"
                hint = "relay items lists what waits"
                if self._directory.get(part) is None:
                    what = f"there is no agent or waiting item {part[:100]}"
                    near = nearest(part, [one["agent"] for one in waiting])
                    hint = f"did you mean {near}?" if near else hint
                raise NotFound(what, hint=hint)
            items.append(item)
        items = list({item["id"]: item for item in items}.values())
        if not items or len(items) > 1 and not all(map(is_yes_or_no, items)):
            raise UsageError(
                "several items can be answered only where each asks for yes or no",
                hint="answer a question of an agent by itself: relay items",
            )
        index = choice_of(items[0], fields["choice"])
        if len(items) > 1 and index >= len(YES_NO):
            raise UsageError(
                f"several items can only be answered with yes or no, not {fields['choice']!r}"
            )
        choice = items[0]["choices"][index]
        answers: dict[str, ItemAnswer] = {}  # by the kind of items: each has its own words
        by_kind: dict[str, list[Item]] = {}
        for item in items:
            by_kind.setdefault(item["kind"], []).append(item)
            label = item["choices"][index]["label"]
            answer = ItemAnswer(index, choice["key"], label, note, who)
            answers[item["kind"]] = answer
            event = answer_event(item, answer, self._directory.owner, batch.now_ms)
            self._windows.collect(event, batch)
        for kind, some in by_kind.items():
            if not self._kinds[kind].answered(some, answers[kind], request, batch):
                return None
        told = [_told(item, answers[item["kind"]]) for item in items]
        if isinstance(given, list):
            return {"answers": told}
        return {"item": items[0], "choice": choice, "by": who}

    def _waiting(self) -> list[Item]:
        every: list[Item] = []
        for name, kind in self._kinds.items():
            with self._features.contained():
                every += [{**item, "kind": name} for item in kind.waiting()]
        return sorted(every, key=lambda item: int(item["since_ms"]))


class ScreenQuestions:
    """The questions that stand on agents' screens, as their sessions say. An answer is typed by the
    session, if the very same question still stands there."""

    def __init__(self, kernel: Kernel, sessions: SessionRequests) -> None:
        self._directory = kernel.directory
        self._windows = kernel.windows
        self._watchers = kernel.watchers
        self._committer = kernel.committer
        self._sessions = sessions
        self._asked: dict[str, Item] = {}  # the question of an agent, by its lower-case name
        self._typing: dict[str, ItemAnswer] = {}  # answers on their way, by item

    def waiting(self) -> list[Item]:
        """The questions that stand now."""
        return list(self._asked.values())

    def asks(self, agent: str, question: ShownQuestion | None) -> None:
        """The agent asks this on its screen, as its session says; None: nothing, or no more."""
        key = agent.lower()
        item = None if question is None else _question(agent, question)
        before = self._asked.get(key)
        if before is not None and (item is None or item["id"] != before["id"]):
            del self._asked[key]
            answer = self._typing.pop(before["id"], None)
            said, by = (answer.label, answer.by) if answer else (None, "")
            self._watchers.item(before, open_=False, answer=said, by=by)
        others = (one["id"] for one in self._asked.values() if one["agent"] != agent)
        if item is not None and item != before and item["id"] not in others:
            self._asked[key] = item
            self._watchers.item(item, open_=True)

    def answered(
        self, items: Sequence[Item], answer: ItemAnswer, request: AnyRequest, batch: Batch
    ) -> bool:
        """Ask the agent's session to type it."""
        [item] = items

        def ended(response: Json | None, why: str) -> ItemAnswered:
            if response is None:
                self._typing.pop(item["id"], None)
                self._committer.submit_job(
                    lambda later: self._windows.collect(
                        answer_event(item, answer, self._directory.owner, later.now_ms, failed=why),
                        later,
                    )
                )
            gone = bool((response or {}).get("gone"))
            standing = self._asked.get(item["agent"].lower())
            if gone and standing is not None and standing["id"] == item["id"]:
                self.asks(item["agent"], None)
            return {**_told(item, answer), "gone": gone}

        asked = {"id": item["id"], "choice": answer.index}
        self._typing[item["id"]] = answer
        self._sessions.forward(request, batch, item["agent"], "choose", asked, TYPING, ended)
        return False


def choice_of(item: Item, words: str) -> int:
    """Which of its choices ``words`` mean: a key, a label or its beginning, yes or no.

    Raises UsageError with the choices.
    """
    said = words.strip().casefold()
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
    raise UsageError(f"{words[:100]!r} is not one of its choices", hint=shown)


def answer_event(
    item: Item, answer: ItemAnswer, owner: str, now_ms: int, *, failed: str = ""
) -> Accepted:
    """The event that stores an answer; ``failed``: why it was not taken after all."""
    what = "\n".join([item["what"], *item["about"]])[:WHAT_MAX]
    meta = {"item": item["id"], "agent": item["agent"], "kind": item["kind"], "by": answer.by}
    meta |= {"what": what, "note": answer.note, "failed": failed}
    return Accepted(
        request=None,
        id=new_ulid(now_ms),
        given=False,
        kind=ANSWER,
        sender=owner,
        origin="person",
        body=answer.label,
        meta=json.dumps({"meta": {key: one for key, one in meta.items() if one}}),
    )


def _told(item: Item, answer: ItemAnswer) -> ItemAnswered:
    return {"item": item, "choice": item["choices"][answer.index], "by": answer.by}


def _meant(part: str, items: list[Item]) -> Item | None:
    """The item with this id, with this end of one, or the only one of this agent. Raises
    UsageError where several could be meant."""
    upper, shown = part.upper(), part[:100]
    ends = [one for one in items if one["id"].upper().endswith(upper)] if len(upper) >= 4 else []
    exact = [one for one in ends if one["id"].upper() == upper]
    theirs = [one for one in items if one["agent"].upper() == upper]
    if not exact and theirs and any(one not in theirs for one in ends):
        # An agent that has such a name must not get the yes that another's item was to get.
        raise UsageError(
            f"{shown} could be an agent or the end of an item's id", hint="give more of the id"
        )
    found = exact or theirs or ends
    if len(found) > 1:
        ids = ", ".join(one["id"][-8:] for one in found[:10])
        raise UsageError(f"{len(found)} items match {shown}: {ids}", hint="relay items")
    return found[0] if found else None


def _question(agent: str, question: ShownQuestion) -> Item:
    return {
        "id": question["id"][:32],
        "agent": agent,
        "kind": "question",
        "what": question["what"][:WHAT_MAX],
        "about": [],
        "details": {},
        "choices": [
            {"key": choice["key"][:20], "label": choice["label"][:LABEL_MAX]}
            for choice in question["choices"][:CHOICES_MAX]
        ],
        "chosen": question["chosen"],
        "since_ms": question["since_ms"],
        "until_ms": None,
    }
