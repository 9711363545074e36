"""What governance costs, and whether its trace keeps all that was acknowledged
(``python bench/governance.py``).

- ``--gate``: one call of an agent's tool, asked and then told, in a repository of 50 000 files with
  200 intents, in turns with one of 500 files and the same intents. Goal: asking takes 5 ms (p50),
  however large the repository is.
- ``--held``: a ``true`` that the kernel holds beside a bare one, in turns; and what is compared
  around a call in a repository of 50 000 files, where it may write one folder, all, or is not held.
  Goal: holding takes 30 ms more, comparing twice takes 2 s at most.
- ``--writers``: 8 processes append 100 000 records to one trace. Goal: none is lost or torn.
- ``--kills``: processes that append are killed at any moment. Goal: each record that was
  acknowledged is there, at most the last of each process was not told, and the chain verifies.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from harness import percentile

from relay.agents.hook_codec import AgentHookCall
from relay.core.paths import Home
from relay.features.confine import confinement, landlock
from relay.features.governance.call_plan import GateCall, GovernedRun, gate_call
from relay.features.governance.changed_files import differences, survey
from relay.features.governance.gate import Gate
from relay.features.governance.governance_store import GovernanceStore
from relay.features.governance.governed_paths import FOLDER
from relay.features.governance.intents import INTENTS_FILE
from relay.features.governance.orchestration import IntentsFile
from relay.features.governance.trace import Trace
from relay.features.governance.trace_records import TraceEntry, TraceKind
from relay.hooks.events import HookEventName

FILES, FEW, INTENTS, GLOBS = 50_000, 500, 200, 10
#: Files of one folder.
_IN_FOLDER = 100
WRITERS, RECORDS = 8, 100_000
GATE_GOAL_MS, HELD_GOAL_MS, COMPARED_GOAL_MS = 5.0, 30.0, 2000.0


def repository(root: Path, files: int) -> None:
    """A governed project with so many files, and the intents."""
    (root / FOLDER).mkdir(parents=True)
    for folder in range(files // _IN_FOLDER):
        path = root / "src" / f"part{folder}"
        path.mkdir(parents=True)
        for number in range(_IN_FOLDER):
            (path / f"file{number}.py").write_text(f"number = {number}\n")
    lines = ["active_intents:"]
    for number in range(INTENTS):
        globs = [f"src/part{number}/**", *(f"other{number}/*{n}.py" for n in range(GLOBS - 2))]
        lines += [f"  - id: INT-{number:03}", f"    name: Part {number}", "    status: PENDING"]
        lines.append(f"    owned_scope: {json.dumps([*globs, '!**/secret*'])}")
    (root / FOLDER / INTENTS_FILE).write_text("\n".join(lines) + "\n")


@contextmanager
def governed(folder: Path, files: int) -> Iterator[tuple[Path, Gate]]:
    """The gate of an agent in a repository of so many files."""
    root = folder / f"files{files}"
    repository(root, files)
    home = Home(str(folder / f"home{files}"))
    home.create()
    run = GovernedRun(run="run-1", agent="Bob", root=str(root), cwd=str(root), pid=os.getpid())
    with closing(GovernanceStore.open(home)) as store:
        yield (
            root,
            Gate(
                run,
                intents=IntentsFile(str(root)),
                store=store,
                trace=Trace(str(root), store),
                approver=None,
                now_ms=now_ms,
            ),
        )


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def call(tool: str, id_: str, **params: Any) -> GateCall:
    """One call as Claude Code tells of it."""
    fields = {"tool_name": tool, "tool_use_id": id_, "tool_input": params}
    return gate_call("claude", AgentHookCall(HookEventName.BEFORE_TOOL, fields, waits=True))


async def asked(gate: Gate, root: Path, count: int) -> dict[str, list[float]]:
    """Milliseconds of each step of reading a file, changing it, and being refused another."""
    await gate.select("INT-001")
    taken: dict[str, list[float]] = {}

    async def timed(name: str, step: Callable[[GateCall], Any], one: GateCall) -> object:
        begin = time.perf_counter()
        found = await step(one)
        taken.setdefault(name, []).append((time.perf_counter() - begin) * 1000)
        return found

    for number in range(count):
        path = str(root / "src" / "part1" / f"file{number % _IN_FOLDER}.py")
        read = call("Read", f"read{number}", file_path=path)
        await timed("read", gate.before, read)
        await gate.after(read)
        text = f"number = {number}\nchanged = True\n"
        write = call("Write", f"write{number}", file_path=path, content=text)
        if (refused := await timed("write", gate.before, write)) is not None:
            raise SystemExit(f"a write inside the scope was refused: {refused}")
        Path(path).write_text(text)
        await timed("written", gate.after, write)
        shell = call("Bash", f"shell{number}", command="git status | head -3")
        if (refused := await timed("shell", gate.before, shell)) is not None:
            raise SystemExit(f"a command that only reads was refused: {refused}")
        await gate.after(shell)
        other = call("Write", f"other{number}", file_path=str(root / "src" / "part2" / "x.py"))
        if await timed("refused", gate.before, other) is None:
            raise SystemExit("a write outside of the scope was not refused")
    await gate.turn_ended()
    return taken


def gate_costs(count: int) -> dict[str, object]:
    """Milliseconds of each step, by the size of the repository."""
    with tempfile.TemporaryDirectory(prefix="relay-bench-") as folder, ExitStack() as exits:
        found: dict[str, dict[str, list[float]]] = {"few": {}, "many": {}}
        gates = [exits.enter_context(governed(Path(folder), files)) for files in (FEW, FILES)]
        for _ in range(5):
            for taken, (root, gate) in zip(found.values(), gates, strict=True):
                for name, times in asyncio.run(asked(gate, root, count // 5)).items():
                    taken.setdefault(name, []).extend(times)
    p50 = {
        size: {n: statistics.median(t) for n, t in taken.items()} for size, taken in found.items()
    }
    return {
        "p50_ms": {
            size: {n: round(one, 2) for n, one in times.items()} for size, times in p50.items()
        },
        "p99_ms": {n: round(percentile(times, 0.99), 2) for n, times in found["many"].items()},
        "asked_p50_ms": round(
            max(p50["many"][n] for n in ("read", "write", "shell", "refused")), 2
        ),
        "many_to_few": round(max(one / p50["few"][n] for n, one in p50["many"].items()), 2),
        "goal_ms": GATE_GOAL_MS,
    }


# -- held calls


def held_costs(count: int) -> dict[str, object]:
    """Milliseconds of a held ``true`` and of a bare one, and of both looks around a call."""
    with tempfile.TemporaryDirectory(prefix="relay-bench-") as folder:
        root = Path(folder) / "files"
        repository(root, FILES)
        true, source = shutil.which("true") or "/bin/true", str(root / "src")
        holds = bool(landlock.version())
        words = confinement.command([source, "/dev/null"], true, ["true"])
        commands = {"bare": [true], **({"held": words} if holds else {})}
        taken: dict[str, list[float]] = {}
        for _ in range(count):
            for name, argv in commands.items():
                begin = time.perf_counter()
                subprocess.run(argv, check=True)
                taken.setdefault(name, []).append((time.perf_counter() - begin) * 1000)
        places = {"one_folder": [f"{source}/part1"], "all_of_it": [source], "not_held": None}
        for number in range(3):
            for name, allowed in places.items():
                begin = time.perf_counter()
                before = survey(str(root), allowed, rest=not number)  # the first one says: too many
                after = before.again() if before is not None else None
                if before is None or after is None or differences(before, after):
                    raise SystemExit("nothing was written, and it is not the same")
                taken.setdefault(name, []).append((time.perf_counter() - begin) * 1000)
    p50 = {name: round(statistics.median(times), 1) for name, times in taken.items()}
    extra = round(p50["held"] - p50["bare"], 1) if holds else None
    compared = max(p50[name] for name in places)
    good = (extra or 0) <= HELD_GOAL_MS and compared <= COMPARED_GOAL_MS
    return {"p50_ms": p50, "held_extra_ms": extra, "compared_ms": compared, "good": good}


# -- the trace


def write(home: str, root: str, name: str, count: int) -> None:
    """Append records in a process of its own; says the number of each once it is acknowledged."""
    with closing(GovernanceStore.open(Home(home))) as store:
        trace = Trace(root, store)
        for number in range(count):
            entry = TraceEntry(
                TraceKind.REFUSAL,
                agent=name,
                session=name,
                intent_id="INT-001",
                tool="Bash",
                metadata={"number": number, "command": "x" * (number % 400)},
            )
            trace.append(entry)
            os.write(1, b"%d\n" % number)


def writer(home: Home, root: Path, name: str, count: int, out: int) -> subprocess.Popen[bytes]:
    words = ["--writer", home.root, str(root), name, str(count)]
    return subprocess.Popen([sys.executable, __file__, *words], stdout=out)


@contextmanager
def traced() -> Iterator[tuple[Home, Path]]:
    with tempfile.TemporaryDirectory(prefix="relay-bench-") as folder:
        home, root = Home(os.path.join(folder, "home")), Path(folder, "project")
        home.create()
        (root / FOLDER).mkdir(parents=True)
        yield home, root


def numbers(home: Home, root: Path) -> tuple[dict[str, list[int]], list[str]]:
    """The numbers of each writer in the trace, in its order, and what is wrong with it."""
    found: dict[str, list[int]] = {}
    with closing(GovernanceStore.open(home)) as store:
        trace = Trace(str(root), store)
        for _, row in trace.records():
            found.setdefault(row["agent"], []).append(row["metadata"]["number"])
        faults = [f"line {one.line} {one.text}" for one in trace.verify().faults]
    return found, faults


def writers(records: int) -> dict[str, object]:
    """What became of the records of processes that write at once."""
    each = records // WRITERS
    with traced() as (home, root), open(os.devnull, "wb") as nowhere:
        begin = time.perf_counter()
        processes = [
            writer(home, root, f"agent{number}", each, nowhere.fileno())
            for number in range(WRITERS)
        ]
        good = all([process.wait() == 0 for process in processes])
        taken = time.perf_counter() - begin
        found, faults = numbers(home, root)
        size = os.path.getsize(Trace(str(root), None).path)  # type: ignore[arg-type]
    whole = all(found.get(f"agent{n}") == list(range(each)) for n in range(WRITERS))
    return {
        "records": sum(map(len, found.values())),
        "none_lost": good and whole and not faults,
        "faults": faults[:5],
        "records_per_s": round(records / taken),
        "bytes_per_record": round(size / records),
    }


def kills(rounds: int) -> dict[str, object]:
    """What is left of processes that are killed while they append."""
    lost = untold = 0
    acknowledged = 0
    with traced() as (home, root), tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            names = [f"agent{number}-{n}" for n in range(2)]
            files = [Path(folder, name) for name in names]
            with ExitStack() as exits:
                outs = [exits.enter_context(file.open("wb")) for file in files]
                processes = [
                    writer(home, root, name, 1_000_000, out.fileno())
                    for name, out in zip(names, outs, strict=True)
                ]
            try:
                while not all(file.stat().st_size for file in files):
                    time.sleep(0.001)
                time.sleep(random.uniform(0, 0.05))
            finally:
                for process in processes:
                    process.kill()
                    process.wait()
            found, faults = numbers(home, root)
            for name, file in zip(names, files, strict=True):
                told = [int(one) for one in file.read_text().split("\n")[:-1]]
                written = found.get(name, [])
                lost += len(set(told) - set(written)) + (written != list(range(len(written))))
                untold = max(untold, len(written) - len(told))
                acknowledged += len(told)
            if faults:
                break
    return {
        "kills": 2 * (number + 1),
        "acknowledged": acknowledged,
        "lost": lost,
        "most_not_told": untold,
        "faults": faults[:5],
    }


def main() -> int:
    """Measure; the status says whether the goals are met."""
    if sys.argv[1:2] == ["--writer"]:
        home, root, name, count = sys.argv[2:]
        write(home, root, name, int(count))
        return 0
    parser = argparse.ArgumentParser(description=__doc__)
    for option in ("gate", "held", "writers", "kills", "json"):
        parser.add_argument(f"--{option}", action="store_true")
    parser.add_argument("--records", type=int, default=RECORDS)
    parser.add_argument("--rounds", type=int, default=50)
    options = parser.parse_args()
    all_of_them = not (options.gate or options.held or options.writers or options.kills)
    found: dict[str, Any] = {}
    good = True
    if options.gate or all_of_them:
        found["gate"] = gate_costs(1000)
        good = good and found["gate"]["asked_p50_ms"] <= GATE_GOAL_MS
    if options.held or all_of_them:
        found["held"] = held_costs(50)
        good = good and bool(found["held"]["good"])
    if options.writers or all_of_them:
        found["writers"] = writers(options.records)
        good = good and found["writers"]["none_lost"]
    if options.kills or all_of_them:
        found["kills"] = kills(options.rounds)
        good = good and not found["kills"]["lost"] and not found["kills"]["faults"]
        good = good and found["kills"]["most_not_told"] <= 1
    print(json.dumps(found, indent=None if options.json else 2))
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
