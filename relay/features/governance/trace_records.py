"""Records of the trace: what was done, as one line of JSON that is chained to the one before. Pure.

The fields are those of Agent Trace 0.1.0, with relay's own beside them. A line's hash covers all
its bytes and, through ``previous``, every line before it. What stands in a trace came from agents
and repositories: to show a record, nothing in it is taken to be of the kind that relay writes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from relay.core import json_text
from relay.core.visible import visible
from relay.features.governance.intents import TraceKind as TraceKind
from relay.features.governance.mutation import FileMutation, LineRange, overall

#: Of Agent Trace.
VERSION = "0.1.0"
#: What the first record follows.
FIRST = "sha256:" + "0" * 64
#: Bytes of a line, its end included. What would be longer is said shorter.
LINE_MAX = 256 * 1024
#: Files and ranges that one record names, and characters of one of its texts.
_FILES_MAX = 300
_RANGES_MAX = 500
_TEXT_MAX = 2000
#: What stays of a record's metadata where all of it would be too long.
_KEPT = ("reason", "event", "error", "text", "agent_kind")
_HASH_AT = len(',"hash":"sha256:"}') + 64
_HASH = re.compile(rb',"hash":"(sha256:[0-9a-f]{64})"\}')

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TraceHead:
    """The end of a trace: bytes up to the end of its last line, and that line's hash."""

    size: int
    hash: str


@dataclass(frozen=True, slots=True)
class TraceFault:
    """Something that is not as it was written. ``line`` counts from 1; 0 is the whole file."""

    line: int
    text: str

    @property
    def told(self) -> str:
        """The same as a sentence, for a person."""
        return f"line {self.line} {self.text}" if self.line else self.text


@dataclass(frozen=True, slots=True)
class Verified:
    """What a look at the whole trace found."""

    records: int
    faults: tuple[TraceFault, ...]
    #: There were more than are told.
    more: bool = False
    #: Nobody here has written to it, as far as relay knows: only its lines can be looked at.
    foreign: bool = False

    @property
    def told(self) -> str:
        """What a trace without faults is."""
        if self.foreign:
            return "its lines hold together, but relay has not written it on this machine"
        return "as it was written"


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """What is to be written down; the trace adds id, time, revision and chain."""

    kind: TraceKind
    #: Who did it, by name, and the run; without a name it was the person.
    agent: str = ""
    session: str = ""
    intent_id: str = ""
    #: The agent's tool, as the agent calls it.
    tool: str = ""
    model: str = ""
    #: What changed, of a mutation.
    files: tuple[FileMutation, ...] = ()
    #: What else is known: a command, paths that were asked for, a reason, a text, the agent's kind.
    metadata: Mapping[str, object] = field(default_factory=dict)

    def fields(self, id: str, at_ms: int, revision: str) -> Json:
        """The record as it is written, but for the chain."""
        row: Json = {
            "version": VERSION,
            "id": id,
            "timestamp": timestamp(at_ms),
            "kind": str(self.kind),
            "intent_id": self.intent_id[:_TEXT_MAX],
            "tool_name": self.tool[:_TEXT_MAX],
            "mutation_class": "",
            "agent": self.agent,
            "session": self.session,
            "files": self._files(),
        }
        if self.files:
            row["mutation_class"] = overall(file.mutation_class for file in self.files).value
        if revision:
            row["vcs"] = {"type": "git", "revision": revision}
        row["metadata"] = {name: _plain(value) for name, value in self.metadata.items()}
        if len(self.files) > _FILES_MAX:
            row["metadata"]["files_left_out"] = len(self.files) - _FILES_MAX
        return row

    def _files(self) -> list[Json]:
        rows, room = [], _RANGES_MAX
        contributor: Json = {"type": "ai" if self.agent else "human"}
        if self.model:
            contributor["model_id"] = self.model[:_TEXT_MAX]
        for file in self.files[:_FILES_MAX]:
            ranges, replaced = file.ranges[:room], file.replaced[:room]
            room -= max(len(ranges), len(replaced))
            row: Json = {
                "path": file.path,
                "conversations": [{"contributor": contributor, "ranges": _ranges(ranges)}],
                "before": file.before or "absent",
                "after": file.after or "absent",
                "mutation_class": file.mutation_class.value,
                "replaced": _ranges(replaced),
            }
            if file.moved_from:
                row["moved_from"] = file.moved_from
            if len(ranges) + len(replaced) < len(file.ranges) + len(file.replaced):
                row["ranges_left_out"] = True
            rows.append(row)
        return rows


def _plain(value: object) -> object:
    """A value as JSON has it, bounded; a text without secrets."""
    if isinstance(value, str):
        from relay.directive.redact import redact  # many patterns

        text = redact(value[: 4 * _TEXT_MAX])
        return text if len(value) <= _TEXT_MAX else text[: _TEXT_MAX - 1] + "…"
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value[:_FILES_MAX]]
    return value if value is None or isinstance(value, bool | int | float) else _plain(str(value))


