"""JSON text by the interpreter's own C functions: importing the ``json`` package takes 4 to 8 ms.

It compiles regular expressions for a scanner in Python that stands in where there is no C.
"""

from __future__ import annotations

from _json import encode_basestring, encode_basestring_ascii, make_encoder, make_scanner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class _Strict:
    """What the C scanner asks of a decoder: the defaults of ``json.loads``."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float


def _refuse(value: object) -> object:
    raise TypeError(f"{type(value).__name__} has no JSON form")


_scan = make_scanner(_Strict)  # type: ignore[arg-type]
_ascii = make_encoder(None, _refuse, encode_basestring_ascii, None, ":", ",", False, False, True)
_unicode = make_encoder(None, _refuse, encode_basestring, None, ":", ",", False, False, True)


def dumps(value: object, *, ascii: bool = True) -> str:
    """``value`` as one line of JSON; with ``ascii`` other characters are escaped.

    Raises TypeError for what has no JSON form.
    """
    return "".join((_ascii if ascii else _unicode)(value, 0))


def loads(text: str) -> Any:
    """The value of a JSON text. Raises ValueError."""
    text = text.strip(" \t\r\n")
    try:
        value, end = _scan(text, 0)
    except StopIteration as error:
        raise ValueError(f"no JSON value at character {error.value}") from None
    except RecursionError:
        raise ValueError("a JSON value that is nested too deep") from None
    except SystemError:  # the scanner misses json's own exception, which is not imported yet
        import json

        json.loads(text)
        raise
    if end != len(text):
        raise ValueError(f"more than one JSON value: character {end}")
    return value


def of_model(answer: str) -> Any:
    """The JSON value that a language model answers. Some think aloud first, some put the value into
    a fence; nothing else may stand beside it. Raises ValueError."""
    import re

    text = answer.strip()
    if "<think>" in text:
        text = re.sub(r"\s*<think>.*?</think>", "", text, count=1, flags=re.DOTALL).strip()
    fenced = re.fullmatch(r"```(?:json)?[ \t]*\n(.*)\n[ \t]*```", text, re.DOTALL)
    return loads(fenced[1] if fenced else text)


def size_of(value: object) -> int:
    """Bytes of ``value`` as strict JSON. Raises ValueError for what SQLite or UTF-8 cannot hold: a
    number that is not finite, a lone surrogate."""
    # With a place to note what it is in: a value that contains itself is refused.
    encode = make_encoder({}, _refuse, encode_basestring, None, ": ", ", ", False, False, False)
    return len("".join(encode(value, 0)).encode())


def named(path: str) -> str | None:
    """``path`` where it can be written as JSON, else None."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return None
    return path
