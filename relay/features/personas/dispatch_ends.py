"""How dispatches end: the turn in the agent ledger, the answer, or the reason for the sender."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from relay.broker.batch import Accepted, Batch
from relay.broker.kernel import Kernel
from relay.broker.loop_guard import HeldMessages
from relay.core.dispatch import RELAY_CHANNEL, PersonType
from relay.core.errors import RelayError
from relay.features.personas import dispatch_rows
from relay.features.personas.dispatch_rows import DispatchRow, DispatchState
from relay.hooks.events import HookEventName
from relay.ledger import agent_ledger, persons
from relay.ledger.agent_ledger import TurnPrompt
from relay.protocol.broker import Json
from relay.protocol.turns import TurnEnded, TurnState

#: Tries of a turn after which a dispatch is dead.
TRIES_MAX = 3
#: The thread in which senders are told what became of what they asked.
THREAD = "dispatches"
#: Who is told on other channels; a stranger, or a program, might answer for ever.
_TOLD = (PersonType.OWNER, PersonType.KNOWN)
#: Why a dispatch was not done that the person dropped.
WITHDRAWN = "the person withdrew it"
#: Characters of what was asked that a notice repeats.
_SHOWN = 200


class DispatchEnds:
    """Writes down how dispatches end, each with the commit of the batch."""

    def __init__(
        self,
        kernel: Kernel,
        held: HeldMessages,
        answered: Callable[[], None],
    ) -> None:
        """``answered`` is called when an answer is there to be sent."""
        self._ledger = kernel.ledger
        self._directory = kernel.directory
        self._windows = kernel.windows
        self._held = held
        self._answered = answered

    def turn_ended(
        self,
        label: str,
        turn: str,
        rows: Sequence[DispatchRow],
        ended: TurnEnded,
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
        reason = ended.reason or f"{persona} did not finish its turn"
        if ended.state is TurnState.COMPLETED:
            dispatch_rows.close(self._ledger, ids, DispatchState.DONE, now_ms, turn=turn)
            if ended.text.strip():
                dispatch_rows.add_answers(self._ledger, rows, turn, ended.text, now_ms)
                batch.after.append(self._answered)
            else:
                self._tell(rows, "ended without words", batch, owner_too=False)
        elif ended.again:
            self.failed(rows, reason, batch)
        elif ended.state is TurnState.INTERRUPTED:
            state = DispatchState.INTERRUPTED
            dispatch_rows.close(self._ledger, ids, state, now_ms, reason=reason, turn=turn)
            self._tell(rows, f"was interrupted: {reason}", batch)
        else:
            self.bury(rows, reason, batch, turn=turn)

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
                self.bury(theirs, reason, batch, owner_too=False)
        return [one for one in rows if why.get(one.sender_shown) is None]

    def revive(self, rows: Sequence[DispatchRow], now_ms: int) -> None:
        """The person wants dead ones tried again."""
        dispatch_rows.revive(self._ledger, [one.id for one in rows], now_ms)
        for one in rows:
            self._held.reopen(one.sender_shown, one.persona)

    def withdraw(self, row: DispatchRow, batch: Batch) -> None:
        """The person does not want it done any more."""
        ids = [row.id]
        dispatch_rows.close(self._ledger, ids, DispatchState.DROPPED, batch.now_ms)
        if row.sender.lower() != self._directory.owner.lower():
            self._tell([row], f"is not answered: {WITHDRAWN}", batch)

    def failed(self, rows: Sequence[DispatchRow], reason: str, batch: Batch) -> None:
        """A try has failed: the next one follows, or none is left."""
        last = [one for one in rows if one.tries + 1 >= TRIES_MAX]
        again = [one.id for one in rows if one not in last]
        if again:
            dispatch_rows.requeue(self._ledger, again, reason, batch.now_ms, failed=True)
        if last:
            self.bury(last, f"{reason} (after {TRIES_MAX} tries)", batch)

    def bury(
        self,
        rows: Sequence[DispatchRow],
        reason: str,
        batch: Batch,
        turn: str | None = None,
        *,
        owner_too: bool = True,
    ) -> None:
        """Dead letters: kept, and their senders are told why."""
        ids = [one.id for one in rows]
        dispatch_rows.close(
            self._ledger, ids, DispatchState.DEAD, batch.now_ms, reason=reason, turn=turn
        )
        what = f"is not answered: {reason}"
        self._tell(rows, what, batch, dead=True, owner_too=owner_too)

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
                dispatch_rows.add_answers(self._ledger, [row], None, told, batch.now_ms)
                batch.after.append(self._answered)
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
