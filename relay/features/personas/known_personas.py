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
from collections.abc import Callable
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

#: A persona in lower case, and the configuration that is asked for it.
_Key = tuple[str, str]


class Personas:
    """All personas that are configured, or wrapped."""

    def __init__(self, home: Home, configs: TrustedConfigs, directory: Directory) -> None:
        self._home = home
        self._configs = configs
        self._directory = directory
        self._started: BoundedDict[str, list[float]] = BoundedDict(256)
        #: Who is waited for: by persona and configuration what is called when there is one.
        self._absent: BoundedDict[_Key, Callable[[], None]] = BoundedDict(4096)
        self._unknown: set[_Key] = set()  # those of them that nobody has configured
        self._timer: asyncio.TimerHandle | None = None

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

    def wait_for(self, persona: str, config: str, then: Callable[[], None]) -> None:
        """Call ``then`` when there is such a persona; an interactive one is started."""
        key = (persona.lower(), config)
        self._absent[key] = then
        if (spec := self.find(persona, config)) is not None:
            self.start_detached(spec)
            return
        self._unknown.add(key)
        self._unknown.intersection_update(self._absent)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(LOOK_EVERY, self._look)

    def came(self, name: str) -> None:
        """An agent has registered."""
        self._call([one for one in self._absent if one[0] == name.lower()])

    def _look(self) -> None:
        """Whether somebody has configured them meanwhile."""
        self._timer = None
        self._call([one for one in self._unknown if self.find(*one) is not None])
        if self._unknown:
            self._timer = asyncio.get_running_loop().call_later(LOOK_EVERY, self._look)

    def _call(self, come: list[_Key]) -> None:
        self._unknown.difference_update(come)
        for then in {self._absent.pop(one) for one in come}:
            then()

    def close(self) -> None:
        """The broker stops."""
        if self._timer is not None:
            self._timer.cancel()

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
