"""A program that is none of the six: a chat that draws with Textual.

Nothing tells relay what it says but its screen, and nothing takes a message but its terminal.
What a screen cannot show as it was said (bold, a fence that is drawn away) is not asked of it here;
docs/screen.md says what that is.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.wrapped import relay, wait_registered
from tests.real_agents.people import bodies_from, marked, outcome, wait_held_up
from tests.real_agents.running import squeezed
from tests.real_agents.terminal import Terminal
from tests.support import wait_until

pytestmark = pytest.mark.usefixtures("stop_broker")

CHAT = Path(__file__).with_name("programs") / "chat.py"
PROMPT, DRAFT = r"^ready", "half_a_draft"
SCROLL_BAR = " ▁▂▃▄▅▆▇█"
SIZES = [(80, 24), (120, 40)]
LONG = "please check the tests in the source folder and report back, " * 5 + "for sure"
BLOCK = "the first paragraph\n\nthe second one\n    with indented text"
ALL = f"""\
I tell Bob now.

@relay:Bob {LONG}

@relay:Bob the first of two
@relay:Bob the second of two

- @relay:Bob from a list

@relay:Bob **bold** and `code` stay

@relay:Bob <<<
{BLOCK}
>>>

\\@relay:Bob not what is escaped

> @relay:Bob not from a quote

Not in a `@relay:Bob sentence`.

```
@relay:Bob not from a fence
```

@relay:Bob at the very end

