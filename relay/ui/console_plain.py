"""The console's plain mode: lines in, lines out, for screen readers, slow lines and dumb terminals.

Nothing is ever drawn again or moves: what happens is told once, in words.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections import deque
from itertools import islice
from typing import Any

from relay.core.errors import RelayError
from relay.core.visible import visible, visible_lines
from relay.ui.console_link import ConsoleLink
from relay.ui.console_state import FINAL, ConsoleState, choices_of, who_asks
from relay.ui.console_traffic import TrafficLine, age
from relay.ui.console_words import OWN, BrokerRequest, OwnVerb, RelayVerb, Verbs, read
from relay.ui.watching import AsyncWatching

#: Lines of the traffic that are told at the start.
BEFORE = 10
_LINE_MAX = 1024 * 1024


class InputLines:
    """Lines of standard input, without a thread; what follows a line is left to whoever reads
    next, such as a verb that has the terminal."""

    def __init__(self) -> None:
        self._part = b""

    async def next(self) -> str | None:
        """The next line, None at the end."""
        while b"\n" not in self._part and len(self._part) < _LINE_MAX:
            await self._ready()
            try:
                data = os.read(0, 65536)
            except OSError:  # the terminal has gone
                data = b""
            if not data:
                break
            self._part += data
        else:
            line, _, self._part = self._part.partition(b"\n")
            return line.decode("utf-8", "replace")
        line, self._part = self._part, b""
        return line.decode("utf-8", "replace") if line else None

    async def _ready(self) -> None:
        loop = asyncio.get_running_loop()
        ready = loop.create_future()
        try:
            loop.add_reader(0, lambda: None if ready.done() else ready.set_result(None))
        except PermissionError:
            return  # a file is always ready
        try:
            await ready
        finally:
            loop.remove_reader(0)


class PlainConsole:
    """One console that prints lines. ``verbs`` and ``command`` as for the full screen."""

    def __init__(
        self, watching: AsyncWatching, state: ConsoleState, verbs: Verbs, command: list[str]
    ) -> None:
        self._state = state
        self._verbs = verbs
        self._command = command
        self._link = ConsoleLink(watching, state, self._changed)
        self._told = 0  # the last line of the traffic that was told
        self._asked: set[str] = set()  # items that were told
        self._mine: deque[TrafficLine] = deque(maxlen=100)  # whose fate is not told yet
        self._end = asyncio.Event()
        self._fault: BaseException | None = None

    async def run(self) -> None:
        """Until the person leaves, or there is no more input. Raises RelayError when the broker
        refuses."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            loop.add_signal_handler(number, self._end.set)
        loop.set_exception_handler(self._failed)
        await self._link.start()
        state = self._state
        _say(f"relay console on {state.host}. You are {state.me}. /help says what you can type.")
        self._agents()
        self._told = max(0, state.count - BEFORE)
        self._changed(True)
        side = [loop.create_task(one) for one in (self._link.follow(), self._read())]
        for task in side:
            task.add_done_callback(lambda _: self._end.set())
        await self._end.wait()
        for task in side:
            task.cancel()
        await self._link.close()
        done = await asyncio.gather(*side, return_exceptions=True)
        for error in (self._fault, *done):
            if isinstance(error, Exception):
                raise error

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._fault = self._fault or context.get("exception") or RuntimeError(context["message"])
        self._end.set()

    async def _read(self) -> None:
        """Do what is typed, one line after the other."""
        lines = InputLines()
        while (words := await lines.next()) is not None:
            try:
                asked = read(words, self._state, self._verbs)
            except RelayError as error:
                self._state.tell(error)
                self._changed(True)
                continue
            match asked:
                case BrokerRequest():
                    self._link.ask(asked)
                    await self._link.settle()
                case RelayVerb():
                    process = await asyncio.create_subprocess_exec(*self._command, *asked.argv)
                    await process.wait()
                case OwnVerb("quit"):
                    return
                case OwnVerb():
                    await self._local(asked)
        await self._link.settle()

    async def _local(self, asked: OwnVerb) -> None:
        state = self._state
        match asked.verb:
            case "help":
                for name, (after, said) in OWN.items():
                    _say(f"/{name} {after}".rstrip() + f": {said}")
                _say("@NAME TEXT and #CHANNEL TEXT write to them; plain text goes to who is chosen")
                _say("/only NAME chooses; every other verb of relay works too: /status, /attach")
            case "agents":
                self._agents()
            case "items":
                self._asked.clear()
                if not state.items:
                    _say("nothing waits for you")
            case "only" if asked.rest in state.agents:
                state.chosen = asked.rest
                _say(f"what you type goes to {asked.rest}")
            case "screen" if asked.rest or state.chosen:
                name = asked.rest or state.chosen
                _say(f"the screen of {name}:")
                lines, why = await self._link.screen_lines(name)
                rows = ["".join(text for _, text in row) for row in lines]
                _say("\n".join(rows) or why or "it is empty")
            case "find" if asked.rest:
                self._link.find(asked.rest)
                await self._link.settle()
                found = state.found or []
                _say(f"{len(found)} found")
                for line in found:
                    _say(self._line(line))
                state.search("", None)
        self._changed(True)

    # -- what is told

    def _changed(self, now: bool) -> None:
        state = self._state
        new = islice(reversed(state.lines), max(0, state.count - self._told))
        for line in reversed(list(new)):
            _say(self._line(line))
            if line.sender == state.me and line.states.keys() - {state.me}:
                self._mine.append(line)
        self._told = state.count
        self._link.read(list(state.unread))
        for line in [line for line in self._mine if line.state() in FINAL]:
            self._mine.remove(line)
            for name, (said, reason) in line.states.items():
                _say(f"to {name}: {said}" + (f" ({reason})" if reason else ""))
        for id_, item in state.items.items():
            if id_ not in self._asked:
                who = visible(item["agent"])
                _say(f"{who_asks(item)}: {visible_lines(item['what'])}")
                _say(f"  choices: {choices_of(item)}; answer with /answer {who} CHOICE")
        self._asked = set(state.items)
        if state.notice:
            _say(f"error: {state.notice}" if state.failed else state.notice)
            state.say("")

    def _line(self, line: TrafficLine) -> str:
        at = time.strftime("%H:%M", time.localtime(line.at_ms // 1000))
        if line.kind == "message":
            return f"{at} {line.sender} to {', '.join(line.to) or 'nobody'}: {line.text}"
        return f"{at} {line.sender}: {line.text}" if line.kind == "turn" else f"{at} {line.text}"

    def _agents(self) -> None:
        now_ms = time.time_ns() // 1_000_000
        for row in self._state.listed(now_ms):
            said = f"{row['name']}: {row['state']} for {age(now_ms - row['since_ms'])}"
            said += f", {row['reason']}" if row["reason"] else ""
            _say(said + (f", {row['unread']} unread" if row["unread"] else ""))
        if not self._state.agents:
            _say("no agents; relay wrap --name NAME COMMAND starts one")


def _say(text: str) -> None:
    """One line, or several, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
