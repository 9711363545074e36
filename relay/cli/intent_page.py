"""The trace as one page of HTML: intents, who changed what, refusals, a timeline. Pure.

The page loads nothing and runs nothing: it has no script, and its policy allows its own style
alone. What stands in it came from agents and repositories; all of it is escaped.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from relay.core.visible import visible
from relay.governance.intents import Intent
from relay.governance.trace_records import BROKEN, Verified

#: What each page begins with: a file that begins otherwise is not replaced by one.
MARK = "<!DOCTYPE html>\n<!-- relay intent log -->\n"
#: Characters of one text, and files of one call, that are shown.
_TEXT_MAX = 400
_FILES_SHOWN = 20
#: The drawing: columns, and rows of one agent.
_WIDTH, _LANE = 1000, 30
#: Agents that have a lane of their own; the rest, named last, share one.
_LANES_MAX = 20
_KINDS = ("mutation", "refusal", "selection", "approval", "lesson", "governance")
_STYLE = """
:root { color-scheme: light dark; --line: #8884; --dim: #8a8f98; --mutation: #2f81f7;
  --refusal: #e5484d; --selection: #30a46c; --approval: #d97706; --lesson: #8e4ec6;
  --governance: #8a8f98; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 68rem; padding: 0 1rem; }
h1 { margin: 0; font-size: 1.6rem } h2 { margin: 2.2rem 0 .6rem; font-size: 1.2rem }
h3 { margin: 0; font-size: 1rem }
code, td.path { font: 13px/1.45 ui-monospace, monospace; overflow-wrap: anywhere }
td.path { min-width: 10rem } td.id { max-width: 12rem; min-width: 4.5rem; overflow-wrap: anywhere }
table { border-collapse: collapse; width: 100% }
th, td { text-align: left; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top }
th { color: var(--dim); font-weight: 500; font-size: .85rem }
td.time { white-space: nowrap; font-variant-numeric: tabular-nums; color: var(--dim) }
.dim { color: var(--dim) } .bad { color: var(--refusal); font-weight: 600 }
.good { color: var(--selection); font-weight: 600 }
.card { border: 1px solid var(--line); border-radius: 8px; padding: .8rem 1rem; margin: .8rem 0 }
.card header { display: flex; gap: .8rem; align-items: baseline; flex-wrap: wrap }
.tag { border: 1px solid var(--line); border-radius: 99px; padding: 0 .6rem; font-size: .8rem }
.wide { overflow-x: auto } svg { width: 100%; min-width: 40rem } summary { cursor: pointer }
svg text { font: 12px system-ui, sans-serif; fill: currentColor } svg line { stroke: var(--line) }
.legend span { margin-right: 1rem; font-size: .85rem } .legend i { display: inline-block;
  width: .7rem; height: .7rem; border-radius: 50%; margin-right: .3rem }
""" + "".join(
    f".{kind} {{ fill: var(--{kind}); color: var(--{kind}) }}\n"
    f"i.{kind} {{ background: var(--{kind}) }}\n"
    for kind in _KINDS
)


@dataclass(frozen=True, slots=True)
class LogFile:
    """What a record says of one file."""

    path: str
    mutation: str
    lines: str


@dataclass(frozen=True, slots=True)
class LogRow:
    """One record of the trace, as it is shown; whatever its line says, each field is a text."""

    line: int
    time: str
    kind: str
    intent: str
    agent: str
    tool: str
    what: str
    #: The agent's command, the error, a person's reason.
    words: str
    reason: str
    model: str
    revision: str
    files: tuple[LogFile, ...]


def log_row(line: int, row: dict[str, Any]) -> LogRow:
    """A record as it is shown. Nothing in it is sure to be of the kind that relay writes."""
    more = _object(row.get("metadata"))
    listed = [_object(one) for one in row["files"]]
    files = tuple(
        LogFile(_text(one.get("path")), _text(one.get("mutation_class")), _lines(one))
        for one in listed
    )
    contributors = [
        _object(_object(talk).get("contributor"))
        for one in listed
        for talk in _list(one.get("conversations"))
    ]
    models = [_text(one["model_id"]) for one in contributors if one.get("model_id")]
    return LogRow(
        line=line,
        time=_text(row["timestamp"]),
        kind=_text(row["kind"]),
        intent=_text(row["intent_id"]),
        agent=_text(row["agent"]) or ("relay" if more.get("event") == BROKEN else "the person"),
        tool=_text(row.get("tool_name")),
        what=_what(files, more),
        words=next((_text(more[one]) for one in ("text", "error", "command") if more.get(one)), ""),
        reason=_text(more.get("reason")) if row["kind"] == "refusal" else "",
        model=models[0] if models else "",
        revision=_text(_object(row.get("vcs")).get("revision")),
        files=files,
    )


def _what(files: Sequence[LogFile], more: dict[str, Any]) -> str:
    """What a record tells, in a line."""
    words = [_text(more[name]) for name in ("event", "decision", "reason") if more.get(name)]
    if "from" in more and "to" in more:
        words.append(f"{_text(more['from'])} -> {_text(more['to'])}")
    if files:
        words.append(", ".join(one.path for one in files[:3]))
        if len(files) > 3:
            words.append(f"and {len(files) - 3} more")
        words.append(f"({', '.join(sorted({one.mutation for one in files}))})")
    elif paths := _list(more.get("paths")):
        words.append(", ".join(map(_text, paths[:3])))
    if more.get("by"):
        words.append(f"(by {_text(more['by'])})")
    return " ".join(words)


def _lines(file: dict[str, Any]) -> str:
    ranges = [
        f"{_text(_object(one).get('start_line'))}-{_text(_object(one).get('end_line'))}"
        for talk in _list(file.get("conversations"))
        for one in _list(_object(talk).get("ranges"))
    ]
    return ", ".join([*ranges[:8], *(["…"] if len(ranges) > 8 else [])])


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: object) -> str:
    text = " ".join(visible(value if isinstance(value, str) else "").split())
    if isinstance(value, int):
        text = str(value)[:20]
    return text if len(text) <= _TEXT_MAX else text[: _TEXT_MAX - 1] + "…"


# -- the page


def page(
    root: str,
    rows: Sequence[LogRow],
    intents: Iterable[Intent],
    verified: Verified,
    *,
    made_at: str,
    left_out: int = 0,
) -> str:
    """The whole page; ``left_out`` older records are not in it."""
    digest = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    name = escape(visible(root.rstrip("/").rpartition("/")[2] or root))
    older = f" The {left_out} oldest records are left out." if left_out else ""
    parts = [
        f"{MARK}<html lang=en><head><meta charset=utf-8>",
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        "<meta name=viewport content='width=device-width, initial-scale=1'>",
        "<meta name=referrer content=no-referrer>",
        f"<title>{name}: intents and changes</title><style>{_STYLE}</style></head><body>",
        f"<h1>{name}</h1><p class=dim><code>{escape(visible(root))}</code><br>",
        f"{verified.records} records, as of {escape(_short(made_at))}, times in UTC.{older}</p>",
        _faults(verified),
        "<h2>Timeline</h2>",
        _drawing(rows),
        "<h2>Intents</h2>",
        *_intents(rows, list(intents)),
        "<h2>Refusals</h2>",
        _refusals(rows),
        "<h2>Everything, the newest first</h2>",
        _everything(rows),
        "</body></html>\n",
    ]
    return "\n".join(parts)


def _faults(verified: Verified) -> str:
    if not verified.faults:
        kind = "dim" if verified.foreign else "good"
        return f"<p class={kind}>The trace: {verified.told}.</p>"
    items = "".join(f"<li>{escape(visible(one.told))}</li>" for one in verified.faults)
    more = "<li>… and more</li>" if verified.more else ""
    return f"<p class=bad>The trace was changed:</p><ul>{items}{more}</ul>"


def _intents(rows: Sequence[LogRow], intents: list[Intent]) -> Iterable[str]:
    by_intent: dict[str, list[LogRow]] = defaultdict(list)
    for row in rows:
        by_intent[row.intent].append(row)
    known = {intent.id: intent for intent in intents}
    others = [id_ for id_ in by_intent if id_ and id_ not in known]
    if not known and not others:
        yield "<p class=dim>There are none.</p>"
    for id_ in (*known, *others):
        intent, own = known.get(id_), by_intent.get(id_, [])
        status = intent.status.value if intent else "no longer in the file"
        scope = escape(visible(", ".join(intent.owned_scope)[:_TEXT_MAX])) if intent else ""
        kinds = Counter(row.kind for row in own)
        agents = ", ".join(sorted({row.agent for row in own})) or "nobody"
        yield (
            f"<div class=card><header><h3>{escape(visible(id_))}</h3>"
            f"<span>{escape(visible(intent.name)) if intent else ''}</span>"
            f"<span class=tag>{status}</span></header>"
            f"<div class=dim>{escape(agents)} · changes: {kinds['mutation']}"
            f" · refusals: {kinds['refusal']}</div><div><code>{scope}</code></div>"
            f"{_changed(own)}</div>"
        )


def _changed(rows: Sequence[LogRow]) -> str:
    """The files of an intent, each with its last change."""
    last = {file.path: (row, file) for row in rows for file in row.files}
    if not last:
        return ""
    lines = [
        f"<tr><td class=path>{escape(path)}<td>{escape(file.lines)}<td>{escape(file.mutation)}"
        f"<td>{escape(row.agent)} <span class=dim>{escape(row.model)}</span>"
        f"<td class=time>{escape(_short(row.time))}"
        for path, (row, file) in sorted(last.items())
    ]
    return (
        f"<details{' open' if len(lines) <= 12 else ''}><summary>files: {len(lines)}</summary>"
        + _table("<th>File<th>Lines<th>Mutation<th>Last changed by<th>When", lines)
        + "</details>"
    )


def _refusals(rows: Sequence[LogRow]) -> str:
    lines = [
        f"<tr><td class=time>{escape(_short(row.time))}<td>{escape(row.agent)}"
        f"<td>{escape(row.tool)}<td>{escape(row.reason)}"
        f"<td>{escape(row.what.removeprefix(row.reason))} {escape(row.words)}"
        for row in reversed(rows)
        if row.kind == "refusal"
    ]
    return _table("<th>When<th>Agent<th>Tool<th>Reason<th>What", lines)


def _everything(rows: Sequence[LogRow]) -> str:
    lines = [
        f"<tr><td class=time>{escape(_short(row.time))}"
        f"<td><span class={row.kind if row.kind in _KINDS else 'governance'}>{escape(row.kind)}"
        f"</span><td class=id>{escape(row.agent)}<td class=id>{escape(row.intent)}"
        f"<td>{escape(row.tool)}<td>{escape(row.what)} {escape(row.words)}{_more_files(row)}"
        for row in reversed(rows)
    ]
    return _table("<th>When<th>Kind<th>Agent<th>Intent<th>Tool<th>What", lines)


def _table(head: str, lines: list[str]) -> str:
    if not lines:
        return "<p class=dim>There are none.</p>"
    return f"<div class=wide><table><tr>{head}{''.join(lines)}</table></div>"


def _more_files(row: LogRow) -> str:
    if not row.files:
        return ""
    items = "".join(
        f"<li><code>{escape(one.path)}</code> {escape(one.lines)}"
        for one in row.files[:_FILES_SHOWN]
    )
    told = f"at {row.revision[:10]}" if row.revision else "lines"
    return f"<details><summary class=dim>{escape(told)}</summary><ul>{items}</ul></details>"


def _drawing(rows: Sequence[LogRow]) -> str:
    """A lane for each agent, a dot for each record; records stand in order, not by the clock."""
    if not rows:
        return "<p class=dim>Nothing has happened yet.</p>"
    agents = list(dict.fromkeys(row.agent for row in rows))
    if len(agents) > _LANES_MAX:
        agents[_LANES_MAX:] = ["others"]
    lanes = {agent: n for n, agent in enumerate(agents)}
    height, left = len(lanes) * _LANE + 24, 130
    step = (_WIDTH - left - 20) / max(1, len(rows) - 1)
    dots, labels = [], []
    for agent, lane in lanes.items():
        y = lane * _LANE + 18
        labels.append(f'<text x="0" y="{y + 4}">{escape(agent[:18])}</text>')
        labels.append(f'<line x1="{left}" x2="{_WIDTH}" y1="{y}" y2="{y}"/>')
    for number, row in enumerate(rows):
        kind = row.kind if row.kind in _KINDS else "governance"
        lane = lanes.get(row.agent, len(lanes) - 1)
        x, y = left + 10 + number * step, lane * _LANE + 18
        title = f"{_short(row.time)} {row.kind} {row.intent} {row.tool} {row.what} {row.words}"
        dots.append(
            f'<circle class="{kind}" cx="{x:.1f}" cy="{y}" r="5"><title>{escape(title)}</title>'
            "</circle>"
        )
    ends = (
        f'<text x="{left}" y="{height}">{escape(_short(rows[0].time))}</text>'
        f'<text x="{_WIDTH}" y="{height}" text-anchor="end">{escape(_short(rows[-1].time))}</text>'
    )
    legend = "".join(f"<span><i class={kind}></i>{kind}</span>" for kind in _KINDS)
    return (
        f'<div class=wide><svg viewBox="0 0 {_WIDTH} {height + 6}" role="img">'
        f"{''.join(labels)}{''.join(dots)}{ends}</svg></div><div class=legend>{legend}</div>"
    )


def _short(time: str) -> str:
    """A time as the trace has it, to the second."""
    return time[:19].replace("T", " ")
