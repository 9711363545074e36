"""Agents that start others: the ops ``spawn`` and ``release``, and the notice of a helper's end to
its parent.

The kernel decides how deep an agent stands (relay.broker.identity): a host that it starts stays
below it. The ledger decides how many helpers it has, whose parent it is, and what ``relay resume``
starts without a question. Files in RELAY_HOME do not count, because agents can write them.
"""

from __future__ import annotations

from relay.broker.batch import Accepted, Batch, ClientRequest, Served, serve
from relay.broker.directory import Member
from relay.broker.kernel import Kernel
from relay.broker.loop_guard import HeldMessages
from relay.config import names
from relay.config.spawned_agents import record_of
from relay.core.agent_names import valid_name
from relay.core.errors import RelayError, UsageError, only_the_person
from relay.core.processes import MARKS
from relay.ledger import spawn_rows
from relay.protocol.agent_ops import (
    RELEASE,
    SPAWN,
    SPAWNED,
    Release,
    ReleaseGranted,
    SpawnedQuery,
    SpawnedRecord,
    SpawnGranted,
    SpawnQuery,
)
from relay.protocol.broker import Json

#: Helpers of one agent at a time, and their depth: 2 is a helper of a helper.
HELPERS_MAX, DEPTH_MAX = 5, 2
#: For so many milliseconds a granted start counts as a helper, until its agent registers.
_STARTING = 60_000
#: Characters of the stored record of one helper.
_WANTED_MAX = 256 * 1024
_THREAD = "spawn"
_RELEASE = "release agents"


class SpawnOps:
    """Decides whether an agent may start or end another one."""

    def __init__(self, kernel: Kernel, held: HeldMessages) -> None:
        self._home = kernel.home
        self._ledger = kernel.ledger
        self._directory = kernel.directory
        self._rights = kernel.rights
        self._held = held
        self._windows = kernel.windows

    def ops(self) -> list[Served]:
        return [
            serve(SPAWN, self.spawn),
            serve(SPAWNED, self.spawned),
            serve(RELEASE, self.release),
        ]

    def spawn(self, request: ClientRequest[SpawnQuery], batch: Batch) -> SpawnGranted:
        """Allow the client to start an agent called ``name``, or refuse it."""
        parent = self._rights.check(request, "spawn")
        fields = request.fields
        name, wanted = fields["name"], _wanted(fields)
        member = self._directory.get(parent) if parent else None
        if member is not None:
            if not MARKS:
                raise _refused("only on Linux can relay tell an agent's helpers from the person's")
            if len(self._directory.around(member, request.client)) > DEPTH_MAX:
                raise _refused(f"{parent} is a helper of a helper, and those start none themselves")
            helpers = self._helpers(parent, batch.now_ms)
            before = spawn_rows.find(self._ledger, name)
            if before is not None and before["parent"].lower() != parent.lower():
                raise _refused(f"{name} is the name of an agent that {parent} has not started")
            if len(helpers) >= HELPERS_MAX:
                raise _refused(f"{parent} has {len(helpers)} helpers already: {', '.join(helpers)}")
        self._ledger.begin()
        spawn_rows.save(self._ledger, name, parent, wanted, batch.now_ms)
        return {"parent": parent}

    def spawned(self, request: ClientRequest[SpawnedQuery], batch: Batch) -> SpawnedRecord:
        """The record of the agent that was last started as ``name``."""
        self._directory.check_person(request, "see what was spawned")
        return {"spawned": spawn_rows.find(self._ledger, request.fields["name"])}

    def release(self, request: ClientRequest[Release], batch: Batch) -> ReleaseGranted:
        """Allow the client to end the agent called ``name``, or refuse it: the person may end any,
        an agent those that run below it."""
        member = self._directory.speaker(request)
        if member is None:
            self._directory.check_person(request, _RELEASE)
            return {"by": ""}
        helper = self._directory.get(request.fields["name"])
        if helper is None or helper is member or helper.client is None:
            raise only_the_person(_RELEASE, member.name)
        if member not in self._directory.around(helper, helper.client):
            raise only_the_person(_RELEASE, member.name)
        return {"by": member.name}

    def gone(self, member: Member, batch: Batch) -> None:
        """An agent has ended: tell its parent, if that still runs."""
        record = record_of(self._home, member.name)
        found = spawn_rows.find(self._ledger, member.name)
        run = record.get("run") if record is not None else None  # none where nobody waited for it
        if found is None or not found["parent"] or run not in ("", member.record.run):
            return
        parent = self._directory.get(found["parent"])
        if parent is None or parent.person or not parent.live:
            return
        reason = f" ({member.record.reason})" if member.record.reason else ""
        said = f"Your helper {member.name} has ended{reason}."
        message = Accepted.notice(parent.name, said, _THREAD, batch.now_ms)
        try:
            self._held.admit_notice(message, parent, batch)
        except RelayError:
            return  # the guard allows no more notices now: relay agents shows it
        self._windows.collect(message, batch)

    def _helpers(self, parent: str, now_ms: int) -> list[str]:
        return sorted(
            name
            for name, at_ms in spawn_rows.helpers(self._ledger, parent)
            if now_ms - at_ms < _STARTING or names.holder(self._home, name) is not None
        )


def _wanted(fields: SpawnQuery) -> Json:
    """The record to store of the agent to start."""
    wanted = {
        "cwd": fields.get("cwd") or "",
        "team": fields.get("team") or "",
        "conversation": fields.get("conversation") or "",
        "command": fields["command"],
        "options": fields.get("options") or [],
    }
    if not valid_name(fields["name"]) or not fields["command"]:
        raise UsageError("starting an agent needs a name and a command")
    if sum(len(word) for part in wanted.values() for word in part) > _WANTED_MAX:
        raise UsageError(f"a command line of more than {_WANTED_MAX} characters")
    return wanted


def _refused(why: str) -> RelayError:
    return RelayError(why, hint="the person can start more: relay spawn", code="forbidden")
