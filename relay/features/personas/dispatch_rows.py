"""The rows of dispatches: what waits for a persona, and how far it is.

``queued`` -> ``running`` -> ``done``, ``interrupted``, ``dead`` or ``dropped``; from ``running``
back to ``queued`` for another try, from ``dead`` by the person's word. ``fence`` counts the times
that one was begun: what is told of an earlier time is told too late.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any

from relay.broker.batch import Accepted, Batch
from relay.broker.kernel import Kernel
from relay.broker.loop_guard import HeldMessages
from relay.broker.ops_delivery import DeliveryOps
from relay.core.dispatch import RELAY_CHANNEL, BrokerDispatch, PeerKind, PersonType
from relay.core.errors import RelayError
from relay.core.ids import derived_ulid
from relay.core.message import QueueMode
from relay.core.paths import Home
from relay.core.queue_modes import QueueEntry
from relay.features.personas.answers import AnswerDeliveries
from relay.hooks.events import HookEventName
from relay.ledger import agent_ledger, persons
from relay.ledger.agent_ledger import TurnPrompt
from relay.ledger.content_files import path_of
from relay.ledger.event_rows import files_of
from relay.ledger.schema import ORIGINAL
from relay.ledger.store import Ledger
from relay.protocol.broker import Json
from relay.protocol.turns import TurnCause, TurnResult, TurnState

#: What the person asks a persona is an event of this kind, and a dispatch of this hook.
ORDER, BY_HAND = "dispatch", "relay/dispatch"
#: For so long such a dispatch waits for blocking automations, in milliseconds.
ORDER_WAIT_MS = 10_000
#: Characters of what was asked that a list has.
_LISTED = 400
_COLUMNS = (
    "d.seq, d.id, d.hook_id, d.persona, d.session, d.mode, d.priority, d.created_ms, d.hops,"
    " d.config, d.permissions_json, d.context_json, d.delivery_json, d.state, d.reason, d.attempts,"
    " d.fence, d.lease_owner, d.updated_ms, d.turn, d.message, e.seq, e.id, e.agent, e.origin,"
    f" e.channel, e.kind, ifnull({ORIGINAL},''), e.meta_json"
)
_FROM = "FROM dispatches d JOIN events e ON e.seq = d.event"
_COLLECT = QueueMode.COLLECT.value
#: Tries of a turn after which a dispatch is dead.
TRIES_MAX = 3
#: The thread in which senders are told what became of what they asked.
THREAD = "dispatches"
#: Who is told on other channels; a stranger, or a program, might answer for ever.
_TOLD = (PersonType.OWNER, PersonType.KNOWN)
#: Characters of what was asked that a notice repeats.
_SHOWN = 200
#: Aliases that may follow from one another.
_CHAIN = 16


class DispatchState(StrEnum):
    """How far a dispatch is; the first two are open."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    INTERRUPTED = "interrupted"
    DEAD = "dead"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class DispatchRow:
    """One dispatch, with what its event says. ``tries``: how many have failed."""

    seq: int
    id: str
    hook_id: str
    persona: str
    session: str
    mode: QueueMode
    priority: int
    created_ms: int
    hops: int
    config: str
    permissions: Mapping[str, Any]
    context: Mapping[str, Any]
    delivery: Mapping[str, Any]
    state: DispatchState
    reason: str | None
    tries: int
    fence: int
    lease_owner: str | None
    updated_ms: int
    turn: str | None
    message: str | None
    event: int
    event_id: str
    sender: str
    origin: str
    channel: str
    kind: str
    body: str
    proven: bool  # that its event is the owner's word

    @property
    def sender_shown(self) -> str:
        """The sender as a persona is told: no stranger has an agent's name, or a person's."""
        ours = self.channel == RELAY_CHANNEL
        return self.sender if ours else f"{self.channel}:{self.sender}"


def add_extracted(ledger: Ledger, event: int, extracted: Mapping[str, Any]) -> None:
    """What the person asks a persona gets this, too, within the open transaction, if it has not
    begun. What was said with it counts more."""
    for id_, context in ledger.rows(
        "SELECT id, context_json FROM dispatches WHERE event=? AND hook_id=? AND state='queued'",
        (event, BY_HAND),
    ):
        told = json.loads(context)
        told["extracted"] = {**extracted, **told.get("extracted", {})}
        values = (json.dumps(told), id_)
        ledger.change("UPDATE dispatches SET context_json=? WHERE id=?", values)


