"""The console's full screen: keys in, the painted state out, with prompt-toolkit.

The traffic is painted at most ``PAINTS`` times a second, however much comes; a key is answered at
once. prompt-toolkit is imported here alone, and this module only when a console is opened.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from prompt_toolkit.application import Application, in_terminal
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.data_structures import Point
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import StyleAndTextTuples
from prompt_toolkit.history import InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.layout import (
    BufferControl,
    CompletionsMenu,
    Float,
    FloatContainer,
    HSplit,
    Layout,
    UIContent,
    UIControl,
    Window,
)
from prompt_toolkit.layout.processors import BeforeInput
from prompt_toolkit.mouse_events import MouseEvent, MouseEventType
from prompt_toolkit.output import ColorDepth
from prompt_toolkit.styles import Style

from relay.cli.output import only_ascii
from relay.core.errors import RelayError
from relay.core.visible import visible, visible_lines
from relay.features.console.console_input import ConsoleInput
from relay.features.console.console_link import ConsoleLink
from relay.features.console.console_state import ConsoleState
from relay.features.console.console_view import ASCII, UNICODE, Painted, paint
from relay.features.console.console_words import (
    BrokerRequest,
    OwnVerb,
    RelayVerb,
    Verbs,
    completions,
    read,
)
from relay.protocol.message_ops import SEND
from relay.ui.watching import AsyncWatching

if TYPE_CHECKING:
    from prompt_toolkit.key_binding.key_bindings import NotImplementedOrNone

#: Verbs that have the whole terminal while they run: the console comes back at once after them.
TAKE_OVER = ("attach", "wrap", "resume")
#: Paintings a second of what goes on by itself, and the share of a core that they may take: a large
#: window is painted less often. Seconds between two when nothing goes on but ages and the clock.
PAINTS = 5
PAINT_SHARE = 0.08
IDLE_PAINT = 1.0
#: The wheel's ways, and the rows of one step.
_WHEEL = {MouseEventType.SCROLL_UP: 1, MouseEventType.SCROLL_DOWN: -1}
WHEEL_ROWS = 3
#: Seconds after which a lone Esc is no longer the possible beginning of a key's sequence.
ESC = 0.1
#: Columns of an agent's screen that a key moves the pane by.
PAN = 20
#: The prompt while agents are chosen by what is typed.
_CHOOSING = "/agents "

STYLE = Style.from_dict(
    {
        "header": "reverse",
        "rule": "ansibrightblack",
        "dim": "ansibrightblack",
        "chosen": "bold",
        "mine": "ansicyan",
        "warn": "ansiyellow",
        "item": "ansiyellow bold",
        "item.now": "ansiyellow bold reverse",
        "notice": "italic",
        "failed": "ansired bold",
        "key": "bold",
        "hint": "ansibrightblack",
        "agent.good": "ansigreen",
        "agent.work": "ansiblue",
        "agent.need": "ansiyellow bold",
        "agent.faint": "ansibrightblack",
        "prompt": "bold",
    }
)


class _Panes(UIControl):
    """Everything above the prompt."""

    def __init__(self, state: ConsoleState, line: Buffer) -> None:
        self._state = state
        self._line = line
        self._signs = ASCII if only_ascii() else UNICODE
        self.painted = Painted([], (), (True, True), ())
        self.height = 0

    def create_content(self, width: int, height: int) -> UIContent:
        self.height = height
        now_ms, zone = time.time_ns() // 1_000_000, time.localtime().tm_gmtoff
        self.painted = paint(self._state, width, height, now_ms, self._signs, zone)
        # Many steps of the wheel come at once, and may have gone beyond the end.
        self._state.page, self._state.scrolled = self.painted.above, self.painted.below
        rows = self.painted.rows

        def line(n: int) -> StyleAndTextTuples:
            return list(rows[n]) if n < len(rows) else []

        return UIContent(line, line_count=len(rows), cursor_position=Point(0, 0), show_cursor=False)

    def scroll(self, way: int, rows: int) -> None:
        """Up (1) or down (-1) by so many rows, to its end at most: an agent's screen where some of
        it is hidden, else what stands beside it."""
        step = way * max(1, rows)
        if self.painted.lift_max:
            self._state.lift = max(0, min(self._state.lift + step, self.painted.lift_max))
        elif not self.painted.at_end[way > 0]:
            self._state.scroll(step)

    def mouse_handler(self, mouse_event: MouseEvent) -> NotImplementedOrNone:
        """The wheel scrolls: without this a terminal makes arrows of it, which choose an agent. A
        click chooses an agent or a choice, and a second one opens or answers; on an item it opens
        it."""
        if way := _WHEEL.get(mouse_event.event_type):
            self.scroll(way, WHEEL_ROWS)
            return None
        if mouse_event.event_type is not MouseEventType.MOUSE_UP:
            return NotImplemented
        state, line = self._state, self._line
        item = state.answering
        match self.painted.link_at(mouse_event.position.x, mouse_event.position.y):
            case "choice", key if line.text == key:
                line.validate_and_handle()
            case "choice", key if not line.text or state.is_choice(line.text):
                line.document = Document(key)
            case "item", id_ if id_ in state.items:
                state.answer(id_)
            case "agent", name if name == state.chosen:
                state.open_chosen()
            case "agent", name if name in state.agents:
                state.chosen = name
        if item != state.answering:
            _put_away(line, state)
        return None


class _Words(Completer):
    def __init__(self, state: ConsoleState, verbs: Verbs) -> None:
        self._state = state
        self._verbs = verbs

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterable[Completion]:
        text = document.text_before_cursor
        for new, length, remark in completions(text, self._state, self._verbs):
            yield Completion(new, -length, display_meta=remark)


class FullScreen:
    """One console on this terminal. ``verbs`` are those of the command line, and ``command`` is
    what runs one of them."""

    def __init__(
        self, watching: AsyncWatching, state: ConsoleState, verbs: Verbs, command: list[str]
    ) -> None:
        self._state = state
        self._verbs = verbs
        self._command = command
        self._link = ConsoleLink(watching, state, self._changed)
        self._news = asyncio.Event()
        self._fault: BaseException | None = None
        self._draft = ""  # of a message, while a command is typed
        self._began = self._took = 0.0  # CPU seconds: of the last painting
        self._buffer = Buffer(
            completer=_Words(state, verbs),
            complete_while_typing=Condition(self._names_something),
            history=InMemoryHistory(),
            accept_handler=self._enter_keeps,
            on_text_changed=self._typed,
            multiline=False,
        )
        self._panes = _Panes(state, self._buffer)
        line = BufferControl(self._buffer, [BeforeInput(self._label, "class:prompt")])
        prompt = Window(line, dont_extend_height=True, wrap_lines=True)
        menu = Float(CompletionsMenu(max_height=8), xcursor=True, ycursor=True)
        body = FloatContainer(HSplit([Window(self._panes), prompt]), [menu])
        self._app: Application[None] = Application(
            Layout(body, focused_element=prompt),
            key_bindings=self._keys(),
            style=STYLE,
            color_depth=_colours(),
            input=ConsoleInput(sys.stdin),
            full_screen=True,
            mouse_support=True,
            enable_page_navigation_bindings=False,
            terminal_size_polling_interval=None,  # SIGWINCH tells it
            before_render=self._begins_painting,
            after_render=self._has_painted,
        )
        self._app.ttimeoutlen = ESC

    async def run(self) -> None:
        """Until the person leaves. Raises RelayError when the broker refuses."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._leave)
        for number in (signal.SIGINT, signal.SIGQUIT):
            loop.add_signal_handler(number, lambda: None)  # it is for a verb that runs
        loop.set_exception_handler(self._failed)
        await self._link.start()
        side = [
            loop.create_task(one)
            for one in (
                self._link.follow(),
                self._link.look(),
                self._link.look_elsewhere(),
                self._paint(),
            )
        ]
        for task in side:
            task.add_done_callback(self._ended)
        try:
            with contextlib.suppress(EOFError):  # the terminal has gone
                await self._app.run_async(handle_sigint=False, set_exception_handler=False)
        finally:
            for task in side:
                task.cancel()
            await self._link.close()
            done = await asyncio.gather(*side, return_exceptions=True)
        for error in (self._fault, *done):
            if isinstance(error, Exception):
                raise error

    def _failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A fault of ours ends the console; prompt-toolkit would print it over the screen."""
        self._fault = self._fault or context.get("exception") or RuntimeError(context["message"])
        self._leave()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A background task has failed: the console ends, and ``run`` raises why."""
        if not task.cancelled():
            self._leave()

    def _leave(self) -> None:
        if self._app.is_running and not self._app.is_done:
            self._app.exit()

    # -- painting

    def _changed(self, now: bool) -> None:
        if now:
            state = self._state
            if state.unsent and not self._buffer.text:
                told = state.notice, state.failed
                self._write(state.unsent)
                state.notice, state.failed = told
            state.unsent = ""
            over = state.answering and state.answering not in state.items
            if over and self._buffer.text and not self._names_something():
                _put_away(self._buffer, state)  # it answers nothing any more
            self._app.invalidate()
        else:
            self._news.set()

    async def _paint(self) -> None:
        """What goes on by itself, at most ``PAINTS`` times a second."""
        while True:
            try:
                async with asyncio.timeout(IDLE_PAINT - 1 / PAINTS):
                    await self._news.wait()
            except TimeoutError:
                pass
            self._news.clear()
            self._app.invalidate()
            await asyncio.sleep(max(1 / PAINTS, self._took / PAINT_SHARE))

    def _begins_painting(self, app: Application[None]) -> None:
        self._began = time.process_time()

    def _has_painted(self, app: Application[None]) -> None:
        self._took = time.process_time() - self._began

    def _label(self) -> str:
        state = self._state
        item = state.items.get(state.answering)
        if item is not None:
            return f"answer {visible(item['agent'])}> "
        if state.answering:
            return "no longer asked: Esc "
        return f"to {state.receiver()}> " if state.chosen else "> "

    def _typed(self, buffer: Buffer) -> None:
        if buffer.text == "q" and not self._state.answering:
            self._state.say("leave? Enter: yes, agents keep running; or type on")
        elif buffer.text:
            self._state.say("")
        self._state.typed = buffer.text
        if not buffer.text.startswith("/"):
            self._draft = ""
        if buffer.text.startswith(_CHOOSING):
            self._state.wanted = visible(buffer.text.removeprefix(_CHOOSING))

    def _names_something(self) -> bool:
        return self._buffer.text[:1] in ("/", "@", "#")

    # -- keys

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()
        state = self._state

        def key(*names: str) -> Callable[[Callable[[], None]], None]:
            def bind(do: Callable[[], None]) -> None:
                def pressed(event: KeyPressEvent) -> None:
                    # What stood on the screen when a key was pressed, the person has seen.
                    self._link.read(self._panes.painted.seen)
                    item = state.answering
                    do()
                    if item != state.answering:
                        _put_away(self._buffer, state)

                for name in names:
                    keys.add(name, eager=True)(pressed)

            return bind

        key("up")(lambda: self._up_or_down(-1))
        key("down")(lambda: self._up_or_down(1))
        key("c-p")(lambda: self._buffer.history_backward())
        key("c-n")(lambda: self._buffer.history_forward())
        key("pageup")(lambda: self._turn(1))
        key("pagedown")(lambda: self._turn(-1))
        key("escape")(self._back)
        key("f1")(lambda: self._local(OwnVerb("help")))
        empty = Condition(lambda: not self._buffer.text)
        keys.add("?", eager=True, filter=empty)(lambda event: self._local(OwnVerb("help")))
        helps = Condition(lambda: not self._buffer.text and state.beside == "help")
        keys.add("q", eager=True, filter=helps)(lambda event: self._local(OwnVerb("help")))
        command = Condition(lambda: not self._buffer.text and not state.answering)
        keys.add(":", eager=True, filter=command)(lambda event: self._buffer.insert_text("/"))
        shown = Condition(lambda: not self._buffer.text and state.beside == "screen")
        keys.add("left", eager=True, filter=shown)(lambda event: self._pan(-PAN))
        keys.add("right", eager=True, filter=shown)(lambda event: self._pan(PAN))
        key("c-r")(state.answer_next)
        key("c-t")(lambda: self._local(OwnVerb("screen")))
        key("c-x")(lambda: self._local(OwnVerb("whole")))
        key("c-o")(lambda: self._local(OwnVerb("only")))
        key("c-f")(lambda: self._begin("/find "))
        key("c-g")(lambda: self._begin(_CHOOSING))
        key("c-c")(self._empty_or_leave)
        key("c-d")(self._empty_or_leave)
        key("c-z")(lambda: self._app.suspend_to_background())
        return keys

    def _up_or_down(self, step: int) -> None:
        if self._buffer.complete_state:
            if step > 0:
                self._buffer.complete_next()
            else:
                self._buffer.complete_previous()
        elif self._state.beside == "help":
            self._panes.scroll(-step, 1)
        elif not self._state.answering:
            self._state.choose(step, time.time_ns() // 1_000_000)
            self._state.say("")
        elif not self._panes.painted.read:
            self._turn(-step)  # what is asked is read before it is answered
        else:
            # The arrows never pass over a choice that was not in sight.
            seen = self._buffer.text or self._panes.painted.marked
            if choice := self._state.choice(self._buffer.text, step if seen else 0):
                self._state.follows = True
                self._write(choice)

    def _turn(self, way: int) -> None:
        self._state.say("")  # such as that there is more to read; it takes room
        self._panes.scroll(way, self._panes.painted.page_rows or self._panes.height // 2)

    def _begin(self, command: str) -> None:
        """Begin a command; a message that is being typed comes back after it."""
        if not self._buffer.text.startswith("/"):
            self._draft = self._buffer.text
        self._write(command)

    def _write(self, text: str) -> None:
        self._buffer.text = text
        self._buffer.cursor_position = len(text)

    def _pan(self, columns: int) -> None:
        most = self._panes.painted.pan_max
        self._state.pan = max(0, min(self._state.pan + columns, most))

    def _back(self) -> None:
        """A command that is typed goes first; a message stays, an answer does not."""
        text = self._buffer.text
        if text.startswith(_CHOOSING):
            self._stop_choosing()
        elif text.startswith("/") or text == "q":
            self._write(self._draft)
            self._state.say("")
        elif self._buffer.complete_state:
            self._buffer.cancel_completion()
        else:
            self._state.back()

    def _stop_choosing(self) -> None:
        self._write(self._draft)
        self._state.wanted = ""

    def _empty_or_leave(self) -> None:
        if self._buffer.text.startswith(_CHOOSING):
            self._stop_choosing()
        elif self._buffer.text:
            _empty(self._buffer, self._state)
        else:
            self._leave()

    def _enter_keeps(self, buffer: Buffer) -> bool:
        keeps = self._enter(buffer)
        self._state.typed = buffer.text if keeps else ""
        return keeps

    def _enter(self, buffer: Buffer) -> bool:
        """What is typed is done; it stays in the prompt when it cannot be."""
        state = self._state
        item = state.answering
        self._link.read(self._panes.painted.seen)
        state.say("")
        answers = state.answering and not self._names_something()
        if answers and not self._panes.painted.read:
            if not buffer.text:
                self._turn(-1)
                return False
            state.say("read it to its end first: Enter or PgDn", failed=True)
            # A choice is typed again after that; more than one is not.
            return not state.is_choice(buffer.text)
        if state.answering in state.items and not buffer.text.strip():
            state.say("choose an answer first, or type it", failed=True)
            return False
        try:
            asked = read(buffer.text, state, self._verbs)
        except RelayError as error:
            state.tell(error)
            if state.answering not in state.items:
                state.answering = ""
            return bool(state.answering) or not answers
        match asked:
            case None:
                state.open_chosen()
            case BrokerRequest():
                state.beside = "" if state.beside == "help" else state.beside
                typed = ""
                if asked.op == SEND:
                    state.newest()
                    # It may come back when another agent is chosen, or an item is answered.
                    typed = (
                        buffer.text if self._names_something() else f"@{state.chosen} {buffer.text}"
                    )
                self._link.ask(asked, typed)
            case OwnVerb():
                self._local(asked)
            case RelayVerb(("attach", name, *_)) if name in state.agents and not (
                self._link.can_attach(name)
            ):
                why = f"{name} has a terminal of its own; only those of relay spawn can be attached"
                state.say(f"{why}. /screen {name} shows it", failed=True)
            case RelayVerb():
                self._link.spawn(self._run(asked))
        if self._draft and item == state.answering:  # else it was typed for something else
            self._write(self._draft)
            return True
        return False

    def _local(self, asked: OwnVerb) -> None:
        state = self._state
        if asked.rest and asked.verb in ("screen", "only"):
            if asked.rest not in state.agents:
                state.say(f"there is no agent {asked.rest}", failed=True)
                return
            state.chosen = asked.rest
        match asked.verb:
            case "help":
                state.page, state.answering = 0, ""
                state.beside = "" if state.beside == "help" else "help"
            case "screen":
                state.show_screen(again=bool(asked.rest))
            case "whole":
                state.whole = not state.whole
            case "only":
                state.only_chosen = bool(asked.rest) or not state.only_chosen
            case "find":
                if asked.rest:
                    self._link.find(asked.rest)
                else:
                    state.search("", None)
            case "items":
                state.answer_next()
                if not state.answering:
                    state.say("nothing waits for you")
            case "agents":
                state.want(asked.rest)
                if not state.listed():
                    state.say(f"no agent has {asked.rest}", failed=True)
                    state.wanted = ""
            case "quit":
                self._leave()

    async def _run(self, asked: RelayVerb) -> None:
        """A verb of the command line gets the terminal, and the console comes back after it."""
        async with in_terminal():
            shown = "" if asked.argv[0] in TAKE_OVER else f"$ relay {shlex.join(asked.argv)}\n"
            sys.stdout.write(f"\x1b[H\x1b[2J{visible_lines(shown)}")
            sys.stdout.flush()
            process = await asyncio.create_subprocess_exec(*self._command, *asked.argv)
            status = await process.wait()
            if asked.argv[0] not in TAKE_OVER or status:
                sys.stdout.write("\n-- Enter: back to the console --")
                sys.stdout.flush()
                await _typed_line()


def _colours() -> ColorDepth | None:
    """All that an agent's screen has where the terminal says so; None: as prompt-toolkit does."""
    exact = os.environ.get("COLORTERM") in ("truecolor", "24bit")
    return ColorDepth.TRUE_COLOR if exact and not os.environ.get("NO_COLOR") else None


def _put_away(line: Buffer, state: ConsoleState) -> None:
    """Empty the prompt, as another item is answered, or none: what was typed for one must reach
    neither the next one nor an agent, and no message be an answer. ^P brings it back."""
    line.append_to_history()
    _empty(line, state)


def _empty(line: Buffer, state: ConsoleState) -> None:
    line.reset()  # without a word to ``_typed``
    state.typed = ""


async def _typed_line() -> None:
    """Wait for a line of the terminal, or its end, without a thread."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(0, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(0)
    with contextlib.suppress(OSError):  # the terminal has gone
        os.read(0, 4096)
