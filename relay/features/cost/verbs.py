"""The verb ``cost``: tokens and money by agent, day, task or model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from relay.broker.client import connect
from relay.cli import output, table
from relay.cli.parser import Parser, moment
from relay.cli.verbs import verb
from relay.core.paths import Home
from relay.features.cost.ops import USAGE, UsageAnswer, UsageRow
from relay.features.cost.prices import COUNTS, Prices, user_prices
from relay.protocol.broker import Json

#: What rows can be added up by; the fields that say of what a row is.
BY = ("agent", "day", "task", "model")


def add(verbs: Parser) -> None:
    parser = verb(
        verbs,
        "cost",
        "relay cost                     by agent, since the beginning\n"
        "  relay cost --by day --since 7d\n"
        "  relay cost --by task --agent Alice",
    )
    parser.add_argument("--by", choices=BY, default="agent", help="agent, day, task or model")
    parser.add_argument("--agent", metavar="NAME", help="of this agent alone")
    parser.add_argument(
        "--since", type=moment, default=0, metavar="TIME", help="since the day of TIME (7d, a date)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=cost_verb)


def cost_verb(options: Any) -> int:
    answer = asked(Home.from_env(), options.since)
    prices = user_prices()
    wanted = (options.agent or "").lower()
    rows = [one for one in answer["rows"] if not wanted or one["agent"].lower() == wanted]
    sums = added_up(priced(rows, prices), options.by)
    if options.json:
        output.as_json(sums)
        return 0
    if not sums:
        output.note("nothing is counted yet: relay counts what agents report from now on")
    else:
        _print(sums, options.by)
    if prices.problem:
        output.note(f"! {prices.problem}")
    unpriced = sorted({model for one in sums for model in one["unpriced"]})
    if unpriced:
        output.note(f"! no price is known for {', '.join(unpriced)}: see docs/cost.md")
    if answer["more"]:
        output.note("older ones are left out: --since narrows it down")
    for name, most in answer["caps"].items():
        output.note(f"cap: ${most:g} a day for {'all agents together' if name == 'all' else name}")
    return 0


def _print(sums: list[Json], by: str) -> None:
    total = sum(one["money"] for one in sums)
    lines = [(_name(one, by), *_counts(one), _dollars(one["money"])) for one in sums]
    if len(lines) > 1:
        numbers = {name: sum(one[name] for one in sums) for name in COUNTS}
        lines.append(("total", *_counts(numbers), _dollars(total)))
    # What it is called stands last where it may be long.
    if by == "task":
        head, lines = ("INPUT", "OUTPUT", "CACHED", "COST", "TASK"), [(*x[1:], x[0]) for x in lines]
    else:
        head = (by.upper(), "INPUT", "OUTPUT", "CACHED", "COST")
    table.table(head, lines, width=table.columns())


def _name(row: Json, by: str) -> str:
    if by != "task":
        return row[by] or "-"
    return output.summary(row["about"]) if row["about"] else "what you have typed"


def _counts(row: Json) -> tuple[str, str, str]:
    return _short(row["input"] + row["written"]), _short(row["output"]), _short(row["cached"])


def _dollars(money: float) -> str:
    return f"${money:.2f}" if money >= 0.01 or not money else f"${money:.4f}"


def _short(tokens: int) -> str:
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if tokens >= size:
            return f"{tokens / size:.1f}{unit}"
    return str(tokens)


def asked(home: Home, since_ms: int) -> UsageAnswer:
    """What the broker answers: rows, more, caps. Raises RelayError."""
    with connect(home) as client:
        return client.request(USAGE, since_ms=since_ms)


def priced(rows: Iterable[UsageRow], prices: Prices) -> list[Json]:
    made = []
    for row in rows:
        money = prices.dollars(
            row["model"], [row["input"], row["output"], row["cached"], row["written"]]
        )
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
