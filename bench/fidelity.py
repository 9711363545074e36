"""What a program in a wrapper can tell from running bare: relay beside other wrappers.

    python -m bench.fidelity [--write] [--only TEXT] [--rounds N]

Runs every behaviour of tests/fidelity directly and in each wrapper; one holds when each of the
rounds shows the same as the bare program. Prints the table, with --write into docs/fidelity.md.
A wrapper that is not installed is left out and named. Whatever a behaviour waits for in vain, or
raises, counts as failed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import subprocess
import sys
import tempfile
import textwrap
import time
from concurrent.futures import Future, ProcessPoolExecutor
from functools import cache
from pathlib import Path

from tests.fidelity.behaviours import ANY, Behaviour, Observation, observe, registered
from tests.fidelity.peers import installed
from tests.fidelity.stage import environment
from tests.fidelity.wrappers import DIRECT, RELAY, Wrapper

PAGE = Path(__file__).parent.parent / "docs" / "fidelity.md"
#: A wrapper may take so much longer than the bare program, and so long at least, in seconds.
_SLOWER = 4.0
_PATIENCE = 5.0
_AT_A_TIME = 3
#: For each behaviour and wrapper None, or what went wrong.
Results = dict[Behaviour, dict[str, str | None]]

_HEAD = """\
# A terminal that nobody notices

Each row is something that a program, or the person in front of it, could notice. It is observed
twice: with the program running directly in a terminal, and with the wrapper in between. ✓ means
that both showed the same in each of {rounds} runs, ✗ that something else was seen, or nothing in
time. The tests make the same comparison with `relay wrap` (`tests/fidelity/`).

A ✗ is not a judgement: tmux is a terminal itself and redraws its screen, asciinema is made for
recording, and a row that hardly matters to one program may be essential to another.

"""
_MADE = "Made by `python -m bench.fidelity --write`, with {versions}.{missing}"


def bare(one: Behaviour, home: str) -> tuple[Observation, float]:
    """What is seen without a wrapper, and the seconds a wrapper gets. Raises SystemExit."""
    began = time.monotonic()
    try:
        seen = observe(one, DIRECT, home)
    except Exception as error:
        raise SystemExit(f"{one.name}: bare, {type(error).__name__}: {error}") from error
    if one.expect is not ANY and seen != one.expect:
        raise SystemExit(f"{one.name}: bare, {seen!r} was seen instead of {one.expect!r}")
    took = time.monotonic() - began
    return seen, min(one.limit, max(_PATIENCE, _SLOWER * took))


def differs(
    name: str, wrapper: str, home: str, wanted: Observation, limit: float, rounds: int
) -> str | None:
    """None when the behaviour ``name`` shows ``wanted`` each time, else what went wrong.

    To be called in another process, hence by names.
    """
    one = _behaviours()[name]
    for _ in range(rounds):
        try:
            seen = observe(one, _wrappers(os.path.dirname(home))[wrapper], home, limit)
        except Exception as error:  # whatever a wrapper makes of it, it is not what was to be seen
            return f"{type(error).__name__}: {error}"
        if seen != wanted:
            return f"{seen!r} instead of {wanted!r}"
    return None


@cache
def _behaviours() -> dict[str, Behaviour]:
    return {one.name: one for one in registered()}


@cache
def _wrappers(folder: str) -> dict[str, Wrapper]:
    peers, _ = installed(Path(folder))
    return {wrapper.name: wrapper for wrapper in (RELAY, *(peer.wrapper for peer in peers))}


def compare(chosen: list[Behaviour], names: list[str], home: str, rounds: int) -> Results:
    """All of ``chosen`` in all wrappers. A few at a time: most of it is waiting in vain."""
    broken: dict[Behaviour, dict[str, Future[str | None]]] = {}
    with ProcessPoolExecutor(_AT_A_TIME, multiprocessing.get_context("spawn")) as pool:
        try:
            for one in chosen:
                wanted, limit = bare(one, home)
                broken[one] = {
                    name: pool.submit(differs, one.name, name, home, wanted, limit, rounds)
                    for name in names
                }
            for one, verdicts in broken.items():
                for name, verdict in verdicts.items():
                    if wrong := verdict.result():
                        print(f"{name}: {one.sentence}: {wrong[:200]}", file=sys.stderr)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return {one: {n: v.result() for n, v in verdicts.items()} for one, verdicts in broken.items()}


def table(results: Results, names: list[str]) -> str:
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
        capture_output=True,
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
        names = [RELAY.name, *(peer.wrapper.name for peer in peers)]
        home = os.path.join(folder, "state")
        _broker(home, "agents")
        try:
            results = compare(chosen, names, home, options.rounds)
        finally:
            _broker(home, "broker", "stop")
    versions = [f"Python {platform.python_version()}", *(peer.version for peer in peers)]
    made = _MADE.format(
        versions=", ".join(versions),
        missing=f" Not installed there: {', '.join(missing)}." if missing else "",
    )
    made = textwrap.fill(made, 100, break_on_hyphens=False, break_long_words=False)
    page = f"{_HEAD.format(rounds=options.rounds)}{made}\n\n{table(results, names)}"
    if options.write:
        PAGE.write_text(page)
    else:
        print(page, end="")
    return int(any(verdicts[RELAY.name] for verdicts in results.values()))


if __name__ == "__main__":
    sys.exit(main())
