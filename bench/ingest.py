"""``relay ledger ingest`` of 100 MB of transcripts, and of nothing new, against reading and parsing
the same bytes as JSON in one process. In a RELAY_HOME of its own; nothing of yours is read."""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

#: Seconds for 100 MB; seconds of reading and parsing for which one of ingesting is allowed.
GOAL, RATIO = 10.0, 8.0
_WORDS = ("test", "fails", "because", "session", "reads", "a", "file", "nobody", "wrote", "yet")
_DAY_MS = 1_760_000_000_000


def corpus(chance: random.Random) -> str:
    """Words with line ends and quotes."""
    ends = (" ", " ", " ", "\n", '" ', "é ")
    return "".join(chance.choice(_WORDS) + chance.choice(ends) for _ in range(200_000))


_TEXT = corpus(random.Random(2))


def text(chance: random.Random, size: int) -> str:
    """A part of it."""
    start = chance.randrange(len(_TEXT) - size)
    return _TEXT[start : start + size]


def conversation(chance: random.Random, path: Path, size: int) -> None:
    """A transcript as Claude Code writes it: prompts, words, tool calls with their results (each
    twice, as it does), and what it attaches."""
    session = path.stem
    number = 0
    last: str | None = None
    written = 0

    def record(kind: str, **more: Any) -> dict[str, Any]:
        nonlocal number, last
        number += 1
        uuid = f"{session[:24]}{number:012x}"
        at = time.gmtime((_DAY_MS + number * 1500) / 1000)
        made = {
            **{"parentUuid": last, "isSidechain": False, "type": kind, "uuid": uuid},
            **{"timestamp": time.strftime("%Y-%m-%dT%H:%M:%S.000Z", at), "sessionId": session},
            **{"cwd": "/srv/demo", "version": "2.1.330", "gitBranch": "main", **more},
        }
        last = uuid
        return made

    def said(block: dict[str, Any], stop: str) -> dict[str, Any]:
        usage = {"input_tokens": 100, "output_tokens": 20, "cache_read_input_tokens": 5000}
        message = {"id": f"msg_{number}", "role": "assistant", "model": "claude-sonnet-4-5"}
        more = {"content": [block], "stop_reason": stop, "usage": usage}
        return record("assistant", message={**message, **more})

    with path.open("w") as file:
        while written < size:
            turn = [record("user", message={"role": "user", "content": text(chance, 300)})]
            turn.append(record("attachment", attachment={"type": "date", "x": text(chance, 900)}))
            for call in range(8):
                turn.append(said({"type": "text", "text": text(chance, 200)}, "tool_use"))
                name = f"toolu_{session[:8]}_{number}_{call}"
                given = {"command": text(chance, 120)}
                block = {"type": "tool_use", "id": name, "name": "Bash", "input": given}
                turn.append(said(block, "tool_use"))
                result = text(chance, chance.choice((200, 1000, 8000)))
                block = {"type": "tool_result", "tool_use_id": name, "content": result}
                message = {"role": "user", "content": [block]}
                turn.append(record("user", message=message, toolUseResult={"stdout": result}))
            turn.append(said({"type": "text", "text": text(chance, 800)}, "end_turn"))
            for one in turn:
                written += file.write(json.dumps(one, separators=(",", ":")) + "\n")


def ingest(env: dict[str, str], folder: Path) -> tuple[float, dict[str, Any]]:
    """Seconds that the command takes, the broker's start not among them; what it says."""
    argv = [sys.executable, "-m", "relay", "ledger", "ingest", str(folder), "--json"]
    began = time.perf_counter()
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    return time.perf_counter() - began, json.loads(done.stdout)


def parse(folder: Path) -> float:
    began = time.perf_counter()
    for path in sorted(folder.iterdir()):
        with path.open("rb") as file:
            for line in file:
                json.loads(line)
    return time.perf_counter() - began


def measure(megabytes: int) -> dict[str, float]:
    chance = random.Random(1)
    with tempfile.TemporaryDirectory() as base:
        folder = Path(base, "projects")
        folder.mkdir()
        for number in range(max(1, megabytes // 5)):
            name = f"{number:08x}-0000-4000-8000-{chance.getrandbits(48):012x}.jsonl"
            conversation(chance, folder / name, 5_000_000)
        size = sum(path.stat().st_size for path in folder.iterdir()) / 1e6
        env = {**os.environ, "RELAY_HOME": os.path.join(base, "home")}
        subprocess.run([sys.executable, "-m", "relay", "agents"], env=env, capture_output=True)
        try:
            reference = parse(folder)
            first, found = ingest(env, folder)
            again, nothing = ingest(env, folder)
            reference = min(reference, parse(folder))
        finally:
            subprocess.run([sys.executable, "-m", "relay", "broker", "stop"], env=env)
        assert found["turns"] > 100 and nothing["turns"] == 0, (found, nothing)
    return {
        "megabytes": size,
        "turns": found["turns"],
        "seconds": first,
        "seconds_per_100_mb": first * 100 / size,
        "parsing": reference,
        "ratio": first / reference,
        "again": again,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result = measure(options.megabytes)
    if options.json:
        print(json.dumps({name: round(one, 3) for name, one in result.items()}))
    else:
        print(f"{result['megabytes']:.0f} MB, {result['turns']} turns: {result['seconds']:.2f} s,")
        print(f"reading and parsing alone {result['parsing']:.2f} s: ratio {result['ratio']:.1f}")
        print(f"with nothing new: {result['again']:.2f} s")
    return 0 if result["seconds_per_100_mb"] <= GOAL or result["ratio"] <= RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
