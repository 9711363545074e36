"""Which persona a dispatch means, and the start of one that is not there.

A headless one is started for each turn (relay.features.personas.headless_turns), an interactive one
is wrapped in a terminal of its own (relay.app.host) and stays. Whom nobody knows is
waited for."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace

from relay.agents.headless import HeadlessForm
from relay.agents.profile import find_profile
from relay.broker.door import YES_NO, ItemAnswer
from relay.broker.kernel import Kernel
from relay.broker.trusted_configs import USER
from relay.core.bounded import BoundedDict
from relay.core.child_process import python
from relay.core.errors import ConfigError
from relay.core.files import open_private
from relay.core.ids import new_ulid
from relay.core.json_text import dumps
from relay.core.log import Log
from relay.features.personas.settings import PERSONAS, PersonaSpec, parse_persona
from relay.protocol.item_ops import Item
from relay.protocol.turns import CAUSES, TurnCause, TurnResult

#: Starts of one persona within so many seconds; what waits for it then waits for somebody to look.
STARTS_MAX, STARTS_WITHIN = 3, 600.0
#: Seconds in which it is not started again: its program may take as long to be there.
AGAIN_AFTER = 60.0
#: Seconds between two looks whether somebody that nobody was is configured now.
LOOK_EVERY = 5.0
#: Where it stands why a program did not start.
_LOG = "personas.log"


def _program(spec: PersonaSpec) -> tuple[str, ...]:
    """What the person has to do something about."""
    return (spec.name, spec.cwd, *spec.command)


class Personas:
    """All personas that are configured, or wrapped."""

    def __init__(self, kernel: Kernel) -> None:
        self._home = kernel.home
        self._configs = kernel.configs
        self._directory = kernel.directory
        self._watchers = kernel.watchers
        #: What the person has to do before a program takes a turn.
        self._needs: dict[tuple[str, ...], Item] = {}
        self._settled: BoundedDict[tuple[str, ...], int] = BoundedDict(256)  # when it was done
        self._now_ms = kernel.now_ms
        self._started: BoundedDict[str, list[float]] = BoundedDict(256)
        self._absent: dict[str, asyncio.Event] = {}  # who is waited for, in lower case

    def is_there(self, persona: str) -> bool:
        """Whether an agent of this name is there now (or it is a person's)."""
        member = self._directory.get(persona)
        return member is not None and (member.live or member.person)

    def why_absent(self, persona: str, config: str) -> str | None:
        """Why nobody takes a dispatch to this persona now; None where somebody does."""
        if self.is_there(persona):
            return None
        spec = self.find(persona, config)
        if spec is None:
            return f"nobody is called {persona}"
        if spec.mode == "headless":
            need = self._needs.get(_program(spec))
            return None if need is None else str(need["details"]["why"])
        return f"{persona} has yet to start; if it cannot, {_LOG} in {self._home.logs} says why"

    def start(self, persona: str, config: str) -> None:
        """Start this persona, if it is an interactive one."""
        spec = self.find(persona, config)
        if spec is not None and spec.mode != "headless":
            self.start_detached(spec)

    async def wait_for(self, persona: str, config: str) -> None:
        """Wait for an agent of this name; where nobody has configured it, for that, too."""
        came = self._absent.setdefault(persona.lower(), asyncio.Event())
        unknown = self.find(persona, config) is None
        while not (came.is_set() or self.is_there(persona)):
            if unknown and self.find(persona, config) is not None:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY if unknown else None):
                    await came.wait()

    def came(self, name: str) -> None:
        """An agent has registered."""
        if (came := self._absent.pop(name.lower(), None)) is not None:
            came.set()

    # -- what the person has to do: see relay.broker.door

    def need(self, persona: str, config: str, ended: TurnResult, started_ms: int) -> None:
        """The program of a headless persona takes no turn before the person has done something;
        unless they did while this turn ran."""
        spec, now_ms = self.find(persona, config), self._now_ms()
        if spec is None or _program(spec) in self._needs:
            return
        if started_ms <= self._settled.get(_program(spec), 0):
            return
        meant = CAUSES[ended.cause or TurnCause.OTHER]
        item = self._needs[_program(spec)] = {
            "id": new_ulid(now_ms),
            "agent": spec.name,
            "kind": "persona",
            "what": ended.detail,
            "about": [
                f"{spec.name} takes no turn: {meant.words.removesuffix(': {detail}')}",
                f"its program: {spec.command[0]}, in {spec.cwd or 'your home folder'}",
                f"{meant.way_out}; no gives up what waits for it",
            ],
            "details": {
                "cause": str(ended.cause),
                "why": f"{spec.name} takes no turn: {ended.reason}",
            },
            "choices": YES_NO,
            "chosen": None,
            "since_ms": now_ms,
            "until_ms": None,
        }
        self._watchers.item(item, open_=True)

    def needs(self, persona: str, config: str, item: Item) -> bool:
        """Whether it is this that keeps the persona from taking turns."""
        spec = self.find(persona, config)
        need = None if spec is None else self._needs.get(_program(spec))
        return need is not None and need["id"] == item["id"]

    def waiting(self) -> list[Item]:
        """What the person has to do now."""
        return list(self._needs.values())

    def settle(self, item: Item, answer: ItemAnswer) -> None:
        """The person has answered: its turns are tried again."""
        for key in [key for key, one in self._needs.items() if one["id"] == item["id"]]:
            del self._needs[key]
            self._settled[key] = self._now_ms()
        self._watchers.item(item, open_=False, answer=answer.label, by=answer.by)
        self.came(item["agent"])

    def find(self, persona: str, config: str) -> PersonaSpec | None:
        """The persona that this configuration, or else the person's own, calls so."""
        for key in dict.fromkeys((config, USER)):
            found = self._configs.by_key(key)
            if found is None or found.manifest is None:
                continue
            for name, entry in (found.manifest.features.get(PERSONAS.key) or {}).items():
                if name.lower() == persona.lower():
                    try:
                        spec = parse_persona(name, entry)
                    except ConfigError:
                        return None  # of a manifest that something has damaged
                    near = os.path.expanduser("~") if key == USER else os.path.dirname(found.path)
                    cwd = os.path.join(near, os.path.expanduser(spec.cwd))
                    return replace(spec, cwd=cwd)
        return None

    def start_detached(self, spec: PersonaSpec) -> None:
        """Start its program in a terminal of its own, unless that was just done."""
        now = time.monotonic()
        starts = [at for at in self._started.get(spec.name, []) if now - at < STARTS_WITHIN]
        if len(starts) >= STARTS_MAX or (starts and now - starts[-1] < AGAIN_AFTER):
            return
        self._started[spec.name] = [*starts, now]
        profile, _ = find_profile(os.path.basename(spec.command[0]), self._home.profiles)
        form = spec.headless or profile.headless or HeadlessForm()
        model = [word.replace("{model}", spec.model) for word in form.model if spec.model]
        wrap = [sys.executable, "-P", "-m", "relay", "wrap", "--name", spec.name, "--"]
        argv = [*wrap, *spec.command, *model]
        wanted = {"name": spec.name, "argv": argv, "cwd": spec.cwd, "env": dict(spec.env)}
        # Not in the broker's own thread: a fork takes some milliseconds.
        threading.Thread(target=self._run, args=(spec.name, dumps(wanted)), daemon=True).start()

    def _run(self, name: str, wanted: str) -> None:
        """The thread that reaps its terminal, which outlives the broker."""
        path = os.path.join(self._home.logs, _LOG)
        try:
            with open(path, "ab", opener=open_private) as log:
                terminal = subprocess.Popen(
                    python("relay.app.host"),
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    cwd=self._home.root,
                    env={**os.environ, "RELAY_HOME": self._home.root},
                    start_new_session=True,
                )
            terminal.communicate(wanted.encode())
        except OSError as error:
            Log(path).write(f"{name} could not be started: {error}")
