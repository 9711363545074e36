"""Wraps programs that ask at the worst moment, and counts what reached a question or was not seen.

``python -m bench.questions [--runs 1000] [--seed 0] [--at-once 8]``: each run is one program of
``tests/e2e/hostile.py`` that is sent one message. Nothing may reach a question, and a message that
is ``seen`` must have been submitted. The third number, how many were not submitted at all, is no
fault by itself: some programs drop what they are sent.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.e2e.asked import Outcome, run_one


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rq") as folder:
        os.environ["RELAY_HOME"] = str(Path(folder) / "home")
        seeds = range(options.seed, options.seed + options.runs)
        with ThreadPoolExecutor(options.at_once) as pool:
            outcomes = list(pool.map(lambda seed: run_one(seed, Path(folder)), seeds))
    for outcome in outcomes:
        if outcome.fault:
            print(outcome)
    print(_summary(outcomes))
    return 1 if any(outcome.fault for outcome in outcomes) else 0


def _summary(outcomes: list[Outcome]) -> str:
    def count(what: str) -> int:
        return sum(bool(getattr(outcome, what)) for outcome in outcomes)

    seen = sum(outcome.state == "seen" for outcome in outcomes)
    faults = f"{count('reached')} reached a question, {count('false')} falsely seen"
    rest = f"{count('twice')} twice; {count('submitted')} submitted, {seen} seen"
    return f"{len(outcomes)} runs: {faults}, {rest}"


if __name__ == "__main__":
    sys.exit(main())
