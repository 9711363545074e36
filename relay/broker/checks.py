"""What a message may hold. Pure: values in, the same values or an error out."""

from __future__ import annotations

import json
import re
from typing import Any

from relay.core.errors import UsageError
from relay.core.message import BODY_MAX
from relay.protocol.broker import Json

#: What the attributes of a message may take, in bytes of JSON.
META_MAX = 64 * 1024
_SURROGATE = re.compile("[\ud800-\udfff]")
_as_text = json.JSONEncoder(ensure_ascii=False, check_circular=False).encode


def checked_body(body: Any) -> str:
    """The body of a message. Raises UsageError when it is empty, too large or no text."""
    if type(body) is not str:
        raise UsageError("a message needs a text", hint="relay send NAME TEXT")
    size = len(body)
    if size * 3 > BODY_MAX or not body.isascii():
        try:
            size = len(body.encode())
        except UnicodeEncodeError as error:
            raise _not_unicode() from error
    if size > BODY_MAX:
        raise too_large(size)
    if not body or body.isspace():
        raise UsageError("the message is empty", hint="relay send NAME TEXT")
    return body


def checked_text(value: Any, what: str) -> str:
    """A text that UTF-8 can carry. Raises UsageError, in which it is called ``what``."""
    if not isinstance(value, str):
        raise UsageError(f"{what} must be a text")
    if _SURROGATE.search(value):
        raise _not_unicode()
    return value


def check_unicode(request: Json) -> None:
    """Raises UsageError when there is half of a surrogate pair anywhere in ``request``.

    No answer could repeat it, and the database would not take it.
    """
    try:
        _as_text(request).encode()
    except UnicodeEncodeError as error:
        raise _not_unicode() from error
    except RecursionError as error:
        raise UsageError("a request whose lists and objects are nested too deep") from error


def checked_meta(fields: Json) -> str:
    """The fields as they are stored. Raises UsageError when they are too large."""
    text = json.dumps(fields)
    if len(text) > META_MAX:
        raise UsageError(f"attributes of more than {META_MAX} bytes")
    return text


def too_large(size: int) -> UsageError:
    """The error for a text of ``size`` bytes."""
    return UsageError(
        f"the text is {size} bytes long; at most {BODY_MAX} are possible",
        hint="put it in a file and send its path",
        code="too_large",
    )


def too_deep(value: Any, most: int) -> bool:
    """Whether lists and objects in ``value`` are nested more than ``most`` deep."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(most):
        if not level:
            return False
        below = (one.values() if isinstance(one, dict) else one for one in level)
        level = [part for parts in below for part in parts if isinstance(part, dict | list)]
    return bool(level)


def _not_unicode() -> UsageError:
    return UsageError("the text holds half of a surrogate pair", hint="send valid Unicode")
