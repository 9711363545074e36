"""``relay search``: what was said in the own histories of the agents on this machine, and the
command that resumes each conversation.

Files are read as streams, one line at a time; those without the words are not parsed. What
they say is anybody's: a line is a record of the expected form, or it is passed over.
"""

from __future__ import annotations

import heapq
import os
import re
import shlex
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import IO, NamedTuple

from relay.agents.aider.chat_history import chat_turns
from relay.agents.aider.launch import CHAT_HISTORY, git_root
from relay.agents.gemini import source as gemini
from relay.agents.past import READERS
from relay.agents.profile import find_profile
from relay.agents.qwen import source as qwen
from relay.agents.structured_source import object_in, text_in
from relay.broker.client import connect
from relay.cli import output
from relay.cli.parser import Options, Parser, count
from relay.cli.verbs import verb
from relay.core import sqlite
from relay.core.errors import EXIT_NOT_FOUND, RelayError, UsageError
from relay.core.paths import Home, working_folder
from relay.core.visible import age
from relay.features.ingest.ledger_ingest import (
    BATCH_ROWS,
    LINE_MAX,
    TOLD_MAX,
    Counts,
    FoundFile,
    files_below,
    open_file,
    own_folders,
    source_of,
    take_line,
)
from relay.ledger.search_index import snippet
from relay.protocol.agent_ops import AGENTS
from relay.protocol.past_turns import CLAUDE, CODEX

AIDER = "aider"
#: Bytes that are searched at once for the words.
_PART = 1 << 20
#: What can be the id of a conversation, and no option of a program.
_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,199}", re.ASCII)
#: What ``--json`` shows of a conversation.
_FIELDS = ("kind", "conversation", "cwd", "created_at", "messages", "snippet", "resume")


class SaidMessage(NamedTuple):
    """A message in a conversation of an agent's; ``project`` is its folder, "" if unknown."""

    conversation: str
    project: str
    text: str
    at_ms: int


@dataclass(slots=True)
class _Conversation:
    """The newest message of a conversation that has the words, and how many have."""

    agent: str
    last: SaidMessage
    messages: int = 1


