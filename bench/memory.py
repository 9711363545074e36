"""What memory finds, and how soon.

    python bench/memory.py [--probes] [--locomo FILE] [--speed] [--sizes 1000 10000 100000]
                           [--samples N] [--model FOLDER] [--json]

Without a choice: the probes and the speed. ``--model`` is the folder of MiniLM's weights; without
it only what needs no model is measured. Aims: LoCoMo recall@5 over all at least 0.54 by words and
0.59 with MiniLM; hit@5 of the probes at least 0.85 with MiniLM; a search among 100 000 memories
under 100 ms. mem0 with embedded qdrant is measured in the same run where mem0ai is installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Callable

import memory_quality as quality

from relay.features.memory.embedding import load_numpy

load_numpy()  # with one thread, before the others import it

import memory_speed as speed  # noqa: E402

Figures = dict[str, dict[str, float]]


def main() -> int:
    options = _options()
    has_mem0 = importlib.util.find_spec("mem0") is not None
    if not has_mem0:
        print("mem0 is not measured: mem0ai is not installed here", file=sys.stderr)
    report: dict[str, Figures] = {}
    if options.probes or options.locomo:
        for name, make in _systems(options.model, has_mem0).items():
            if options.probes:
                report[f"probes, {name}"] = quality.measure(quality.probes(), make)
            if options.locomo:
                found = quality.measure(quality.locomo(options.locomo), make)
                report[f"LoCoMo, {name}"] = found
    if options.speed:
        for size in options.sizes:
            report[f"speed, {size} memories"] = speed.measure(
                _stores(has_mem0), size, options.samples
            )
    if options.json:
        print(json.dumps(report))
    else:
        _print(report)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--probes", action="store_true")
    parser.add_argument("--locomo", metavar="FILE")
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1000, 10_000, 100_000])
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--model", metavar="FOLDER")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not (options.probes or options.locomo or options.speed):
        options.probes = options.speed = True
    return options


def _systems(model: str | None, has_mem0: bool) -> dict[str, quality.Make]:
    systems = {"words": quality.local(None)}
    if model is None:
        print("vectors are not measured: give the weights with --model", file=sys.stderr)
        return systems
    from relay.features.memory.embedding.minilm import MiniLM

    minilm = MiniLM(model)
    systems["hybrid"] = quality.local(minilm)
    if has_mem0:
        from memory_mem0 import searching

        systems["mem0"] = searching(minilm)
    return systems


def _stores(has_mem0: bool) -> dict[str, Callable[[str], speed.Store]]:
    stores: dict[str, Callable[[str], speed.Store]] = {
        "bare SQLite": speed.Bare,
        "words": lambda folder: speed.Local(folder, vectors=False),
        "hybrid": lambda folder: speed.Local(folder, vectors=True),
    }
    if has_mem0:
        from memory_mem0 import Mem0

        stores["mem0"] = lambda folder: Mem0(folder, speed.RandomVectors())
    return stores


def _print(report: dict[str, Figures]) -> None:
    for title, rows in report.items():
        names = list(next(iter(rows.values())))
        print(f"\n{title:28}" + "".join(f"{name:>12}" for name in names))
        for row, figures in rows.items():
            print(f"{row:28}" + "".join(f"{figures[name]:12.3f}" for name in names))


if __name__ == "__main__":
    sys.exit(main())
