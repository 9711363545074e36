"""What travels over the broker's socket: newline-delimited JSON, UTF-8, one object a line.

A client asks ``{"n": int, "op": str, ...}`` and is answered ``{"n": int, "ok": true, ...}`` or
``{"n": int, "ok": false, "error": {"code", "message", "hint", "status", "details"?}}``, where
``status`` is the exit status that the error stands for. Answers may come in another order than the
questions. The broker also sends ``{"push": str, ...}`` unasked.

Times are integers, milliseconds since the epoch (``*_ms``); durations are seconds.

Ops (``?`` marks what may be left out):

``hello``     -> protocol, version (see relay.core.build), program (what starts such a broker:
              [interpreter, folder of the package]), pid, person (whether the person asks, not an
              agent)
``register``  name, run, token, kind, pid, cwd, command, resume?, memory?, roles?, join?,
              version? (the session's build) -> name, waiting (open deliveries). ``roles`` are what
              else it is reached by, ``join`` the channels that it is in from its start on.
              ``memory``: project (a repository's root,
              or null), secrets, store?, of each request about memories that the run makes; of a
              run the first ones count.
              Binds the connection to the agent; everything open for that name is then pushed
              again, in order. ``resume`` keeps the state that the broker knew of the same run.
``agent_state`` state, reason?, source?, notes?, conversation?, question? (id, what, choices,
              chosen, since_ms: what the agent asks on its screen), retry? (seconds until its usage
              limit ends, from when it was limited), account? (who has the same has the same limits)
              -> state, wants (the kinds of events that its session tells of only when asked to).
              Of the registered agent.
``event_mark`` what (tag, status, read, flagged, archived), ids (or ends of ids), word? (the tag or
              the status), undo? -> rows [{id, tags, status, read, flagged, archived}]. Of the
              person alone.
``persons``   who? (a name, an id or its end, channel:address) -> persons [{id, name, type,
              relationship, created_ms, updated_ms, addresses [[channel, address]]}], more?
``person_add`` name, addresses?, type?, relationship?, auth? -> person. Not for agents.
``person_merge`` one, into, auth? -> person. Not for agents.
``agents``    -> agents [{name, state, reason, kind, pid, cwd, command, unread, since_ms,
              last_seen_ms, source, notes, run, roles, channels,
              conversation (its own id of the one that it is in)}], persons [name]
``channels``  -> rows [{channel, members [name], here (how many are there now)}]
``channel_join``, ``channel_leave`` channel, name? (somebody else's: not for agents), auth?
              -> name, channel, members, here, note (what an agent is told of it)
``presence``  who? (names, roles and #channels, or ``*``), off?, name? (as above), auth?
              -> name, who (of whose coming and going it hears with its next message), note
``whoami``    auth? -> name, kind, roles, channels, presence, state, reason, unread; agents, busy,
              blocked, limited, stopped (how many are there), held
``compact``   before_ms, after (0), really? -> turns, characters, after (null: that was all). One
              step: of turns of the agent ledger that ended before then, but for the newest of each
              session, only the beginning of what was said stays. Without ``really`` it is only
              counted. Not for agents.
``reindex``   begin? -> indexed (texts), more: one step of making the index that ``grep`` uses anew.
              Not for agents.
``watch``     kinds? (of ``WATCHED`` and of features), agents? (names), after? (the ``seq`` of
              the last row that was had) and epoch (what ``watch`` answered then) -> epoch, seq.
              What happens from then on is pushed. An agent sees the rows of agents, and of
              messages, deliveries, turns and obligations that are its own or for it, and a
              feature's where it is named; with the right ``watch`` those of others, too. The
              person sees all.
``person``    The person has spoken to the registered agent: what it says next follows from nothing.
``ask``       agent, kind, request, timeout? (30, at most 120), auth? -> response: the agent's
              session does what is asked for, and answers. Nothing of it is stored. Refused as
              ``no_session``, ``session_gone``, ``timeout`` or ``busy``, or with the session's own
              error. The kind ``hooks`` runs the hooks of an event: its request is
              {correlation_id?, event_name, input}, its response an aggregated_record of
              relay.hooks.hook_log with the event and the correlation id. Not for agents, but
              each may ask its own session (``agent`` is left out then) for the kind
              ``governance``, whose requests relay.features.governance.session describes.
              ``screen``: {styled?} -> lines, cols, rows, cursor ([x, y]; null: hidden), title,
              spans? (see relay.screen.styled_rows); ``transcript``: {count?} -> turns [{prompt,
              text, tools?, state?, model?, started_ms?, ended_ms?}], the oldest first. Agents need
              the rights ``peek`` and ``transcript``, but for their own.
              ``choose`` {id, choice (from 0)} -> chosen, gone; ``interrupt`` {} ->
              stopped: for the person alone.
``answer``    id, response or error (the fields of one) -> taken. Only from the session that was
              asked.
``items``     -> rows [{id, agent, kind (approval, question, held), what (its own words), about
              [lines of relay's], details (an approval's tool, why, intent, root, cwd; a held
              message's to, reason, thread), choices [{key, label}], chosen (the index of the one in
              focus, or null), since_ms, until_ms (or null)}], more: what waits for the person, the
              oldest first. Not for agents.
``item_answer`` id (or its end), choice (a key, a label or its beginning, yes, no), note? -> item,
              choice {key, label}, by, gone? (of a question: whether it went). Of a list of ids,
              each of which asks for yes or no: answers [{item, choice, by}], of all or of none.
              Stored, as an event ``answer``, before anything follows. What is typed at an agent is
              typed while the very same question stands there, else it is refused as ``stale``. Not
              for agents.
``spawn``     name, command (words), cwd?, options?, team?, conversation?, auth? -> parent: whether
              whoever asks may start that without a terminal; the agent whose helper it is then, ""
              for the person. It is written down. Agents need the right ``spawn``, and have a
              limited number of helpers, of a limited depth.
``spawned``   name -> spawned: what ``spawn`` was told last of that name, and ``parent``; null
              without one. Not for agents.
``memory_save`` text, scope? (project), cwd?, agent?, supersedes?, meta?, secrets? (redact, refuse
              or keep), store?, auth? -> memory, outcome, former?, problem? (why it is only kept),
              redacted (the kinds of secrets). Answered once it is on the disk. A memory is what
              relay.features.memory.records.to_json makes, a store what StoreSpec.to_json makes;
              every ``memory_…`` may name one, without it the default one is meant.
``memory_search`` query, limit?, scope?, cwd?, agent?, auth? -> memories, the best first, each with
              score and tier. Without a scope: in the agent's, the project's and the user's.
``memory_list`` limit?, before_ms? and before_id? (of the last memory that was had), scope?, cwd?,
              agent?, auth? -> memories (newest first), more
``memory_get``, ``memory_forget`` id, auth? -> memory
``memory_stats`` -> backend, tier, embedder, problem, pending, kept, refused (saves that wait for
              the store, and that it would not take), size, store (without its secrets), folder,
              count, places,
              extractions {waiting, failed, last_error} (see ``memory_extract``)
``memory_export`` after? (what the page before it gave) -> memories, after, more.
              What is saved or forgotten between two pages changes nothing else of the export.
``memory_extract`` text (at most 64 KiB), llm {provider, model, url, api_key}, cwd?, secrets?,
              store? -> duplicate, waiting, failed, last_error. Only from the connection of a
              session, once a run: what a model finds worth keeping in its agent's last words is
              saved later. Answered once they are on the disk.
``memory_import`` memories, auth? -> new, same, conflicting. Not for agents.
``routes``    cwd? -> rows [{hook, kinds, channels, priority, path, disabled: {reason, event,
              disabled_ms} or null}], problems {path: why it evaluates nothing}: the route functions
              that evaluate the events of an agent in ``cwd``, or of none
``hook_switch`` hook (an id, or the only such name), on -> hook, on. Not for agents.
``hook_log``  agent?, hook? (a part of its name), event? (of hooks), kind? (of events), failed?,
              quiet? (route functions too that said nothing), limit? -> rows, more: how hooks ran,
              and what route functions said (kind ``route``; ``correlation_id`` is the event's),
              newest first
``dispatch``  persona, body, session?, mode?, priority?, permissions?, system_prompt?, extracted?,
              thread_history?, id? -> id, event, duplicate, waits (null, or for what). Only the
              person's: what is asked of a persona without a route function. Answered once it is
              on the disk.
``dispatches`` dead?, which?, limit? -> rows [{id, state, reason, persona, session, mode, priority,
              from, channel, body (its beginning), hook, event, tries, turn, created_ms,
              updated_ms}], the newest, oldest first. ``which``: a part of an id, or a persona.
``redispatch`` which? (parts of ids, personas; without it all), drop? -> rows: dead ones are tried
              again, or dropped. Not for agents.
``automation_register`` path, source (its text), auth? -> automation, unchanged? (this very text is
              registered already). A person's is loaded, and active; an agent's is paused, and never
              loaded before the person enables it. An automation: {id, name, version, status
              (active, paused, disabled, deleted), reason, description, triggers, schedule,
              blocking, priority, deadline (null before it was loaded), loaded, folder, path,
              sha256, registered_by, created_ms, updated_ms, circuit, errors, opened_ms, skipped,
              last_fired_ms, next_tick_ms, over (its one time is past)}
``automation_update`` path, source, name? (else as the file says) -> automation, unchanged?: the
              text is the next version. Not for agents.
``automation_enable`` name, sha256? (needed for one that was never loaded: what was looked at),
``automation_disable`` name, reason?, ``automation_delete`` name -> automation. Not for agents.
``automation_test`` name, id? (of a stored event), event? (the fields of ``outside`` above, of any
              channel and kind; without both a tick of its clock) -> automation, event, principal,
              matches, result, error, log, latency_us, llm_calls, state (what it would change),
              dispatch (persona, session, queue_mode, priority, prompt, extracted, permissions,
              answer_to; null: it did not fire). Nothing of it is stored. Not for agents.
``automations`` status?, by? -> rows (automations), more
``automation_info`` name, source? (true: with its text) -> automation, with versions, config, health
              {window, day (each {runs, errors, fires, avg_ms, p95_ms}), last_run_ms, last_error_ms,
              last_error}
``automation_runs`` name, limit?, errors_only? -> rows [{event (its id), kind, channel, sender,
              version, started_ms, latency_us, fired, retry, llm_calls, result, error, log}] (the
              newest first), more
``status``    -> running, pid, socket, home, version, uptime_s, counts, agents, connections, parked,
              automations (how many, by status),
              problems (why configurations evaluate nothing, by path), dispatches and answers (how
              many, by state), evaluations (of the last day: fired, not_fired, failed)
``stop``      -> stopping

``auth`` is ``{"run", "token"}`` of a registered agent: the request is then that agent's.

Of messages and turns an agent is told what is from it or to it, unless it has the right ``watch``
or, for turns, ``transcript``: see relay.broker.agent_rights. ``dispatches`` and
``automation_runs`` are not for agents.

Pushes:

``ask``       id, kind, by ("person", or "agent": its own), request, timeout: somebody asks the
              session; it answers once, with ``answer``, within ``timeout`` seconds.
``watch``     epoch, rows [{seq, at_ms, what, …}] for who follows; by ``what``:

              - ``message``: id, from, from_kind, to [names], body, mode, thread, channel, cut?
                (true: of the body it is the beginning)
              - ``delivery``: id, from, to, state, reason, proof; not for one that is simply queued
              - ``agent``: the fields of a row of ``agents``, was (the state before; null: it is
                new); not where only unread and the times have changed
              - ``turn``: agent, ids (the messages that it answers), text, state, usage {input,
                output, cached} or null, model, started_ms, ended_ms, cut?
              - ``item``: item (a row of ``items``), open; with ``open`` false also answer, by
              - ``obligation``: id, from, to, why (unanswered, gone)
              - ``gap``: lost (how many rows at most; -1: unknown, it was another broker)
"""