def _marks(values: Sequence[object]) -> str:
    return ",".join("?" * len(values))


def _row(found: Sequence[Any]) -> DispatchRow:
    values = list(found)
    values[5] = QueueMode(values[5])
    values[10:13] = map(json.loads, values[10:13])
    values[13] = DispatchState(values[13])
    values[-1] = bool(values[-1]) and json.loads(values[-1]).get("proven") is True
    return DispatchRow(*values)


def add_dispatches(
    ledger: Ledger,
    event: int,
    dispatches: Sequence[BrokerDispatch],
    *,
    config: str,
    hops: int,
    now_ms: int,
) -> None:
    """Append what follows from the event number ``event``, in this order, within the transaction
    that is open. ``config``: the trusted configuration whose personas are meant. What is there
    stays as it is: after a kill an event is evaluated again. Whoever wrote or gets a message knows
    it already: to them nothing is dispatched."""
    know = _who_knows(ledger, event)
    for one in dispatches:
        if one.persona.lower() in know:
            continue
        context = {
            "system_prompt": one.system_prompt,
            "extracted": one.extracted,
            "include_thread_history": one.include_thread_history,
        }
        ledger.change(
            "INSERT OR IGNORE INTO dispatches (id, event, hook_id, persona, session, mode,"
            " priority, created_ms, hops, config, permissions_json, context_json,"
            f" delivery_json, open, state, updated_ms) VALUES ({','.join('?' * 16)})",
            (
                *(one.id, event, one.hook_id, one.persona, one.session, one.queue_mode.value),
                *(one.priority, now_ms, hops, config),
                json.dumps(one.permissions.to_json()),
                json.dumps({k: v for k, v in context.items() if v is not None}),
                json.dumps(_delivery(one)),
                *(1, DispatchState.QUEUED.value, now_ms),
            ),
        )


def _delivery(dispatch: BrokerDispatch) -> Json:
    to = dispatch.delivery_context.to_json()
    return to if dispatch.quiet_when is None else {**to, "quiet_when": dispatch.quiet_when}


def _who_knows(ledger: Ledger, event: int) -> set[str]:
    """Who has written a message in relay, or gets it, or was asked by the person, in lower case. A
    name that nobody has yet gets nothing so far."""
    found = ledger.rows(
        "SELECT lower(agent) FROM events WHERE seq=?1 AND kind='message' AND origin='agent'"
        " UNION SELECT lower(recipient) FROM deliveries WHERE event=?1"
        " AND state NOT IN ('waiting', 'failed', 'cancelled')"
        " UNION SELECT lower(persona) FROM dispatches WHERE event=?1 AND hook_id=?2",
        (event, BY_HAND),
    )
    return {name for (name,) in found}


# -- reading


def lanes_after(ledger: Ledger, seq: int) -> tuple[list[tuple[str, str]], int]:
    """The (persona, session) of what is open beyond number ``seq``, and the highest number."""
    newer, values = ("seq>? AND ", (seq,)) if seq else ("", ())  # of all, by the index of those
    found = ledger.rows(
        f"SELECT DISTINCT persona, session FROM dispatches WHERE {newer}open", values
    )
    last = ledger.row("SELECT ifnull(max(seq),0) FROM dispatches")[0]
    return found, int(last)


def queued(
    ledger: Ledger,
    persona: str,
    sessions: Sequence[str],
    modes: Sequence[QueueMode],
    limit: int,
    now_ms: int,
) -> list[QueueEntry]:
    """What waits for a persona's session under any of its labels in one of these modes: from what
    is to be done first on, without what it says. What the person asks is left out for some seconds
    while blocking automations run for it."""
    found = ledger.rows(
        "SELECT d.id, d.mode, d.created_ms, d.priority, d.config, d.permissions_json,"
        " d.delivery_json, iif(d.mode='collect', d.context_json, ''), e.agent, e.peer_kind"
        f" {_FROM} WHERE d.open AND d.persona=? AND d.session IN ({_marks(sessions)})"
        f" AND d.state='queued' AND d.mode IN ({_marks(modes)})"
        " AND NOT (d.hook_id=? AND d.created_ms BETWEEN ? AND ? AND d.event IN"
        " (SELECT event FROM due WHERE event=d.event AND state!='ready' AND state='blocked'))"
        " ORDER BY d.priority DESC, d.seq LIMIT ?",
        (
            *(persona, *sessions, *(one.value for one in modes)),
            *(BY_HAND, now_ms - ORDER_WAIT_MS + 1, now_ms, limit),
        ),
    )
    return [
        QueueEntry(id_, QueueMode(mode), at_ms, priority, _share(*rest) if mode == _COLLECT else "")
        for id_, mode, at_ms, priority, *rest in found
    ]


