"""What a program in a wrapper can tell from running bare: relay beside other wrappers.

    python -m bench.fidelity [--write] [--only TEXT] [--rounds N]

Runs every behaviour of tests/fidelity directly and in each wrapper; one holds when each of the
rounds shows the same as the bare program. Prints the table, with --write into docs/fidelity.md.
A wrapper that is not installed is left out and named. Whatever a behaviour waits for in vain, or
raises, counts as failed.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.fidelity.behaviours import ANY, Behaviour, Observation, observe, registered
from tests.fidelity.peers import installed
from tests.fidelity.stage import environment
from tests.fidelity.wrappers import DIRECT, RELAY, Wrapper

PAGE = Path(__file__).parent.parent / "docs" / "fidelity.md"
#: A wrapper may take so much longer than the bare program, and so long at least, in seconds.
_SLOWER = 4.0
_PATIENCE = 5.0

_HEAD = """\
# A terminal that nobody notices

Each row is something that a program, or the person in front of it, could notice. It is observed
twice, with the program running bare in a terminal and with the wrapper between the two: ✓ when the
same was seen in each of {rounds} runs, ✗ when something else was seen, or nothing in time. The
same comparison of bare and `relay wrap` is part of the tests (`tests/fidelity/`).

A ✗ is no judgement: tmux is a terminal of its own and draws its screen anew, asciinema is there to
record, and a row that matters little to one program is what another depends on.

Made by `python -m bench.fidelity --write`, with {versions}.{missing}
"""


def judge(one: Behaviour, wrappers: list[Wrapper], home: str, rounds: int) -> dict[str, str | None]:
    """For each wrapper None, or what went wrong. Raises when the bare program fails."""
    began = time.monotonic()
    bare = observe(one, DIRECT, home)
    if one.expect is not ANY and bare != one.expect:
        raise SystemExit(f"{one.name}: bare, {bare!r} was seen instead of {one.expect!r}")
    limit = min(one.limit, max(_PATIENCE, _SLOWER * (time.monotonic() - began)))
    return {wrapper.name: _differs(one, wrapper, home, bare, rounds, limit) for wrapper in wrappers}


def _differs(
    one: Behaviour, wrapper: Wrapper, home: str, bare: Observation, rounds: int, limit: float
) -> str | None:
    for _ in range(rounds):
        try:
            seen = observe(one, wrapper, home, limit)
        except Exception as error:  # whatever a wrapper makes of it, it is not what was to be seen
            return f"{type(error).__name__}: {error}"
        if seen != bare:
            return f"{seen!r} instead of {bare!r}"
    return None


def table(results: dict[Behaviour, dict[str, str | None]], names: list[str]) -> str:
    """The Markdown table, a section for each group and the sum at its end."""
    lines = [f"| | {' | '.join(names)} |", "|---" + "|:-:" * len(names) + "|"]
    group = ""
    for one, verdicts in results.items():
        if one.group != group:
            group = one.group
            lines.append(f"| **{group}** |" + " |" * len(names))
        marks = ["✗" if verdicts[name] else "✓" for name in names]
        sentence = one.sentence.replace("|", "\\|")
        lines.append(f"| {sentence} | {' | '.join(marks)} |")
    sums = [sum(not verdicts[name] for verdicts in results.values()) for name in names]
    lines.append(f"| **of {len(results)}** | {' | '.join(f'**{n}**' for n in sums)} |")
    return "\n".join(lines) + "\n"


def _broker(home: str, *argv: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "relay", *argv],
        env=environment(home),
        cwd=os.path.dirname(home),
        stdout=subprocess.DEVNULL,
        timeout=60,
        check=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.fidelity", description=__doc__)
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    parser.add_argument("--only", default="", help="behaviours or groups with this in their name")
    parser.add_argument("--rounds", type=int, default=2, help="how often each is run")
    options = parser.parse_args()
    chosen = [one for one in registered() if options.only in f"{one.group}: {one.name}"]
    if options.write and options.only:
        parser.error("--write makes the whole table, so it goes without --only")
    with tempfile.TemporaryDirectory(prefix="fidelity-bench-") as folder:
        peers, missing = installed(Path(folder))
        wrappers = [RELAY, *(peer.wrapper for peer in peers)]
        home = os.path.join(folder, "state")
        _broker(home, "agents")
        try:
            results = {}
            for one in chosen:
                results[one] = judge(one, wrappers, home, options.rounds)
                for name, wrong in results[one].items():
                    if wrong:
                        print(f"{name}: {one.sentence}: {wrong[:200]}", file=sys.stderr)
        finally:
            _broker(home, "broker", "stop")
    versions = [f"Python {platform.python_version()}", *(peer.version for peer in peers)]
    head = _HEAD.format(
        rounds=options.rounds,
        versions=", ".join(versions),
        missing=f" Not installed there: {', '.join(missing)}." if missing else "",
    )
    page = f"{head}\n{table(results, [wrapper.name for wrapper in wrappers])}"
    if options.write:
        PAGE.write_text(page)
    else:
        print(page, end="")
    return int(any(verdicts[RELAY.name] for verdicts in results.values()))


if __name__ == "__main__":
    sys.exit(main())
