"""What travels over the broker's socket: newline-delimited JSON, UTF-8, one object a line.

A client asks ``{"n": int, "op": str, ...}`` and is answered ``{"n": int, "ok": true, ...}`` or
``{"n": int, "ok": false, "error": {"code", "message", "hint", "status", "details"?}}``, where
``status`` is the exit status that the error stands for. Answers may come in another order than the
questions. The broker also sends ``{"push": str, ...}`` unasked.

Times are integers, milliseconds since the epoch (``*_ms``); durations are seconds.

The ops are described in relay.protocol.agent_ops, message_ops, item_ops and broker_ops, those of a
feature in its module ``ops``; docs/ops.md is made from that. Of messages and turns an agent is told
what is from it or to it, unless it has the right ``watch`` or, for turns, ``transcript``: see
relay.broker.agent_rights.
"""

from __future__ import annotations

from relay.core import json_text
from relay.core.errors import (
    BY_CODE,
    NotDelivered,
    NotFound,
    RelayError,
    Timeout,
    UsageError,
    error_fields,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from relay.core.message import Message
    from relay.protocol.message_ops import DeliverPush

PROTOCOL = 1

#: The longest line either side accepts: a body of ``BODY_MAX`` whose every byte is escaped fits.
LINE_MAX = 8 * 1024 * 1024
#: Deliveries that a session may have in hand.
WINDOW = 256
#: The most rows that one answer holds.
ROWS_MAX = 10_000

#: The kernel's kinds of rows that ``watch`` tells of; features add theirs. A gap is told to
#: everybody.
WATCHED = frozenset(("message", "delivery", "agent", "turn", "item", "obligation"))

#: How long a request to a session may wait for its response. Seconds.
ASK_TIMEOUT_MAX = 120.0
#: What does something beyond the ledger: a client never repeats it by itself.
ONCE = frozenset({"stop", "ask", "item_answer"})
#: What stores something new each time, but for the same ``id``: a client gives it one.
IDENTIFIED = frozenset({"send", "event", "dispatch"})

#: How a broker begins to refuse what it does not know; a newer client looks for it.
UNKNOWN_OP = "this broker knows no op"
#: The attribute of a notice that an answer will not come: the id of the message that asked for it.
OBLIGATION = "obligation"
#: The ``notice`` that the loop guard counts.
ABOUT = "about"

Json = dict[str, "Any"]

#: For errors whose code is finer than their class: the exit status is kept.
_BY_STATUS: dict[int, type[RelayError]] = {
    cls.exit_status: cls for cls in (UsageError, NotFound, NotDelivered, Timeout)
}


def encode(record: Mapping[str, object]) -> bytes:
    """One line. Raises RelayError for text that UTF-8 cannot carry (lone surrogates)."""
    try:
        return json_text.dumps(record, ascii=False).encode() + b"\n"
    except UnicodeEncodeError as error:
        raise not_unicode() from error


def not_unicode() -> UsageError:
    """The error for text that UTF-8 cannot carry."""
    return UsageError("the text holds half of a surrogate pair", hint="send valid Unicode")


def check_unicode(record: Json) -> None:
    """Raises UsageError when UTF-8 cannot carry some text in ``record``.

    No answer could repeat it, and the database would not take it.
    """
    try:
        json_text.dumps(record, ascii=False).encode()
    except UnicodeEncodeError as error:
        raise not_unicode() from error
    except RecursionError as error:
        raise UsageError("a request whose lists and objects are nested too deep") from error


def too_deep(value: Any, most: int) -> bool:
    """Whether lists and objects in ``value`` are nested more than ``most`` deep."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(most):
        if not level:
            return False
        below = (one.values() if isinstance(one, dict) else one for one in level)
        level = [part for parts in below for part in parts if isinstance(part, dict | list)]
    return bool(level)


def decode(line: bytes) -> Json:
    """One object. Raises ValueError for anything else."""
    record = json_text.loads(line.decode("utf-8", "surrogatepass"))
    if not isinstance(record, dict):
        raise ValueError("not an object")
    return record


def refusal(n: int | None, error: RelayError) -> bytes:
    """The line that refuses request ``n``. Always one: an error may name a file whose name is no
    Unicode, which is told with question marks."""
    record = {"n": n, "ok": False, "error": error_fields(error)}
    line = json_text.dumps(record, ascii=False)
    return line.encode(errors="replace") + b"\n"


def error_from(fields: Json) -> RelayError:
    """The exception that an answer's ``error`` stands for."""
    code = str(fields.get("code") or "failed")
    status = fields.get("status")
    kind = BY_CODE.get(code) or _BY_STATUS.get(status if type(status) is int else 0, RelayError)
    details = fields.get("details")
    return kind(
        str(fields.get("message") or "the broker refused the request"),
        hint=str(fields.get("hint") or ""),
        code=code,
        details=details if isinstance(details, dict) else None,
    )


def message_from(row: DeliverPush) -> Message:
    # Imported on use: a verb of the command line does without dataclasses and enums.
    from relay.core.message import Message, QueueMode

    return Message(
        id=row["id"],
        sender=row["from"],
        to=row["to"],
        body=row["body"],
        created_at=row["created_ms"],
        mode=QueueMode(row.get("mode") or QueueMode.FOLLOWUP),
        thread=row.get("thread"),
        sender_kind=row.get("from_kind") or "agent",
        attempt=row["attempt"],
        nonce=row["nonce"],
        attributes=row.get("attributes") or {},
        permissions=row.get("permissions"),
        proven=row.get("from_kind") == "person" and row.get("proven") is True,
    )
