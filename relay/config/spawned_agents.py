"""What was spawned, one file each in RELAY_HOME: written by ``relay spawn``, read to bring agents
back, by the team, and by the broker, which tells an agent that the helper it started has ended.

Its host notes how each has ended. One without such a note, and without a holder of its name, has
lost its terminal.
"""

from __future__ import annotations

import os
import time
from dataclasses import asdict, dataclass, field, fields

from relay.config.names import record_path, spawned_folder
from relay.core import files
from relay.core.agent_names import valid_name
from relay.core.json_text import dumps, loads
from relay.core.paths import Home
from relay.protocol.broker import Json

#: Records that are kept; of more, the oldest of those that have ended go.
_RECORDS_MAX = 200
#: What ``options`` may give a value: no file of ours says more to ``relay wrap``.
OPTIONS = ("task", "config", "type", "role", "join", "intent", "write")
#: Those without a value.
FLAGS = ("hear", "confine")


@dataclass(frozen=True, slots=True)
class Spawn:
    """An agent that is to be started: ``options`` are more words for ``relay wrap``, ``env``
    changes its environment (None takes a variable out)."""

    name: str
    command: list[str]
    cwd: str
    options: tuple[str, ...] = ()
    env: dict[str, str | None] = field(default_factory=dict)
    #: The team file that names it, "" for none.
    team: str = ""
    #: The agent that has started it, "" for the person.
    parent: str = ""
    #: The agent's own id of the conversation that it goes on with, "" for a new one.
    conversation: str = ""


def spawned(home: Home) -> list[Json]:
    """Those that run, or did when the machine went down: the fields of Spawn, ``host`` (the pid),
    ``started_ms``."""
    return [record for record in known(home) if not record.get("ended")]


def ended(home: Home, name: str, how: str, host: int | None = None) -> None:
    """Note how it has ended (if its host is still this one): it is not brought back by itself."""
    record = _read(record_path(home, name))
    if record is not None and not record.get("ended") and host in (None, record.get("host")):
        files.write_atomically(record_path(home, name), dumps({**record, "ended": how}))


def not_ended(home: Home, name: str, how: str, host: int) -> None:
    """Withdraw the note that this host has written: it is brought back."""
    record = _read(record_path(home, name))
    if record is not None and (record.get("ended"), record.get("host")) == (how, host):
        files.write_atomically(record_path(home, name), dumps({**record, "ended": ""}))


def keep(home: Home, wanted: Spawn, host: int, run: str) -> None:
    """Write the record of one that has just been started; ``run`` once its run is known, or ""."""
    files.make_private_folder(spawned_folder(home))
    # What was put into its environment may be secret; who resumes it has an environment.
    record = {**asdict(wanted), "env": {}, "host": host, "run": run}
    record["started_ms"] = int(time.time() * 1000)
    files.write_atomically(record_path(home, wanted.name), dumps(record))
    old = sorted(known(home), key=lambda one: int(one["started_ms"]))[:-_RECORDS_MAX]
    for one in old:
        if one.get("ended"):
            files.unlink_if_there(record_path(home, one["name"]))


def known(home: Home) -> list[Json]:
    """All records, by name."""
    try:
        paths = sorted(name for name in os.listdir(spawned_folder(home)) if name.endswith(".json"))
    except OSError:
        return []
    found = (_read(os.path.join(spawned_folder(home), name)) for name in paths)
    return [record for record in found if record is not None]


def _read(path: str) -> Json | None:
    """A record; None where there is none, or it is damaged."""
    try:
        record: Json = loads(files.read_file(path, 1 << 20).decode())
        Spawn(**{one.name: record[one.name] for one in fields(Spawn)})
        return record if valid_name(record["name"]) and int(record["started_ms"]) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def put_back(home: Home, name: str, before: Json | None) -> None:
    """It has ended at once: its record is what it was ``before``, None where there was none."""
    if before is None:
        files.unlink_if_there(record_path(home, name))
    else:
        files.write_atomically(record_path(home, name), dumps(before))


def record_of(home: Home, name: str) -> Json | None:
    """The record of one that was spawned, ended or not."""
    return _read(record_path(home, name))
