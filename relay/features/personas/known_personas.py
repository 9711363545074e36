"""Which persona a dispatch means, and the start of one that is not there.

A headless one is started for each turn (relay.features.personas.headless_turns), an interactive one
is wrapped in a terminal of its own (relay.app.detached_terminal) and stays. Whom nobody knows is
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
from relay.broker.directory import Directory
from relay.broker.trusted_configs import USER, TrustedConfigs
from relay.core.bounded import BoundedDict
from relay.core.child_process import python
from relay.core.errors import ConfigError
from relay.core.files import open_private
from relay.core.json_text import dumps
from relay.core.log import Log
from relay.core.paths import Home
from relay.features.personas.settings import PERSONAS, PersonaSpec, parse_persona

#: Starts of one persona within so many seconds; what waits for it then waits for somebody to look.
STARTS_MAX, STARTS_WITHIN = 3, 600.0
#: Seconds in which it is not started again: its program may take as long to be there.
AGAIN_AFTER = 60.0
#: Seconds between two looks whether somebody that nobody was is configured now.
LOOK_EVERY = 5.0
#: Where it stands why a program did not start.
_LOG = "personas.log"


class Personas:
    """All personas that are configured, or wrapped."""

    def __init__(self, home: Home, configs: TrustedConfigs, directory: Directory) -> None:
        self._home = home
        self._configs = configs
        self._directory = directory
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
            return None
        return f"{persona} has yet to start; if it cannot, {_LOG} in {self._home.logs} says why"

    def start(self, persona: str, config: str) -> None:
        """Start this persona, if it is an interactive one."""
        if (spec := self.find(persona, config)) is not None:
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
                    python("relay.app.detached_terminal"),
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
