"""Shows an agent's screen to others, and presses the person's keys there from elsewhere.

The session's answers to requests of the kinds ``screen``, ``transcript``, ``choose`` and
``interrupt`` (see docs/answering.md). The broker has checked who asks.

A key is pressed only while the very question is on the screen for which it is meant: the screen is
read in that moment, and the pump writes the key only if the agent has drawn nothing and the person
has pressed nothing since. A choice is confirmed once; a question that comes next is another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from relay.agents.past import HAVE_TURNS, last_turns
from relay.core.errors import NotDelivered, Timeout, UsageError, only_the_person
from relay.core.ids import new_ulid
from relay.core.message import AgentState, Message
from relay.hooks.context import Recent
from relay.screen.dialogs import Dialog, Takes
from relay.screen.styled_rows import styled_rows
from relay.session.agent_questions import TAKES, QuestionWatch
from relay.session.agent_terminal import AgentTerminal
from relay.session.door import FeatureAnswer
from relay.session.sources import SourceSelector
from relay.session.turn_stopper import BY_PERSON, UNSTOPPED, TurnStopper
from relay.session.typing_policy import DIALOG_WAITS, DRAFT

#: Seconds between two checks of a key's effect.
LOOK = 0.05
#: Turns in an answer by default, and lines if turns are unknown.
TURNS, TURNS_MAX, LINES = 5, 100, 200
#: Tries to press a key while nothing is drawn.
PRESSES = 60
#: Seconds that a turn may take to stop.
STOPS = 12.0
UNKNOWN_WAY = "relay does not know how this is answered"
ATTACH = "answer it at its own terminal: relay attach"

Json = dict[str, Any]


class ScreenRequests:
    """Answers for one session."""

    def __init__(
        self,
        at: AgentTerminal,
        questions: QuestionWatch,
        stopper: TurnStopper,
        kind: str,
        sources: SourceSelector,
        output: Recent[str],
    ) -> None:
        """``kind``: of the agent; ``output``: what it said last."""
        self._screen, self._questions = at.screen, questions
        self._guards, self._link, self._terminal = at.guards, at.link, at.terminal
        self._stopper, self._clock = stopper, at.clock
        self._digits = at.questions.rules.digits
        self._kind, self._sources = kind, sources
        self._output = output
        self._one = asyncio.Lock()  # one answer at a time
        #: The question, and the focus in it, that an arrow was pressed at and that stayed there.
        self._unmoved: tuple[str, int] | None = None

    def answers(self) -> dict[str, FeatureAnswer]:
        """The functions that answer requests, by kind."""
        return {
            "screen": self.screen,
            "transcript": self.transcript,
            "choose": self.choose,
            "interrupt": self.interrupt,
            "reload": self.reload,
            "limited": self.limited,
        }

    async def screen(self, request: Mapping[str, Any], by_person: bool) -> Json:
        """The screen as it is now."""
        screen = self._screen
        lines = screen.visible()
        shown: Json = {
            "lines": lines,
            "cols": screen.columns,
            "rows": len(lines),
            "cursor": list(screen.cursor) if screen.cursor_shown else None,
            "title": screen.title,
        }
        if request.get("styled"):
            shown["spans"] = styled_rows(screen.visible(styled=True))
        return shown

    async def transcript(self, request: Mapping[str, Any], by_person: bool) -> Json:
        """The last turns, by the agent's own transcript, or else its last words."""
        count = request.get("count", TURNS)
        if type(count) is not int or not 0 < count <= TURNS_MAX:
            raise UsageError(f"the number of turns is 1 to {TURNS_MAX}")
        from relay.directive.redact import mask, mask_all  # most sessions are never asked

        kind, path = self._kind, self._sources.transcript_path
        if kind in HAVE_TURNS and path:
            with contextlib.suppress(OSError):
                turns = await asyncio.to_thread(last_turns, kind, path, count)
                return {"turns": mask_all(turns)}
        text = mask("\n".join(self._output.snapshot()[-LINES:]))
        return {"turns": [{"prompt": "", "text": text}] if text else []}

    # -- answering

    async def choose(self, request: Mapping[str, Any], by_person: bool) -> Json:
        """Type the choice with the number ``choice`` (from 0) of the question ``id``."""
        if not by_person:
            raise only_the_person("answer what an agent asks")
        id_, index = str(request.get("id")), request.get("choice")
        async with self._one:
            dialog = self._standing(id_)
            if self._guards.draft and self._guards.state is not AgentState.BLOCKED:
                # It may only look like a question, and Enter would submit the typed text.
                raise NotDelivered(DRAFT, hint=ATTACH)
            if type(index) is not int or not 0 <= index < len(dialog.choices):
                raise UsageError("the question has no such choice")
            asked = self._screen.visible(), self._screen.cursor
            await self._choose(id_, dialog, index)
            self._guards.answered(*asked)
            self._questions.answered(dialog, self._clock())
            gone = await self._until(lambda: self._questions.gone(dialog, self._clock()))
        return {"chosen": dialog.choices[index].label, "gone": gone}

    async def _choose(self, id_: str, dialog: Dialog, index: int) -> None:
        key = dialog.choices[index].key
        match dialog.takes:
            case Takes.WORDS if self._terminal.cooked():
                await self._press(id_, lambda _: f"{key}\n")
            case Takes.WORDS:
                await self._type_word(id_, key)
            case Takes.LIST if self._terminal.cooked():
                if not dialog.numbered:  # arrows are no keys to the kernel's line editor
                    raise NotDelivered(UNKNOWN_WAY, hint=ATTACH)
                await self._press(id_, lambda _: f"{key}\n")
            case Takes.LIST if dialog.numbered and self._digits and len(key) == 1:
                await self._press(id_, lambda _: key)
            case Takes.LIST if dialog.numbered and dialog.chosen is None and self._line():
                await self._type_word(id_, key)
            case Takes.NOTHING:
                raise NotDelivered(UNKNOWN_WAY, hint=ATTACH)
            case _:
                await self._move_to(id_, dialog, index)
                await self._press(id_, lambda now: "\r" if now.chosen == index else "")

    async def _type_word(self, id_: str, key: str) -> None:
        """Type a key, and Enter if the program shows the key and waits for Enter."""
        before = self._line()
        await self._press(id_, lambda _: key)
        await self._until(lambda: self._line() != before)
        line = self._line()
        if line == before:
            raise NotDelivered("the program does not take what is typed", hint=ATTACH)
        for _ in range(PRESSES):
            if line != self._line() or line.split() != f"{before} {key}".split():
                return  # the key alone was the answer
            if await self._write("\r"):
                return
            await asyncio.sleep(LOOK)

    async def _move_to(self, id_: str, dialog: Dialog, index: int) -> None:
        """Move the focus to this choice, key by key."""
        forth, back = ("\x1b[B", "\x1b[A") if dialog.takes is Takes.LIST else ("\x1b[C", "\x1b[D")
        for _ in range(2 * len(dialog.choices)):
            at = self._standing(id_).chosen
            if at == index:
                return
            if at is None:
                raise NotDelivered("it cannot be seen which choice has the focus", hint=ATTACH)
            # A program that is busy may take the key later: with another one it would go too far.
            if self._unmoved != (id_, at):
                await self._press(id_, partial(_if_at, at, forth if index > at else back))
                self._unmoved = (id_, at)
            if not await self._until(partial(self._moved, id_, at)):
                break
            self._unmoved = None
        raise NotDelivered("the focus does not move to that choice", hint=ATTACH)

    def _moved(self, id_: str, at: int) -> bool:
        return self._standing(id_).chosen != at

    async def _press(self, id_: str, keys: Callable[[Dialog], str]) -> None:
        """Press the keys that are right for the question ``id_`` as it stands. Raises."""
        for _ in range(PRESSES):
            typed = keys(self._standing(id_))
            if not typed:
                raise _stale()
            if await self._write(typed):
                return
            await asyncio.sleep(LOOK)
        raise NotDelivered("its screen does not rest, so nothing was typed", hint="try again")

    async def _write(self, typed: str) -> bool:
        written = await self._link.write(
            typed.encode(),
            write_id=int.from_bytes(os.urandom(4), "big") & 0x7FFFFFFF,
            sequence=self._guards.sequence,
            offset=self._guards.heard,
        )
        return bool(written)

    def _standing(self, id_: str) -> Dialog:
        """The question ``id_``. Raises NotDelivered if it is not on the screen now."""
        question = self._questions.look(self._clock())
        if question is None or question.id != id_:
            raise _stale()
        return question.dialog

    def _line(self) -> str:
        """The text before the cursor in its row."""
        rows, (column, row) = self._screen.visible(), self._screen.cursor
        return rows[row][:column].rstrip() if row < len(rows) else ""

    async def _until(self, check: Callable[[], bool]) -> bool:
        for _ in range(round(TAKES / LOOK)):
            if check():
                return True
            await asyncio.sleep(LOOK)
        return check()

    async def limited(self, request: Mapping[str, Any], by_person: bool) -> Json:
        """The broker reports a usage limit of this agent's account; 0 s: it is over."""
        seconds, why = request.get("seconds"), request.get("reason")
        if not by_person or type(seconds) not in (int, float) or not isinstance(why, str):
            raise UsageError("a limit has its seconds and its reason")
        self._guards.account_limited(why[:500], self._clock() + float(seconds or 0))
        return {}

    async def reload(self, request: Mapping[str, Any], by_person: bool) -> Json:
        """End as if killed: the pump starts a session that knows what is new."""
        if not by_person:
            raise only_the_person("reload an agent")
        os._exit(0)

    # -- stopping a turn

    async def interrupt(self, request: Mapping[str, Any], by_person: bool) -> Json:
        """Stop the running turn."""
        if not by_person:
            raise only_the_person("interrupt an agent")
        if self._guards.turn_since(self._clock()) is None:
            raise NotDelivered("there is no turn to stop", code="no_turn")
        if not self._stopper.can:
            raise NotDelivered("relay knows no way to stop a turn of this agent", hint=ATTACH)
        now_ms = round(asyncio.get_running_loop().time() * 1000)
        message = Message(f"{BY_PERSON} {new_ulid(now_ms)}", BY_PERSON, "", "", now_ms)
        end = self._clock() + STOPS
        while self._guards.turn_since(self._clock()) is not None:
            held = await self._stopper.stop(message)
            if held is None:
                raise NotDelivered(UNSTOPPED)
            if held.reason is DIALOG_WAITS:
                raise NotDelivered(DIALOG_WAITS, hint="what is asked: relay items")
            if self._clock() > end:
                raise Timeout(f"the turn still runs: {held.reason}")
            await asyncio.sleep(LOOK)
        return {"stopped": True}


def _if_at(at: int, key: str, dialog: Dialog) -> str:
    return key if dialog.chosen == at else ""


def _stale() -> NotDelivered:
    return NotDelivered(
        "the question has left the screen, so nothing was typed",
        hint="relay items lists what is asked now",
        code="stale",
    )
