"""``relay ledger ingest``: transcripts of other programs are read, and go to the broker as rows.

Here and not in the broker: they may be anybody's, and large. What is read is bounded in each
direction: a line, what goes into one request, how deep folders are.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Any

from relay.agents.past import READERS, PastReader
from relay.agents.structured_source import object_in
from relay.broker.client import BrokerClient, connect
from relay.cli import output, progress
from relay.core.errors import (
    EXIT_FAILED,
    BrokerUnavailable,
    RelayError,
    StorageError,
    Timeout,
    UsageError,
)
from relay.core.paths import Home
from relay.features.ingest.ops import INGEST, INGESTED, IngestedPlace
from relay.protocol.past_turns import CLAUDE, CODEX

#: Bytes of a line; a longer one is passed over.
LINE_MAX = 16 * 1024 * 1024
#: Characters, and rows of one kind, after which a request is sent.
BATCH_SIZE, BATCH_ROWS = 512 * 1024, 1000
#: Bytes between two commits at least where nothing of them is a row.
BATCH_BYTES = 16 * 1024 * 1024
#: Seconds after which a file that nobody has written to is taken as left.
LEFT_AFTER = 60.0
#: Bytes before the offset by which it is known whether a file is still the same.
TAIL = 256
#: A file's first lines, and bytes of each, that tell whose it is.
HEAD_LINES, HEAD_MAX = 64, 64 * 1024
DEPTH_MAX = 12
#: The code of what only the person may do.
_FORBIDDEN = "forbidden"
#: Problems that are told one by one.
TOLD_MAX = 20
_OF_CLAUDE = re.compile(rb'"sessionId"\s*:\s*"')
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


@dataclass(slots=True)
class Counts:
    """What was found and stored."""

    files: int = 0
    read: int = 0
    bytes: int = 0
    turns: int = 0
    messages: int = 0
    calls: int = 0
    lines_passed: int = 0
    not_transcripts: int = 0
    links: int = 0
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class FoundFile:
    path: str
    size: int
    modified: float

    def order(self) -> tuple[str, float, str]:
        name = os.path.basename(self.path)
        return (name if name.startswith("rollout-") else "", self.modified, self.path)


def ingest_verb(options: Any) -> int:
    """``relay ledger ingest``: 0 when all that was found is in the ledger."""
    counts = Counts()
    roots = options.paths or own_folders(options.source)
    # What others hang from goes first. Codex names its files by time; a conversation of Claude
    # Code's that was gone on with in a second file is older than that.
    files = sorted(files_below(roots, counts, given=bool(options.paths)), key=FoundFile.order)
    if not files and not counts.problems:
        output.note(f"no transcripts are in {', '.join(roots)}")
    total = sum(one.size for one in files)
    done = 0
    with connect(Home.from_env()) as client, progress.on_stderr() as bar:
        for one in files:
            counts.files += 1
            try:
                for offset in _ingest(client, one, options.source, counts):
                    read = f"{(done + offset) >> 20} of {total >> 20} MB, {counts.turns} turns"
                    bar.show(read)
            except (BrokerUnavailable, Timeout, StorageError):
                raise
            except (OSError, RelayError) as error:
                if isinstance(error, RelayError) and error.code == _FORBIDDEN:
                    raise
                why = error.strerror if isinstance(error, OSError) else error.line
                counts.problems.append(f"{one.path}: {why}")
            done += one.size
    _report(counts, options.json)
    return EXIT_FAILED if counts.problems else 0


def _report(counts: Counts, in_json: bool) -> None:
    if in_json:
        output.as_json({name: getattr(counts, name) for name in counts.__slots__})
        return
    output.data(
        f"{counts.turns} turns, {counts.messages} messages and {counts.calls} tool calls are new,"
        f" from {counts.read} of {counts.files} files"
    )
    if counts.lines_passed:
        output.note(f"{counts.lines_passed} lines were skipped: damaged, or too long")
    if counts.not_transcripts:
        output.note(f"{counts.not_transcripts} files are not transcripts of Claude Code or Codex")
    if counts.links:
        output.note(f"{counts.links} links were not followed: name what they lead to")
    for problem in counts.problems[:TOLD_MAX]:
        output.note(f"not read: {problem}")
    if len(counts.problems) > TOLD_MAX:
        output.note(f"and {len(counts.problems) - TOLD_MAX} more")


# -- which files


def own_folders(source: str | None) -> list[str]:
    """Where the person's own programs keep them."""
    claude = os.environ.get("CLAUDE_CONFIG_DIR") or os.path.expanduser("~/.claude")
    codex = os.environ.get("CODEX_HOME") or os.path.expanduser("~/.codex")
    folders = []
    if source in (None, CLAUDE):
        folders.append(os.path.join(claude, "projects"))
    if source in (None, CODEX):
        folders += [os.path.join(codex, name) for name in ("sessions", "archived_sessions")]
    return folders


def files_below(roots: list[str], counts: Counts, *, given: bool) -> Iterator[FoundFile]:
    """The files below the roots; links in them are not followed, what is not a file is left out."""
    for root in roots:
        path = os.path.realpath(root)
        try:
            status = os.stat(path)
        except OSError as error:
            if given:
                raise UsageError(f"{root} cannot be read: {error.strerror}") from error
            continue
        if stat.S_ISDIR(status.st_mode):
            yield from _below(path, counts, 0)
        elif stat.S_ISREG(status.st_mode):
            yield FoundFile(path, status.st_size, status.st_mtime)
        else:
            raise UsageError(f"{root} is neither a file nor a folder")


