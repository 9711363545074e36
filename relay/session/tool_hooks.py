"""The endpoint by which an agent's tool calls, prompts and notices reach the hook engine.

An agent's hook asks by HTTP and, where it is a gate, waits for the answer. What it sends is read,
and what it is answered is written, by a codec of that agent's (relay.agents.hook_codec); between
them stands the engine, and before it what else guards tool calls. Whatever goes wrong here, a gate
that a hook guards stays shut.
"""

from __future__ import annotations

import asyncio
import json
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from relay.agents.hook_codec import AgentHookCall, HookCodec, rewritten
from relay.directive.redact import redact
from relay.hooks.events import HookEventName
from relay.hooks.hook_types import Aggregated, Decision
from relay.session.background import failure
from relay.session.hook_server import Reply
from relay.session.session_commands import PersonNote, ReportEvent
from relay.session.session_events import EventQueue, HooksObserved, InjectRequested
from relay.session.steering import HookAttachment, Steering

#: Seconds after which a gate has answered, whatever its hooks do. The agent waits a little longer
#: (relay.agents.launch.GATE_TIMEOUT).
DEADLINE = 590.0

#: The events of a tool call, and what the event ledger calls them.
_PHASES = {HookEventName.BEFORE_TOOL: "before", HookEventName.AFTER_TOOL: "after"}
#: Characters of one text in a tool call that is told, and of all of its input or response.
TOLD_TEXT_MAX, TOLD_MAX = 2000, 16 * 1024


class Engine(Protocol):
    """The part of relay.hooks.engine that is used here. None of it raises."""

    def has(self, event: HookEventName) -> bool:
        """Whether there is any hook for ``event``."""

    def guarded(self, event: HookEventName, fields: Mapping[str, Any]) -> bool:
        """Whether a hook that matches such an event says that its failure blocks it."""

    async def fire(self, event: HookEventName, fields: Mapping[str, Any]) -> Aggregated:
        """Run the hooks of ``event``, whose input has ``fields`` beside what every input has."""


class NoHooks:
    """An engine without hooks."""

    def has(self, event: HookEventName) -> bool:
        return False

    def guarded(self, event: HookEventName, fields: Mapping[str, Any]) -> bool:
        return False

    async def fire(self, event: HookEventName, fields: Mapping[str, Any]) -> Aggregated:
        return Aggregated()


#: Why a tool call is refused before any hook is asked; "" where it is not.
Gate = Callable[[AgentHookCall], str]


class Guard(Protocol):
    """What a feature allows; see relay.session.door. What ``before`` raises refuses the call."""

    async def before(self, call: AgentHookCall, seconds: float) -> str:
        """Why the call is refused, as its model is to read it; "": it is not. Known in time."""

    def agreed(self, call: AgentHookCall) -> bool:
        """Whether a person has just said yes to this very call."""

    async def after(self, call: AgentHookCall) -> str:
        """The call is over: write down what it changed; what its model is told, or ""."""


