"""A real program in a terminal, driven as a person would, whatever program it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Self

from tests.real_agents.recipe import Recipe
from tests.real_agents.terminal import Terminal
from tests.support import wait_until

BOOT_DEADLINE = 120.0  # seconds
ANSWER_DEADLINE = 120.0  # for the first answer: opencode makes its home ready meanwhile
QUIT_DEADLINE = 30.0
TRIES = 3  # Gemini CLI drops keys now and then, most of all just after its start
SHOWN_DEADLINE = 8.0
ENTER_DEADLINE = 4.0
CLEAR_LINE = "\x15"  # Ctrl-U


class Running:
    """A recipe's program in a terminal; close it, or use it in a ``with``."""

    def __init__(
        self,
        recipe: Recipe,
        *,
        cols: int = 80,
        rows: int = 24,
        argv: list[str] | None = None,
        env: dict[str, str] | None = None,
    ) -> None:
        self.recipe = recipe
        self._booted = False
        started = recipe.start(argv, **(env or {}))
        self.terminal = Terminal(cols=cols, rows=rows, **started)

    @property
    def idle(self) -> bool:
        """Whether the screen shows the prompt and no turn and no dialog."""
        return self.recipe.marks.idle(self.terminal.text(), self.terminal.title)

    def ready(self) -> None:
        """Until it waits for a prompt, at its start as after a turn.

        Right after ``ask`` the turn may not show yet: wait for its answer first.
        """
        if not self._booted:
            self.terminal.wait_match(self.recipe.marks.booted, BOOT_DEADLINE)
            self._booted = True
        self.terminal.wait_that(lambda: self.idle, BOOT_DEADLINE, "the prompt")

    def ask(self, text: str) -> None:
        """Type a prompt of one line, and submit it once it stands there."""
        self.write(text)
        self.submit()

    def write(self, text: str) -> None:
        """Type into the empty input line, until all of it stands there: again when it does not."""
        for _ in range(TRIES):
            self.terminal.type(text)
            if self._soon(lambda: self._shows(text), SHOWN_DEADLINE):
                return
            self.terminal.type(CLEAR_LINE)
        raise AssertionError(f"{text!r} does not stand there:\n{self.terminal.text()}")

    def _shows(self, text: str) -> bool:
        return squeezed(text) in squeezed(self.terminal.text())

    def submit(self) -> None:
        """Press Enter, and once more where it is plain that it was not heard.

        Not in the moment in which the text is drawn: a program may show more than it would submit
        then (Gemini CLI does), and no person is that quick.
        """
        self.terminal.wait_quiet()
        for _ in range(TRIES):
            self.terminal.type("\r")
            if self._soon(lambda: self.terminal.matches(self.recipe.marks.taken), ENTER_DEADLINE):
                return
        raise AssertionError(f"Enter was not heard:\n{self.terminal.text()}")

    def _soon(self, check: Callable[[], bool], deadline: float) -> bool:
        try:
            wait_until(check, deadline)
        except AssertionError:
            return False
        return True

    def dialog(self) -> None:
        """Until it asks for permission."""
        self.terminal.wait_match(self.recipe.marks.dialog, ANSWER_DEADLINE)

    def refuse(self) -> None:
        """Decline what it asks."""
        self.terminal.type(self.recipe.marks.refuse)

    def quit(self) -> None:
        """End it with its own keys: once more where the second came too late for it."""
        terminal, marks = self.terminal, self.recipe.marks
        for _ in range(TRIES):
            for number, keys in enumerate(marks.quit):
                if number:  # Codex ends at the first, and hangs if the second comes at once
                    wait_until(lambda: not terminal.alive or terminal.matches(marks.again))
                if terminal.alive:
                    terminal.type(keys)
            if self._soon(lambda: not terminal.alive, QUIT_DEADLINE / TRIES):
                break
        terminal.wait_end(QUIT_DEADLINE)

    def close(self) -> None:
        self.terminal.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def squeezed(text: str) -> str:
    """Text without white space: what is left of it when a program wraps it as it likes."""
    return "".join(text.split())


def left_behind(recipe: Recipe) -> list[str]:
    """The processes that still run with this recipe's home, by their command lines.

    Not relay's broker, nor its memory service: they stay for a while after the first agent that
    needs them has started them.
    """
    mark = f"HOME={recipe.home}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_bytes().split(b"\0"):
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if "relay.broker" not in command and "relay.features.memory.service" not in command:
                    found.append(command)
        except OSError:  # it ended, or is not ours
            continue
    return found


def wait_nothing_left(recipe: Recipe, timeout: float = QUIT_DEADLINE) -> None:
    """Until no process of the recipe's is left."""
    try:
        wait_until(lambda: not left_behind(recipe), timeout)
    except AssertionError:
        raise AssertionError(f"still running: {left_behind(recipe)}") from None
