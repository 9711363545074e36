"""An answer to an agent's hook whose giver must know whether it went out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


class Reply(dict[str, Any]):
    """What to answer; ``sent`` is called once, with whether all of it has gone out.

    After ``sent(False)`` the client cannot have got the whole of it, and never will.
    """

    def __init__(self, answer: Mapping[str, Any], sent: Callable[[bool], None]) -> None:
        super().__init__(answer)
        self.sent = sent