def add(verbs: Parser) -> None:
    parser = verb(
        verbs, "search", "relay search flaky login test\n  relay search --agent codex deploy"
    )
    parser.add_argument("words", nargs="+", metavar="WORDS", help="all in one message, in any case")
    parser.add_argument("--agent", choices=tuple(_HISTORIES), help="only that agent's")
    parser.add_argument("--limit", type=count, default=20, metavar="N", help="conversations (20)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=search_verb)


def search_verb(options: Options) -> int:
    """``relay search``: 3 when nobody said it."""
    limit: int = options.limit
    words = [word.casefold() for text in options.words for word in text.split()]
    if not words:
        raise UsageError("say what to search for", hint="relay search WORDS")
    counts, more = Counts(), False
    found: dict[tuple[str, str], _Conversation] = {}
    for agent in [options.agent] if options.agent else _HISTORIES:
        for said in _HISTORIES[agent](words, counts):
            text = said.text.casefold()
            if not all(word in text for word in words):
                continue
            key = agent, said.conversation
            if (known := found.setdefault(key, _Conversation(agent, said, 0))).messages:
                known.last = max(known.last, said, key=lambda one: one.at_ms)
            known.messages += 1
            if len(found) > 10 * limit:
                more = True
                found = {(one.agent, one.last.conversation): one for one in _newest(found, limit)}
    rows = [_row(one, words) for one in _newest(found, limit)]
    _report(rows, more or len(found) > len(rows), counts, options)
    return 0 if rows else EXIT_NOT_FOUND


def _newest(found: dict[tuple[str, str], _Conversation], limit: int) -> list[_Conversation]:
    return heapq.nlargest(limit, found.values(), key=lambda one: one.last.at_ms)


def _row(found: _Conversation, words: list[str]) -> dict[str, object]:
    said = found.last
    return {
        "kind": found.agent,
        "conversation": said.conversation,
        "cwd": said.project,
        "created_ms": said.at_ms,
        "messages": found.messages,
        "snippet": snippet(said.text, max(words, key=len)),
        "resume": _resume(found.agent, said),
    }


def _resume(agent: str, said: SaidMessage) -> str:
    """The command line that goes on with the conversation, "" where there is none."""
    if agent == AIDER:  # of the folder's chats, all that its model has room for
        return f"cd {shlex.quote(said.project)} && aider --restore-chat-history"
    conversation = said.conversation.partition("/")[0]  # that of a sub-agent is its parent's
    form = find_profile(agent, Home.from_env().profiles)[0].headless
    if form is None or not form.resume or not _ID.fullmatch(conversation):
        return ""
    command = shlex.join([agent, *(word.replace("{id}", conversation) for word in form.resume)])
    return f"cd {shlex.quote(said.project)} && {command}" if said.project else command


def _report(rows: list[dict[str, object]], more: bool, counts: Counts, options: Options) -> None:
    if options.json:
        output.as_json([output.shaped(row, _FIELDS) for row in rows])
    now_ms = time.time_ns() // 1_000_000
    for row in () if options.json else rows:
        at_ms, number = row["created_ms"], row["messages"]
        assert isinstance(at_ms, int)
        times = f", {number} messages" if number != 1 else ""
        where = f"  {row['cwd'] or '?'}  {age(now_ms - at_ms)} ago{times}"
        output.toned([(str(row["kind"]), "name"), (where, "")])
        output.data(f"  {row['snippet']}")
        if row["resume"]:
            output.data(f"  {row['resume']}")
    if not rows:
        output.note(f"nothing found in {counts.files} files of {', '.join(_HISTORIES)}")
        output.note("relay history --grep TEXT searches the messages between agents")
    if more:
        output.note("there are more: --limit N shows N, --agent only one agent's")
    for problem in counts.problems[:TOLD_MAX]:
        output.note(f"not read: {problem}")
    if len(counts.problems) > TOLD_MAX:
        output.note(f"and {len(counts.problems) - TOLD_MAX} more")
    if counts.lines_passed:
        number = counts.lines_passed
        lines = "1 line was" if number == 1 else f"{number} lines were"
        output.note(f"{lines} skipped: damaged, or too long")


# -- the histories


def _of_readers(agent: str) -> Callable[[list[str], Counts], Iterator[SaidMessage]]:
    """Those of Claude Code and Codex, as ``relay ledger ingest`` reads them."""

    def history(words: list[str], counts: Counts) -> Iterator[SaidMessage]:
        for _, file in _with_words(own_folders(agent), words, counts):
            if source_of(file) != agent:
                counts.not_transcripts += 1
                continue
            file.seek(0)
            reader = READERS[agent]({})
            projects: dict[str, str] = {}
            conversations: dict[str, str] = {}
            lines = _lines(file, counts)
            while True:
                line = next(lines, b"")
                if line and not line.startswith(reader.passes):
                    take_line(reader, line, counts)
                if not line:
                    reader.release()
                if line and len(reader.rows.messages) < BATCH_ROWS:
                    continue
                rows = reader.take()
                projects |= {one.conversation: one.project or "" for one in rows.sessions}
                conversations |= {one.id: one.conversation for one in rows.turns}
                for one in rows.messages:
                    conversation = conversations.get(one.turn, "")
                    project = projects.get(conversation, "")
                    yield SaidMessage(conversation, project, one.content, one.created_ms)
                if not line:
                    break

    return history


def _of_gemini(words: list[str], counts: Counts) -> Iterator[SaidMessage]:
    for root in gemini.SessionFiles(dict(os.environ)).roots:
        for path, file in _with_words([root], words, counts):
            conversation = gemini.session_of(_text(file.readline(gemini.FIRST_LINE_MAX)))
            if not conversation:
                continue
            project = _project_root(os.path.dirname(os.path.dirname(path)))
            for line in _lines(file, counts):
                record = gemini.parse(_text(line))
                if record is not None and record.kind in ("prompt", "said"):
                    yield SaidMessage(conversation, project, record.text, int(record.time * 1000))


def _project_root(folder: str) -> str:
    try:
        with open(os.path.join(folder, ".project_root"), encoding="utf-8", errors="replace") as one:
            return one.read(4096).strip()
    except OSError:
        return ""


def _of_qwen(words: list[str], counts: Counts) -> Iterator[SaidMessage]:
    root = os.path.join(os.path.expanduser("~"), ".qwen", "projects")
    for _, file in _with_words([root], words, counts):
        for line in _lines(file, counts):
            record = qwen.parse(_text(line))
            if record is None or record.kind not in ("recorded", "response"):
                continue
            raw = object_in(_text(line)) or {}
            conversation, project = text_in(raw.get("sessionId")), text_in(raw.get("cwd"))
            yield SaidMessage(conversation, project, record.text, int(record.time * 1000))


def _of_opencode(words: list[str], counts: Counts) -> Iterator[SaidMessage]:
    data = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    path = os.path.join(data, "opencode", "opencode.db")
    if not os.path.isfile(path):
        return
    counts.files += 1
    try:
        address = sqlite.address(path, read_only=True)
        with closing(sqlite3.connect(address, uri=True, timeout=2.0)) as db:
            rows = db.execute(
                "SELECT p.session_id, s.directory, p.data, p.time_created FROM part p"
                " JOIN session s ON s.id = p.session_id WHERE length(p.data) <= ?",
                (LINE_MAX,),
            )
            for conversation, project, data, at_ms in rows:
                part = object_in(str(data))
                if part is not None and part.get("type") == "text" and isinstance(at_ms, int):
                    text = text_in(part.get("text"))
                    yield SaidMessage(str(conversation), str(project or ""), text, at_ms)
    except sqlite3.Error as error:
        counts.problems.append(f"{path}: {error}")


def _of_aider(words: list[str], counts: Counts) -> Iterator[SaidMessage]:
    """Its histories stand in the projects: in this one, and where relay knows of an aider."""
    for folder in sorted({working_folder(), *_folders_of_aiders()}):
        above = git_root(folder) or folder
        path = os.path.join(above, CHAT_HISTORY)
        for _, file in _with_words([path], words, counts) if os.path.isfile(path) else ():
            for turn in chat_turns(map(_text, _lines(file, counts))):
                for text in filter(None, (turn.prompt, turn.text)):
                    yield SaidMessage(above, above, text, turn.chat_ms)


def _folders_of_aiders() -> list[str]:
    try:
        with connect(Home.from_env(), start=False) as client:
            rows = client.request(AGENTS)["agents"]
    except RelayError:  # then only where we are
        return []
    return [row["cwd"] for row in rows if row["kind"] == AIDER and row["cwd"]]


#: By the agent's name.
_HISTORIES: dict[str, Callable[[list[str], Counts], Iterator[SaidMessage]]] = {
    CLAUDE: _of_readers(CLAUDE),
    CODEX: _of_readers(CODEX),
    "gemini": _of_gemini,
    "qwen": _of_qwen,
    "opencode": _of_opencode,
    AIDER: _of_aider,
}


# -- files


def _with_words(
    roots: list[str], words: list[str], counts: Counts
) -> Iterator[tuple[str, IO[bytes]]]:
    """The files below the roots that may have all words, each open at its beginning."""
    #: As they stand in JSON; what JSON or another case may write otherwise is not looked for here.
    plain = [word.encode() for word in words if re.fullmatch(r"[a-z0-9_.:,-]+", word)]
    found: FoundFile
    for found in files_below(roots, counts, given=False):
        counts.files += 1
        try:
            with open_file(found.path) as file:
                if _may_have(file, plain):
                    counts.bytes += found.size
                    file.seek(0)
                    yield found.path, file
        except OSError as error:
            counts.problems.append(f"{found.path}: {error.strerror}")


def _may_have(file: IO[bytes], words: list[bytes]) -> bool:
    missing, rest = set(words), b""
    longest = max(map(len, words), default=0)
    while missing and (part := file.read(_PART)):
        text = (rest + part).lower()
        missing -= {word for word in missing if word in text}
        rest = text[-longest:]
    return not missing


def _lines(file: IO[bytes], counts: Counts) -> Iterator[bytes]:
    """Whole lines; one that is too long is passed over."""
    while line := file.readline(LINE_MAX + 1):
        if len(line) <= LINE_MAX:
            yield line
            continue
        counts.lines_passed += 1
        while line and not line.endswith(b"\n"):
            line = file.readline(_PART)


def _text(line: bytes) -> str:
    return line.decode("utf-8", "replace")
