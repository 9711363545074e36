"""Which persona a dispatch means, and the start of one that is not there.

A headless one is started for each turn (relay.broker.headless_turns), an interactive one is wrapped
in a terminal of its own (relay.app.detached_terminal) and stays.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from dataclasses import replace

from relay.agents.headless import HeadlessForm
from relay.agents.profile import find_profile
from relay.broker.trusted_configs import USER, TrustedConfigs
from relay.config.personas import PersonaSpec, parse_persona
from relay.core.bounded import BoundedDict
from relay.core.errors import ConfigError
from relay.core.files import open_private
from relay.core.json_text import dumps
from relay.core.log import Log
from relay.core.paths import Home

#: Starts of one persona within so many seconds; what waits for it then waits for somebody to look.
STARTS_MAX, STARTS_WITHIN = 3, 600.0
#: Seconds in which it is not started again: its program may take as long to be there.
AGAIN_AFTER = 60.0
_STARTING = 10.0
#: A shell gives what it starts behind its back no input, unless told so.
_BEHIND = 'exec 3<&0; "$@" <&3 3<&- &'
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_RUN = (
    "import sys; sys.path.append(sys.argv.pop(1));"
    "from relay.app.detached_terminal import main; main()"
)


class Personas:
    """All personas that are configured."""

    def __init__(self, home: Home, configs: TrustedConfigs) -> None:
        self._home = home
        self._configs = configs
        self._started: BoundedDict[str, list[float]] = BoundedDict(256)

    def find(self, persona: str, config: str) -> PersonaSpec | None:
        """The persona that this configuration, or else the person's own, calls so."""
        for key in dict.fromkeys((config, USER)):
            found = self._configs.by_key(key)
            if found is None or found.manifest is None:
                continue
            for name, entry in found.manifest.personas.items():
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
        wanted = {"argv": [*wrap, *spec.command, *model], "cwd": spec.cwd, "env": dict(spec.env)}
        # Not in the broker's own thread: a fork takes some milliseconds.
        threading.Thread(target=self._start, args=(spec.name, dumps(wanted)), daemon=True).start()

    def _start(self, name: str, wanted: str) -> None:
        path = os.path.join(self._home.logs, "personas.log")
        try:
            with open(path, "ab", opener=open_private) as log:
                # The shell ends at once, so nothing of it is the broker's to reap.
                subprocess.run(
                    ["/bin/sh", "-c", _BEHIND, "sh", sys.executable, "-P", "-c", _RUN, _ROOT],
                    input=wanted.encode(),
                    stdout=log,
                    stderr=log,
                    cwd=self._home.root,
                    env={**os.environ, "RELAY_HOME": self._home.root},
                    start_new_session=True,
                    timeout=_STARTING,
                    check=True,
                )
        except (OSError, subprocess.SubprocessError) as error:
            Log(path).write(f"{name} could not be started: {error}")
