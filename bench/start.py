"""How soon ``relay wrap`` shows the program's first byte, beside script(1) and a bare interpreter.

    python bench/start.py [--rounds N] [--json]

From fork to the first byte of ``sh -c 'echo x'`` in a terminal. The aim: at most 1.5 x
``python3 -c pass`` plus what script(1) takes for the same. Beside it from fork to exit of
``true``; the aim there: at most 1 x ``python3 -c pass`` plus 2 x script(1). Both once more with a
configuration whose memories mem0 keeps, beside one that says nothing of memory; the aim there: no
slower, which is to say within a tenth.

Then whole verbs from fork to exit, as multiples of ``python3 -c pass``: ``--version`` at most 1.4,
``send`` and ``agents`` (with a broker that runs) at most 2, ``confine -- true`` at most 2.2. They
are started by the script that newer installers write; that of older ones imports ``re`` first,
which alone takes half an interpreter's start. Rounds are interleaved.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import shutil
import statistics
import subprocess
import sys
import time

from harness import Terminal, command, deadline, home, relay, wait_alone

LIMITS = ("first_byte", "end")
#: Verb -> (its words, how many times ``python3 -c pass`` it may take).
VERBS = {
    "version": (["--version"], 1.4),
    "send": (["send", "Bob", "hello", "--offline"], 2.0),
    "agents": (["agents"], 2.0),
    "confine": (["confine", "--", "true"], 2.2),
}
#: What an installer writes for a console script, without the line that names the interpreter.
SCRIPT = """\
import sys
from relay.__main__ import main
if __name__ == "__main__":
    sys.exit(main())
"""
#: What may be noise where nothing should differ.
NOISE = 1.1
CONFIGS = {"config": "config = {}\n", "memory": 'config = {"memory": {"backend": "mem0"}}\n'}


def once(argv: list[str], env: dict[str, str]) -> tuple[float | None, float]:
    """Milliseconds from fork to (the first byte in the terminal, None without one; the exit)."""
    first: float | None = None
    began = time.perf_counter()
    terminal = Terminal(argv, env)
    pidfd = os.pidfd_open(terminal.pid)
    poll = select.poll()
    poll.register(terminal.master, select.POLLIN)
    poll.register(pidfd, select.POLLIN)
    with deadline(30, f"{argv} did not end"):
        while True:
            ready = {fd for fd, _ in poll.poll()}
            now = (time.perf_counter() - began) * 1000
            if terminal.master in ready:
                if not terminal.read():
                    poll.unregister(terminal.master)
                elif first is None:
                    first = now
            elif pidfd in ready:
                break
    os.close(pidfd)
    os.close(terminal.master)
    _, status = os.waitpid(terminal.pid, 0)
    if status:
        raise SystemExit(f"{argv} ended with wait status {status}")
    return first, now


def whole(argv: list[str], env: dict[str, str]) -> float:
    """Milliseconds from the start of a program without a terminal to its end."""
    began = time.perf_counter()
    with deadline(30, f"{argv} did not end"):
        done = subprocess.run(
            argv,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
    if done.returncode:
        raise SystemExit(f"{argv} ended with {done.returncode}: {done.stderr.decode()}")
    return (time.perf_counter() - began) * 1000


def measure_verbs(rounds: int) -> dict[str, float]:
    """Medians of the ratios to ``python3 -c pass`` of the same round."""
    taken: dict[str, list[float]] = {}
    with home() as (folder, env):
        script = folder / "relay"
        script.write_text(SCRIPT)
        for number in range(rounds + 1):  # the first one starts the broker, and is not counted
            if number == 1:
                taken.clear()
            bare = whole([sys.executable, "-c", "pass"], env)
            for name, (words, _) in VERBS.items():
                taken.setdefault(name, []).append(
                    whole([sys.executable, str(script), *words], env) / bare
                )
    return {f"verb_{name}": statistics.median(values) for name, values in taken.items()}


def measure(rounds: int) -> dict[str, float]:
    """Medians in ms: ``python``, and of script(1), relay, and relay with each of CONFIGS the first
    byte and the end."""
    shell, true = shutil.which("sh"), shutil.which("true")
    if shell is None or true is None:
        raise SystemExit("sh(1) and true(1) are needed")
    taken: dict[str, list[float]] = {}
    with home() as (folder, env):
        options: dict[str, list[str]] = {}
        for kind, text in CONFIGS.items():
            file = folder / f"{kind}.py"
            file.write_text(text)
            relay(env, "trust", str(file))
            options[kind] = ["--config", str(file)]
        for number in range(rounds + 1):  # the first one starts the broker, and is not counted
            if number == 1:
                taken.clear()
            taken.setdefault("python", []).append(once([sys.executable, "-c", "pass"], env)[1])
            for kind in ("script", "wrap", *CONFIGS):
                how = "script" if kind == "script" else "wrap"
                first, _ = once(command(how, [shell, "-c", "echo x"], options.get(kind, [])), env)
                if first is None:
                    raise SystemExit(f"{kind} showed nothing")
                taken.setdefault(f"{kind}_first_byte", []).append(first)
                wait_alone(env)
                _, end = once(command(how, [true], options.get(kind, [])), env)
                taken.setdefault(f"{kind}_end", []).append(end)
                wait_alone(env)
    return {name: statistics.median(values) for name, values in taken.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--verbs", action="store_true", help="only the verbs, not relay wrap")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result = measure_verbs(options.rounds)
    if not options.verbs:
        return report(result | measure(options.rounds), options.json)
    return report(result, options.json)


def report(result: dict[str, float], in_json: bool) -> int:
    """Print the figures; 0 when every aim is met."""
    good = [result[f"verb_{name}"] <= limit for name, (_, limit) in VERBS.items()]
    if not in_json:
        for name, (_, limit) in VERBS.items():
            print(f"{name:11} {result[f'verb_{name}']:5.2f} x python, aim at most {limit}")
    if "python" not in result:
        if in_json:
            print(json.dumps(result))
        return 0 if all(good) else 1
    result["first_byte_limit"] = 1.5 * result["python"] + result["script_first_byte"]
    result["end_limit"] = result["python"] + 2 * result["script_end"]
    for what in LIMITS:
        result[f"{what}_of_limit"] = result[f"wrap_{what}"] / result[f"{what}_limit"]
        result[f"{what}_of_script"] = result[f"wrap_{what}"] / result[f"script_{what}"]
        result[f"{what}_memory_of_config"] = result[f"memory_{what}"] / result[f"config_{what}"]
    if in_json:
        print(json.dumps({name: round(value, 3) for name, value in result.items()}))
    else:
        heads = ("python", "script", "wrap", "limit", *CONFIGS)
        print(f"{'ms':11} " + " ".join(f"{head:>7}" for head in heads) + "  of limit  of config")
        for what in LIMITS:
            names = [f"script_{what}", f"wrap_{what}", f"{what}_limit"]
            names += [f"{kind}_{what}" for kind in CONFIGS]
            times = " ".join(f"{result[name]:7.1f}" for name in ("python", *names))
            ratios = (result[f"{what}_of_limit"], result[f"{what}_memory_of_config"])
            print(f"{what:11} {times} {ratios[0]:9.2f} {ratios[1]:10.2f}")
        print(f"goal: of limit at most 1, with memory of config at most {NOISE}")
    good += [
        result[f"{what}_of_limit"] <= 1 and result[f"{what}_memory_of_config"] <= NOISE
        for what in LIMITS
    ]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
