"""Whether what is drawn again and again is heard once, and all of it.

    python -m bench.repaint [--count 100000] [--first 0] [--show NUMBER] [--json]

Random conversations (tests/screen/repaints.py) are drawn in random ways: at the end only, up and
erase, full clears, the alternate screen, a scroll region; in any pieces, resized, and gone on with
from checkpoints. For each way is printed how many conversations there were, in how many anything
was heard wrongly, and the messages that were missed, doubled, altered, heard though nobody said
them, or in another order; behind them the numbers of the first such conversations. ``--show``
prints one of them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # as a script too
from tests.screen.repaints import Event, listen  # noqa: E402

KINDS = ("missed", "doubled", "altered", "invented", "disordered")
SAMPLES = 5


def show(number: int) -> None:
    """Print what is written and what is heard."""
    outcome = listen(
        number,
        lambda one: print(f"{one.at:.3f} {one.data!r}" if isinstance(one, Event) else f"    {one}"),
    )
    print(outcome.name, outcome.wrong or "is heard as it was said", sep="\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--show", type=int)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.show is not None:
        show(options.show)
        return 0
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    samples: dict[str, list[int]] = defaultdict(list)
    messages = 0
    for number in range(options.first, options.first + options.count):
        outcome = listen(number)
        messages += len(outcome.said)
        name = outcome.name.split()
        way = " ".join([name[0], *(word for word in ("resized", "restored") if word in name)])
        counts[way]["all"] += 1
        counts[way]["wrong"] += bool(outcome.wrong)
        for kind, found in outcome.wrong.items():
            counts[way][kind] += len(found)
        if outcome.wrong and len(samples[way]) < SAMPLES:
            samples[way].append(number)
        if not options.json and (number + 1) % 5000 == 0:
            wrong = sum(count["wrong"] for count in counts.values())
            print(f"{number + 1 - options.first}: {wrong} wrong", file=sys.stderr, flush=True)
    if options.json:
        print(json.dumps({"messages": messages, "ways": counts, "samples": samples}))
    else:
        print(f"{'':28} {'all':>7} {'wrong':>6} " + " ".join(f"{kind:>10}" for kind in KINDS))
        for way in sorted(counts):
            count = counts[way]
            each = " ".join(f"{count[kind]:10}" for kind in KINDS)
            print(f"{way:28} {count['all']:7} {count['wrong']:6} {each}  {samples[way] or ''}")
        print(f"{messages} messages")
    return int(any(count["wrong"] for count in counts.values()))


if __name__ == "__main__":
    sys.exit(main())
