"""The verb ``govern``: whether agents need an intent to write in a project."""

from __future__ import annotations

import os
import time

from relay.broker.client import check_person
from relay.cli import output, table
from relay.cli.parser import Parser
from relay.cli.verbs import verb
from relay.core.errors import NotFound, RelayError, UsageError
from relay.core.paths import Home, working_folder
from relay.core.visible import visible

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from relay.cli.output import Json
    from relay.features.governance.governance_store import Lease, Switch
    from relay.features.governance.intents import Intent

#: Characters of one setting that is shown.
_LOOSENED_MAX = 200
_CLONED = ".orchestration/active_intents.yaml says so: check whether you agree"


def add(verbs: Parser) -> None:
    """Declare the verb."""
    govern = verb(
        verbs,
        "govern",
        'relay govern\n  relay govern off --reason "the intents are broken"\n  relay govern on',
    )
    govern.add_argument(
        "turn",
        nargs="?",
        choices=("off", "on"),
        metavar="off|on",
        help="default: show the current state",
    )
    govern.add_argument("--reason", metavar="TEXT", help="why it is off; the trace keeps it")
    govern.add_argument("--json", action="store_true", help="print JSON")
    govern.set_defaults(run=govern_verb)


def govern_verb(options: Any) -> int:
    """``relay govern``: what holds in this folder, or governance off and on again."""
    home, cwd = Home.from_env(), working_folder()
    if options.turn:
        check_person(home, f"turn governance {options.turn}")
    if options.reason is not None and options.turn != "off":
        raise UsageError("--reason says why governance is off", hint="relay govern off --reason …")
    if options.turn:
        from relay.features.governance.governed_paths import governed_root

        root = governed_root(cwd)
        if not root:
            raise NotFound(
                "nothing is governed here",
                hint="relay init --governed makes this project a governed one",
            )
        _turn(home, root, options.turn, options.reason)
    held = _Governance(home, cwd)
    if options.json:
        output.as_json(held.fields())
        return 0
    for _, text, hint in held.lines():
        table.prose(visible(text))
        if hint:
            output.note(f"  {hint}")
    return 0


def what_holds(home: Home, cwd: str) -> list[tuple[str, str, str]]:
    """Lines about governance in ``cwd``: (ok, warn, bad or absent; what holds; what to do).
    Makes no file."""
    try:
        return _Governance(home, cwd).lines()
    except RelayError as error:
        return [("bad", error.message, error.hint)]


def _turn(home: Home, root: str, turn: str, reason: str | None) -> None:
    """Turn governance off or on; the trace says so first, unless it is what does not work."""
    from contextlib import closing, suppress

    from relay.core.agent_names import owner_name
    from relay.core.processes import own_place
    from relay.features.governance.governance_store import GovernanceStore
    from relay.features.governance.trace import Trace
    from relay.features.governance.trace_records import TraceEntry, TraceKind

    if turn == "off" and not (reason := (reason or "").strip()):
        raise UsageError("--reason is missing", hint="relay govern off --reason TEXT")
    home.create()
    with closing(GovernanceStore.open(home)) as store:
        switch = store.switch(root)
        if (switch is not None) == (turn == "off"):
            output.note(f"it is {turn} already")
            return
        by = ", ".join(filter(None, (owner_name(), own_place())))
        said: Json = {"event": turn, "reason": reason or "", "by": by}
        if switch is not None:  # for what the trace did not take then
            said |= {"reason": switch.reason, "off_by": switch.by, "off_ms": switch.at_ms}
        trace = Trace(root, store)
        try:
            trace.append(TraceEntry(TraceKind.GOVERNANCE, metadata=said))
        except RelayError as error:
            output.note(f"the trace does not say so: {error.line}")
        try:
            if turn == "off":
                store.switch_off(root, reason or "", by, _now_ms())
            else:
                store.switch_on(root)
        except RelayError as error:
            failed: Json = {"event": f"not turned {turn}", "error": error.message, "by": by}
            with suppress(RelayError):
                trace.append(TraceEntry(TraceKind.GOVERNANCE, metadata=failed))
            raise


class _Governance:
    """What holds in a folder now."""

    def __init__(self, home: Home, cwd: str) -> None:
        from contextlib import closing

        from relay.features.governance.governed_paths import governed_root
        from relay.features.governance.orchestration import IntentsFile

        self.root = governed_root(cwd)
        self._switch: Switch | None = None
        self._leases: list[Lease] = []
        self._intents: list[Intent] = []
        self._loosened: tuple[str, ...] = ()
        self._problem: RelayError | None = None
        if self.root and os.path.exists(home.governance):
            from relay.features.governance.governance_store import GovernanceStore

            with closing(GovernanceStore.open(home)) as store:
                self._switch = store.switch(self.root)
                self._leases = store.leases(self.root, _now_ms())
        try:
            if self.root:
                document = IntentsFile(self.root).read()
                self._intents = list(document.intents.values())
                self._loosened = document.settings.loosened
        except RelayError as error:
            self._problem = error

    def lines(self) -> list[tuple[str, str, str]]:
        """For a person: see ``what_holds``."""
        if not self.root:
            return [
                (
                    "absent",
                    "nothing is governed here",
                    "relay init --governed makes this project a governed one",
                )
            ]
        now_ms, found = _now_ms(), []
        if self._switch is not None:
            since = output.clock(self._switch.at_ms, now_ms)
            text = f"off for {self.root} since {since}, by {self._switch.by}: {self._switch.reason}"
            found.append(
                ("warn", text, "every agent can write what it likes; relay govern on ends that")
            )
        elif self._problem is not None:
            found.append(("bad", f"on for {self.root}, where no agent can write now", ""))
        else:
            active = sum(one.status == "IN_PROGRESS" for one in self._intents)
            text = f"on for {self.root}: {active} of {len(self._intents)} intents in progress"
            found.append(("ok", text, "" if active else "relay intent list"))
        if self._problem is not None:
            found.append(("bad", self._problem.message, self._problem.hint))
        for said in self._loosened if self._switch is None else ():
            found.append(("warn", f"its file lets more pass: {said[:_LOOSENED_MAX]}", _CLONED))
        for one in self._leases:
            since = output.clock(one.since_ms, now_ms)
            found.append(("ok", f"{one.agent} has {one.path} since {since}, for {one.intent}", ""))
        return found

    def fields(self) -> Json:
        """For a program."""
        from dataclasses import asdict

        switch, names = self._switch, ("path", "agent", "intent", "since_at", "until_at")
        off = switch and {"reason": switch.reason, "by": switch.by, "at": output.iso(switch.at_ms)}
        return {
            "root": self.root or None,
            "on": bool(self.root) and switch is None,
            "off": off,
            "problem": self._problem.line if self._problem else "",
            "intents": {one.id: one.status for one in self._intents},
            "loosened": list(self._loosened),
            "leases": [output.shaped(asdict(one), names) for one in self._leases],
        }


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
