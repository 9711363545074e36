"""JSON text without the ``json`` package, whose import takes 3 ms before the agent runs."""

from __future__ import annotations

try:
    from _json import encode_basestring_ascii as _quote
except ImportError:  # an interpreter without the C accelerator
    from json.encoder import encode_basestring_ascii as _quote


def dumps(value: object) -> str:
    """``value`` (None, bool, int, float, str, list, tuple, dict with str keys) as ASCII JSON.

    Raises TypeError for anything else.
    """
    if value is None:
        return "null"
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, str):
        return str(_quote(value))
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return "[" + ",".join([dumps(item) for item in value]) + "]"
    if isinstance(value, dict):
        return "{" + ",".join([_quote(key) + ":" + dumps(v) for key, v in value.items()]) + "}"
    raise TypeError(f"{type(value).__name__} has no JSON form")


def named(path: str) -> str | None:
    """``path`` where it can be written as JSON, else None."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return None
    return path
