"""``relay doctor``: what is here, what works with it, and what to do next. Changes nothing."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

from relay.cli.parser import Options, Parser
from relay.cli.verbs import verb

if TYPE_CHECKING:
    from relay.cli.checks import Check

_MARKS = {"ok": "✓", "warn": "!", "bad": "✗", "absent": "·"}


def add(verbs: Parser) -> None:
    """Declare the verb."""
    said = "Say what is installed, what works here and what to run next. Changes nothing."
    parser = verb(verbs, "doctor", description=said)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: Options) -> int:
    """Exit 0 unless something essential is broken."""
    from dataclasses import asdict

    from relay.cli.checks import examine
    from relay.core.paths import Home
    from relay.directive.escape import clean

    checks = examine(Home.from_env(), os.getcwd())
    bad = any(check.level == "bad" for check in checks)
    next_step = _next_step(checks)
    if args.json:
        record = {"ok": not bad, "checks": [asdict(check) for check in checks], "next": next_step}
        print(json.dumps(record, indent=2))
        return int(bad)
    marks = _marks()
    width = max(len(check.name) for check in checks)
    for check in checks:
        print(f"{marks[check.level]} {check.name:<{width}}  {clean(check.text)}")
        if check.hint:
            print(f"  {'':<{width}}  -> {clean(check.hint)}")
    print(f"\nNext: {next_step}")
    return int(bad)


def _next_step(checks: list[Check]) -> str:
    from relay.cli.checks import AGENTS

    bad = [check for check in checks if check.level == "bad"]
    if bad:
        return f"put right {bad[0].name}: {bad[0].hint or bad[0].text}"
    if any(check.name == "config" and check.level == "warn" for check in checks):
        return "relay trust --show"
    for level in ("ok", "warn"):
        for check in checks:
            if check.name in AGENTS and check.level == level:
                return f"relay wrap --name Alice -- {check.name}"
    return "relay demo"


def _marks() -> dict[str, str]:
    encoding = sys.stdout.encoding or "ascii"
    try:
        "".join(_MARKS.values()).encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return {"ok": "ok", "warn": "! ", "bad": "X ", "absent": "- "}
    return _MARKS
