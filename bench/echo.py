"""How soon a key is answered and a line is shown: bare, under script(1), under ``relay wrap``.

    python bench/echo.py [--rounds N] [--count N] [--case NAME] [--json]

The benchmark plays the terminal. ``echo``: it presses a key and reads the program's answer.
``line``: the program writes a line with the time in it, and the benchmark notes when it has read
it. The session and the broker run, and hear everything. ``busy-echo`` and ``busy-line`` are the
same while a handler of the user's spins in the session; since it spins all the time, script(1) and
the bare terminal are measured beside the same load. The three are measured in turn, a few samples
at a time. Aims, as ratios to script(1): p50 at most 1.1, p99 at most 1.5.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
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
    percentile,
    relay,
    wait_ready,
    wait_until,
)

P50_GOAL, P99_GOAL = 1.1, 1.5
CASES = ("echo", "line", "busy-echo", "busy-line")
BATCH = 25
GAP = (0.005, 0.020)  # seconds between two samples: the program sleeps when the next one comes
#: Answers each key, but at L says lines of its own, and at S what sets the handler off.
CHILD = r"""
import os, random, time, tty
tty.setraw(0)
os.write(1, b"ready\r\n")
while True:
    key = os.read(0, 1)
    if not key:
        break
    if key == b"L":
        for _ in range(25):
            time.sleep(random.uniform(0.005, 0.020))
            os.write(1, b"done at %d\r\n" % time.monotonic_ns())
    elif key == b"S":
        os.write(1, b"@spin:now please\r\n\r\n")
    else:
        os.write(1, key)
"""
SPIN = """
import time

def spin(target):
    end = time.monotonic() + 1200
    while time.monotonic() < end:
        pass

patterns = {"spin": {"handler": spin, "timeout": 1200}}
"""


def echoes(terminal: Terminal, count: int) -> list[float]:
    """Microseconds from a key to its answer, ``count`` times."""
    taken = []
    for _ in range(count):
        time.sleep(random.uniform(*GAP))
        pressed = time.perf_counter_ns()
        os.write(terminal.master, b"x")
        answer = os.read(terminal.master, 4096)
        taken.append((time.perf_counter_ns() - pressed) / 1000)
        if answer != b"x":
            raise SystemExit(f"the answer to x was {answer!r}")
    return taken


def lines(terminal: Terminal) -> list[float]:
    """Microseconds from the writing of a line to its showing, BATCH times."""
    taken: list[float] = []
    rest = b""
    os.write(terminal.master, b"L")
    while len(taken) < BATCH:
        rest += os.read(terminal.master, 4096)
        now = time.monotonic_ns()
        while b"\n" in rest:
            line, _, rest = rest.partition(b"\n")
            taken.append((now - int(line.split()[2])) / 1000)
    return taken


def batch(terminal: Terminal, case: str) -> list[float]:
    with deadline(60, f"no answer in case {case}"):
        return lines(terminal) if case.endswith("line") else echoes(terminal, BATCH)


@contextlib.contextmanager
def programs(env: dict[str, str], cwd: Path) -> Iterator[tuple[dict[str, Terminal], Run]]:
    """The program in all three ways at once, at rest in a read; and the wrapped run."""
    argv = [sys.executable, "-S", "-E", "-c", CHILD]
    open_ones: dict[str, Terminal] = {}
    name = f"bench-{time.monotonic_ns()}"
    try:
        with deadline(60, "the programs did not start"):
            for kind in KINDS:
                options = ["--name", name]
                open_ones[kind] = Terminal(command(kind, argv, options), env, str(cwd))
                open_ones[kind].read_until(b"ready\r\n")
        yield open_ones, wait_ready(open_ones["wrap"], name, env)
    finally:
        for terminal in open_ones.values():
            terminal.close()


def spin(terminal: Terminal, run: Run) -> None:
    """Set the handler off, and wait until the session really uses a core."""
    before = cpu(run.session)
    terminal.write(b"S")
    terminal.read_until(b"please\r\n\r\n")
    wait_until(lambda: cpu(run.session) - before > 0.5, "the handler to spin", 20)


def measure(rounds: int, count: int, cases: list[str]) -> dict[str, dict[str, list[float]]]:
    """Case to kind to samples in µs. ``count`` is per kind and round."""
    samples = {case: {kind: list[float]() for kind in KINDS} for case in cases}
    shares: list[float] = []
    with home() as (folder, env):
        for _ in range(rounds):
            for busy in (False, True):
                wanted = [case for case in cases if case.startswith("busy") is busy]
                if wanted:
                    cwd = project(folder, env, busy)
                    with programs(env, cwd) as (terminals, run):
                        if busy:
                            spin(terminals["wrap"], run)
                        began, used = time.monotonic(), cpu(run.session)
                        collect(terminals, wanted, count, samples)
                        share = (cpu(run.session) - used) / (time.monotonic() - began)
                        if busy:
                            shares.append(share)
    if shares:
        print(f"the session used {min(shares):.2f} of a core while busy", file=sys.stderr)
        if min(shares) < 0.4:
            raise SystemExit("the handler did not spin: the busy figures mean nothing")
    return samples


def collect(
    terminals: dict[str, Terminal],
    cases: list[str],
    count: int,
    samples: dict[str, dict[str, list[float]]],
) -> None:
    kinds = list(terminals)
    for _ in range(max(1, count // BATCH)):
        for case in cases:
            for kind in kinds:
                samples[case][kind] += batch(terminals[kind], case)
        kinds.append(kinds.pop(0))  # none always comes first


def project(folder: Path, env: dict[str, str], busy: bool) -> Path:
    """A working directory, with a trusted configuration when the session is to be busy."""
    path = folder / ("busy" if busy else "plain")
    (path / ".git").mkdir(parents=True, exist_ok=True)
    if busy:
        config = path / "relay.config.py"
        config.write_text(SPIN)
        relay(env, "trust", str(config))
    return path


def judge(samples: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, float]]:
    """Case to its figures: percentiles of each kind in µs, and the ratios to script(1)."""
    result = {}
    for case, kinds in samples.items():
        figures = {}
        for name, part in (("p50", 0.5), ("p99", 0.99)):
            for kind, taken in kinds.items():
                figures[f"{kind}_{name}"] = round(percentile(taken, part), 1)
            figures[f"{name}_of_script"] = round(
                figures[f"wrap_{name}"] / figures[f"script_{name}"], 3
            )
        result[case] = figures
    return result


def show(result: dict[str, dict[str, float]]) -> None:
    print(f"{'µs, p50 / p99':10}", *(f"{kind:>15}" for kind in KINDS), f"{'of script':>14}")
    for case, figures in result.items():
        cells = [f"{figures[f'{kind}_p50']:7.0f} {figures[f'{kind}_p99']:7.0f}" for kind in KINDS]
        ratios = f"{figures['p50_of_script']:7.2f} {figures['p99_of_script']:6.2f}"
        print(f"{case:13}", *cells, ratios)
    print(f"goal: of script at most {P50_GOAL} (p50) and {P99_GOAL} (p99)")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="with processes started anew")
    parser.add_argument("--count", type=int, default=500, help="samples per kind and round")
    parser.add_argument("--case", choices=CASES, action="append", help="only this one")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result = judge(measure(options.rounds, options.count, options.case or list(CASES)))
    if options.json:
        print(json.dumps(result))
    else:
        show(result)
    met = all(
        figures["p50_of_script"] <= P50_GOAL and figures["p99_of_script"] <= P99_GOAL
        for figures in result.values()
    )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