def _ranges(ranges: tuple[LineRange, ...]) -> list[Json]:
    return [asdict(one) for one in ranges]


def timestamp(at_ms: int) -> str:
    """A time in milliseconds since the epoch as RFC 3339 in UTC."""
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def chained(row: Json, previous: str) -> tuple[bytes, str]:
    """The line of a record that follows the one of hash ``previous``, and its own hash."""
    row = {**row, "previous": previous}
    body = json_text.dumps(row)
    if len(body) > LINE_MAX - _HASH_AT - 1:  # hundreds of files with very long names
        for one in row["files"]:
            one["conversations"][0]["ranges"], one["replaced"] = [], []
        kept = {name: row["metadata"][name] for name in _KEPT if name in row["metadata"]}
        kept["files_left_out"] = len(row["files"]) - 8 + row["metadata"].get("files_left_out", 0)
        row |= {"files": row["files"][:8], "metadata": kept}
        body = json_text.dumps(row)
    digest = f"sha256:{hashlib.sha256(body.encode()).hexdigest()}"
    return f'{body[:-1]},"hash":"{digest}"}}\n'.encode(), digest


def hash_of(line: bytes) -> str:
    """The hash that a line claims for itself; that of its bytes where it is no record."""
    line = line.removesuffix(b"\n")
    found = _HASH.fullmatch(line[-_HASH_AT:])
    return found[1].decode() if found else f"sha256:{hashlib.sha256(line).hexdigest()}"


def read_line(line: bytes) -> Json | None:
    """The fields of a line; None for what is no record."""
    try:
        row = json_text.loads(line.decode())
    except ValueError:
        return None
    if not isinstance(row, dict) or not isinstance(row.get("files"), list):
        return None
    return row if all(isinstance(row.get(name), str) for name in _TEXTS) else None


_TEXTS = ("id", "timestamp", "kind", "intent_id", "agent", "previous", "hash")


def fault_of(line: bytes, previous: str) -> str:
    """What is wrong with a line that should follow the one of hash ``previous``; "" if nothing."""
    row = read_line(line)
    found = _HASH.fullmatch(line[-_HASH_AT:])
    if row is None or found is None:
        return "is not a record that relay wrote"
    digest = hashlib.sha256(line[:-_HASH_AT] + b"}").hexdigest()
    if f"sha256:{digest}" != found[1].decode():
        return "was changed after it was written"
    if row["previous"] != previous:
        return "does not follow the line before it: lines were taken out, put in or moved"
    if row["kind"] == TraceKind.GOVERNANCE and row["metadata"].get("event") == BROKEN:
        return f"says that {row['metadata'].get('text', 'the trace was changed')}"
    return ""


#: The event of a record that says that the trace was found changed.
BROKEN = "trace_broken"


#: Characters of one text that are shown.
_SHOWN_MAX = 400


@dataclass(frozen=True, slots=True)
class TraceLine:
    """One record of the trace, as it is shown; whatever its line holds, each field is a text."""

    time: str
    kind: str
    intent: str
    agent: str
    what: str
    #: The agent's command, the error, a person's reason.
    words: str


def trace_line(record: Json) -> TraceLine:
    """A record as it is shown."""
    more = _object(record.get("metadata"))
    tool = _text(record.get("tool_name"))
    what = _summary([_object(file) for file in record["files"]], more)
    return TraceLine(
        time=_text(record["timestamp"]),
        kind=_text(record["kind"]),
        intent=_text(record["intent_id"]),
        agent=_text(record["agent"]) or ("relay" if more.get("event") == BROKEN else "the person"),
        what=f"{tool}: {what}" if tool else what,
        words=next((_text(more[key]) for key in ("text", "error", "command") if more.get(key)), ""),
    )


def _summary(files: list[Json], more: Json) -> str:
    """What a record tells, in a line."""
    words = [_text(more[name]) for name in ("event", "decision", "reason") if more.get(name)]
    if "from" in more and "to" in more:
        words.append(f"{_text(more['from'])} -> {_text(more['to'])}")
    paths = more.get("paths")
    if files:
        words.append(", ".join(_text(file.get("path")) for file in files[:3]))
        if len(files) > 3:
            words.append(f"and {len(files) - 3} more")
        words.append(f"({', '.join(sorted({_text(f.get('mutation_class')) for f in files}))})")
    elif isinstance(paths, list) and paths:
        words.append(", ".join(map(_text, paths[:3])))
    if more.get("by"):
        words.append(f"(by {_text(more['by'])})")
    return " ".join(words)


def _object(value: object) -> Json:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    text = " ".join(visible(value if isinstance(value, str) else "").split())
    if isinstance(value, int):
        text = str(value)[:20]
    return text if len(text) <= _SHOWN_MAX else text[: _SHOWN_MAX - 1] + "…"