def _share(
    config: str,
    permissions: str,
    delivery: str,
    context: str,
    sender: str,
    peer_kind: str | None,
) -> str:
    """What those have in common that may share a turn: whose persona is meant, what is permitted,
    what it is told, and where the answer goes. In a group that is the group, else the sender."""
    to = {key: one for key, one in json.loads(delivery).items() if key != "reply_to"}
    prompt = json.loads(context).get("system_prompt")  # no SQL: SQLite has no lone surrogates
    whose = "" if peer_kind == PeerKind.GROUP.value and to.get("peer") else sender.lower()
    return json.dumps([config, permissions, sorted(to.items()), prompt, whose])


def running(ledger: Ledger, owner: str, persona: str | None = None) -> list[DispatchRow]:
    """What ``owner`` has in hand: of one persona, or all."""
    where, values = ("", [owner]) if persona is None else (" AND d.persona=?", [owner, persona])
    found = ledger.rows(
        f"SELECT {_COLUMNS} {_FROM} WHERE d.open AND d.state='running' AND d.lease_owner=?"
        f"{where} ORDER BY d.seq",
        values,
    )
    return [_row(one) for one in found]


def rows_of(ledger: Ledger, ids: Sequence[str]) -> list[DispatchRow]:
    """The dispatches with these ids, in this order; those that are there."""
    found = ledger.rows(
        f"SELECT {_COLUMNS} {_FROM} JOIN json_each(?) j ON d.id = j.value ORDER BY j.key",
        (json.dumps(list(ids)),),
    )
    rows = [_row(one) for one in found]
    return [
        one if one.channel == RELAY_CHANNEL else replace(one, body=_with_files(ledger, one))
        for one in rows
    ]


def _with_files(ledger: Ledger, row: DispatchRow) -> str:
    """What its event says, with the paths of its content that is not text."""
    home = Home(os.path.dirname(ledger.path))
    files = [
        f"[attached: {one.name} ({one.content_type}, {one.size} bytes):"
        f" {path_of(home, one.sha256)}]"
        for one in files_of(ledger, row.event)
    ]
    return "\n".join(filter(None, [row.body, *files]))


def held_by(ledger: Ledger, owner: str, ids: Collection[str]) -> list[DispatchRow]:
    """Those of these dispatches that run, and that ``owner`` has the lease of."""
    found = rows_of(ledger, sorted(ids))
    return [one for one in found if one.state is DispatchState.RUNNING and one.lease_owner == owner]


def listed(ledger: Ledger, limit: int, *, dead: bool = False, part: str = "") -> list[DispatchRow]:
    """The newest ``limit`` that are open, or ``dead``, oldest first, with the beginning of what
    was asked. ``part``: an id or the end of one (from 4 characters on), or a persona."""
    where, values = "d.state='dead'" if dead else "d.open", []
    if part:
        where += " AND (d.persona = ? OR (length(?) > 3 AND substr(d.id, -length(?)) = ?))"
        values = [part, *[part.upper()] * 3]
    columns = _COLUMNS.replace(f"ifnull({ORIGINAL},'')", f"substr(ifnull(e.body,''), 1, {_LISTED})")
    found = ledger.rows(
        f"SELECT {columns} {_FROM} WHERE {where} ORDER BY d.seq DESC LIMIT ?",
        (*values, limit),
    )
    return [_row(one) for one in reversed(found)]


def carried_by(ledger: Ledger, message: str) -> list[DispatchRow]:
    """The dispatches that run, and that this message to a wrapped agent has begun."""
    found = ledger.rows(
        f"SELECT {_COLUMNS} {_FROM} WHERE d.open AND d.state='running' AND d.message=?"
        " ORDER BY d.seq",
        (message,),
    )
    return [_row(one) for one in found]


def is_dispatched(ledger: Ledger, message: str) -> bool:
    """Whether this message carries dispatches, or did."""
    found = ledger.row("SELECT meta_json FROM events WHERE id=?", (message,))
    return bool(found and found[0] and "dispatches" in json.loads(found[0]))


