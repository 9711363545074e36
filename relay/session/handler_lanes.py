"""Chooses the handlers of each detection. Pure: commands come out.

Each namespace has a lane of its own: within it detections are handled in the order in which they
were said, and a slow ``@deploy:`` never holds up ``@relay:``. Without a handler of the user's, a
message is sent at once, and relay's own handlers, which only pass it on, are called at once. The
user's handlers run through the hook runner, off this loop, with a time limit; relay's own run in
their place among them.

At the end: the built-in namespace ``@relay:``, and the request to the broker that it becomes.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from relay.core.errors import did_you_mean
from relay.core.message import QueueMode
from relay.directive.grammar import Continued, Match, TooLong, Unclosed
from relay.hooks.context import Context
from relay.hooks.hook_types import CallOutcome, HookOutput
from relay.hooks.registry import BUILTIN, Registry
from relay.session.detector import Detection, match_event_id, match_meta
from relay.session.outbox import Overflow
from relay.session.session_commands import (
    AgentNotice,
    DriverCommand,
    FeatureCommand,
    FeatureRequested,
    InjectText,
    NoteOver,
    PersonNote,
    ReportEvent,
    RunHandlers,
    SendRequested,
)
from relay.session.session_events import HandlersEnded, InjectionRefused

#: Detections that may wait in one lane. More are not handled, and the agent is told how many.
LANE_MAX = 10_000
#: With so many detections, or characters of them, in all lanes, the agent is slowed down.
BUSY_AT = 500
BUSY_SIZE_AT = 1024 * 1024
#: Characters of all that wait: they are part of the checkpoint, which must fit into one frame.
UNFINISHED_MAX = 4 * 1024 * 1024
#: Characters of a message's continuation that the notice shows.
SHOWN_MAX = 80
#: How a block ends that is heard on a screen: what Markdown makes of ``>>>`` may not be seen.
DRAWN_CLOSING = "\\>>> of its own (with the backslash), a blank line before and after it"
#: The notice where a block was left open again after the first notice.
PLAINER = (
    "that relay can see on your screen. Write it as one paragraph without <<<, a blank line before"
    " and after it; what is longer goes into a file that you name"
)


class HandlerLanes:
    """Brings each detection to its handlers."""

    def __init__(
        self,
        registry: Registry,
        new_id: Callable[[], str],
        refuses: Callable[[str, str], str] = lambda namespace, target: "",
    ) -> None:
        """``refuses`` says why the running turn may not do ``@namespace:target``; "": it may."""
        self._refuses = refuses
        self._registry = registry
        self._new_id = new_id
        self._lanes: dict[str, deque[Detection]] = {}  # the first of each lane is being handled
        self._unfinished: dict[str, Detection] = {}
        self._size = 0
        self._unclosed = 0  # unclosed blocks on the screen in a row
        self._overflow = Overflow("not done", "messages already wait for their handlers")

    @property
    def busy(self) -> bool:
        """Whether so much waits that the session should read no more for now."""
        return len(self._unfinished) >= BUSY_AT or self._size >= BUSY_SIZE_AT

    @property
    def idle(self) -> bool:
        """Whether all detections are handled."""
        return not self._unfinished

    def take(self, heard: Detection) -> Iterator[DriverCommand]:
        """Act on one detection."""
        found = heard.found
        if isinstance(found, Unclosed) and heard.drawn:
            self._unclosed += 1
            yield AgentNotice(_unclosed(found, PLAINER if self._unclosed > 1 else DRAWN_CLOSING))
            return
        if isinstance(found, Match) and found.block:
            self._unclosed = 0
        if not isinstance(found, Match):
            yield AgentNotice(refusal(self._registry, heard))
        elif why := self._refuses(found.namespace, found.target):
            yield AgentNotice(not_done(found, why))
        elif self._is_own(found):
            yield ReportEvent("match", found.body, match_meta(found), match_event_id(heard))
            if found.namespace == "relay":
                yield SendRequested(send_fields(found, heard.id))
            else:
                yield FeatureRequested(
                    found.namespace,
                    FeatureCommand(heard.id, found.target, found.body, dict(found.attributes)),
                )
        else:
            yield from self._queue(heard, found)

    def ended(self, ended: HandlersEnded) -> Iterator[DriverCommand]:
        """The handlers of a lane's first detection are done: start the next."""
        heard = ended.detection
        match = heard.found
        assert isinstance(match, Match)
        if ended.error is not None:
            yield AgentNotice(not_done(match, ended.error.line))
        for outcome in ended.outcomes:
            yield from self._concluded(match, outcome)
        lane = self._lanes[match.namespace]
        self._finish(lane)
        yield from self._run(lane)
        if not self.busy:
            yield from self._overflow.told()

    def state(self) -> list[dict[str, Any]]:
        """The detections that are not handled yet, for the checkpoint."""
        return [{"id": one.id, "match": asdict(one.found)} for one in self._unfinished.values()]

    def restore(self, state: list[dict[str, Any]]) -> Iterator[DriverCommand]:
        """Continue where an earlier session stopped; handlers that it began are not run again."""
        for one in state:
            yield from self.take(Detection(one["id"], Match(**one["match"])))

    def _is_own(self, match: Match) -> bool:
        handlers = self._registry.select(match.namespace, match.target)
        return bool(handlers) and all(handler.builtin for handler in handlers)

    def _queue(self, heard: Detection, match: Match) -> Iterator[DriverCommand]:
        if heard.id in self._unfinished:
            return  # heard again while it waits
        lane = self._lanes.setdefault(match.namespace, deque())
        size = _size(match)
        if len(lane) > LANE_MAX or self._size + size > UNFINISHED_MAX:
            yield from self._overflow.refuse(_head(match), match.body, len(lane))
            return
        lane.append(heard)
        self._unfinished[heard.id] = heard
        self._size += size
        if len(lane) == 1:
            yield from self._run(lane)

    def _run(self, lane: deque[Detection]) -> Iterator[DriverCommand]:
        """Start the first of this lane that has handlers."""
        while lane:
            if not (refused := refusal(self._registry, lane[0])):
                yield RunHandlers(lane[0])
                return
            yield AgentNotice(refused)
            self._finish(lane)

    def _concluded(self, match: Match, outcome: CallOutcome[HookOutput]) -> Iterator[DriverCommand]:
        if outcome.ok:
            yield NoteOver(f"{outcome.handler}: ")
        if outcome.result is not None:
            for text in outcome.result.inject:
                yield InjectText(self._new_id(), text, match)
        elif not outcome.ok:
            # The reason is for the person; the agent only learns that it did not happen.
            yield PersonNote(f"{outcome.handler}: {outcome.error}")
            yield AgentNotice(f"{_head(match)}: its handler failed; relay status says why")

    def _finish(self, lane: deque[Detection]) -> None:
        done = lane.popleft()
        assert isinstance(done.found, Match)
        del self._unfinished[done.id]
        self._size -= _size(done.found)


