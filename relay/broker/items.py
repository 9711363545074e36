"""What waits for the person, as the parts of the broker that keep it list it.

See relay.protocol.items.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from relay.broker.batch import AnyRequest, Batch
from relay.protocol.items import Choice, Item

#: The choices of what is allowed or refused.
YES_NO: list[Choice] = [{"key": "yes", "label": "Yes"}, {"key": "no", "label": "No"}]


@dataclass(frozen=True, slots=True)
class ItemAnswer:
    """What the person has chosen."""

    index: int
    key: str
    label: str
    note: str
    by: str  # who said so, and at which terminal

    @property
    def yes(self) -> bool:
        """Whether something is allowed: of items with the choices ``YES_NO``."""
        return self.key == "yes"


class ItemKind(Protocol):
    """One kind of items."""

    def waiting(self) -> Iterable[Item]:
        """The items that wait now."""

    def answered(
        self, items: Sequence[Item], answer: ItemAnswer, request: AnyRequest, batch: Batch
    ) -> bool:
        """Do what follows from this answer to these of its items; False where the request is
        answered later. Raises RelayError."""
