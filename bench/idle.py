"""What wrapped agents cost while nothing happens: memory, wake-ups, CPU time.

    python bench/idle.py [--agents N] [--seconds N] [--json]

N times ``cat`` under ``relay wrap`` and as often under script(1), all waiting for a key. PSS is
memory with shared pages divided among those who share them; a wake-up is a voluntary context
switch. Aims per agent: pump, monitor and session together at most 35 MB, and 42 with the host that
a spawned agent has beside them; no wake-up of pump and monitor, less than 2 a second of the
session. Beside them one wrapped program that draws a clock once a second, as a TUI at rest does,
and two spawned ones.
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
    of_module,
    processes,
    relay,
    wait_listed,
    wait_quiet,
    wakeups,
)

WRAPPED_GOAL, SPAWNED_GOAL = 35.0, 42.0  # MB
WAKEUPS_GOAL = 2.0  # a second, of the session
PARTS = ("pump", "monitor", "session", "host", "broker", "script", "clock pump", "clock session")
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
            # The first one compiles the emulator's declarations, once for all.
            for name in ("first", "second"):
                relay(env, "spawn", "--name", name, cat)
            for name in names:
                terminals.append(Terminal(command("wrap", [cat], ["--name", name]), env))
            terminals.append(Terminal(command("wrap", clock, ["--name", "clock"]), env))
            wait_listed([*names, "clock"], env)
            groups = group(processes(terminal.pid) for terminal in terminals[:-1])
            groups["broker"] = [broker(env)]
            groups["host"] = [max(of_module("relay.app.host", env))]
            ticking = processes(terminals[-1].pid)
            groups["clock pump"], groups["clock session"] = [ticking.pump], [ticking.session]
            scripts = [Terminal(command("script", [cat]), env) for _ in names]
            terminals += scripts
            groups["script"] = [terminal.pid for terminal in scripts]
            wait_quiet([pid for pids in groups.values() for pid in pids])
            return watch(groups, seconds)
        finally:
            relay(env, "release", "--all")
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


def judge(result: dict[str, dict[str, float]]) -> tuple[float, float, bool]:
    """(MB PSS of one wrapped agent, of a spawned one, whether all aims are met)."""
    wrapped = sum(result[part]["pss"] for part in ("pump", "monitor", "session"))
    spawned = wrapped + result["host"]["pss"]
    silent = all(round(result[part]["wakeups"], 2) == 0 for part in ("pump", "monitor"))
    calm = result["session"]["wakeups"] < WAKEUPS_GOAL
    light = wrapped <= WRAPPED_GOAL and spawned <= SPAWNED_GOAL
    return wrapped, spawned, silent and calm and light


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--agents", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result = measure(options.agents, options.seconds)
    wrapped, spawned, met = judge(result)
    if options.json:
        print(json.dumps({**result, "wrapped": round(wrapped, 2), "spawned": round(spawned, 2)}))
    else:
        print(f"{'each':14} {'PSS, MB':>9} {'wake-ups/s':>11} {'CPU ms/s':>9}")
        for part in PARTS:
            row = result[part]
            print(f"{part:14} {row['pss']:9.2f} {row['wakeups']:11.3f} {row['cpu_ms']:9.3f}")
        print(f"a wrapped agent: {wrapped:.1f} MB; goal: at most {WRAPPED_GOAL:.0f}")
        print(f"a spawned agent: {spawned:.1f} MB; goal: at most {SPAWNED_GOAL:.0f}")
        print(f"goal: no wake-ups of pump and monitor, less than {WAKEUPS_GOAL:.0f} of the session")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