def counts(ledger: Ledger) -> dict[str, int]:
    """How many are queued, running and dead, and how many answers ``unsent`` or dead."""
    found = dict(
        ledger.rows(
            "SELECT state, count(*) FROM dispatches WHERE open GROUP BY state"
            " UNION ALL SELECT 'unsent', count(*) FROM answers WHERE open"
            " UNION ALL SELECT 'dead', count(*) FROM dispatches WHERE state='dead'"
            " UNION ALL SELECT 'dead_answers', count(*) FROM answers WHERE state='dead'"
        )
    )
    names = ("queued", "running", "unsent", "dead", "dead_answers")
    return {name: found.get(name, 0) for name in names}


# -- moving them on


def begin(
    ledger: Ledger,
    ids: Collection[str],
    owner: str,
    lease_until_ms: int,
    now_ms: int,
    message: str | None = None,
) -> None:
    """They run: with a lease of ``owner``, under the next fence, and by this message if it is a
    wrapped agent that has them."""
    _update(
        ledger,
        ids,
        "state='running', reason=NULL, fence=fence+1, lease_owner=?, lease_until_ms=?, message=?",
        (owner, lease_until_ms, message),
        now_ms,
    )


def renew(ledger: Ledger, ids: Collection[str], lease_until_ms: int, now_ms: int) -> None:
    """Whoever has them is alive."""
    _update(ledger, ids, "lease_until_ms=?", (lease_until_ms,), now_ms)


def requeue(
    ledger: Ledger,
    ids: Collection[str],
    reason: str | None,
    now_ms: int,
    *,
    failed: bool,
    unread: bool = False,
) -> None:
    """They wait again, in the place that they had; ``failed``: that counts as a try; ``unread``:
    they have not been begun after all."""
    _update(
        ledger,
        ids,
        "state='queued', open=1, reason=?, attempts=attempts+?, fence=fence-?, message=NULL,"
        " lease_owner=NULL, lease_until_ms=NULL",
        (reason, int(failed), int(unread)),
        now_ms,
    )


def revive(ledger: Ledger, ids: Collection[str], now_ms: int) -> None:
    """The person wants them tried again: tries and hops count anew."""
    what = "state='queued', open=1, reason=NULL, attempts=0, hops=0, message=NULL"
    _update(ledger, ids, what, (), now_ms)


def close(
    ledger: Ledger,
    ids: Collection[str],
    state: DispatchState,
    now_ms: int,
    *,
    reason: str | None = None,
    turn: str | None = None,
) -> None:
    """They are at their end."""
    _update(
        ledger,
        ids,
        "state=?, open=0, reason=?, turn=ifnull(?,turn), lease_owner=NULL, lease_until_ms=NULL",
        (state.value, reason, turn),
        now_ms,
    )


def _update(
    ledger: Ledger, ids: Collection[str], what: str, values: tuple[object, ...], now_ms: int
) -> None:
    ledger.begin()
    ledger.change(
        f"UPDATE dispatches SET {what}, updated_ms=? WHERE id IN (SELECT value FROM json_each(?))",
        (*values, now_ms, json.dumps(list(ids))),
    )


# -- answers

#: Why an answer went nowhere.
_QUIET = "it is the text that quiet_when names"


def add_answers(
    ledger: Ledger, rows: Sequence[DispatchRow], turn: str | None, content: str, now_ms: int
) -> None:
    """What a persona said goes back to wherever it was asked from: one answer for each place. It
    goes nowhere where all who asked from there said that such an answer is no news."""
    places: dict[str, DispatchRow] = {}
    loud: set[str] = set()
    for one in rows:
        to = {k: v for k, v in one.delivery.items() if k not in ("reply_to", "quiet_when")}
        place = json.dumps([sorted(to.items()), "" if to.get("peer") else one.sender])
        places[place] = one
        if one.delivery.get("quiet_when") != content.strip():
            loud.add(place)
    ledger.begin()
    with ledger.guard() as db:
        db.executemany(
            "INSERT OR IGNORE INTO answers (id, turn, dispatch, channel, delivery_json, content,"
            " open, state, reason, due_ms, created_ms, updated_ms)"
            " VALUES (?,?,?,?,?,?,?,?,?,?,?,?)",
            [
                (
                    derived_ulid(now_ms, "answer", turn or "", one.id, str(one.fence)),
                    *(turn, one.id, one.delivery["channel"]),
                    json.dumps({k: v for k, v in one.delivery.items() if k != "quiet_when"}),
                    content,
                    *((1, "queued", None) if place in loud else (0, "quiet", _QUIET)),
                    *(now_ms, now_ms, now_ms),
                )
                for place, one in places.items()
            ],
        )


