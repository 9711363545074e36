"""How fast output flows: bare, under script(1) and under ``relay wrap``, and what it costs.

    python bench/terminal.py [--megabytes N] [--rounds N] [--corpus NAME] [--json]

The benchmark plays a terminal that reads as fast as it can. Warm: ``cat`` starts when a key is
pressed, the session and the broker being up and at rest; the clock starts with the key. Cold: the
program writes from its first moment, while the session is starting; the clock starts with the
first byte. Rounds are interleaved. The aim: warm at least 1.0 x script(1).

Also shown: CPU seconds per 100 MB of each process, the session's backlog included, and the memory
of pump and session after a quarter of N megabytes and after all of them: the aim is that the peak
does not grow.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from harness import (
    KINDS,
    Run,
    Terminal,
    command,
    cpu,
    deadline,
    home,
    memory,
    processes,
    wait_alone,
    wait_quiet,
    wait_ready,
)
from screen import corpora

GOAL = 1.0
#: A peak that is this many times larger after four times as much has grown.
GROWTH = 1.1
HEADLINE = ("plain", "coloured", "tui")
PARTS = 4
#: Shows the file as often as the key says.
CHILD = r"""
import os, sys, tty
tty.setraw(0)
cat, path, first = sys.argv[1:]

def show(times):
    os.waitpid(os.posix_spawn(cat, [cat] + [path] * times, os.environ), 0)

show(int(first)) if first != "0" else os.write(1, b"ready\r\n")
while key := os.read(0, 1):
    show(int(key))
