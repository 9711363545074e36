"""How long the fuzz tests go on, and where they begin.

Every day they try the same things: what they find is new code's doing. ``RELAY_FUZZ_ROUNDS=50``
makes each of them 50 times as long, and everything in them random; ``RELAY_FUZZ_SEED`` repeats a
round of which a failure has printed the seed.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

_TIMES = int(os.environ.get("RELAY_FUZZ_ROUNDS", "1"))
_SEED = int(os.environ.get("RELAY_FUZZ_SEED") or (_TIMES > 1) * int.from_bytes(os.urandom(4)))


def rounds(usual: int) -> int:
    """So many examples or rounds, where ``usual`` are enough for every day."""
    return max(1, usual * _TIMES)


def fuzz(examples: int) -> settings:
    """Settings for a test of hypothesis with so many examples every day."""
    return settings(
        max_examples=rounds(examples),
        stateful_step_count=50,
        deadline=None,
        derandomize=_TIMES == 1,
        suppress_health_check=list(HealthCheck),
    )


def seed(number: int) -> int:
    """The seed of round ``number``, printed so that a failure shows it."""
    found = _SEED + number
    print(f"RELAY_FUZZ_SEED={found}")
    return found