def not_injected(refused: InjectionRefused) -> Iterator[DriverCommand]:
    """Report that a text for the agent cannot be sent."""
    if refused.match is not None:
        yield AgentNotice(not_done(refused.match, refused.error.line))
    else:
        why = refused.error.message
        yield PersonNote(f"what a hook has for the agent cannot be sent: {why}")


def not_done(match: Match, why: str) -> str:
    """The notice to the agent that a directive was not carried out."""
    return f"not done: {_head(match)}: {why}"


def refusal(registry: Registry, heard: Detection) -> str:
    """The notice that there is no handler; empty when there is one."""
    found = heard.found
    if isinstance(found, Unclosed):
        return _unclosed(found, ">>>")
    if isinstance(found, TooLong):
        return (
            f"not sent: the message to @{found.namespace}:{found.target} has {found.size}"
            " bytes, more than 1 MiB; send the name of a file instead"
        )
    if isinstance(found, Continued):
        return _continued(found)
    if registry.select(found.namespace, found.target):
        return ""
    known = sorted(
        handler.target for handler in registry.patterns() if handler.namespace == found.namespace
    )
    return f"not done: nothing handles {_head(found)}; {did_you_mean(found.target, known)}"


def _head(match: Match) -> str:
    return f"@{match.namespace}:{match.target}"


def _size(match: Match) -> int:
    return len(match.raw) + len(match.body)


def _continued(found: Continued) -> str:
    head, shown = f"@{found.namespace}:{found.target}", found.text[:SHOWN_MAX]
    if found.again:
        return (
            f"you paused within the message to {head}: relay sent its beginning, and later the"
            " whole message. Do nothing, unless the double message does harm"
        )
    return (
        f"you paused within the message to {head}: relay sent it without what came next:"
        f' "{shown}". If that text belongs to the message, send the whole message again and say'
        " that it replaces the first one. Otherwise do nothing"
    )


def _unclosed(found: Unclosed, closing: str) -> str:
    return (
        f"not sent: the message to @{found.namespace}:{found.target} was opened with <<< and never"
        f" closed with a line {closing}"
    )


_AWAIT = re.compile(r"(\d{1,5})(s|m|h)?")
_UNITS = {"s": 1, "m": 60, "h": 3600, None: 1}
#: The longest time that ``[await:…]`` may wait for an answer, in seconds.
AWAIT_MAX = 24 * 3600


#: Commands of agents to relay itself, and the broker's op for each.
COMMANDS = {"join": "channel_join", "leave": "channel_leave", "presence": "presence"}
#: The fields of each of these ops.
COMMAND_FIELDS = {
    "channel_join": ("channel",),
    "channel_leave": ("channel",),
    "presence": ("who", "off"),
}


def register(registry: Registry) -> None:
    """Add relay's own handler; what the user's configuration overrides does not run."""
    registry.add_pattern("relay", "*", relay, source=BUILTIN)


def relay(target: str, message: str, ctx: Context) -> None:
    """Send ``message``, in its place among the user's handlers of the same match."""
    ctx.relay.send(target, message)


def is_command(match: Match) -> bool:
    """Whether it is a command to relay itself, no message: ``@relay:join #build``."""
    return match.target.lower() in COMMANDS


def send_fields(match: Match, message_id: str) -> dict[str, Any]:
    """The broker's ``send`` for what an agent said, with its attributes; or an op to ``ask``."""
    if is_command(match):
        words = match.body.replace(",", " ").split()
        off = words[:1] == ["off"]
        about = {"channel": match.body, "who": words[off:], "off": off}
        op = COMMANDS[match.target.lower()]
        return {"id": message_id, "to": [match.target], "body": match.body, "ask": op, **about}
    return {
        "id": message_id,
        "to": [name for name in match.target.split(",") if name],
        "body": match.body,
        # The broker knows the modes, and refuses any other.
        "mode": match.attributes.get("mode", QueueMode.FOLLOWUP.value).lower(),
        "thread": match.attributes.get("thread"),
        "re": match.attributes.get("re"),
        **({"await": True} if await_seconds(match) is not None else {}),
    }


def await_seconds(match: Match) -> float | None:
    """``[await:30s]`` -> 30.0; None without it, or when it is no duration."""
    text = match.attributes.get("await", "")
    parsed = _AWAIT.fullmatch(text)
    if parsed is None:
        return None
    return float(min(int(parsed[1]) * _UNITS[parsed[2]], AWAIT_MAX))
