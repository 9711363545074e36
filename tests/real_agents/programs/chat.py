"""A small chat with an agent, full-screen, made with Textual: none that relay knows.

``python chat.py FOLDER``: what is submitted is appended to ``FOLDER/submitted`` as JSON, one line
each. Some words make the agent do something::

    say NAME      it answers with the text of FOLDER/NAME, line by line
    ask           it asks for permission; Enter grants it, Escape does not ("granted" is submitted)
    wait NAME     it works until there is a file FOLDER/NAME
    Reply … WORD  it works for a moment, and answers with the word

A text that begins with none of them is answered with "OK."
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from textual.app import App, ComposeResult
from textual.containers import VerticalScroll
from textual.events import Key
from textual.screen import ModalScreen
from textual.widgets import Static, TextArea

#: Seconds between two lines of an answer, and between two steps of the spinner.
LINE, SPIN = 0.01, 0.08
SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


class Composer(TextArea):
    """The input line: Enter submits, a pasted text may have many lines."""

    async def _on_key(self, event: Key) -> None:
        if event.key == "enter":
            event.stop()
            event.prevent_default()
            text, self.text = self.text, ""
            if text.strip() and isinstance(self.app, Chat):
                self.app.submitted(text)
            return
        await super()._on_key(event)


class Permission(ModalScreen[bool]):
    """A dialog over the whole screen."""

    CSS = "Permission { align: left bottom; } #question { border: solid white; height: auto; }"

    def compose(self) -> ComposeResult:
        yield Static("Do you want to proceed?\n❯ 1. Yes\n  2. No", id="question", markup=False)

    def on_key(self, event: Key) -> None:
        if event.key in ("enter", "escape"):
            self.dismiss(event.key == "enter")


class Chat(App[None]):
    CSS = """
    #log Static { margin-bottom: 1; }
    #state { height: 1; }
    Composer { height: 5; border: none; border-top: solid white; border-bottom: solid white; }
    """
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.turns: set[asyncio.Task[None]] = set()

    def compose(self) -> ComposeResult:
        yield VerticalScroll(id="log")
        yield Static("ready", id="state")
        yield Composer(show_line_numbers=False)

    def on_mount(self) -> None:
        self.query_one(Composer).focus()

    def submitted(self, text: str) -> None:
        """The person, or somebody else, said something."""
        with open(self.folder / "submitted", "a") as file:
            file.write(json.dumps(text) + "\n")
        turn = asyncio.ensure_future(self.turn(text))
        self.turns.add(turn)
        turn.add_done_callback(self.turns.discard)

    async def turn(self, text: str) -> None:
        await self.show("\n".join(f"> {line}" for line in text.splitlines()))
        spinner = asyncio.ensure_future(self.spin())
        try:
            await self.answer(text)
        finally:
            spinner.cancel()
            self.query_one("#state", Static).update("ready")

    async def answer(self, text: str) -> None:
        verb, _, name = text.partition(" ")
        if verb == "say":
            said: list[str] = []
            shown = await self.show("")
            for line in (self.folder / name).read_text().split("\n"):
                said.append(line)
                shown.update("\n".join(said))
                self.query_one("#log").scroll_end(animate=False)
                await asyncio.sleep(LINE)
        elif verb == "wait":
            while not (self.folder / name).exists():
                await asyncio.sleep(LINE)
            await self.show("Done.")
        elif verb == "ask":
            self.push_screen(Permission(), self.asked)
        elif verb == "Reply":
            await asyncio.sleep(20 * SPIN)
            await self.show(f"● {text.split()[-1]}")
        else:
            await self.show("OK.")

    def asked(self, granted: bool | None) -> None:
        if granted:
            with open(self.folder / "submitted", "a") as file:
                file.write(json.dumps("granted") + "\n")

    async def show(self, text: str) -> Static:
        log = self.query_one("#log")
        static = Static(text, markup=False)
        await log.mount(static)
        log.scroll_end(animate=False)
        return static

    async def spin(self) -> None:
        step = 0
        while True:
            step += 1
            self.query_one("#state", Static).update(f"{SPINNER[step % len(SPINNER)]} working")
            await asyncio.sleep(SPIN)


if __name__ == "__main__":
    Chat(Path(sys.argv[1])).run()
