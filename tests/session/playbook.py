"""A session as a script: ``playbook >> event << command``, without a loop, a socket or a clock.

``>>`` gives the session an event; each ``<<`` says which command comes next. Commands that are of
no interest to a script (``ROUTINE``) may be left out; any other one must be named.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from itertools import count
from typing import Any

from relay.agents.base import Blocked
from relay.agents.structured_source import StructuredSource
from relay.core.message import Message
from relay.directive.grammar import Match
from relay.hooks.events import HookEventName
from relay.hooks.registry import Registry
from relay.screen.source import ScreenSource
from relay.session import session_commands as commands
from relay.session import session_events as events
from relay.session.detector import Detection, DirectiveDetector
from relay.session.run_info import RunInfo
from relay.session.session import Session, SessionAgent
from relay.session.session_commands import DriverCommand
from relay.session.session_events import SessionEvent
from relay.session.sources import SourceSelector
from relay.session.turn_report import TurnReports
from relay.session.typing_policy import Guards

ROUTINE = (
    commands.Acknowledge,
    commands.CheckSteered,
    commands.KeepTerminal,
    commands.LookAgain,
    commands.ReportAgent,
    commands.ReportEvent,
    commands.ResetHandlerLimits,
    commands.SettleSend,
    commands.StartDelivering,
    commands.TurnChanged,
)
MESSAGE = Message(id=f"01K{1:023d}", sender="Ann", to="Ben", body="hi", created_at=0)


def routine(command: DriverCommand) -> bool:
    """Whether a script need not name it; the start of a run is one, with hooks or without."""
    start = commands.FireHooks(HookEventName.SESSION_START, {"source": "startup"})
    return isinstance(command, ROUTINE) or command == start


def find(namespace: str, target: str, body: str = "x", number: int = 1) -> Detection:
    """What the agent said: ``@namespace:target body``."""
    raw = f"@{namespace}:{target} {body}"
    return Detection(f"id{number}", Match(namespace, target, body, {}, False, raw))


class Playbook:
    """Plays a script with the session of an agent called Ben."""

    def __init__(
        self,
        registry: Registry | None = None,
        *,
        structured: StructuredSource | None = None,
        namespaces: Collection[str] = ("relay", "deploy"),
        **run: Any,
    ) -> None:
        self.now = 0.0
        self.guards = Guards()
        self.sources = SourceSelector(
            DirectiveDetector("run", 0, namespaces), ScreenSource(80, 24, now=0.0), structured
        )
        facts = {"started_ms": 0, "cwd": "/", "env": {}, **run}
        ids = count(1)
        turns = TurnReports(self.sources, lambda: 0, lambda now: True, self.guards.quiet_for)
        self.session = Session(
            RunInfo("run", "Ben", "me", **facts),
            registry or Registry(),
            SessionAgent(self.sources, self.guards, turns),
            {},
            new_id=lambda: f"new{next(ids)}",
            now_ms=lambda: 0,
        )
        self.commands: list[DriverCommand] = []  # that the script has not named yet

    def __rshift__(self, event: SessionEvent) -> Playbook:
        """The session gets ``event``; all commands before it must have been named."""
        self.done()
        self.commands += self.session.handle(event, self.now)
        return self

    def __lshift__(self, expected: DriverCommand) -> Playbook:
        """The next command is ``expected``."""
        while self.commands:
            command = self.commands.pop(0)
            if command == expected:
                return self
            if not routine(command):
                raise AssertionError(f"expected {expected}, got {command}")
        raise AssertionError(f"expected {expected}, got no further command")

    def at(self, now: float) -> Playbook:
        """Time passes until ``now``; the session does what is due by then."""
        self.done()
        for _ in range(1000):
            due = self.session.deadline()
            if due is None or due > now:
                self.now = now
                return self
            self.now = max(self.now, due)
            self.commands += self.session.handle(events.TimePassed(), self.now)
        raise AssertionError("something is due again and again")

    def done(self) -> None:
        """Every command has been named."""
        left = [command for command in self.commands if not routine(command)]
        assert not left, f"not in the script: {left}"
        self.commands.clear()

    def take(self, kind: type[Any]) -> list[Any]:
        """The commands of one kind, whatever the others are."""
        taken = [command for command in self.commands if isinstance(command, kind)]
        self.commands.clear()
        return taken

    @property
    def notes(self) -> list[str]:
        """What the person is told."""
        return self.sources.notes

    def checkpoint(self) -> dict[str, Any]:
        """What a next session gets."""
        self.done()
        self >> events.EverythingSettled()
        acknowledged = self.take(commands.Acknowledge)[-1]
        state: dict[str, Any] = json.loads(acknowledged.checkpoint)
        return state


def notice(identifier: str, text: str, **more: str) -> commands.SendMessage:
    """The message by which Ben is told ``text``."""
    fields = {"to": ["Ben"], "body": text, "notice": "about", "id": identifier}
    return commands.SendMessage(fields | more)


def why(held: Blocked | None) -> str:
    """Why nothing goes over now; empty where nothing is in the way."""
    return held.reason if held else ""
