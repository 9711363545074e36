"""Start to end of ``relay wrap true`` beside script(1) and a bare interpreter, interleaved.

    python bench/start.py [--rounds N] [--json]

The aim: at most 2 x ``script -qec true /dev/null`` plus 1 x ``python3 -c pass``.
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import select
import shutil
import statistics
import sys
import tempfile
import time

PAUSE = 0.8  # for sessions of the round before to end: they take a core for half a second


def once(argv: list[str], env: dict[str, str]) -> float:
    """Milliseconds from fork to exit of ``argv`` in a terminal that is read meanwhile."""
    began = time.perf_counter()
    pid, master = pty.fork()
    if pid == 0:
        os.execve(argv[0], argv, env)
    try:
        while True:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                break
            if select.select([master], [], [], 0.0005)[0]:
                try:
                    os.read(master, 65536)
                except OSError:  # nobody holds the terminal any more
                    ended, status = os.waitpid(pid, 0)
                    break
        took = (time.perf_counter() - began) * 1000
    finally:
        os.close(master)
    if status:
        raise SystemExit(f"{argv} ended with wait status {status}")
    return took


def measure(rounds: int) -> dict[str, float]:
    """Medians in ms of each command."""
    script = shutil.which("script")
    true = shutil.which("true")
    if script is None or true is None:
        raise SystemExit("script(1) and true(1) are needed for the comparison")
    commands = {
        "python": [sys.executable, "-c", "pass"],
        "script": [script, "-qec", true, "/dev/null"],
        "wrap": [sys.executable, "-m", "relay", "wrap", true],
    }
    times: dict[str, list[float]] = {name: [] for name in commands}
    with tempfile.TemporaryDirectory(prefix="relay-bench-", ignore_cleanup_errors=True) as home:
        env = {**os.environ, "RELAY_HOME": home}
        for _ in range(rounds):
            for name, argv in commands.items():
                times[name].append(once(argv, env))
            time.sleep(PAUSE)
        stop = [sys.executable, "-m", "relay", "broker", "stop"]
        os.spawnve(os.P_WAIT, stop[0], stop, env)
    return {name: statistics.median(taken) for name, taken in times.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result = measure(options.rounds)
    budget = 2 * result["script"] + result["python"]
    result["budget"] = budget
    result["of_budget"] = result["wrap"] / budget
    result["of_script"] = result["wrap"] / result["script"]
    if options.json:
        print(json.dumps({name: round(value, 3) for name, value in result.items()}))
    else:
        for name in ("python", "script", "wrap", "budget"):
            print(f"{name:8} {result[name]:7.1f} ms")
        print(f"wrap takes {result['of_budget']:.2f} of its budget (at most 1)")
    return 0 if result["of_budget"] <= 1 else 1


if __name__ == "__main__":
    sys.exit(main())