def _below(folder: str, counts: Counts, depth: int) -> Iterator[FoundFile]:
    try:
        with os.scandir(folder) as entries:
            found = list(entries)
    except OSError as error:
        counts.problems.append(f"{folder}: {error.strerror}")
        return
    for entry in found:
        if entry.is_symlink():
            counts.links += 1
        elif entry.is_dir(follow_symlinks=False):
            if depth < DEPTH_MAX:
                yield from _below(entry.path, counts, depth + 1)
        elif entry.name.endswith(".jsonl") and entry.is_file(follow_symlinks=False):
            with suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                yield FoundFile(entry.path, status.st_size, status.st_mtime)


# -- one file


def _ingest(
    client: BrokerClient, found: FoundFile, source: str | None, counts: Counts
) -> Iterator[int]:
    """Read what is new in a file, and store it; yields how far it has come. Raises OSError, and
    RelayError where the broker does not take it."""
    try:
        found.path.encode()
    except UnicodeEncodeError as error:
        raise UsageError("its name is not Unicode") from error
    with open_file(found.path) as file:
        status = os.fstat(file.fileno())
        inode = f"{status.st_dev}:{status.st_ino}"
        before = client.request(INGESTED, path=found.path)
        known = before["offset"]
        offset = known or 0
        state = before.get("state") or {}
        kind = state.get("source")
        if not _is_same(file, before, inode, status.st_size) or source not in (None, kind):
            state, kind = {}, source or source_of(file)
            offset = 0
        if kind is None:
            counts.not_transcripts += status.st_size > 0
            return
        left = time.time() - status.st_mtime > LEFT_AFTER
        reader = READERS[kind](state.get("reader") or {})
        if status.st_size == offset and (reader.settled or not left):
            return
        counts.read += 1
        file.seek(offset)
        for end, is_last in _read_on(file, reader, offset, status.st_size, counts):
            if is_last and left:
                reader.release()
            new = {"source": kind, "reader": reader.state(), "tail": _tail(file, end)}
            stored = client.request(
                INGEST,
                path=found.path,
                source=kind,
                known=known,
                inode=inode,
                offset=end,
                state=new,
                rows=reader.take().to_json(),
                deadline=120.0,
            )
            counts.bytes += end - offset
            known = offset = end
            for name in ("turns", "messages", "calls"):
                setattr(counts, name, getattr(counts, name) + stored[name])
            yield end


def open_file(path: str) -> IO[bytes]:
    """Open a file to read it. Raises OSError, also where it is not a file, or a link."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
    file = os.fdopen(os.open(path, flags), "rb")
    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        return file
    file.close()
    raise OSError(errno.EINVAL, "it is not a file")


def _is_same(file: IO[bytes], known: IngestedPlace, inode: str, size: int) -> bool:
    """Whether the file only has grown since it was read."""
    offset = known["offset"]
    if offset is None or known["inode"] != inode or offset > size:
        return False
    return bool(_tail(file, offset) == known["state"].get("tail"))


def _tail(file: IO[bytes], offset: int) -> str:
    """What stands before the offset, as a hash."""
    start = max(0, offset - TAIL)
    return hashlib.sha256(os.pread(file.fileno(), offset - start, start)).hexdigest()[:32]


def source_of(file: IO[bytes]) -> str | None:
    """Whose transcript this is, by its first lines."""
    file.seek(0)
    for _ in range(HEAD_LINES):
        line = file.readline(HEAD_MAX)
        if line.startswith(b"{") and b'"session_meta"' in line[:256]:
            return CODEX
        if line.startswith(b"{") and _OF_CLAUDE.search(line):
            return CLAUDE
    return None


def _read_on(
    file: IO[bytes], reader: PastReader, offset: int, size: int, counts: Counts
) -> Iterator[tuple[int, bool]]:
    """Read whole lines up to ``size``; yields where enough is read for a request, and at the
    end. A line that nobody has ended yet stays for the next time."""
    sent = offset
    while offset < size:
        line = file.readline(LINE_MAX + 1)
        end = offset + len(line)
        if not line.endswith(b"\n"):
            end = _end_of_line(file, end, size) if len(line) > LINE_MAX else 0
            if not end:
                break
            counts.lines_passed += 1
        elif not line.startswith(reader.passes) and not line.isspace():
            take_line(reader, line, counts)
        offset = end
        rows = max(len(reader.rows.messages), len(reader.rows.results), len(reader.rows.calls))
        enough = reader.size >= BATCH_SIZE or rows >= BATCH_ROWS or offset - sent >= BATCH_BYTES
        if enough:
            yield offset, False
            sent = offset
    if offset > sent or not reader.settled:
        yield offset, True


def _end_of_line(file: IO[bytes], offset: int, size: int) -> int:
    """Where a line ends that is too long; 0 where it has not ended yet."""
    while offset < size:
        part = file.readline(1 << 20)
        if not part:
            return 0
        offset += len(part)
        if part.endswith(b"\n"):
            return offset
    return 0


def take_line(reader: PastReader, line: bytes, counts: Counts) -> None:
    text = line.decode("utf-8", "replace")
    record = object_in(text)
    try:
        if record is not None and _SURROGATE.search(line):
            # Half a pair cannot be stored, wherever it stands.
            whole = json.dumps(record, ensure_ascii=False).encode("utf-8", "replace")
            record = object_in(whole.decode())
        if record is not None:
            reader.read(record)
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError):
        # Its form is not ours to promise: one odd line must not cost the others.
        record = None
    counts.lines_passed += record is None
