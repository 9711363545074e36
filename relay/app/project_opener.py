"""Opens a governed project with all that its gate is made of, for a session or a headless turn."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from relay.core.files import make_private_folder
from relay.core.paths import Home
from relay.features.governance.governance_addon import GovernedAgent
from relay.features.governance.governed_paths import is_below

if TYPE_CHECKING:
    from relay.features.governance.approvals import BrokerRequests
    from relay.features.governance.governed_project import GovernedProject


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def project_opener(
    home: Home,
    agent: GovernedAgent,
    pid: int,
    broker: BrokerRequests | None,
    model: Callable[[], str] = lambda: "",
) -> Callable[[str], GovernedProject]:
    """What opens a governed project for the ``agent``, whose process is ``pid``; without a
    ``broker`` no person can be asked. ``model()``: the one that spoke last."""

    def opened(root: str) -> GovernedProject:
        # Most sessions need none of it.
        from relay.features.governance.approvals import BrokerApprover
        from relay.features.governance.call_plan import GovernedRun
        from relay.features.governance.gate import Gate
        from relay.features.governance.governance_store import GovernanceStore
        from relay.features.governance.governed_project import GovernedProject
        from relay.features.governance.intents_file import IntentsFile
        from relay.features.governance.trace import Trace

        scratch = os.path.join(home.run_folder(agent.run), "scratch")
        make_private_folder(os.path.dirname(scratch))
        make_private_folder(scratch)
        run = GovernedRun(
            agent.run,
            agent.name,
            root,
            agent.cwd,
            pid,
            kind=agent.kind,
            scratch=(os.path.realpath(scratch), *_plans(agent.kind, root)),
            kept_out=(os.path.realpath(home.root),),
            mcp=agent.mcp,
        )
        store, intents = GovernanceStore.open(home), IntentsFile(root)
        trace = Trace(root, store, now_ms)
        gate = Gate(
            run,
            intents=intents,
            store=store,
            trace=trace,
            approver=None if broker is None else BrokerApprover(broker),
            now_ms=now_ms,
        )
        return GovernedProject(gate, intents, trace, now_ms, model, store.close)

    return opened


def _plans(kind: str, root: str) -> list[str]:
    """Where the agent writes its plans by its tools for files, outside of the project ``root``."""
    home = os.path.expanduser("~")
    if kind == "claude":
        folder = os.path.join(os.environ.get("CLAUDE_CONFIG_DIR") or f"{home}/.claude", "plans")
    elif kind == "gemini":
        folder = os.path.join(os.environ.get("GEMINI_CLI_HOME") or home, ".gemini", "tmp")
    else:
        return []
    real = os.path.realpath(folder)
    return [] if is_below(real, root) or is_below(root, real) else [real]
