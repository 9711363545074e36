"""A scripted model: a server on 127.0.0.1 that says what a test tells it to, by every API.

    model = ScriptedModel()
    model.when("run the demo", Say("Working on it."), Shell("true"))
    model.when_tool(Say("Done."))
    model.start()
    ... a recipe points its program at model.url ...
    model.requests[-1].last_text        # what reached the model last, reminders and all

It speaks Anthropic messages, OpenAI chat completions and responses, and Gemini. Rules are tried in
the order in which they were added; the first that matches the newest user text (or tool result)
answers. A program's own side requests (titles and the like) get a fixed short answer.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import quote

from tests.real_agents.model_server import Server
from tests.real_agents.programs.parrot import answer_to
from tests.real_agents.request import REMINDER, Request
from tests.real_agents.steps import Fail, Gate, Read, Repeat, Say, Shell, Step, Think, Tool, Write

__all__ = [
    "REMINDER",
    "Fail",
    "Gate",
    "Read",
    "Repeat",
    "Request",
    "Say",
    "ScriptedModel",
    "Shell",
    "Step",
    "Think",
    "Tool",
    "Write",
]

GATE_DEADLINE = 60.0  # seconds; a gate that no test opens lets go by itself
#: Seconds that an answer takes that is asked to take a while.
SLOW = 4.0
GATE_INTERVAL = 0.2  # seconds; how soon it is noticed that a client left while a gate was shut


@dataclass
class _Rule:
    pattern: re.Pattern[str]
    after_tool: bool | None
    steps: tuple[Step, ...]
    times: int | None
    by: str | None
    used: int = 0

    def fits(self, request: Request) -> bool:
        return (
            (self.times is None or self.used < self.times)
            and self.after_tool is request.after_tool
            and self.by in (None, request.by)
            and bool(self.pattern.search(request.said))
        )


class ScriptedModel:
    """The server. ``start`` it, and ``close`` it when the test is over."""

    def __init__(self) -> None:
        self._rules: list[_Rule] = []
        self._gates: dict[str, threading.Event] = {}
        self._held: set[str] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._all: list[Request] = []
        self._errors: list[str] = []
        self._server = Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def url_for(self, by: str = "", *, toolless: bool = False) -> str:
        """A URL whose requests carry ``by``, and count though they offer no tools."""
        named = f"/by/{quote(by)}" if by else ""
        return f"{self.url}{named}{'/toolless' if toolless else ''}"

    def when(
        self, pattern: str, *steps: Step, times: int | None = None, by: str | None = None
    ) -> None:
        """Answer a message of the user's (of agent ``by``'s only) that ``pattern`` is found in."""
        self._rules.append(_Rule(re.compile(pattern, re.DOTALL), False, steps, times, by))

    def when_tool(
        self, *steps: Step, pattern: str = "", times: int | None = None, by: str | None = None
    ) -> None:
        """Answer the result of a tool that the model called."""
        self._rules.append(_Rule(re.compile(pattern, re.DOTALL), True, steps, times, by))

    def held(self, gate: str) -> bool:
        """Whether a stream has come to ``gate``, now or earlier."""
        return gate in self._held

    def open(self, gate: str) -> None:
        """Let the streams go on that wait at ``gate``, now and later."""
        self._gate(gate).set()

    @property
    def requests(self) -> list[Request]:
        """The conversation's requests so far, side requests left out."""
        return [request for request in self.all_requests if not request.side]

    @property
    def all_requests(self) -> list[Request]:
        """Every request for an answer so far."""
        with self._lock:
            return list(self._all)

    def seen(self, text: str) -> list[Request]:
        """The requests whose newest part contains ``text``."""
        return [request for request in self.requests if text in request.last_text]

    @property
    def resting(self) -> bool:
        """Whether every request has been answered to the end."""
        return all(request.done or request.aborted for request in self.requests)

    @property
    def errors(self) -> list[str]:
        """What the server could not do; a test that passes leaves none."""
        with self._lock:
            return list(self._errors)

    def start(self) -> ScriptedModel:
        self._thread.start()
        return self

    def close(self) -> None:
        self._closed.set()
        with self._lock:
            for gate in self._gates.values():
                gate.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def __enter__(self) -> ScriptedModel:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    # What the server asks for.

    def record(self, request: Request) -> None:
        with self._lock:
            self._all.append(request)

    def failed(self, what: str) -> None:
        with self._lock:
            self._errors.append(what)

    def answer(self, request: Request) -> tuple[Step, ...]:
        if request.side:
            return (Say("Side request"),)
        with self._lock:
            for rule in self._rules:
                if rule.fits(request):
                    rule.used += 1
                    if rule.steps == (Repeat(),):
                        return _repeated(request)
                    return rule.steps
        return (Say("OK."),)

    def hold(self, gate: str, left: Callable[[], bool]) -> None:
        """Wait until the gate is open. Raises ConnectionAbortedError when the client ``left``."""
        self._held.add(gate)
        opened = self._gate(gate)
        for _ in range(int(GATE_DEADLINE / GATE_INTERVAL)):
            if opened.wait(GATE_INTERVAL):
                return
            if left():
                raise ConnectionAbortedError(f"nobody waits at {gate} any more")

    def pause(self, seconds: float) -> None:
        """Wait as a slow model would, but not beyond the server's end."""
        self._closed.wait(seconds)

    def _gate(self, name: str) -> threading.Event:
        with self._lock:
            return self._gates.setdefault(name, threading.Event())


def _repeated(request: Request) -> tuple[Step, ...]:
    asked = answer_to(request.said)
    if asked is None:
        return (Say("OK."),)
    if asked.command and request.tools:
        return (Shell(asked.command),)
    pieces = len(asked.text) // 16 + 1
    delay = SLOW / pieces if asked.slow else 0.0
    return (Say(asked.text, delay=delay, at=asked.at, pause=float(asked.pause)),)
