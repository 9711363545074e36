"""What agents cost: the tokens that the broker knows, with the prices of the person's file.

Apart from the verb ``cost``, because the charts of the web page ask here too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from relay.broker.client import connect
from relay.core.paths import Home
from relay.features.cost.prices import Prices, user_prices
from relay.features.cost.usage_rows import COUNTS

Json = dict[str, Any]

#: What rows can be added up by; the fields that say of what a row is.
BY = ("agent", "day", "task", "model")


def figures(home: Home, since_ms: int = 0) -> list[Json]:
    """Rows of agent, day, task (a message's id), about (its beginning), model, input, output,
    cached, written, money (None: the model has no price) and currency, the newest day first.

    Raises RelayError.
    """
    return priced(asked(home, since_ms)["rows"], user_prices())


def asked(home: Home, since_ms: int) -> Json:
    """What the broker answers: rows, more, caps. Raises RelayError."""
    with connect(home) as client:
        return client.request("usage", since_ms=since_ms)


def priced(rows: Iterable[Json], prices: Prices) -> list[Json]:
    """Rows of tokens with what they cost."""
    made = []
    for row in rows:
        money = prices.dollars(row["model"], [row[name] for name in COUNTS])
        made.append({**row, "money": money, "currency": "USD"})
    return made


def added_up(rows: Iterable[Json], by: str) -> list[Json]:
    """Rows added up by one of BY, in their order: what it is, the counts, ``money``, and
    ``unpriced`` (models that have no price, whose tokens cost nothing here)."""
    sums: dict[str, Json] = {}
    for row in rows:
        key = row[by] or (row["about"] or "")
        key = key.lower() if by == "agent" else key
        first: Json = {by: row[by], "about": row["about"]} if by == "task" else {by: row[by]}
        zero = {**first, **dict.fromkeys(COUNTS, 0), "money": 0.0, "unpriced": []}
        total = sums.setdefault(key, zero)
        for name in COUNTS:
            total[name] += row[name]
        if row["money"] is None:
            if row["model"] not in total["unpriced"]:
                total["unpriced"].append(row["model"])
        else:
            total["money"] += row["money"]
    return list(sums.values())
