"""What wrapped agents cost while nothing happens: memory, wake-ups, CPU time.

    python bench/idle.py [--agents N] [--seconds N] [--json]

N times ``cat`` under ``relay wrap`` and as often under script(1), all waiting for a key. PSS is
memory with shared pages divided among those who share them; a wake-up is a voluntary context
switch. Aims per agent: pump, monitor and session together at most 45 MB; no wake-up of pump and
monitor, less than 2 a second of the session. Beside them one wrapped program that draws a clock
once a second, as a TUI at rest does.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Iterable

from harness import (
    Run,
    Terminal,
    broker,
    command,
    cpu,
    home,
    memory,
    processes,
    wait_listed,
    wait_quiet,
    wakeups,
)

MEMORY_GOAL = 45.0  # MB
WAKEUPS_GOAL = 2.0  # a second, of the session
PARTS = ("pump", "monitor", "session", "broker", "script", "clock pump", "clock session")
CLOCK = r"""
import os, time, tty
tty.setraw(0)
os.write(1, b"\x1b[?1049h\x1b[2J")
while True:
    os.write(1, b"\x1b[1;60H" + time.strftime("%H:%M:%S").encode())
    time.sleep(1)
"""

Groups = dict[str, list[int]]


def measure(agents: int, seconds: float) -> dict[str, dict[str, float]]:
    """Part to what one process of it costs: pss in MB, wakeups and CPU ms a second."""
    cat = shutil.which("cat")
    if cat is None:
        raise SystemExit("cat(1) is needed")
    clock = [sys.executable, "-S", "-E", "-c", CLOCK]
    names = [f"idle-{number}" for number in range(agents)]
    terminals: list[Terminal] = []
    with home() as (_, env):
        try:
            for name in names:
                terminals.append(Terminal(command("wrap", [cat], ["--name", name]), env))
            terminals.append(Terminal(command("wrap", clock, ["--name", "clock"]), env))
            wait_listed([*names, "clock"], env)
            groups = group(processes(terminal.pid) for terminal in terminals[:-1])
            groups["broker"] = [broker(env)]
            ticking = processes(terminals[-1].pid)
            groups["clock pump"], groups["clock session"] = [ticking.pump], [ticking.session]
            scripts = [Terminal(command("script", [cat]), env) for _ in names]
            terminals += scripts
            groups["script"] = [terminal.pid for terminal in scripts]
            wait_quiet([pid for pids in groups.values() for pid in pids])
            return watch(groups, seconds)
        finally:
            for terminal in terminals:
                terminal.close()


def group(runs: Iterable[Run]) -> Groups:
    groups: Groups = {}
    for run in runs:
        for part, pid in run.parts().items():
            groups.setdefault(part, []).append(pid)
    return groups


def watch(groups: Groups, seconds: float) -> dict[str, dict[str, float]]:
    woken = {part: sum(map(wakeups, pids)) for part, pids in groups.items()}
    spent = {part: sum(map(cpu, pids)) for part, pids in groups.items()}
    began = time.monotonic()
    time.sleep(seconds)
    result = {}
    for part, pids in groups.items():
        each = len(pids) * (time.monotonic() - began)
        result[part] = {
            "wakeups": round((sum(map(wakeups, pids)) - woken[part]) / each, 3),
            "cpu_ms": round((sum(map(cpu, pids)) - spent[part]) * 1000 / each, 3),
        }
    for part, pids in groups.items():
        result[part]["pss"] = round(sum(memory(pid)["pss"] for pid in pids) / len(pids), 2)
    return result


def judge(result: dict[str, dict[str, float]]) -> tuple[float, bool]:
    """(MB PSS of one wrapped agent, whether all aims are met)."""
    together = sum(result[part]["pss"] for part in ("pump", "monitor", "session"))
    silent = all(round(result[part]["wakeups"], 2) == 0 for part in ("pump", "monitor"))
    calm = result["session"]["wakeups"] < WAKEUPS_GOAL
    return together, silent and calm and together <= MEMORY_GOAL


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--agents", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result = measure(options.agents, options.seconds)
    together, met = judge(result)
    if options.json:
        print(json.dumps({**result, "pss_per_agent": round(together, 2)}))
    else:
        print(f"{'each':14} {'PSS, MB':>9} {'wake-ups/s':>11} {'CPU ms/s':>9}")
        for part in PARTS:
            row = result[part]
            print(f"{part:14} {row['pss']:9.2f} {row['wakeups']:11.3f} {row['cpu_ms']:9.3f}")
        print(
            f"a wrapped agent: {together:.1f} MB; goal: at most {MEMORY_GOAL:.0f}, no wake-ups of"
        )
        print(f"pump and monitor, less than {WAKEUPS_GOAL:.0f} a second of the session")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