from __future__ import annotations

from relay.core import json_text
from relay.core.errors import (
    BY_CODE,
    NotDelivered,
    NotFound,
    RelayError,
    Timeout,
    UsageError,
    error_fields,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from relay.core.message import Message
    from relay.protocol.message_ops import DeliverPush

PROTOCOL = 1

#: The longest line either side accepts: a body of ``BODY_MAX`` whose every byte is escaped fits.
LINE_MAX = 8 * 1024 * 1024
#: Deliveries that a session may have in hand.
WINDOW = 256
#: The most rows that one answer holds.
ROWS_MAX = 10_000

#: The kernel's kinds of rows that ``watch`` tells of; features add theirs. A gap is told to
#: everybody.
WATCHED = frozenset(("message", "delivery", "agent", "turn", "item", "obligation"))

#: How long a request to a session may wait for its response. Seconds.
ASK_TIMEOUT_MAX = 120.0
#: What does something beyond the ledger: a client never repeats it by itself.
ONCE = frozenset({"stop", "ask", "item_answer"})
#: What stores something new each time, but for the same ``id``: a client gives it one.
IDENTIFIED = frozenset({"send", "event", "dispatch"})

#: How a broker begins to refuse what it does not know; a newer client looks for it.
UNKNOWN_OP = "this broker knows no op"
#: The attribute of a notice that an answer will not come: the id of the message that asked for it.
OBLIGATION = "obligation"
#: The ``notice`` that the loop guard counts.
ABOUT = "about"

Json = dict[str, "Any"]

#: For errors whose code is finer than their class: the exit status is kept.
_BY_STATUS: dict[int, type[RelayError]] = {
    cls.exit_status: cls for cls in (UsageError, NotFound, NotDelivered, Timeout)
}


def encode(record: Mapping[str, object]) -> bytes:
    """One line. Raises RelayError for text that UTF-8 cannot carry (lone surrogates)."""
    try:
        return json_text.dumps(record, ascii=False).encode() + b"\n"
    except UnicodeEncodeError as error:
        raise not_unicode() from error


def not_unicode() -> UsageError:
    """The error for text that UTF-8 cannot carry."""
    return UsageError("the text holds half of a surrogate pair", hint="send valid Unicode")


def check_unicode(record: Json) -> None:
    """Raises UsageError when UTF-8 cannot carry some text in ``record``.

    No answer could repeat it, and the database would not take it.
    """
    try:
        json_text.dumps(record, ascii=False).encode()
    except UnicodeEncodeError as error:
        raise not_unicode() from error
    except RecursionError as error:
        raise UsageError("a request whose lists and objects are nested too deep") from error


def too_deep(value: Any, most: int) -> bool:
    """Whether lists and objects in ``value`` are nested more than ``most`` deep."""
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(most):
        if not level:
            return False
        below = (one.values() if isinstance(one, dict) else one for one in level)
        level = [part for parts in below for part in parts if isinstance(part, dict | list)]
    return bool(level)


def decode(line: bytes) -> Json:
    """One object. Raises ValueError for anything else."""
    record = json_text.loads(line.decode("utf-8", "surrogatepass"))
    if not isinstance(record, dict):
        raise ValueError("not an object")
    return record


def refusal(n: int | None, error: RelayError) -> bytes:
    """The line that refuses request ``n``. Always one: an error may name a file whose name is no
    Unicode, which is told with question marks."""
    record = {"n": n, "ok": False, "error": error_fields(error)}
    line = json_text.dumps(record, ascii=False)
    return line.encode(errors="replace") + b"\n"


def error_from(fields: Json) -> RelayError:
    """The exception that an answer's ``error`` stands for."""
    code = str(fields.get("code") or "failed")
    status = fields.get("status")
    kind = BY_CODE.get(code) or _BY_STATUS.get(status if type(status) is int else 0, RelayError)
    details = fields.get("details")
    return kind(
        str(fields.get("message") or "the broker refused the request"),
        hint=str(fields.get("hint") or ""),
        code=code,
        details=details if isinstance(details, dict) else None,
    )


def message_from(row: DeliverPush) -> Message:
    """The message in a ``deliver`` push."""
    # Imported on use: a verb of the command line does without dataclasses and enums.
    from relay.core.message import Message, QueueMode

    return Message(
        id=row["id"],
        sender=row["from"],
        to=row["to"],
        body=row["body"],
        created_at=row["created_ms"],
        mode=QueueMode(row.get("mode") or QueueMode.FOLLOWUP),
        thread=row.get("thread"),
        sender_kind=row.get("from_kind") or "agent",
        attempt=row["attempt"],
        nonce=row["nonce"],
        attributes=row.get("attributes") or {},
        permissions=row.get("permissions"),
        proven=row.get("from_kind") == "person" and row.get("proven") is True,
    )
