"""Turns of headless personas: a process for each, with a lease and a deadline.

The process is relay.features.personas.headless_turn; it ends with the broker's end of its socket,
and so does all that it has started. What it tells counts as long as its lease runs: whoever is
silent for ``LEASE`` seconds is killed, and the turn is tried again."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from relay.broker.batch import Batch
from relay.broker.kernel import Kernel
from relay.broker.service_process import ServiceProcess
from relay.core.child_process import python
from relay.core.dispatch import PermissionSet
from relay.core.errors import RelayError
from relay.core.ids import new_ulid
from relay.core.message import QueueMode
from relay.core.paths import Home
from relay.features.ingest.broker import note_own
from relay.features.personas import dispatch_rows
from relay.features.personas.dispatch_rows import DispatchRow
from relay.features.personas.settings import PersonaSpec
from relay.features.personas.turn_context import HISTORY_MAX, assemble
from relay.features.personas.wrapped_turns import asked, prompt_told
from relay.hooks.events import HookEventName
from relay.ledger import agent_ledger
from relay.protocol.turns import ALIVE_EVERY, TurnCause, TurnRequest, TurnResult, TurnState

#: The process of a turn.
RUNNER = python("relay.features.personas.headless_turn")
#: Seconds of silence after which nobody has the turn any more.
LEASE = 6 * ALIVE_EVERY
#: Who has the lease of what such a process has.
HEADLESS = "headless"
#: Headless turns at a time.
RUNS_MAX = 8
#: Turns of the conversation that are looked at for the history.
_TURNS_MAX = 100
#: Seconds that a turn has to end once it was told to, or once its own deadline was there.
_GRACE = 10.0


class HeadlessRun:
    """One turn that runs, until its process has gone."""

    wrapped = False

    def __init__(
        self,
        turns: HeadlessTurns,
        home: Home,
        request: TurnRequest,
        started_ms: int,
        rows: Sequence[DispatchRow],
    ) -> None:
        self.id = request.turn
        self.fences = {one.id: one.fence + 1 for one in rows}
        self.permissions: Mapping[str, Any] = rows[0].permissions
        self.request = request
        self.started_ms = started_ms
        #: What its agent calls the conversation; "" as long as it has not said so.
        self.conversation = ""
        self.noted = ""  # … as the ledger has it
        #: Set at each sign of life.
        self.alive = asyncio.Event()
        self._turns = turns
        self._home = home
        self._end: asyncio.Future[TurnResult] = asyncio.get_running_loop().create_future()
        self._process: ServiceProcess | None = None
        self._told: TurnResult | None = None

    def take(self, row: DispatchRow, mode: QueueMode, batch: Batch) -> None:
        """It takes nothing: it is stopped, and this goes first."""
        self.stop(TurnCause.OVERTAKEN)

    async def ended(self) -> TurnResult:
        """Start its process, keep its lease, and return how it has ended."""
        self._start()
        keeping = asyncio.ensure_future(self._turns.keep(self))
        try:
            ended = await self._end
        finally:
            keeping.cancel()
        await self._turns.over(self)
        return ended

    def _start(self) -> None:
        try:
            self._process = ServiceProcess(
                RUNNER,
                cwd=self._home.root,
                log=os.path.join(self._home.logs, "personas.log"),
                received=self._received,
                ended=self._gone,
            )
        except OSError as error:
            reason = f"its process cannot be started: {error.strerror or error}"
            self._end.set_result(TurnResult.of(TurnCause.NOT_STARTED, reason))
            return
        self._send(self.request.to_json())
        self._watch(self._process)
        why = TurnResult.of(TurnCause.DEADLINE, f"{self.request.deadline:g}")
        self._process.kill_after("deadline", self.request.deadline + _GRACE, why)

    def stop(self, cause: TurnCause) -> None:
        """End the turn: another one goes first, or the broker stops."""
        process = self._process
        if process is not None and process.why is None:
            process.why = TurnResult.of(cause)
            self._send({"do": "stop"})
            process.finish()
            process.kill_after("stop", _GRACE)

    async def close(self, seconds: float) -> None:
        """Wait for its end, which it was told of; it is killed where it does not come so soon."""
        if self._process is not None:
            await self._process.close(seconds)

    def _send(self, fields: Mapping[str, Any]) -> None:
        if self._process is not None:
            self._process.send(json.dumps(fields).encode() + b"\n")

    def _watch(self, process: ServiceProcess) -> None:
        why = TurnResult.of(TurnCause.SILENT, f"{LEASE:g}")
        process.kill_after("lease", LEASE, why)

    def _received(self, line: bytes) -> None:
        """A line of the process. Raises ValueError for what is none: it is killed then."""
        fields = json.loads(line)
        if not isinstance(fields, dict):
            raise ValueError("not an object")
        tell = fields.pop("tell", None)
        if self._process is not None:
            self._watch(self._process)
        self.alive.set()
        if tell == "started":
            self.conversation = str(fields.get("external_id") or "")[:128]
        elif tell == "ended":
            try:
                self._told = TurnResult.from_json(fields)
            except RelayError as error:
                raise ValueError(error.message) from error

    def _gone(self, how: str) -> None:
        told, why = self._told, self._process.why if self._process is not None else None
        assert why is None or isinstance(why, TurnResult)
        if told is None:
            told = why or TurnResult.of(TurnCause.DIED, how)
        elif why is not None and told.state is not TurnState.COMPLETED:
            told = replace(told, state=why.state, cause=why.cause, detail=why.detail)
        if not self._end.done():
            self._end.set_result(told)


class HeadlessTurns:
    """Begins headless turns: what they are told, and that their leases are kept."""

    def __init__(self, kernel: Kernel) -> None:
        self._home = kernel.home
        self._ledger = kernel.ledger
        self._committer = kernel.committer
        self._runs: dict[HeadlessRun, int] = {}  # with the time to which the lease is kept

    @property
    def has_room(self) -> bool:
        """Whether one more turn may begin."""
        return len(self._runs) < RUNS_MAX

    def begin(
        self,
        label: str,
        rows: Sequence[DispatchRow],
        summarised: int,
        spec: PersonaSpec,
        batch: Batch,
    ) -> HeadlessRun:
        """The turn of these dispatches, to be carried once the batch is committed. Raises
        RelayError where it cannot be."""
        first, now_ms = rows[0], batch.now_ms
        permissions = PermissionSet.from_json(rows[-1].permissions)
        self._ledger.begin()
        session = agent_ledger.session_of(self._ledger, first.persona, label, now_ms)
        with_history = any(one.context.get("include_thread_history", True) for one in rows)
        told = assemble(
            asked(rows),
            agent_ledger.history(self._ledger, session, _TURNS_MAX, HISTORY_MAX)
            if with_history
            else (),
            summarised=summarised,
            attempt=max(one.fence for one in rows),
        )
        request = TurnRequest(
            turn=new_ulid(now_ms),
            name=first.persona,
            session=label,
            prompt=told.prompt,
            permissions=permissions,
            deadline=spec.deadline,
            persona=spec.to_json(),
            home=self._home.root,
            resumed_prompt=told.resumed_prompt,
            system_prompt=told.system_prompt,
            external_id=(
                agent_ledger.external_id_of(self._ledger, session) if with_history else None
            ),
            attempt=max(one.fence for one in rows),
        )
        run = HeadlessRun(self, self._home, request, now_ms, rows)
        until_ms = now_ms + int(LEASE * 1000)
        dispatch_rows.begin(self._ledger, run.fences, HEADLESS, until_ms, now_ms)
        self._runs[run] = until_ms
        batch.on_failure.append(partial(self._runs.pop, run, None))
        batch.observe(HookEventName.AFTER_ASSEMBLE_CONTEXT, partial(prompt_told, rows, told.prompt))
        return run

    def stop(self, id_: str, cause: TurnCause) -> bool:
        """Stop the process that has this dispatch; False: none has it."""
        run = next((one for one in self._runs if id_ in one.fences), None)
        if run is not None:
            run.stop(cause)
        return run is not None

    async def close(self, seconds: float) -> None:
        """Stop all of them, and wait so long for them to go."""
        for run in list(self._runs):
            run.stop(TurnCause.BROKER)
        await asyncio.gather(*(run.close(seconds) for run in list(self._runs)))

    async def over(self, run: HeadlessRun) -> None:
        """Its process has gone: another turn may begin."""
        await self._committer.commit(partial(self._note, run))
        del self._runs[run]

    async def keep(self, run: HeadlessRun) -> None:
        """Keep its lease."""
        while True:
            await run.alive.wait()
            run.alive.clear()
            await self._committer.commit(partial(self._renew, run))

    def _renew(self, run: HeadlessRun, batch: Batch) -> None:
        """Keep the lease in the ledger, too, when half of it is over."""
        self._note(run, batch)
        until_ms = batch.now_ms + int(LEASE * 1000)
        if run in self._runs and until_ms - self._runs[run] > LEASE * 500:
            self._runs[run] = until_ms
            dispatch_rows.renew(self._ledger, run.fences, until_ms, batch.now_ms)

    def _note(self, run: HeadlessRun, batch: Batch) -> None:
        """Note what its agent calls the conversation: what it writes of it is never ingested,
        however the turn ends."""
        name, request = run.conversation, run.request
        if name not in ("", run.noted):
            self._ledger.begin()
            session = agent_ledger.session_of(
                self._ledger, request.name, request.session, batch.now_ms
            )
            note_own(self._ledger, name, session, batch.now_ms)
            batch.after.append(partial(setattr, run, "noted", name))
