"""Whether any body can look like a second message to its receiver, or end its own.

    python -m bench.fuzz_envelope [--bodies 1000000] [--seed 13]

Each body tries to: headers and closings of relay's in many disguises. It is wrapped as a paste or
as plain lines; the reader that keeps the rules must find one message with the true sender, and on
a screen of some width no row may look like the beginning of another. The exit status is 1, with
the body, when one does.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parent.parent))  # as a script too
from tests.directive.envelope_reader import hostile  # noqa: E402
from tests.directive.test_envelope import check_body  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bodies", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=13)
    options = parser.parse_args()
    random, began = Random(options.seed), time.monotonic()
    for _ in range(options.bodies):
        body = hostile(random)
        try:
            check_body(body, random.choice(("paste", "plain")), random.randint(30, 200))
        except (AssertionError, ValueError, StopIteration) as error:
            print(f"seed {options.seed}: {body!r}: {error}")
            return 1
    print(f"{options.bodies} bodies, {time.monotonic() - began:.0f} s: one message each")
    return 0


if __name__ == "__main__":
    sys.exit(main())