"""

Figures = dict[str, float]


class Corpus:
    """A file of a quarter of the flood."""

    def __init__(self, name: str, megabytes: int, folder: Path) -> None:
        self.name = name
        piece = corpora(1_000_000)[name]
        path = folder / name
        path.write_bytes(piece * max(1, megabytes * 1_000_000 // PARTS // len(piece)))
        self.path = str(path)
        self.size = path.stat().st_size

    def child(self, first: int) -> list[str]:
        cat = shutil.which("cat")
        if cat is None:
            raise SystemExit("cat(1) is needed")
        return [sys.executable, "-S", "-E", "-c", CHILD, cat, self.path, str(first)]


def flow(terminal: Terminal, size: int) -> float:
    """The moment when the first byte came; returns when ``size`` bytes have come."""
    with deadline(30 + size / 1e6, f"{size} bytes did not come"):
        seen = len(terminal.read())
        first = time.perf_counter()
        while seen < size:
            data = os.read(terminal.master, 65536)
            seen += len(data)
    if seen != size:
        raise SystemExit(f"{seen} bytes arrived, {size} were written")
    return first


def press(terminal: Terminal, corpus: Corpus, times: int) -> float:
    """MB/s from the key to the last byte."""
    began = time.perf_counter()
    terminal.write(b"%d" % times)
    flow(terminal, corpus.size * times)
    return corpus.size * times / 1e6 / (time.perf_counter() - began)


@contextlib.contextmanager
def programs(env: dict[str, str], corpus: Corpus) -> Iterator[tuple[dict[str, Terminal], Run]]:
    """The program in all three ways, waiting for a key; and the wrapped run, which is at rest."""
    name = f"bench-{time.monotonic_ns()}"
    found: dict[str, Terminal] = {}
    try:
        with deadline(60, "the programs did not start"):
            for kind in KINDS:
                found[kind] = Terminal(command(kind, corpus.child(0), ["--name", name]), env)
                found[kind].read_until(b"ready\r\n")
        run = wait_ready(found["wrap"], name, env)
        yield found, run
        if processes(run.pump) != run:
            raise SystemExit("the session was given up or started anew: see its log")
    finally:
        for terminal in found.values():
            terminal.close()


def warm(env: dict[str, str], corpus: Corpus, rounds: int) -> Figures:
    """MB/s of each kind, CPU seconds per 100 MB of each process, memory of pump and session."""
    rates: dict[str, list[float]] = {kind: [] for kind in KINDS}
    used: dict[str, float] = {}
    figures: Figures = {}
    with programs(env, corpus) as (terminals, run):
        figures.update(grow(terminals["wrap"], run, corpus))
        for _ in range(rounds):
            for kind, terminal in terminals.items():
                watched = run.parts() if kind == "wrap" else {kind: terminal.pid}
                before = {part: cpu(pid) for part, pid in watched.items()}
                reading = time.process_time()
                rates[kind].append(press(terminal, corpus, PARTS))
                before[f"{kind}_reader"] = reading - time.process_time()
                wait_quiet(list(watched.values()))
                for part, was in before.items():
                    spent = cpu(watched[part]) - was if part in watched else -was
                    used[part] = used.get(part, 0.0) + spent
    for kind, taken in rates.items():
        figures[kind] = statistics.median(taken)
    for part, spent in used.items():
        figures[f"cpu_{part}"] = spent / rounds / (PARTS * corpus.size) * 100e6
    return figures


def grow(terminal: Terminal, run: Run, corpus: Corpus) -> Figures:
    """Memory of pump and session after one part and after PARTS of them."""
    figures: Figures = {}
    watched = {"pump": run.pump, "session": run.session}
    for when, times in (("quarter", 1), ("all", PARTS - 1)):
        press(terminal, corpus, times)
        wait_quiet(list(watched.values()))
        for part, pid in watched.items():
            now = memory(pid)
            figures[f"{part}_peak_{when}"] = now["peak"]
            figures[f"{part}_pss_{when}"] = now["pss"]
    for part in watched:
        figures[f"{part}_growth"] = figures[f"{part}_peak_all"] / figures[f"{part}_peak_quarter"]
    return figures


def cold(env: dict[str, str], corpus: Corpus, rounds: int) -> Figures:
    """MB/s of each kind from the first byte on."""
    rates: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(rounds):
        for kind in KINDS:
            terminal = Terminal(command(kind, corpus.child(PARTS)), env)
            try:
                began = flow(terminal, PARTS * corpus.size)
                took = time.perf_counter() - began
                rates[kind].append(PARTS * corpus.size / 1e6 / took)
            finally:
                terminal.close()
            wait_alone(env)
    return {f"cold_{kind}": statistics.median(taken) for kind, taken in rates.items()}


def measure(megabytes: int, rounds: int, names: list[str]) -> dict[str, Figures]:
    """Corpus to its figures."""
    result = {}
    with home() as (folder, env):
        for name in names:
            corpus = Corpus(name, megabytes, folder)
            figures = {**warm(env, corpus, rounds), **cold(env, corpus, rounds)}
            figures["of_script"] = figures["wrap"] / figures["script"]
            figures["of_direct"] = figures["wrap"] / figures["direct"]
            figures["cold_of_script"] = figures["cold_wrap"] / figures["cold_script"]
            result[name] = {key: round(value, 3) for key, value in figures.items()}
            os.unlink(corpus.path)
    return result


def show(result: dict[str, Figures]) -> None:
    for prefix, title in (("", "MB/s, warm"), ("cold_", "MB/s, cold")):
        print(f"{title:14}", *(f"{kind:>8}" for kind in KINDS), f"{'of script':>10}")
        for name, row in result.items():
            rates = (f"{row[prefix + kind]:8.1f}" for kind in KINDS)
            print(f"{name:14}", *rates, f"{row[prefix + 'of_script']:10.2f}")
    parts = ("script", "script_reader", "pump", "monitor", "session", "wrap_reader")
    print(f"{'CPU s / 100 MB':14}", *(f"{part:>13}" for part in parts))
    for name, row in result.items():
        print(f"{name:14}", *(f"{row['cpu_' + part]:13.2f}" for part in parts))
    columns = ("peak_quarter", "peak_all", "pss_quarter", "pss_all", "growth")
    print(f"{'memory, MB':22}", *(f"{column:>12}" for column in columns))
    for name, row in result.items():
        for part in ("pump", "session"):
            cells = (f"{row[f'{part}_{column}']:12.2f}" for column in columns)
            print(f"{name + ', ' + part:22}", *cells)
    print(f"goal: warm at least {GOAL} of script, a peak that does not grow ({GROWTH})")


def met(result: dict[str, Figures]) -> bool:
    return all(
        row["of_script"] >= GOAL and max(row["pump_growth"], row["session_growth"]) <= GROWTH
        for row in result.values()
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--megabytes", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--corpus", choices=list(corpora(1)), action="append")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result = measure(options.megabytes, options.rounds, options.corpus or list(HEADLINE))
    if options.json:
        print(json.dumps(result))
    else:
        show(result)
    return 0 if met(result) else 1


if __name__ == "__main__":
    sys.exit(main())