class ToolHookEndpoint:
    """Answers the hook requests of one agent; ``steering`` adds messages to the answers.

    ``gate`` says what the running turn may use, then ``guards`` are asked in their order: what one
    refuses is refused, in its words alone, and neither the next nor a hook is asked. Of what a hook
    rewrites the guards are asked again.
    """

    def __init__(
        self,
        codec: HookCodec,
        engine: Engine,
        events: EventQueue,
        steering: Steering | None = None,
        gate: Gate | None = None,
        guards: Sequence[Guard] = (),
    ) -> None:
        self._gate = gate
        self._guards = guards
        self._codec = codec
        self._engine = engine
        self._events = events
        self._steering = steering
        self._prompt = ""

    async def answer(self, event: dict[str, Any]) -> dict[str, Any]:
        """What to answer to the agent's hook ``event``. Never raises."""
        call = None
        try:
            call = self._read(event)
            if call is None:
                return {}
            if call.event in _PHASES:
                self._events.post(ReportEvent("tool_call", *_tool_call(call)))
            end = asyncio.get_running_loop().time() + DEADLINE
            if call.event is HookEventName.BEFORE_TOOL and (why := await self._refused(call, end)):
                return self._codec.answer(call, _denied(why))
            told = await self._over(call) if call.event is HookEventName.AFTER_TOOL else ""
            asked = self._engine.has(call.event)
            if call.waits:
                return await self._answered(call, asked, end, told)
            if asked:
                self._events.post(HooksObserved(call.event, call.fields))
            return {}
        except Exception as error:
            traceback.print_exc()  # into the log of this run
            why = f"relay could not ask its hooks: {type(error).__name__}: {error}"
            self._note(why)
            return self._shut(call, why)

    async def _refused(self, call: AgentHookCall, end: float) -> str:
        """Why the tool may not run, by what comes before all hooks; "" where it may."""
        return (self._gate and self._gate(call)) or await self._guarded(call, end)

    async def _over(self, call: AgentHookCall) -> str:
        """Tell the guards; what they have the model told."""
        texts = []
        for guard in self._guards:
            try:
                texts.append(await guard.after(call))
            except Exception as error:  # the others still have to be told
                self._events.post(failure(error))
        return "\n\n".join(filter(None, texts))

    async def _guarded(self, call: AgentHookCall, end: float) -> str:
        for guard in self._guards:
            left = end - asyncio.get_running_loop().time()
            if why := await guard.before(call, left):
                return why
        return ""

    async def _answered(
        self, call: AgentHookCall, asked: bool, end: float, told: str
    ) -> dict[str, Any]:
        """What the hooks say, where there are any, and what goes with it: first ``told``."""
        result = await self._decide(call, end) if asked else Aggregated()
        if told:
            result = replace(result, context="\n\n".join(filter(None, (told, result.context))))
        if call.event is HookEventName.BEFORE_TOOL and not result.blocked:
            last, changed = call, rewritten(call, result)
            if changed is not None:
                last = replace(call, fields={**call.fields, "tool_input": changed})
                if why := await self._guarded(last, end):
                    return self._codec.answer(call, _denied(why))
            result.agreed = any(guard.agreed(last) for guard in self._guards)
            asked = asked or result.agreed
        attachment = await self._attachment(call, result)
        if attachment is None:
            return self._codec.answer(call, result) if asked or told else {}
        try:
            context = "\n\n".join(filter(None, (result.context, attachment.text)))
            said = self._codec.answer(call, replace(result, context=context))
        except BaseException:
            attachment.sent(False)
            raise
        return Reply(said, attachment.sent)

    async def _attachment(self, call: AgentHookCall, result: Aggregated) -> HookAttachment | None:
        if self._steering is None:
            return None
        try:
            return await self._steering.attach(call, result)
        except Exception as error:  # what the hooks said must not be lost with it
            traceback.print_exc()
            self._note(f"no message could be given: {type(error).__name__}: {error}")
            return None

    def _read(self, event: dict[str, Any]) -> AgentHookCall | None:
        call = self._codec.read(event)
        if call is None:
            return None
        if call.event is HookEventName.BEFORE_AGENT:
            self._prompt = str(call.fields.get("prompt") or "")
        elif call.event is HookEventName.AFTER_AGENT:
            call.fields.setdefault("prompt", self._prompt)
        return call

    async def _decide(self, call: AgentHookCall, end: float) -> Aggregated:
        """What the hooks say until ``end``; a failure of the engine's own is a failed hook."""
        try:
            async with asyncio.timeout_at(end):
                result = await self._engine.fire(call.event, call.fields)
        except TimeoutError:
            return self._failed(call, f"its hooks did not end within {DEADLINE:g} s")
        self._tell(result)
        broken = [error for error in result.errors if error.stage != "hook"]
        if broken and not result.blocked:
            return self._failed(call, f"{broken[0].stage}: {broken[0].message}")
        if not result.reason.strip():
            # There are agents that take a refusal without a reason for a mistake, and go on.
            result.reason = _unsaid(result)
        return result

    def _tell(self, result: Aggregated) -> None:
        for text in result.inject:
            self._events.post(InjectRequested(text))
        for error in result.errors:
            self._note(error.message)
        for conflict in result.conflicts:
            self._note(conflict)

    def _note(self, text: str) -> None:
        self._events.post(PersonNote(text))

    def _failed(self, call: AgentHookCall, why: str) -> Aggregated:
        """Nothing is known of what the hooks would have said."""
        name = call.fields.get("tool_name") or "this"
        self._note(f"{call.event.registration} for {name}: {why}")
        if not self._engine.guarded(call.event, call.fields):
            return Aggregated(success=False)
        if call.event is HookEventName.BEFORE_TOOL:
            why = f"relay cannot tell whether {name} may run: {why}"
        return _denied(why)

    def _shut(self, call: AgentHookCall | None, why: str) -> dict[str, Any]:
        """The answer when there is none: refused, unless it is too late for that."""
        if call is None:
            call = AgentHookCall(HookEventName.BEFORE_TOOL, {}, waits=True)
        if call.event is not HookEventName.BEFORE_TOOL:
            return {}
        return self._codec.answer(AgentHookCall(call.event, {}, waits=True), _denied(why))


def _unsaid(result: Aggregated) -> str:
    """What is said for hooks that refuse or ask without a word; "" where none does."""
    if result.decision not in (Decision.DENY, Decision.ASK):
        return ""
    deciding = [
        one.hook.name
        for one in result.results
        if one.output is not None and one.output.decision is result.decision
    ]
    verb = "refuses this" if result.blocked else "wants a person to agree to this"
    return f"{', '.join(deciding) or 'a hook'} {verb}"


def _denied(reason: str) -> Aggregated:
    return Aggregated(success=False, decision=Decision.DENY, reason=reason)


def _tool_call(call: AgentHookCall) -> tuple[str, dict[str, Any]]:
    """The tool's name, and what is told of the call: without secrets, its texts shortened."""
    tool = str(call.fields.get("tool_name") or "")
    told: dict[str, Any] = {"phase": _PHASES[call.event], "tool": tool}
    if call.fields.get("tool_use_id"):
        told["id"] = str(call.fields["tool_use_id"])  # the same before and after
    for name in ("tool_input", "tool_response"):
        if call.fields.get(name) is not None:
            told[name.removeprefix("tool_")] = _shortened(call.fields[name])
    return tool, told


def _shortened(value: Any) -> Any:
    short = _texts_shortened(value)
    text = json.dumps(short, default=str)
    return json.loads(text) if len(text) <= TOLD_MAX else text[:TOLD_MAX] + " [cut]"


def _texts_shortened(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _texts_shortened(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_texts_shortened(one) for one in value]
    if not isinstance(value, str):
        return value
    text = redact(value[: 4 * TOLD_TEXT_MAX])
    return text if len(text) <= TOLD_TEXT_MAX else text[:TOLD_TEXT_MAX] + " [cut]"
