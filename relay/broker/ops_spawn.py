"""Agents that start others: the ops ``spawn`` and ``release``, and word of a helper's end to the
one it helps.

How deep an agent stands is what the kernel says (relay.broker.identity): a host that it starts
stays below it. How many helpers it has, and whom their end is told, is what was written down.
"""

from __future__ import annotations

from relay.broker.agent_rights import Rights
from relay.broker.batch import Accepted, Batch, ClientRequest, Handler
from relay.broker.delivery_window import DeliveryWindows
from relay.broker.directory import Directory, Member
from relay.broker.loop_guard import HeldMessages
from relay.config import names
from relay.config.spawned_agents import record_of, spawned
from relay.core.bounded import BoundedDict
from relay.core.errors import RelayError, only_the_person
from relay.core.paths import Home
from relay.core.processes import MARKS
from relay.protocol.broker import Json

#: Helpers of one agent at a time; and how deep they go: 2 are helpers of a helper's.
HELPERS_MAX, DEPTH_MAX = 5, 2
#: A permission counts as a helper for so many milliseconds, in which its record is written.
_STARTING = 60_000
_THREAD = "spawn"
_RELEASE = "release agents"


class SpawnOps:
    """Says whether an agent may start another one."""

    def __init__(
        self,
        home: Home,
        directory: Directory,
        rights: Rights,
        held: HeldMessages,
        windows: DeliveryWindows,
    ) -> None:
        self._home = home
        self._directory = directory
        self._rights = rights
        self._held = held
        self._windows = windows
        #: By the helper's name in lower case: whose it is to be, and since when.
        self._granted: BoundedDict[str, tuple[str, int]] = BoundedDict(256)

    def handlers(self) -> dict[str, Handler]:
        """The handler of each op."""
        return {"spawn": self.spawn, "release": self.release}

    def spawn(self, request: ClientRequest, batch: Batch) -> Json:
        """Whether whoever asks may start an agent called ``name``, and who that is."""
        parent = self._rights.check(request, "spawn")
        member = self._directory.get(parent) if parent else None
        if member is None:
            return {"parent": ""}
        if not MARKS:
            raise _refused("only on Linux can relay tell an agent's helpers from the person's")
        if len(self._directory.around(member, request.client)) > DEPTH_MAX:
            raise _refused(f"{parent} is a helper of a helper, and those start none themselves")
        helpers = self._helpers(parent, batch.now_ms)
        if len(helpers) >= HELPERS_MAX:
            raise _refused(f"{parent} has {len(helpers)} helpers already: {', '.join(helpers)}")
        name = str(request.fields.get("name") or "")
        self._granted[name.lower()] = (parent, batch.now_ms)
        return {"parent": parent}

    def release(self, request: ClientRequest, batch: Batch) -> Json:
        """Whether whoever asks may end the agent called ``name``: the person any, an agent those
        that run below it."""
        member = self._directory.speaker(request)
        if member is None:
            self._directory.check_person(request, _RELEASE)
            return {"by": ""}
        helper = self._directory.get(str(request.fields.get("name") or ""))
        if helper is None or helper is member or helper.client is None:
            raise only_the_person(_RELEASE, member.name)
        if member not in self._directory.around(helper, helper.client):
            raise only_the_person(_RELEASE, member.name)
        return {"by": member.name}

    def gone(self, member: Member, batch: Batch) -> None:
        """An agent has ended: the one whose helper it was is told, if it is still there."""
        record = record_of(self._home, member.name)
        run = record.get("run") if record is not None else None  # none where nobody waited for it
        if record is None or not record["parent"] or run not in ("", member.record.run):
            return
        parent = self._directory.get(record["parent"])
        if parent is None or parent.person or not parent.live:
            return
        reason = f" ({member.record.reason})" if member.record.reason else ""
        said = f"Your helper {member.name} has ended{reason}."
        message = Accepted.notice(parent.name, said, _THREAD, batch.now_ms)
        try:
            self._held.admit_notice(message, parent, batch)
        except RelayError:
            return  # beyond what relay tells an agent for now: relay agents shows it
        self._windows.collect(message, batch)

    def _helpers(self, parent: str, now_ms: int) -> list[str]:
        found = {
            record["name"].lower()
            for record in spawned(self._home)
            if record["parent"].lower() == parent.lower()
            and names.holder(self._home, record["name"]) is not None
        }
        found |= {
            name
            for name, (whose, at_ms) in self._granted.items()
            if whose.lower() == parent.lower() and now_ms - at_ms < _STARTING
        }
        return sorted(found)


def _refused(why: str) -> RelayError:
    return RelayError(why, hint="the person can start more: relay spawn", code="forbidden")