Ready."""
HEARD = [
    LONG,
    "the first of two",
    "the second of two",
    "from a list",
    "**bold** and `code` stay",
    BLOCK,
    "at the very end",
]
MANY = "\n".join(
    [*(f"Line {n} of many." for n in range(100)), "", "@relay:Bob in the middle", ""]
    + [*(f"Line {n} of more." for n in range(100)), "", "@relay:Bob after many lines", "", "Over."]
)
SIZED = "said in one size " + "and in another " * 12 + "too"
TEXTS = {
    "all": ALL,
    "many": MANY,
    "again": "@relay:Bob the same words\n\nReady.",
    "size": f"@relay:Bob {SIZED}\n\nReady.",
}


class Other:
    """The chat under ``relay wrap``, named Ada, in a folder of its own."""

    def __init__(self, folder: Path, cols: int, rows: int) -> None:
        self.folder = folder
        for name, text in TEXTS.items():
            (folder / name).write_text(text)
        wrap = [sys.executable, "-P", "-m", "relay", "wrap", "--name", "Ada", "--"]
        env = {**os.environ, "HOME": str(folder), "LANG": "C.UTF-8"}
        argv = [*wrap, sys.executable, str(CHAT), "."]
        self.terminal = Terminal(argv=argv, env=env, cwd=folder, cols=cols, rows=rows)

    def ready(self) -> None:
        self.terminal.wait_match(PROMPT)
        wait_registered("Ada")

    def enter(self, words: str) -> None:
        """Type and submit this."""
        self.terminal.type(words)
        typed = squeezed(words)
        self.terminal.wait_that(lambda: typed in squeezed(self.terminal.text()), what=words)
        self.terminal.type("\r")

    def say(self, name: str, last: str = "Ready.") -> None:
        """Have it say the text of this name, and wait until it has."""
        self.enter(f"say {name}")
        self.terminal.wait_that(lambda: self._shown_last(last), what=f"{last} at the end")

    def _shown_last(self, last: str) -> bool:
        rows = (row.rstrip(SCROLL_BAR).strip() for row in self.terminal.lines())
        shown = [row for row in rows if row]
        return last in shown[-6:] and self.terminal.matches(PROMPT)

    def submitted(self) -> list[str]:
        """What the chat was told."""
        try:
            lines = (self.folder / "submitted").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [str(json.loads(line)) for line in lines]

    def received(self, marker: str) -> int:
        """How many messages with ``marker`` the program took."""
        return sum(marker in text for text in self.submitted())


@contextmanager
def other(folder: Path, cols: int = 80, rows: int = 24) -> Iterator[Other]:
    program = Other(folder, cols, rows)
    with program.terminal:
        program.ready()
        yield program


def solid(bodies: list[str]) -> list[str]:
    """The bodies with all white space alike: where a program wraps its own text is no more than
    guessed from what it draws, and a busy machine shows it in other pieces (docs/screen.md)."""
    return [" ".join(body.split()) for body in bodies]


def wait_sent(bodies: list[str]) -> None:
    try:
        wait_until(lambda: solid(bodies_from("Ada")) == solid(bodies), 30)
    except AssertionError:
        raise AssertionError(f"{bodies_from('Ada')}\nis not\n{bodies}\n{relay('status')}") from None


def wait_seen(program: Other, marker: str) -> None:
    wait_until(lambda: outcome(marker)[0] == "seen", 60, f"{marker} to be seen")
    wait_until(lambda: program.received(marker))
    assert program.received(marker) == 1


@pytest.mark.parametrize(("cols", "rows"), SIZES)
def test_what_it_says_is_heard_once_and_whole(
    tmp_path: Path, bob: None, cols: int, rows: int
) -> None:
    with other(tmp_path, cols, rows) as ada:
        ada.say("all")
        wait_sent(expected := list(HEARD))
        ada.say("many", "Over.")
        wait_sent(expected := [*expected, "in the middle", "after many lines"])
        relay("send", "Ada", "quoted:\n@relay:Bob only quoted", "--wait=60")
        ada.say("again")
        wait_sent(expected := [*expected, "the same words"])
        ada.say("again")
        wait_sent(expected := [*expected, "the same words"])
        ada.terminal.resize(cols + 17, rows + 5)
        ada.say("size")
        wait_sent(expected := [*expected, SIZED])
        relay("send", "Ada", "the last", "--wait=60")
        assert solid(bodies_from("Ada")) == solid(expected)


def test_what_it_is_sent_arrives_once(tmp_path: Path) -> None:
    body = "\n".join(f"MARK-LONG {n} '\"`$(x) \\ {'y' * 80}" for n in range(105))
    with other(tmp_path) as ada:
        relay("send", "Ada", "MARK-IDLE words", "--wait=60")
        wait_seen(ada, "MARK-IDLE")
        relay("send", "Ada", body, "--wait=60")
        wait_seen(ada, "MARK-LONG 104")
        assert marked(body) in ada.submitted()[-1]

        ada.terminal.type(DRAFT)
        ada.terminal.wait_for(DRAFT)
        relay("send", "Ada", "MARK-DRAFT words")
        wait_until(lambda: "draft" in outcome("MARK-DRAFT")[1], 30)
        assert outcome("MARK-DRAFT")[0] == "queued"
        ada.terminal.wait_for(DRAFT)
        ada.terminal.type("\x15")
        wait_seen(ada, "MARK-DRAFT")

        ada.enter("wait go")
        relay("send", "Ada", "MARK-BUSY words")
        wait_until(lambda: outcome("MARK-BUSY")[1], 30)
        (ada.folder / "go").touch()
        wait_seen(ada, "MARK-BUSY")
        assert not any(DRAFT in text for text in ada.submitted())


def test_a_dialog_is_not_answered(tmp_path: Path) -> None:
    with other(tmp_path) as ada:
        ada.enter("ask")
        ada.terminal.wait_for("Do you want to proceed?")
        relay("send", "Ada", "MARK-ASKED words")
        wait_held_up("MARK-ASKED", "a dialog waits for the person")
        ada.terminal.wait_for("Do you want to proceed?")
        ada.terminal.type("\x1b")
        wait_seen(ada, "MARK-ASKED")
        assert ada.submitted()[0] == "ask" and len(ada.submitted()) == 2