class DispatchEnds:
    """Writes down how dispatches end, each with the commit of the batch."""

    def __init__(
        self,
        kernel: Kernel,
        held: HeldMessages,
        deliveries: DeliveryOps,
        answers: AnswerDeliveries,
    ) -> None:
        self._ledger = kernel.ledger
        self._directory = kernel.directory
        self._windows = kernel.windows
        self._held = held
        self._deliveries = deliveries
        self._answers = answers

    def turn_ended(
        self,
        label: str,
        turn: str,
        rows: Sequence[DispatchRow],
        ended: TurnResult,
        started_ms: int,
        batch: Batch,
    ) -> None:
        """The turn ``turn`` of a persona's session ``label`` has ended; ``rows`` were in it."""
        persona, now_ms = rows[0].persona, batch.now_ms
        self._ledger.begin()
        session = agent_ledger.session_of(self._ledger, persona, label, now_ms)
        asked = [TurnPrompt(one.event, one.body, one.created_ms, one.id) for one in rows]
        agent_ledger.add_turn(
            self._ledger, session, turn, asked, ended, started_ms=started_ms, now_ms=now_ms
        )
        ids = [one.id for one in rows]
        told: Json = {"response": ended.text, "persona": persona, "session": label, "turn": turn}
        told |= {"state": ended.state.value, "dispatches": ids}
        batch.observe(HookEventName.AFTER_EXECUTE_AGENT, lambda: told)
        if ended.state is TurnState.COMPLETED:
            self._close(rows, DispatchState.DONE, batch, turn=turn)
            if ended.text.strip():
                add_answers(self._ledger, rows, turn, ended.text, now_ms)
                batch.after.append(self._answers.wake)
            else:
                self._tell(rows, "ended without words", batch, owner_too=False)
        elif ended.again:
            self.failed(rows, ended, batch)
        elif ended.needs_person:
            began = bool(ended.text or ended.tool_calls)
            requeue(self._ledger, ids, ended.reason, now_ms, failed=False, unread=not began)
        elif ended.state is TurnState.INTERRUPTED:
            self._close(rows, DispatchState.INTERRUPTED, batch, reason=ended.reason, turn=turn)
            self._tell(rows, f"was interrupted: {ended.reason}", batch)
        else:
            self.bury(rows, ended, batch, turn=turn)

    def admit(self, rows: Sequence[DispatchRow], batch: Batch) -> list[DispatchRow]:
        """Those that a process may take up as one turn, which counts once for each sender. What has
        gone on for too long without a person is dead, and the person is told once."""
        senders = {one.sender_shown: one for one in sorted(rows, key=lambda one: one.hops)}
        why = {
            sender: self._held.why_held(sender, one.persona, one.hops, batch)
            for sender, one in senders.items()
            if one.origin != "person"
        }
        for sender, reason in why.items():
            if reason is not None:
                theirs = [one for one in rows if one.sender_shown == sender]
                self.bury(theirs, TurnResult.of(TurnCause.HELD, reason), batch, owner_too=False)
        return [one for one in rows if why.get(one.sender_shown) is None]

    def revive(self, rows: Sequence[DispatchRow], now_ms: int) -> None:
        """The person wants dead ones tried again."""
        revive(self._ledger, [one.id for one in rows], now_ms)
        for one in rows:
            self._held.reopen(one.sender_shown, one.persona)

    def withdraw(self, row: DispatchRow, batch: Batch) -> None:
        """The person does not want it done any more."""
        self._close([row], DispatchState.DROPPED, batch)
        if row.sender.lower() != self._directory.owner.lower():
            why = TurnResult.of(TurnCause.WITHDRAWN).reason
            self._tell([row], f"is not answered: {why}", batch)

    def failed(self, rows: Sequence[DispatchRow], why: TurnResult, batch: Batch) -> None:
        """A try has failed: the next one follows, or none is left."""
        last = [one for one in rows if one.tries + 1 >= TRIES_MAX]
        again = [one.id for one in rows if one not in last]
        if again:
            requeue(self._ledger, again, why.reason, batch.now_ms, failed=True)
        if last:
            self.bury(last, why, batch, after=f" (after {TRIES_MAX} tries)")

    def bury(
        self,
        rows: Sequence[DispatchRow],
        why: TurnResult,
        batch: Batch,
        turn: str | None = None,
        *,
        after: str = "",
        owner_too: bool = True,
    ) -> None:
        """Dead letters: kept, and their senders are told why."""
        reason = f"{why.reason}{after}"
        self._close(rows, DispatchState.DEAD, batch, reason=reason, turn=turn)
        what = f"is not answered: {reason}"
        self._tell(rows, what, batch, dead=True, owner_too=owner_too)

    def _close(
        self,
        rows: Sequence[DispatchRow],
        state: DispatchState,
        batch: Batch,
        *,
        reason: str | None = None,
        turn: str | None = None,
    ) -> None:
        """They are at their end; whoever waits for that is answered."""
        ids = [one.id for one in rows]
        close(self._ledger, ids, state, batch.now_ms, reason=reason, turn=turn)
        for event in {one.event_id for one in rows}:
            batch.after.append(partial(self._deliveries.answered, event))

    def _type_of(self, row: DispatchRow) -> PersonType:
        return persons.sender_type(self._ledger, row.channel, row.sender, row.origin)

    def _tell(
        self,
        rows: Sequence[DispatchRow],
        what: str,
        batch: Batch,
        *,
        dead: bool = False,
        owner_too: bool = True,
    ) -> None:
        """Tell each sender once: here as a message, elsewhere as an answer if it is somebody whom
        the person knows. What is not from here the person is told, too (``owner_too``)."""
        by_sender: dict[str, list[DispatchRow]] = {}
        for one in rows:
            by_sender.setdefault(one.sender_shown, []).append(one)
        for theirs in by_sender.values():
            self._tell_one(theirs, what, batch, dead=dead, owner_too=owner_too)

    def _tell_one(
        self, rows: Sequence[DispatchRow], what: str, batch: Batch, *, dead: bool, owner_too: bool
    ) -> None:
        row = rows[-1]
        text = " ".join(row.body.split()) or row.kind
        text = f"“{text if len(text) <= _SHOWN else text[: _SHOWN - 1] + '…'}”"
        if len(rows) > 1:
            text += f" (and {len(rows) - 1} before it)"
        if row.channel == RELAY_CHANNEL:
            member = self._directory.get(row.sender)
        else:
            member = None
            if self._type_of(row) in _TOLD:
                told = f"{text} {what}."
                add_answers(self._ledger, [row], None, told, batch.now_ms)
                batch.after.append(self._answers.wake)
        whose = "" if member is not None else f" of {row.sender_shown}"
        if member is None and owner_too:
            member = self._directory.get(self._directory.owner)
        if member is None:
            return
        body = f"{text}{whose} to {row.persona} {what}."
        if dead and member.person:
            which = row.id[-8:] if len(rows) == 1 else row.persona
            body += f" relay broker retry {which} tries {'it' if len(rows) == 1 else 'all'} again."
        message = Accepted.notice(member.name, body, THREAD, batch.now_ms)
        if not member.person:
            try:
                self._held.admit_notice(message, member, batch)
            except RelayError:
                return  # beyond what relay tells an agent for now: relay broker dead shows it
        self._windows.collect(message, batch)


