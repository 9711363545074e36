"""How long from one agent's words to the other agent's stdin: ``python bench/latency.py``.

A wrapped program prints a message with the time in it; another wrapped program, reading lines from
its cooked terminal, notes when it read it. Both clocks are CLOCK_MONOTONIC. The reference, in the
same run, is a bare pseudo-terminal: the same two programs joined by one process that reads lines
from the one and writes them to the other.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ptyprocess import PtyProcess

_SENDER = """
import sys, time
count, blank = int(sys.argv[1]), sys.argv[2] == "blank"
prefix, gap = sys.argv[3], float(sys.argv[4])
time.sleep(2.0)
for number in range(count):
    text = f"{prefix}n={number} t={time.monotonic_ns()}\\n"
    sys.stdout.write(text + ("\\n" if blank else ""))
    sys.stdout.flush()
    time.sleep(gap)
time.sleep(1.0)
"""
_RECEIVER = """
import re, sys, time
log = open(sys.argv[1], "w", buffering=1)
for line in sys.stdin:
    now = time.monotonic_ns()
    found = re.search(r"n=(\\d+) t=(\\d+)", line)
    if found:
        log.write(f"{found[1]} {now - int(found[2])}\\n")
"""


def relay_run(count: int, blank: bool, gap: float, scratch: Path) -> list[float]:
    """Milliseconds for each message through relay."""
    home = scratch / "home"
    log = scratch / "received"
    env = {**os.environ, "RELAY_HOME": str(home), "RELAY_RATE_MAX": "0"}  # no loop
    wrap = [sys.executable, "-m", "relay", "wrap"]
    receiver = PtyProcess.spawn(
        [*wrap, "--name", "Receiver", "--", sys.executable, "-c", _RECEIVER, str(log)], env=env
    )
    sender = PtyProcess.spawn(
        [*wrap, "--name", "Sender", "--", sys.executable, "-c", _SENDER, str(count)]
        + ["blank" if blank else "line", "@relay:Receiver ", str(gap)],
        env=env,
    )
    try:
        drain([sender, receiver], until=lambda: lines(log) >= count, limit=30 + count * gap * 2)
    finally:
        for process in (sender, receiver):
            process.close(force=True)
    return read(log)


def bare_run(count: int, blank: bool, gap: float, scratch: Path) -> list[float]:
    """Milliseconds for each message through one process that copies lines between two PTYs."""
    log = scratch / "bare"
    receiver = PtyProcess.spawn([sys.executable, "-c", _RECEIVER, str(log)])
    sender = PtyProcess.spawn([sys.executable, "-c", _SENDER, str(count), "line", "", str(gap)])
    end = time.monotonic() + 30 + count * gap * 2
    try:
        while lines(log) < count and time.monotonic() < end:
            try:
                data = os.read(sender.fd, 65536)
            except OSError:
                break
            os.write(receiver.fd, data.replace(b"\r\n", b"\n"))
    finally:
        for process in (sender, receiver):
            process.close(force=True)
    return read(log)


def drain(processes: list[Any], until: Any, limit: float) -> None:
    """Read what the terminals show until the log is complete."""
    import select

    end = time.monotonic() + limit
    while not until() and time.monotonic() < end:
        readable, _, _ = select.select([p.fd for p in processes], [], [], 0.2)
        for fd in readable:
            try:
                os.read(fd, 65536)
            except OSError:
                return


def lines(log: Path) -> int:
    return log.read_text().count("\n") if log.exists() else 0


def read(log: Path) -> list[float]:
    return [int(line.split()[1]) / 1e6 for line in log.read_text().splitlines()]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-n", type=int, default=100, help="messages per case")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    results = {}
    for case in ("bare", "blank", "line"):
        with tempfile.TemporaryDirectory(prefix="relay-bench-") as folder:
            run = bare_run if case == "bare" else relay_run
            times = sorted(run(args.n, case == "blank", 0.2, Path(folder)))
        results[case] = {
            "received": len(times),
            "p50_ms": round(statistics.median(times), 2),
            "p95_ms": round(times[int(len(times) * 0.95) - 1], 2),
            "max_ms": round(times[-1], 2),
        }
    for case in ("blank", "line"):
        ratio = results[case]["p50_ms"] / results["bare"]["p50_ms"]
        results[case]["ratio_to_bare"] = round(ratio, 1)
    if args.json:
        print(json.dumps(results))
        return 0
    for case, figures in results.items():
        print(f"{case:<6}", "  ".join(f"{key} {value}" for key, value in figures.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
