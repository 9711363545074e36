"""The ops about what waits for the person. See relay.protocol.op."""

from __future__ import annotations

from relay.protocol.op import Any, NotRequired, Op, Record, Request


class Choice(Record):
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
    choices: list[Choice]
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

    id: str | list[str]  # ids, or their ends
    choice: str  # a key, a label or its beginning, yes, no
    note: NotRequired[str | None]


class Answered(Record):
    """What an item was answered."""

    item: Item
    choice: Choice
    by: str  # who answered, and at which terminal
    gone: NotRequired[bool]  # of a question: whether it went


class ItemAnswers(Record):
    """The answer of the one item; or, of a list of ids, all of them."""

    item: NotRequired[Item]
    choice: NotRequired[Choice]
    by: NotRequired[str]
    gone: NotRequired[bool]
    answers: NotRequired[list[Answered]]


ITEMS = Op("items", Request, ItemsAnswer)
ITEM_ANSWER = Op("item_answer", ItemAnswerRequest, ItemAnswers)
