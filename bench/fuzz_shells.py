"""Fuzz what is typed into shells: random bodies in random states of bash, zsh, dash and fish.

``--plain`` types the bodies as they are: then this must find something.

    python -m bench.fuzz_shells --count 1000000 [--shell bash] [--seed 1] [--plain]
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time

from tests.directive.fuzzed_shells import OPTIONS, run

#: Bodies for each process of a shell.
PROCESS = 4000


def main() -> int:
    """Fuzz, and report the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--count", type=int, default=100_000, help="bodies for each shell")
    parser.add_argument("--shell", action="append", choices=list(OPTIONS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plain", action="store_true", help="type the bodies as they are")
    args = parser.parse_args()
    bad = 0
    for shell in args.shell or list(OPTIONS):
        if shutil.which(shell) is None:
            print(f"{shell}: not installed here")
            continue
        began = time.monotonic()
        for at in range(0, args.count, PROCESS):
            count = min(PROCESS, args.count - at)
            seed = f"{args.seed}/{shell}/{at}"
            if problem := run(shell, seed, count, plain=args.plain):
                bad += 1
                print(f"{shell}, seed {seed}: {problem}", flush=True)
        took = time.monotonic() - began
        print(f"{shell}: {args.count} bodies in {took:.0f} s, {bad} problems so far", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
