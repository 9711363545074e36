"""The ops about what waits for the person. See relay.protocol.op."""

from __future__ import annotations

from relay.protocol.op import Any, NotRequired, Op, Record, Request

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class ItemChoice(Record):
    """One of what the person can choose from."""

    key: str
    label: str


class Item(Record):
    """One thing that waits for the person."""

    id: str
    agent: str
    kind: NotRequired[str]  # approval, question, held, or a feature's
    what: str  # the words of whoever asks
    about: list[str]  # lines of relay's own
    details: dict[str, Any]  # fields of that kind
    choices: list[ItemChoice]
    chosen: int | None  # the index of the choice in focus
    since_ms: int
    until_ms: int | None


class ItemsAnswer(Record):
    """What waits, the oldest first."""

    rows: list[Item]
    more: bool


class ItemAnswerRequest(Request):
    """The person's answer to an item, or to several that each ask for yes or no.

    It is stored, as an event ``answer``, before anything follows. What is typed at an agent is
    typed while the very same question stands there, else it is refused as ``stale``.
    """

    id: str | list[str]  # ids, their ends, or agents that ask one thing each
    choice: str  # a key, a label or its beginning, yes, no
    note: NotRequired[str | None]
    by: NotRequired[str]  # who answers from elsewhere; only the broker itself can say so


class ItemAnswered(Record):
    """What an item was answered."""

    item: Item
    choice: ItemChoice
    by: str  # who answered, and at which terminal
    gone: NotRequired[bool]  # of a question: whether it went


class ItemAnswers(Record):
    """The answer of the one item; or, of a list of ids, all of them."""

    item: NotRequired[Item]
    choice: NotRequired[ItemChoice]
    by: NotRequired[str]
    gone: NotRequired[bool]
    answers: NotRequired[list[ItemAnswered]]


ITEMS = Op("items", Request, ItemsAnswer)
ITEM_ANSWER = Op("item_answer", ItemAnswerRequest, ItemAnswers)


def waiting_words(items: Iterable[Mapping[str, Any]]) -> str:
    """``1 question waits, 9,940 messages are held``: how much waits for the person."""
    questions = messages = 0
    for item in items:
        if item.get("kind") == "held":
            messages += int((item.get("details") or {}).get("count") or 1)
        else:
            questions += 1
    said = []
    if questions:
        said.append("1 question waits" if questions == 1 else f"{questions:,} questions wait")
    if messages:
        said.append("1 message is held" if messages == 1 else f"{messages:,} messages are held")
    return ", ".join(said)


def is_yes_or_no(item: Mapping[str, Any]) -> bool:
    """Whether it asks for yes or no, so that several of its kind can be answered at once."""
    keys = [one["key"] for one in item["choices"]]
    return keys[:2] == ["yes", "no"] and keys[2:] in ([], ["always"])


def left_out(items: Iterable[Mapping[str, Any]]) -> str:
    """What an answer to everything that asks for yes or no leaves out, and why; "" for nothing.

    A dialog's choices are the agent's own words: its first yes may say more than yes.
    """
    names = [str(item["agent"]) for item in items if not is_yes_or_no(item)]
    shown = ", ".join(dict.fromkeys(names[:5])) + (" …" if len(names) > 5 else "")
    own = "it has choices of its own" if len(names) == 1 else "they have choices of their own"
    return f"left out {len(names)} ({shown}): {own}" if names else ""