def label_of(ledger: Ledger, persona: str, label: str) -> str:
    """The label that this one stands for."""
    for _ in range(_CHAIN):
        found = ledger.row(
            "SELECT label FROM session_aliases WHERE persona=? AND alias=?", (persona, label)
        )
        if found is None:
            break
        label = str(found[0])
    return label


def labels_of(ledger: Ledger, persona: str, label: str) -> list[str]:
    """``label`` and all that stand for it."""
    found = ledger.rows(
        "WITH RECURSIVE known (label) AS (VALUES (?) UNION SELECT a.alias FROM session_aliases"
        " a JOIN known ON a.label = known.label WHERE a.persona=?) SELECT label FROM known",
        (label, persona),
    )
    return [str(row[0]) for row in found]


def alias_label(ledger: Ledger, alias: str, label: str, reason: str, now_ms: int) -> None:
    """What comes for the session ``alias`` of any persona goes to ``label`` from now on, if it does
    not yet, or the other way round."""
    known = ledger.rows(
        "SELECT persona FROM agent_sessions WHERE persona NOT NULL AND label=?"
        " UNION SELECT persona FROM dispatches WHERE open AND session=?",
        (alias, alias),
    )
    for (persona,) in known:
        to = label_of(ledger, persona, label)
        if alias == to or label_of(ledger, persona, alias) == to:
            continue
        ledger.change(
            "INSERT OR REPLACE INTO session_aliases VALUES (?,?,?,?,?)",
            (persona, alias, to, reason, now_ms),
        )
