"""What a thousand route functions add to an event: from ``send`` to the dispatch that one of them
makes, at the session of the persona (``python bench/broker.py --routes``).

Three brokers, asked in turn: no route function (the message itself at the receiver's session), one
that fires, and a thousand of which one fires. The figure that counts is the difference of the
medians of the last two; goal: at most 5 ms.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from relay.broker.client import BrokerClient, connect
from relay.core.paths import Home
from relay.protocol.agent_ops import REGISTER
from relay.protocol.broker_ops import STOP
from relay.protocol.message_ops import SEND, STATE, TURN

ROUTES = 1000
GOAL_MS = 5.0
_FIRES = """
@relay.route(kinds=["message"])
def fires(event):
    if event.sender == "Ann":
        full = PermissionSet.from_json({"level": "full"})  # what has no hooks is held to nothing
        alone = AddedContext(include_thread_history=False)
        return HookResult(True, HookRouting("atlas"), permissions=full, context=alone)
"""
_QUIET = """
def quiet(event):
    return event.content.startswith("never")
for number in range({count}):
    relay.route(f"quiet{{number}}", kinds=["message"])(quiet)
"""


class Subject:
    """A broker with so many route functions, an agent that speaks, and the persona ``atlas``."""

    def __init__(self, home: Home, routes: int, exits: ExitStack) -> None:
        self.routes = routes
        self._speaker = exits.enter_context(registered(home, "Ann"))
        self._persona = exits.enter_context(registered(home, "atlas"))
        exits.callback(_stop, home)

    def once(self) -> float:
        """Seconds from a message of the speaker's to what the persona's session gets."""
        # Without route functions the message itself; else it goes to somebody who is not there.
        to = "atlas" if not self.routes else "Away"
        begin = time.perf_counter()
        self._speaker.request(SEND, to=to, body="x" * 512)
        while True:
            push = self._persona.next_push(30.0)
            if push is None:
                raise SystemExit("no dispatch came within 30 s")
            if push["push"] == "deliver":
                break
        seconds = time.perf_counter() - begin
        for state in ("delivering", "submitted", "seen"):
            self._persona.request(STATE, id=push["id"], state=state)
        if self.routes:
            now = int(time.time() * 1000)
            self._persona.request(TURN, ids=[push["id"]], text="done", started_ms=now)
        return seconds


@contextmanager
def registered(home: Home, name: str) -> Iterator[BrokerClient]:
    """A session of an agent, far from any configuration but the person's own."""
    with connect(home) as client:
        client.request(
            REGISTER, name=name, run=name, token="t", kind="bench", pid=0, cwd="/", command=""
        )
        yield client


def _stop(home: Home) -> None:
    with connect(home) as client:
        client.request(STOP)


def configured(folder: str, routes: int) -> Home:
    """A RELAY_HOME whose person has so many route functions; its broker inherits where they are."""
    home = Home(os.path.join(folder, f"home{routes}"))
    config = Path(folder, f"config{routes}", "relay", "relay.config.py")
    os.environ["XDG_CONFIG_HOME"] = str(config.parent.parent)
    os.environ["RELAY_HOME"] = home.root
    os.environ |= dict.fromkeys(("RELAY_RATE_MAX", "RELAY_HOPS_MAX", "RELAY_STORED_MAX"), "0")
    if routes:
        config.parent.mkdir(parents=True)
        quiet = _QUIET.format(count=routes - 1)
        config.write_text(f"from relay import *\nrelay = Relay()\n{_FIRES}{quiet}")
        relay = [sys.executable, "-m", "relay"]
        subprocess.run([*relay, "trust", str(config)], check=True, stdout=subprocess.DEVNULL)
    return home


def measure(rounds: int, count: int) -> dict[str, list[float]]:
    """Milliseconds for each event, of each subject, interleaved."""
    figures: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="relay-bench-") as folder, ExitStack() as exits:
        subjects = {
            name: Subject(configured(folder, routes), routes, exits)
            for name, routes in (("none", 0), ("one", 1), ("thousand", ROUTES))
        }
        for subject in subjects.values():
            for _ in range(5):
                subject.once()  # warm: the worker has started
        for _ in range(rounds):
            for name, subject in subjects.items():
                taken = [subject.once() * 1000 for _ in range(count)]
                figures.setdefault(name, []).extend(taken)
    return figures


def report(rounds: int, count: int) -> dict[str, object]:
    """The medians, and what the route functions add."""
    figures = measure(rounds, count)
    medians = {name: round(statistics.median(taken), 3) for name, taken in figures.items()}
    # Where the machine does something else too, the calmest tenth says what is relay's own.
    calm = {name: statistics.quantiles(taken, n=10)[0] for name, taken in figures.items()}
    return {
        "median_ms": medians,
        "p95_ms": {
            name: round(statistics.quantiles(taken, n=20)[-1], 3) for name, taken in figures.items()
        },
        "p10_ms": {name: round(one, 3) for name, one in calm.items()},
        "calm_thousand_add_ms": round(calm["thousand"] - calm["one"], 3),
        "first_adds_ms": round(medians["one"] - medians["none"], 3),
        "thousand_add_ms": round(medians["thousand"] - medians["one"], 3),
        "goal_ms": GOAL_MS,
        "routes": ROUTES,
    }
