"""The claims of one session: asked for only while another agent works in the same folder.

And what an agent waits for that was refused a file, in governed projects too: it is told once the
file is free.
"""

from __future__ import annotations

import asyncio
import os
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from relay.agents.hook_codec import AgentHookCall
from relay.config.trust import project_root
from relay.core.bounded import BoundedDict
from relay.core.errors import RelayError
from relay.core.ids import new_ulid
from relay.core.message import QueueMode
from relay.core.paths import is_within
from relay.core.visible import visible
from relay.features.governance.settings import REFUSE
from relay.protocol.agent_ops import AGENTS

if TYPE_CHECKING:
    from relay.features.governance.claims import FolderClaims
    from relay.features.governance.gate import Gate
    from relay.features.governance.governance_store import Lease
    from relay.session.feature_parts import FeatureParts

#: Seconds between two looks at who works here, and that one may take; that a call waits for its
#: claims; and between two looks at what an agent waits for.
LOOKED, LOOK_TAKES, TAKES, POLL = 5.0, 1.0, 3.0, 1.0
#: Files that an agent waits for, and calls of which something is told; files that a remark names.
FILES, SHOWN = 100, 3


class Waits:
    """Files that the agent waits for: it is told when they are free."""

    def __init__(self, parts: FeatureParts) -> None:
        self._parts = parts
        self._leases: BoundedDict[tuple[str, str], Lease] = BoundedDict(FILES)
        self._watched = False

    def add(self, leases: Sequence[Lease], known: FolderClaims | Gate) -> None:
        """Wait for these."""
        for one in leases:
            self._leases[one.root, one.path] = one
        if leases and not self._watched:
            self._watched = True
            self._parts.spawn(self._watch(known))

    async def _watch(self, known: FolderClaims | Gate) -> None:
        try:
            while self._leases:  # no lease lasts longer than its deadline
                await asyncio.sleep(POLL)
                free = await asyncio.to_thread(known.free, [*self._leases.values()], _now_ms())
                for one in free:
                    self._leases.pop((one.root, one.path), None)
                if free:
                    named = ", ".join(visible(os.path.join(one.root, one.path)) for one in free)
                    text = f"Nobody else is changing this any more: {named}. Read it again before"
                    id_ = new_ulid(_now_ms())
                    self._parts.answer(id_, f"{text} you change it.", QueueMode.STEER)
        finally:
            self._watched = False


class Claiming:
    """Claims what the agent of a session changes below its folder."""

    def __init__(self, parts: FeatureParts, mode: str, waits: Waits) -> None:
        self._parts = parts
        self._cwd = os.path.realpath(parts.run.cwd)
        self._folder = os.path.realpath(project_root(parts.run.cwd))
        self._refuse = mode == REFUSE
        self._waits = waits
        self._claims: FolderClaims | None = None
        self._looked = -LOOKED
        self._shared = False
        self._texts: BoundedDict[str, str] = BoundedDict(FILES)

    async def before(self, call: AgentHookCall) -> str:
        """Why the call is refused; "" where it is not. Never raises: nothing depends on it."""
        now_ms = _now_ms()
        with _contained():
            if not await self._is_shared():
                return ""
            if self._claims is None:
                self._claims = await asyncio.to_thread(self._opened)
            async with asyncio.timeout(TAKES):
                asked = self._claims.call(call)
                clash = await asyncio.to_thread(self._claims.before, asked, now_ms)
            if not clash:
                return ""
            if self._refuse:
                self._waits.add(clash.held, self._claims)
                return clash.refusal(now_ms).text(str(call.fields.get("tool_name") or ""))
            self._texts[_id(call)] = clash.text(now_ms)
        return ""

    async def after(self, call: AgentHookCall) -> str:
        """The call is over; what the agent is told with the answer. Never raises."""
        with _contained():
            if self._claims is not None:
                await asyncio.to_thread(self._claims.after, self._claims.call(call))
        return self._texts.pop(_id(call), "")

    async def turn_ended(self) -> None:
        """Give back what was claimed. Never raises."""
        with _contained():
            if self._claims is not None:
                await asyncio.to_thread(self._claims.turn_ended, _now_ms())

    async def ended(self) -> None:
        """The agent has ended. Never raises."""
        claims, self._claims = self._claims, None
        with _contained():
            if claims is not None:
                await asyncio.to_thread(claims.ended, _now_ms())

    async def holds(self) -> list[str]:
        """The files that it has claimed now. Never raises."""
        with _contained():
            if self._claims is not None:
                return await asyncio.to_thread(self._claims.holds, _now_ms())
        return []

    def _opened(self) -> FolderClaims:
        """Waits for the disk; what it imports most sessions need nothing of."""
        from relay.features.governance.call_plan import GovernedRun
        from relay.features.governance.claims import ROOT, FolderClaims
        from relay.features.governance.governance_store import GovernanceStore

        run, facts = self._parts.run, self._parts.facts
        claimant = GovernedRun(
            *(run.run_id, run.name, ROOT, run.cwd, facts.hello["pid"]),
            kind=facts.kind,
            mcp=facts.launch.get("mcp") is True,
        )
        store = GovernanceStore.open(self._parts.home)
        return FolderClaims(claimant, self._folder, store, refuse=self._refuse)

    async def _is_shared(self) -> bool:
        """Whether another agent works in the folder, as far as is known."""
        now = asyncio.get_running_loop().time()
        if now - self._looked >= LOOKED:
            self._looked = now
            try:
                answer = await self._parts.broker.request(AGENTS, deadline=LOOK_TAKES)
            except RelayError:
                return self._shared
            self._shared = any(self._works_here(row) for row in answer["agents"])
        return self._shared

    def _works_here(self, row: Mapping[str, Any]) -> bool:
        if (
            row["state"] == "gone"
            or row["name"].lower() == self._parts.run.name.lower()
            or not row["cwd"]
        ):
            return False
        there = os.path.realpath(row["cwd"])
        return is_within(there, self._folder) or is_within(self._cwd, there)


def held_remark(paths: Sequence[str]) -> str:
    """What is said of an agent that holds these files; "" for none."""
    if not paths:
        return ""
    more = f" and {len(paths) - SHOWN} more" if len(paths) > SHOWN else ""
    return f"holds {', '.join(map(visible, paths[:SHOWN]))}{more}"


@contextmanager
def _contained() -> Iterator[None]:
    try:
        yield
    except Exception:
        traceback.print_exc()  # into the log of this run


def _id(call: AgentHookCall) -> str:
    return str(call.fields.get("tool_use_id") or call.fields.get("tool_input"))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
