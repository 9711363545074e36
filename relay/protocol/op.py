"""Ops: what a client can ask of the broker. Each is described once, with its fields and its answer.

::

    class Inbox(Request):
        \"\"\"The messages in an inbox; nothing is marked as seen.\"\"\"

        all: NotRequired[bool]  # those that were seen, too

    class InboxAnswer(Record):
        rows: list[Row]

    INBOX = Op("inbox", Inbox, InboxAnswer)

``client.request(INBOX, all=True)`` asks, and has an ``InboxAnswer``; a type checker knows both. The
broker decodes by the same description: see relay.protocol.decoding. To a type checker a ``Record``
is a ``TypedDict``. At run time it is not: a verb of the command line does without ``typing``, which
would take as long as the start of Python itself.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, Generic, NotRequired, ParamSpec, TypeVar
    from typing import TypedDict as Record

    Fields = ParamSpec("Fields")
    Asked = TypeVar("Asked", bound=Mapping[str, object])
    Answer = TypeVar("Answer", covariant=True)

    #: ``from`` and ``await`` cannot stand in a class: these are for records that have them.
    From = Record("From", {"from": str})
    FromMaybe = Record("FromMaybe", {"from": NotRequired[str | None]})
    AwaitMaybe = Record("AwaitMaybe", {"await": NotRequired[bool]})

    class Op(str, Generic[Fields, Asked, Answer]):
        """One op: its name, the record of its fields and the one of its answer."""

        request: type[Any]
        answer: type[Any]

        def __new__(
            cls, name: str, request: Callable[Fields, Asked], answer: type[Answer]
        ) -> Op[Fields, Asked, Answer]: ...

else:
    Any = NotRequired = None  # in annotations, which nothing evaluates but the decoder

    class Record(dict):
        __total__ = True

        def __init_subclass__(cls, total=True):
            cls.__total__ = total

    class From(Record):
        __annotations__ = {"from": "str"}

    class FromMaybe(Record):
        __annotations__ = {"from": "NotRequired[str | None]"}

    class AwaitMaybe(Record):
        __annotations__ = {"await": "NotRequired[bool]"}

    class Op(str):
        def __new__(cls, name, request, answer):
            op = str.__new__(cls, name)
            op.request = request
            op.answer = answer
            return op


class Auth(Record):
    """What shows that an agent asks: the run and the token of its session."""

    run: str
    token: str


class Speaker(Record):
    """Who asks: an agent, by its ``auth``; without it, whoever the kernel says that it is."""

    auth: NotRequired[Auth | None]


class Request(Speaker):
    """What every request may have. ``deadline`` is the client's and does not travel: so many
    seconds it waits for the answer."""

    deadline: NotRequired[float]


class Done(Record):
    """Nothing but that it is done."""


def by_name(name: str) -> Op[..., Any, dict[str, Any]]:
    """The op with this name, for a feature that asks another one's and must not need it: its fields
    are checked by the broker only."""
    return Op(name, dict, dict)


#: What a module that describes ops may take from here.
__all__ = [
    "Any",
    "Auth",
    "AwaitMaybe",
    "Done",
    "From",
    "FromMaybe",
    "NotRequired",
    "Op",
    "Record",
    "Request",
    "Speaker",
]
