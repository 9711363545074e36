"""Claude Code's transcript: what its lines mean, where it is, and what the screen showed of it.

``whereabouts`` looks for the file; everything else is pure.

Claude Code reports each message twice, and :class:`Messages` pairs both so that each line goes out
once. The display hook brings a message while it is written: pieces that may arrive in any order,
late or not at all, under an id of their own. The transcript brings its text blocks when it is
finished, under the API's id. Only the words tie the two together, so they are compared:

* what is displayed goes out at once, line by line;
* the last line waits a moment for the transcript, which knows whether text goes on in a new block
  (the display glues blocks together without a line break);
* a block that was never displayed is taken from the transcript after DISPLAY_GRACE seconds;
* a piece that never came is taken from the transcript.

A stream is named after the prompt and the position of the message in its turn, which both reports
agree on, so that a session that was restarted names it the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from relay.agents.structured_source import Tokens, object_in, seconds_of, table, text_in
from relay.core.bounded import BoundedDict, RecentSet
from relay.core.source_events import Degraded, End, Line, Pause, SourceEvent

Kind = Literal[
    "said",  # a text block of the assistant's; text, uuid, message_id, model
    "cut",  # the same, where the person stopped the model within the block
    "break",  # a block of another kind than text begins; message_id
    "prompt",  # text that reached the model as a user turn or within one; text, prompt_id
    "queued",  # text that was accepted and waits; text
    "call",  # a tool call, ``uuid`` is its id, ``text`` its key (see ``call_key``)
    "result",  # a tool has run, or was refused; ``uuid`` is the call's id
    "interrupted",  # the person stopped the turn; message_id when it was being written
    "turn_end",  # the turn is over
    "used",  # what a message of the model's has cost; message_id, model, tokens
]

_TOKENS = (
    *("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"),
)
_INTERRUPTED = "[Request interrupted by user"
_SESSION_ID = re.compile(r"[0-9A-Za-z-]{8,64}")


@dataclass(frozen=True, slots=True)
class TranscriptRecord:
    """One line of the transcript that matters. ``time`` is in seconds since the epoch."""

    kind: Kind
    time: float
    text: str = ""
    message_id: str = ""
    prompt_id: str = ""
    uuid: str = ""
    model: str = ""
    #: See relay.agents.structured_source.
    tokens: Tokens = ()


def parse(line: str) -> list[TranscriptRecord]:
    """Read one line; empty for lines of no concern, of subagents, or that are damaged."""
    if line.startswith('{"type":"api-request'):
        return []  # copies of whole requests, often large
    raw = object_in(line)
    if raw is None or raw.get("isCompactSummary"):
        return []
    kind, time = raw.get("type"), seconds_of(raw.get("timestamp"))
    if raw.get("isSidechain"):
        return [one for one in _assistant(raw, time) if one.kind == "used"]
    if kind == "assistant":
        return _assistant(raw, time)
    if kind == "user":
        return _user(raw, time)
    if kind == "attachment":
        return _attachment(raw, time)
    if kind == "queue-operation" and raw.get("operation") == "enqueue":
        return [TranscriptRecord("queued", time, text=text_in(raw.get("content"), "text"))]
    if kind == "system" and raw.get("subtype") == "turn_duration":
        return [TranscriptRecord("turn_end", time)]
    return []


def _assistant(raw: dict[str, Any], time: float) -> list[TranscriptRecord]:
    message = raw.get("message")
    if not isinstance(message, dict) or raw.get("isApiErrorMessage"):
        return []
    if message.get("model") == "<synthetic>":
        return []  # the program's own words in the model's place
    message_id, uuid = str(message.get("id", "")), str(raw.get("uuid", ""))
    content = message.get("content")
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content}]
    records = []
    for number, block in enumerate(map(table, blocks)):
        if block.get("type") == "text":
            kind: Kind = "cut" if raw.get("isAbortedMidStream") else "said"
            said = TranscriptRecord(kind, time, text_in(block.get("text"), "text"), message_id)
            model = str(message.get("model") or "")
            records.append(replace(said, uuid=f"{uuid}.{number}", model=model))
            continue
        records.append(TranscriptRecord("break", time, message_id=message_id))
        if block.get("type") == "tool_use":
            key = call_key(block.get("name"), block.get("input"))
            records.append(TranscriptRecord("call", time, text=key, uuid=str(block.get("id"))))
    usage = message.get("usage")
    if isinstance(usage, dict) and message_id:
        tokens = tuple(usage.get(name) for name in _TOKENS)
        used = TranscriptRecord("used", time, message_id=message_id, tokens=tokens)
        records.append(replace(used, model=str(message.get("model") or "")))
    return records


def call_key(name: object, arguments: object) -> str:
    """Make a key from a call's tool and input: hooks do not tell a call's id."""
    whole = json.dumps([name, arguments], sort_keys=True)
    return hashlib.sha256(whole.encode("utf-8", "replace")).hexdigest()[:16]


def _user(raw: dict[str, Any], time: float) -> list[TranscriptRecord]:
    content = table(raw.get("message")).get("content")
    prompt_id = str(raw.get("promptId", ""))
    blocks = content if isinstance(content, list) else []
    results = [block for block in blocks if table(block).get("type") == "tool_result"]
    if results:
        return [
            TranscriptRecord("result", time, uuid=str(block.get("tool_use_id")))
            for block in results
        ]
    text = text_in(content, "text")
    if text.startswith(_INTERRUPTED):
        stopped = str(raw.get("interruptedMessageId") or "")
        return [TranscriptRecord("interrupted", time, message_id=stopped, prompt_id=prompt_id)]
    return [TranscriptRecord("prompt", time, text=text, prompt_id=prompt_id)] if text else []


def _attachment(raw: dict[str, Any], time: float) -> list[TranscriptRecord]:
    attachment = table(raw.get("attachment"))
    if attachment.get("type") != "queued_command":
        return []
    return [TranscriptRecord("prompt", time, text=text_in(attachment.get("prompt"), "text"))]


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """Paths of one running Claude Code, as far as it tells; None: not (yet) there."""

    transcript: str | None = None
    socket: str | None = None


def whereabouts(config: str, pid: int) -> Whereabouts:
    """Read what the process ``pid`` has noted of itself, for when its hooks do not tell.

    ``config`` is ``$CLAUDE_CONFIG_DIR``, usually ``~/.claude``. The transcript appears with the
    first prompt. It is never guessed by its folder alone: another Claude Code in the same project
    would be taken for this one.
    """
    try:
        with open(os.path.join(config, "sessions", f"{pid}.json"), encoding="utf-8") as file:
            noted = json.load(file)
    except (OSError, ValueError):
        return Whereabouts()
    if not isinstance(noted, dict):
        return Whereabouts()
    session, socket = noted.get("sessionId"), noted.get("messagingSocketPath")
    transcript = None
    if isinstance(session, str) and _SESSION_ID.fullmatch(session):
        transcript = _transcript_of(config, session)
    return Whereabouts(transcript, socket if isinstance(socket, str) and socket else None)


def _transcript_of(config: str, session: str) -> str | None:
    projects = os.path.join(config, "projects")
    try:
        folders = os.listdir(projects)
    except OSError:
        return None
    for folder in folders:
        path = os.path.join(projects, folder, f"{session}.jsonl")
        if os.path.exists(path):
            return path
    return None


#: Seconds that the last line waits for the transcript's word on it, which comes at once unless the
#: machine is busy. Two blocks that are told as one line would hide the directive between them.
TAIL_GRACE = 2.0
#: Seconds after which a block is taken as never displayed, a piece as lost.
DISPLAY_GRACE = 2.0
#: Seconds after which a piece is given up that the transcript does not bring either.
GAP_DEADLINE = 15.0
#: Messages, blocks and names that are remembered; the oldest go first.
MESSAGES_MAX = 64
BLOCKS_MAX = 512
#: Characters of one message that are compared; a longer one is cut off from there, visibly.
TEXT_MAX = 4 * 1024 * 1024


@dataclass(slots=True)
class ShownMessage:
    """One message as it is displayed."""

    stream: str
    prompt_id: str
    text: str = ""  # what came without a gap
    pieces: dict[int, str] = field(default_factory=dict)  # what came beyond a gap
    next_index: int = 0
    final: int | None = None
    emitted: int = 0  # characters that went out as lines
    accounted: int = 0  # characters that the transcript has too
    breaks: list[int] = field(default_factory=list)  # where a block begins that is not glued on
    owed: str = ""  # the block that begins at ``owed_at``, as the transcript has it
    owed_at: int = 0
    message_id: str = ""  # the API's id, once known
    touched: float = 0.0
    closed: bool = False
    muted: bool = False  # the transcript's words went out in its place

    @property
    def complete(self) -> bool:
        return self.final is not None and self.next_index > self.final

    def forget_words(self) -> None:
        """Keep no more than that this message was dealt with."""
        self.text, self.owed, self.pieces = "", "", {}
        self.emitted = self.accounted = self.owed_at = 0
        self.breaks.clear()

    @property
    def lagging(self) -> bool:
        return self.owed_at + len(self.owed) > len(self.text)


@dataclass(slots=True)
class TextBlock:
    """A text block of the transcript that no displayed message has been found for yet."""

    text: str
    message_id: str
    stream: str
    since: float
    glued: bool


@dataclass(slots=True)
class MessagesState:
    """The checkpoint of the messages of one conversation."""

    #: Display hooks run.
    displays: bool = True
    #: Displayed messages, by the display's id.
    shown: BoundedDict[str, ShownMessage] = field(default_factory=lambda: BoundedDict(MESSAGES_MAX))
    pending: list[TextBlock] = field(default_factory=list)
    #: Blocks that were dealt with, by their uuids.
    blocks: RecentSet[str] = field(default_factory=lambda: RecentSet(BLOCKS_MAX))
    #: What was told from the transcript, by the API's id.
    unshown: BoundedDict[str, str] = field(default_factory=lambda: BoundedDict(MESSAGES_MAX))
    #: How many messages were displayed and written, by the prompt.
    counts: BoundedDict[str, list[int]] = field(default_factory=lambda: BoundedDict(MESSAGES_MAX))
    #: Streams, by the API's id.
    names: BoundedDict[str, str] = field(default_factory=lambda: BoundedDict(MESSAGES_MAX))
    #: Streams that are open from the transcript.
    written: RecentSet[str] = field(default_factory=lambda: RecentSet(MESSAGES_MAX))
    prompt: str = ""
    #: The API's id of a message whose last block was not text.
    broken: str | None = None


class Messages:
    """All messages of one conversation."""

    def __init__(self, saved: MessagesState) -> None:
        self._saved = saved

    # -- what comes in ------------------------------------------------------------------------

    def display(self, event: dict[str, Any], now: float) -> list[SourceEvent]:
        """Take one MessageDisplay event."""
        key, index, delta = event.get("message_id"), event.get("index"), event.get("delta")
        if not (isinstance(key, str) and isinstance(index, int) and isinstance(delta, str)):
            return [Degraded("a display event of Claude Code's has an unknown form")]
        shown = self._saved.shown.get(key)
        if shown is None:
            shown = self._new_shown(key, str(event.get("prompt_id") or self._saved.prompt))
        if shown.closed or index < shown.next_index:
            return []
        shown.touched = now
        shown.pieces[index] = delta
        if event.get("final"):
            shown.final = index
        while shown.next_index in shown.pieces:
            shown.text += shown.pieces.pop(shown.next_index)
            shown.next_index += 1
        return self.settle(now)

    def prompt(self, prompt_id: str) -> None:
        """The transcript shows a prompt: what is written next answers it."""
        if prompt_id:
            self._saved.prompt = prompt_id

    def transcript(self, record: TranscriptRecord, now: float) -> list[SourceEvent]:
        """Take a ``said``, ``cut`` or ``break`` record."""
        if record.kind == "break":
            self._saved.broken = record.message_id
            return []
        if record.uuid in self._saved.blocks:
            return []
        self._saved.blocks.add(record.uuid)
        glued = self._saved.broken != record.message_id
        self._saved.broken = None
        if not record.text.strip():
            return []
        if record.kind == "cut" and self._saved.displays:
            return self._cut(record)
        stream = self._saved.names.get(record.message_id) or self._next_name(record.message_id)
        if record.kind == "cut":
            lines = [Line(stream, text) for text in record.text.split("\n")[:-1]]
            return [*lines, End(stream, aborted=True)]
        self._saved.pending.append(TextBlock(record.text, record.message_id, stream, now, glued))
        return self.settle(now)

    def _cut(self, record: TranscriptRecord) -> list[SourceEvent]:
        """The model was stopped within this block. Its display may say that it is complete."""
        words = record.text.strip()
        cut = [s for s in self._open() if not s.complete or s.text.rstrip().endswith(words)]
        if not cut:  # a display that comes now is not believed
            self._saved.unshown[record.message_id] = record.text.lstrip("\n")
        return [event for shown in cut for event in _abort(shown)]

    def interrupted(self, message_id: str) -> list[SourceEvent]:
        """The person stopped the model: what was not complete does not go out any more."""
        self._saved.pending = [b for b in self._saved.pending if b.message_id != message_id]
        return [e for shown in self._open() if not shown.complete for e in _abort(shown)]

    def settle(self, now: float, *, at_end: bool = False) -> list[SourceEvent]:
        """Return everything that can go out by ``now``; at the end of the run nothing waits."""
        events: list[SourceEvent] = []
        self._saved.pending = [
            block
            for block in self._saved.pending
            if not self._account(block) and not self._emit_overdue(block, now, at_end, events)
        ]
        for shown in self._open():
            events += self._advance(shown, now, at_end)
        return events

    def next_deadline(self) -> float | None:
        """When ``settle`` has something to do though nothing came in."""
        grace = DISPLAY_GRACE if self._saved.displays else 0.0
        due = [block.since + grace for block in self._saved.pending]
        for shown in self._open():
            if shown.complete:
                due.append(shown.touched + TAIL_GRACE)
            elif shown.lagging:
                due.append(shown.touched + DISPLAY_GRACE)
            elif shown.pieces:
                due.append(shown.touched + GAP_DEADLINE)
        return min(due, default=None)

    @property
    def waiting(self) -> bool:
        """Whether the transcript's next lines are urgent."""
        return any(shown.complete or shown.pieces for shown in self._open())

    def has_said(self, words: str) -> bool:
        """Whether these words, which end a turn, have gone out."""
        wanted = " ".join(words.split())
        texts = [shown.text for shown in self._saved.shown.values() if shown.closed]
        return any(
            " ".join(text.split()).endswith(wanted)
            for text in (*texts, *self._saved.unshown.values())
        )

    # -- displayed messages -------------------------------------------------------------------

    def _open(self) -> list[ShownMessage]:
        return [shown for shown in self._saved.shown.values() if not shown.closed]

    def _new_shown(self, key: str, prompt_id: str) -> ShownMessage:
        counts = self._counts_of(prompt_id)
        shown = ShownMessage(f"{prompt_id}/{counts[0]}", prompt_id)
        counts[0] += 1
        self._saved.shown[key] = shown
        return shown

    def _advance(self, shown: ShownMessage, now: float, at_end: bool) -> list[SourceEvent]:
        waited = now - shown.touched
        if shown.lagging and not shown.complete and (waited >= DISPLAY_GRACE or at_end):
            # The hook lost a piece: the transcript has it.
            shown.text = shown.text[: shown.owed_at] + shown.owed
            shown.pieces.clear()
            shown.final = shown.next_index = shown.next_index + 1
            shown.next_index += 1
        if len(shown.text) > TEXT_MAX:
            lost: SourceEvent = Degraded("a message of more than 4 MiB was not heard to its end")
            return [lost, *_abort(shown)]
        if self._was_emitted(shown):
            shown.muted = True
            shown.closed = shown.complete
            return []
        shown.muted = False
        events = _lines(shown)
        if shown.complete:
            known = shown.accounted >= len(shown.text.rstrip())
            if known or at_end or not self._saved.displays or waited >= TAIL_GRACE:
                events += _close(shown)
        elif shown.pieces and (waited >= GAP_DEADLINE or at_end):
            events.append(Degraded("a piece of what the agent said did not reach relay"))
            events += _abort(shown)
        elif at_end:
            events += _abort(shown)
        return events

    def _was_emitted(self, shown: ShownMessage) -> bool:
        """Whether the transcript was believed before this message was displayed."""
        if shown.emitted or shown.message_id:
            return False
        text = shown.text.lstrip("\n")
        for message_id, text_before in self._saved.unshown.items():
            if text and text_before.startswith(text.rstrip()):
                if shown.complete:
                    del self._saved.unshown[message_id]
                return True
        return False

    # -- blocks of the transcript -------------------------------------------------------------

    def _account(self, block: TextBlock) -> bool:
        """Find the displayed message that holds this block; whether there is one."""
        for shown in self._saved.shown.values():
            if shown.muted or shown.message_id not in ("", block.message_id):
                continue
            if not shown.text and not shown.message_id:
                # Its first piece is missing: the others tell.
                pieces = shown.pieces.values()
                if not pieces or not all(piece.strip() in block.text for piece in pieces):
                    continue
            place = _place(shown, block.text)
            if place is None:
                continue
            begin, body = place
            shown.message_id = block.message_id
            if not block.glued:
                shown.breaks.append(begin)
            shown.owed, shown.owed_at = body, begin
            shown.accounted = begin + len(body)
            return True
        return False

    def _emit_overdue(
        self, block: TextBlock, now: float, at_end: bool, events: list[SourceEvent]
    ) -> bool:
        """Take a block from the transcript when its display is overdue; whether that was done."""
        if self._saved.displays and not at_end and now - block.since < DISPLAY_GRACE:
            return False
        before = self._saved.unshown.get(block.message_id, "")
        if not before:
            # The display, if it comes at all, must not give its name to the next message.
            counts = self._counts_of(block.stream.rpartition("/")[0])
            counts[0] = max(counts[0], int(block.stream.rpartition("/")[2]) + 1)
        text = before + block.text if before else block.text.lstrip("\n")
        self._saved.unshown[block.message_id] = text[-TEXT_MAX:]
        events += [Line(block.stream, text) for text in block.text.split("\n")]
        events.append(Pause(block.stream))
        self._saved.written.add(block.stream)
        return True

    def end_of_turn(self) -> list[SourceEvent]:
        """The turn is over: what was taken from the transcript ends."""
        ends: list[SourceEvent] = [End(stream) for stream in self._saved.written]
        self._saved.written.clear()
        return ends

    def _next_name(self, message_id: str) -> str:
        for shown in self._saved.shown.values():
            if shown.closed and shown.message_id:
                shown.forget_words()
        counts = self._counts_of(self._saved.prompt)
        name = f"{self._saved.prompt}/{counts[1]}"
        counts[1] += 1
        self._saved.names[message_id] = name
        return name

    def _counts_of(self, prompt_id: str) -> list[int]:
        counts = self._saved.counts.get(prompt_id)
        if counts is None:
            counts = [0, 0]
            self._saved.counts[prompt_id] = counts
        return counts


