"""No message answers a question, and none is seen that was not taken, whenever a program asks.

``python -m bench.questions`` does the same with a thousand programs.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.e2e.asked import run_one

#: Numbers of programs that ask at their start, at rest, after a paste and after Enter.
SEEDS = range(8)


def test_nothing_reaches_a_question_and_seen_is_true(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(lambda seed: run_one(seed, tmp_path), SEEDS))
    assert [outcome for outcome in outcomes if outcome.fault] == []
    assert sum(outcome.state == "seen" for outcome in outcomes) >= len(SEEDS) // 2
