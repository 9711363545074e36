"""What ``relay memory`` does: asks the broker, and prints."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

from relay.broker.client import BrokerClient
from relay.cli import output, table
from relay.core.errors import UsageError
from relay.core.json_text import named
from relay.features.memory.memory_client import ask, connected, shown
from relay.features.memory.records import ORIGIN

Json = dict[str, Any]

#: More than a memory may have, so that what is too long is refused and not cut. Bytes.
_READ_MAX = 1024 * 1024
#: What a save answers beside the memory.
EXTRA = ("outcome", "former", "redacted")


def run(options: Any) -> int:
    """One verb of the group; the exit status."""
    text = _text(options.text) if options.memory_verb == "save" else ""
    with connected(options.config) as client:
        if options.memory_verb == "save":
            return _save(client, options, text)
        return {"search": _search, "list": _list, "stats": _stats}.get(options.memory_verb, _one)(
            client, options
        )


def _where(options: Any) -> Json:
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


def _save(client: BrokerClient, options: Any, text: str) -> int:
    answer = ask(
        client,
        "memory_save",
        text=text,
        supersedes=options.supersedes,
        secrets="keep" if options.keep_secrets else None,
        **_where(options),
    )
    memory = answer["memory"]
    if options.json:
        extra: Json = {key: answer[key] for key in EXTRA if key in answer}
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


def _search(client: BrokerClient, options: Any) -> int:
    answer = ask(
        client, "memory_search", query=options.query, limit=options.limit, **_where(options)
    )
    if options.json:
        rows = answer["memories"]
        output.as_json([{**shown(r), "score": r["score"], "tier": r["tier"]} for r in rows])
    else:
        _table(answer["memories"], "nothing is found")
    return 0


def _list(client: BrokerClient, options: Any) -> int:
    rows, more = _newest(client, options)
    if options.json:
        output.as_json([shown(memory) for memory in rows])
        return 0
    _table(rows, "there are no memories here yet")
    if more:
        output.note("there are more: give a larger --limit")
    return 0


def _newest(client: BrokerClient, options: Any) -> tuple[list[Json], bool]:
    """As many as are wanted, however few an answer holds; whether there are more."""
    rows: list[Json] = []
    last: Json = {}
    while True:
        answer = ask(
            client, "memory_list", limit=options.limit - len(rows), **last, **_where(options)
        )
        rows += answer["memories"]
        if not answer["more"] or len(rows) >= options.limit or not answer["memories"]:
            return rows, answer["more"]
        last = {"before_ms": rows[-1]["updated_ms"], "before_id": rows[-1]["id"]}


def _table(rows: list[Json], none: str) -> None:
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


def _one(client: BrokerClient, options: Any) -> int:
    op = f"memory_{'get' if options.memory_verb == 'show' else 'forget'}"
    memory = ask(client, op, id=options.id)["memory"]
    if options.json:
        output.as_json(shown(memory))
        return 0
    if op == "memory_forget":
        output.data(memory["id"])
        output.note(f"forgotten: {output.summary(memory['text'])}")
        return 0
    fields = {**shown(memory), "place": _place(memory)}
    names = ("id", "place", "agent", "session", "created_at", "updated_at", "supersedes")
    meta = json.dumps(memory["meta"]) if memory["meta"] else None
    table.fields([*((name, fields[name]) for name in names), ("meta", meta)])
    output.data("")
    output.lines(memory["text"])
    return 0


def _stats(client: BrokerClient, options: Any) -> int:
    answer = ask(client, "memory_stats")
    names = ("backend", "tier", "embedder", "problem", "pending", "index", "size")
    fields = {name: answer.get(name) for name in (*names, "folder", "store", "count")}
    if options.json:
        extractions = answer.get("extractions")
        output.as_json({**fields, "places": answer["places"], "extractions": extractions})
        return 0
    index = answer.get("index") or {}
    filled = "" if index.get("total") is None else f": {index['filled']} of {index['total']}"
    none = None if index else "none (relay memory setup gets one)"
    pending = answer.get("pending")
    table.fields(
        [
            ("backend", answer["backend"]),
            ("search by", "words and meaning" if answer["tier"] == "hybrid" else "words"),
            ("embedder", answer["embedder"] or none),
            ("index", f"{index['title']}{filled}" if index else None),
            ("problem", answer["problem"] or None),
            ("pending", f"{pending} not found by meaning yet" if pending else None),
            *_auto_save(answer.get("extractions") or {}),
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


def _auto_save(extractions: Json) -> list[tuple[str, object]]:
    """What auto_save has not done yet, if there is anything."""
    counts = [f"{extractions[key]} {key}" for key in ("waiting", "failed") if extractions.get(key)]
    if not counts:
        return []
    what = f"{', '.join(counts)} (the last words of so many sessions)"
    return [("auto_save", what), ("", extractions.get("last_error") or None)]


def _by(memory: Json) -> str:
    """The agent that saved it; of what it saved for everybody also where it was."""
    where = memory["meta"].get(ORIGIN) if memory["scope"] == "user" else None
    return f"{memory['agent']} in {os.path.basename(where)}" if where else str(memory["agent"])


def _place(memory: Json) -> str:
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
