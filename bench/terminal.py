"""Throughput of ``relay wrap cat FILE`` beside script(1) and the bare terminal, interleaved.

python bench/terminal.py [--megabytes N] [--rounds N] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import shutil
import statistics
import sys
import tempfile
import time
import tty


def once(argv: list[str], env: dict[str, str], size: int) -> float:
    """MB/s from the first byte until ``size`` bytes have come out of the terminal."""
    pid, master = pty.fork()
    if pid == 0:
        tty.setraw(1)
        os.execve(argv[0], argv, env)
    seen = 0
    began = 0.0
    while seen < size:
        try:
            data = os.read(master, 65536)
        except OSError:
            break
        began = began or time.perf_counter()
        seen += len(data)
    took = time.perf_counter() - began
    os.close(master)
    os.waitpid(pid, 0)
    if seen < size:
        raise SystemExit(f"{argv[0]}: only {seen} of {size} bytes arrived")
    return seen / took / 1e6


def measure(megabytes: int, rounds: int) -> dict[str, float]:
    """Median MB/s of each way to show a file."""
    cat, script = shutil.which("cat"), shutil.which("script")
    if cat is None or script is None:
        raise SystemExit("cat(1) and script(1) are needed for the comparison")
    with tempfile.TemporaryDirectory(prefix="relay-bench-", ignore_cleanup_errors=True) as folder:
        path = os.path.join(folder, "log")
        # The terminal is raw, so that every byte counts once; lines end as in a cooked one.
        line = b"2026-01-01 12:00:00 INFO worker: handled a request in 12 ms, status 200\r\n"
        with open(path, "wb") as file:
            file.write(line * (megabytes * 1_000_000 // len(line)))
        size = os.path.getsize(path)
        env = {**os.environ, "RELAY_HOME": os.path.join(folder, "home")}
        commands = {
            "direct": [cat, path],
            "script": [script, "-qec", f"{cat} {path}", "/dev/null"],
            "wrap": [sys.executable, "-m", "relay", "wrap", cat, path],
        }
        rates: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(rounds):
            for name, argv in commands.items():
                rates[name].append(once(argv, env, size))
            time.sleep(1.0)
        stop = [sys.executable, "-m", "relay", "broker", "stop"]
        os.spawnve(os.P_WAIT, stop[0], stop, env)
    return {name: statistics.median(taken) for name, taken in rates.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result = measure(options.megabytes, options.rounds)
    result["of_script"] = result["wrap"] / result["script"]
    result["of_direct"] = result["wrap"] / result["direct"]
    if options.json:
        print(json.dumps({name: round(value, 3) for name, value in result.items()}))
    else:
        for name in ("direct", "script", "wrap"):
            print(f"{name:8} {result[name]:7.1f} MB/s")
        print(
            f"wrap reaches {result['of_script']:.2f} of script, {result['of_direct']:.2f} of direct"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