def _place(shown: ShownMessage, text: str) -> tuple[int, str] | None:
    """Where in ``shown`` the block goes on, and its words there; None when they are not these.

    The display leaves out line breaks at the start and may leave out blanks at the end.
    """
    rest = shown.text[shown.accounted :]
    skipped = len(rest) - len(rest.lstrip("\n"))
    rest, body = rest[skipped:], text.lstrip("\n")
    begin = shown.accounted + skipped
    if rest.startswith(body) or body.startswith(rest):
        if shown.complete and len(rest) < len(body):
            body = body.rstrip()
            return (begin, body) if body == rest.rstrip() else None
        return begin, body
    return (begin, body.rstrip()) if rest.startswith(body.rstrip()) else None


def _lines(shown: ShownMessage) -> list[SourceEvent]:
    """The lines that are complete and have not gone out yet."""
    events: list[SourceEvent] = []
    while (end := shown.text.find("\n", shown.emitted)) >= 0:
        events += _split(shown, end)
        shown.emitted = end + 1
    return events


def _split(shown: ShownMessage, end: int) -> list[SourceEvent]:
    """The line from ``emitted`` to ``end``, cut where a new block begins within it."""
    cuts = [at for at in shown.breaks if shown.emitted < at < end]
    edges = [shown.emitted, *cuts, end]
    parts = [shown.text[a:b] for a, b in zip(edges, edges[1:], strict=False)]
    events: list[SourceEvent] = []
    for number, part in enumerate(parts):
        if number:
            events.append(Pause(shown.stream))
        events.append(Line(shown.stream, part.rstrip("\r")))
    return events


def _close(shown: ShownMessage) -> list[SourceEvent]:
    """The rest, and the end."""
    events = _split(shown, len(shown.text)) if shown.emitted < len(shown.text) else []
    shown.emitted = len(shown.text)
    shown.closed = True
    return [*events, End(shown.stream)]


def _abort(shown: ShownMessage) -> list[SourceEvent]:
    shown.closed = True
    shown.pieces.clear()
    return [] if shown.muted else [End(shown.stream, aborted=True)]
