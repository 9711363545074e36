"""``relay memory kept``: saves that wait for a store that is away, and moving them elsewhere.

What was kept for an address that was wrong would wait for ever: it belongs to that store.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from relay.broker.client import BrokerClient
from relay.cli import output, table
from relay.cli.memory_client import applying, ask, connected, shown
from relay.core.errors import NotFound, StorageError, UsageError, only_the_person
from relay.core.paths import Home
from relay.core.processes import wrapped
from relay.memory.backend import StoreUnavailable
from relay.memory.kept_saves import KeptSave, KeptSaves, path_of, title_of, waiting_in
from relay.memory.records import to_json


def run(options: Any) -> int:
    """List the stores, or what waits for one, or move that; the exit status."""
    home = Home.from_env()
    if options.store is not None and wrapped():
        raise only_the_person("see or move what waits for a store")
    if options.store is None:
        if options.move:
            raise UsageError(
                "which saves are to be moved?", hint="relay memory kept lists the stores, by key"
            )
        return _stores(home, options.json)
    key = _key(home, options.store)
    if options.move:
        return _move(home, key, options)
    with _opened(home, key) as outbox:
        found = list(_saves(outbox))
    rows = [{**shown(to_json(one.memory())), "refused": one.refused} for one in found]
    if options.json:
        output.as_json(rows)
        return 0
    table.table(
        ("ID", "SCOPE", "BY", "REFUSED", "TEXT"),
        [
            (
                row["id"],
                row["scope"],
                row["agent"],
                row["refused"] and " ".join(str(row["refused"]).split()),
                " ".join(str(row["text"]).split()),
            )
            for row in rows
        ],
        width=table.columns(),
    )
    return 0


def _stores(home: Home, as_json: bool) -> int:
    rows = [
        {"key": key, "store": title_of(home.memory, key), "kept": kept, "refused": refused}
        for key, (kept, refused) in waiting_in(home.memory).items()
    ]
    if as_json:
        output.as_json(rows)
    elif not rows:
        output.note("no save waits for any store")
    else:
        table.table(
            ("KEY", "STORE", "KEPT", "REFUSED"),
            [(one["key"], str(one["store"]), one["kept"], one["refused"]) for one in rows],
            width=table.columns(),
        )
    return 0


def _key(home: Home, typed: str) -> str:
    keys = list(waiting_in(home.memory))
    found = [key for key in keys if key.startswith(typed.lower())]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(
            f"{typed[:40]!r} begins several keys: {', '.join(found)}", hint="give more of it"
        )
    raise NotFound(
        f"no save waits for a store with the key {typed[:40]!r}",
        hint="relay memory kept lists those that have some",
    )


def _move(home: Home, key: str, options: Any) -> int:
    """Each is taken away only after the other store has it: what is cut off is run again."""
    if applying(home, options.config).settings.store.resolved(os.environ).key() == key:
        raise UsageError(
            "that is the store of this folder: it gets them by itself when it can be reached",
            hint="relay memory stats says why it does not; --config FILE names another store",
        )
    counts: Counter[str] = Counter()
    with connected(options.config) as client, _opened(home, key) as outbox:
        try:
            for save in _saves(outbox):
                done = _given(client, save)
                counts[done] += 1
                if done != "conflicting":
                    outbox.applied(save, save.id)
        finally:
            outbox.purge()
    if options.json:
        output.as_json({name: counts[name] for name in ("new", "same", "conflicting")})
    else:
        moved = counts["new"] + counts["same"]
        output.data(f"{moved} {'save is' if moved == 1 else 'saves are'} moved")
    if counts["conflicting"]:
        output.note(f"{counts['conflicting']} stay: their ids are other memories there")
    return 0


def _given(client: BrokerClient, save: KeptSave) -> str:
    answer = ask(client, "memory_import", memories=[to_json(save.memory())])
    return next(name for name in ("new", "same", "conflicting") if answer[name])


def _saves(outbox: KeptSaves) -> Iterator[KeptSave]:
    for id_ in outbox.ids():
        yield from outbox.starting_with(id_, 1)


@contextmanager
def _opened(home: Home, key: str) -> Iterator[KeptSaves]:
    path = path_of(home.memory, key)
    try:
        outbox = KeptSaves(path, title=title_of(home.memory, key))
    except StoreUnavailable as error:
        raise StorageError(
            f"the broker has the kept saves of that store in hand: {path}",
            hint="relay broker stop, then once more",
        ) from error
    with closing(outbox):
        yield outbox
