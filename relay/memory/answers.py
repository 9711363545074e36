"""What every backend of relay's says in the same words: bounds, and ids that name no one memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from relay.core.errors import NotFound, UsageError
from relay.core.suggest import nearest
from relay.memory.records import Memory, to_json

#: No answer has more memories than this.
LIMIT_MAX = 1000
#: So many matches of an ambiguous id are looked for, and all but one of them shown.
MATCHES_MAX = 11
#: Ids that an unknown one is compared with.
SUGGESTED_FROM = 2000


def check_limit(limit: int) -> int:
    """``limit``, at most LIMIT_MAX. Raises UsageError when it is less than 1."""
    if limit < 1:
        raise UsageError(f"a limit of {limit} asks for nothing", hint="give 1 or more")
    return min(limit, LIMIT_MAX)


def check_query(query: str) -> str:
    """``query``. Raises UsageError when it is empty."""
    if not query.strip():
        raise UsageError("there is nothing to search for", hint="give some words")
    return query


def ambiguous(id_: str, found: Sequence[Memory]) -> UsageError:
    """Several ids begin so."""
    shown = found[: MATCHES_MAX - 1]
    more = " …" if len(found) > len(shown) else ""
    return UsageError(
        f"{id_.strip()!r} begins several ids: {', '.join(one.id for one in shown)}{more}",
        hint="give more of its characters",
        code="ambiguous",
        details={"matches": [to_json(memory) for memory in shown]},
    )


def unknown(id_: str, known: Iterable[str]) -> NotFound:
    """There is no such id; ``known`` are some that are there."""
    near = nearest(id_.strip(), known)
    return NotFound(
        f"there is no memory {id_.strip()[:80]!r}",
        hint=f"did you mean {near!r}?" if near else "list the memories to see their ids",
    )
