"""Parts of a hook engine whose behaviour a test chooses, and records to feed it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from relay.hooks.engine import Config, HookEventHandler
from relay.hooks.events import HookEventName
from relay.hooks.hook_types import (
    Aggregated,
    Command,
    Decision,
    HookDefinition,
    HookOutput,
    HookRun,
    OnFailure,
    Plan,
)

BEFORE_TOOL = HookEventName.BEFORE_TOOL
#: 22 November 2026, 09:30:00.250 UTC.
NOW = 1795339800.25


def definition(
    name: str = "guard",
    event: HookEventName = BEFORE_TOOL,
    on_failure: OnFailure = OnFailure.ALLOW,
    trusted: bool = True,
) -> HookDefinition:
    return HookDefinition(
        event=event,
        name=name,
        action=Command(argv=("true",)),
        source="hooks.json",
        on_failure=on_failure,
        trusted=trusted,
    )


def result(
    name: str = "guard",
    *,
    success: bool = True,
    output: HookOutput | None = None,
    error: str = "",
    duration: float = 0.5,
    event: HookEventName = BEFORE_TOOL,
) -> HookRun:
    return HookRun(
        hook=definition(name, event),
        success=success,
        output=output,
        error=error,
        duration=duration,
        exit_status=0 if success else 1,
        stdout="out",
        stderr="err",
    )


class FakeConfig(Config):
    def __init__(self) -> None:
        super().__init__("RUN1", "Alice", "/project", "the ctx")

    def transcript_path(self) -> str:
        return "/transcript.jsonl"


class FakeRegistry:
    def __init__(self, *hooks: HookDefinition) -> None:
        self.registered = hooks
        self.error: Exception | None = None

    def hooks(self, event: HookEventName) -> Sequence[HookDefinition]:
        if self.error is not None:
            raise self.error
        return tuple(hook for hook in self.registered if hook.event is event)


class FakePlanner:
    """Plans everything that is registered, unless ``chosen`` says otherwise."""

    def __init__(self, registry: FakeRegistry) -> None:
        self.registry = registry
        self.chosen: tuple[HookDefinition, ...] | None = None
        self.error: Exception | None = None
        self.asked: list[tuple[HookEventName, Mapping[str, Any]]] = []

    def plan(self, event: HookEventName, payload: Mapping[str, Any]) -> Plan:
        self.asked.append((event, payload))
        if self.error is not None:
            raise self.error
        hooks = self.registry.hooks(event) if self.chosen is None else self.chosen
        return Plan(event, tuple(hooks))


class FakeRunner:
    """Every hook succeeds with ``output``. ``gate`` holds all runs until it is set."""

    def __init__(self) -> None:
        self.ran: list[dict[str, Any]] = []
        self.contexts: list[object] = []
        self.output: HookOutput | None = None
        self.error: BaseException | None = None
        self.gate: asyncio.Event | None = None
        self.cancelled = 0

    async def run(self, plan: Plan, payload: dict[str, Any], ctx: object) -> list[HookRun]:
        self.ran.append(payload)
        self.contexts.append(ctx)
        if self.gate is not None:
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        if self.error is not None:
            raise self.error
        return [HookRun(hook, True, self.output, duration=0.25) for hook in plan.hooks]


class FakeAggregate:
    def __init__(self) -> None:
        self.error: Exception | None = None

    def __call__(self, event: HookEventName, results: Sequence[HookRun], plan: Plan) -> Aggregated:
        if self.error is not None:
            raise self.error
        denied = any(r.output and r.output.decision is Decision.DENY for r in results)
        return Aggregated(
            success=all(r.success for r in results),
            results=list(results),
            decision=Decision.DENY if denied else None,
        )


class FakeLog:
    """Keeps records; ``broken`` makes each attempt to write one fail."""

    def __init__(self, broken: bool = False) -> None:
        self.records: list[tuple[str, dict[str, Any]]] = []
        self.broken = broken
        self.tries = 0

    def log(self, kind: str, record: dict[str, Any]) -> None:
        self.tries += 1
        if self.broken:
            raise OSError("the disk is full")
        self.records.append((kind, record))

    def soon(self, records: Iterator[tuple[str, dict[str, Any]]]) -> None:
        for kind, record in records:
            self.log(kind, record)

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [record for found, record in self.records if found == kind]


class Speechless(Exception):
    """An error whose text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def vanished() -> str:
    """For something of the configuration that is no longer there."""
    raise FileNotFoundError("the folder has gone")


class Engine:
    """A handler and the parts that it was given."""

    def __init__(self, *hooks: HookDefinition, log: FakeLog | None = None) -> None:
        self.config = FakeConfig()
        self.registry = FakeRegistry(*hooks)
        self.planner = FakePlanner(self.registry)
        self.runner = FakeRunner()
        self.aggregate = FakeAggregate()
        self.handler = HookEventHandler(
            self.config,
            cast(Any, self.planner),
            cast(Any, self.runner),
            self.aggregate,
            log=log,
            now=lambda: NOW,
        )

    def before_tool(self, **options: Any) -> Aggregated:
        return asyncio.run(self.handler.fire_before_tool("Bash", {"command": "ls"}, **options))


BASE = {
    "session_id": "RUN1",
    "cwd": "/project",
    "timestamp": "2026-11-22T09:30:00.250Z",
    "transcript_path": "/transcript.jsonl",
    "correlation_id": "C1",
    "agent_name": "Alice",
}
