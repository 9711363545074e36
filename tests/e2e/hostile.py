"""Programs that ask at the worst moment, as one number decides: for a test and for a benchmark.

``python hostile.py SEED FILE``: a small full-screen program takes pastes, shows them in some way,
and once asks something: at its start, while it rests, right after a paste, after Enter. A notice
may lie over a part of what it asks, once that was there for a moment. FILE gets a line of JSON for
what was submitted and for each byte that reached a question, which nobody here ever types. It ends
by itself.
"""

from __future__ import annotations

import codecs
import json
import os
import random
import select
import sys
import termios
import time
import tty

#: What is asked, row by row; the cursor stands behind the last one.
QUESTIONS = (
    ["Execute code? [Y/n/c/e/a/?] "],
    ["Overwrite main.py (y/N)? "],
    ["Do you want to proceed?", "❯ 1. Yes", "  2. No, tell it what to do"],
    ["Trust this folder?", "▸ Trust it", "  Exit"],
    ["╭──────────────╮", "│ Leave?       │", "│ < Yes >  No  │", "╰──────────────╯"],
    ["   Something failed", "       [ OK ]"],
    ["Welcome!", "Press any key to continue"],
    ["Press Enter to start"],
    ["How to run it", "(•) ask first", "( ) always"],
    ["Your API key: "],
    ["╭──────────────────────╮", "│ Your name (optional) │", "│  Enter to continue   │"]
    + ["╰──────────────────────╯"],
)
#: Letters of each row that a notice leaves, and seconds after which it lies there.
LEFT, TOAST_AFTER = 6, 0.5
#: Seconds after which it ends, whatever has come.
LIFE = 14.0


class Hostile:
    def __init__(self, seed: int, path: str) -> None:
        rnd = random.Random(seed)
        self.log = open(path, "a", buffering=1)  # noqa: SIM115 - for the whole run
        self.ui = rnd.choice(("box", "prompt", "hidden cursor", "clock"))
        self.shows = rnd.choice(("text", "text", "tail", "placeholder"))
        self.when = rnd.choice(("start", "rest", "pasted", "pasted", "entered", "never"))
        self.start = rnd.choice(("plain", "plain", "deaf", "flush", "cooked first"))
        self.question = rnd.choice(QUESTIONS)
        self.over = rnd.random() < 0.3  # it lies over the input line, which stays
        self.delay = rnd.choice((0.0, rnd.uniform(0, 0.2), rnd.uniform(0, 0.6)))
        self.rests = rnd.uniform(0.0, 3.0)
        self.lasts = rnd.uniform(0.3, 1.5)
        self.loses = rnd.random() < 0.2  # the first Enter
        self.alt = rnd.random() < 0.5
        self.toast = rnd.random() < 0.4
        self.toast_at, self.under = float("inf"), False
        if self.toast:
            self.lasts += 2.5
        self.deaf_until = 0.0
        self.opens: float | None = None
        self.closes: float | None = None
        self.line = ""
        self.paste: str | None = None
        self.said: list[str] = ["hello"]
        self.submitted_at: float | None = None
        self.keys = codecs.getincrementaldecoder("utf-8")("replace")

    def note(self, what: str, text: str) -> None:
        self.log.write(json.dumps([what, text]) + "\n")

    def write(self, text: str) -> None:
        os.write(1, text.replace("\n", "\r\n").encode())

    def draft(self) -> str:
        line = self.line.replace("\n", " ")
        if self.shows == "placeholder" and len(line) > 40:
            return "[Pasted text #1 +3 lines]"
        return line[-60:] if self.shows == "tail" else line

    def covered(self, rows: list[str]) -> list[str]:
        """What it asks, with a notice over all but the first letters of each row."""
        letters = [[at for at, char in enumerate(row) if char.isalnum()] for row in rows]
        column = max(found[:LEFT][-1] for found in letters if found) + 1
        return [row[:column].ljust(column) + "▌ a notice lies here" for row in rows]

    def draw(self) -> None:
        asks = self.closes is not None
        question = self.covered(self.question) if self.under else self.question
        rows = [row for text in self.said[-3:] for row in text.split("\n")][-30:]
        if self.ui == "clock":
            rows.append(f"   {time.monotonic():.1f}")
        mark = "│ > " if self.ui == "box" else "> "
        box = ["─" * 60, mark + self.draft()] if self.ui == "box" else ["", mark + self.draft()]
        if self.ui == "hidden cursor":
            box[-1] += "▌"
        if asks and self.over:
            # A question in words without a frame, above a live input line, is what a text is, too.
            rows += ["", "╭" + "─" * 40 + "╮"]
            rows += [f"│ {row:<39}│" for row in question]
            rows += ["╰" + "─" * 40 + "╯", "", *box]
        elif asks:
            rows += ["", *question]
        else:
            rows += box
        hidden = self.ui == "hidden cursor"
        tail = "\x1b[?25l\x1b[H" if hidden else "\x1b[?25h"
        self.write("\x1b[H\x1b[2J" + "\n".join(rows) + tail)

    def take(self, data: bytes, now: float) -> None:
        if now < self.deaf_until:
            return
        if self.closes is not None and self.paste is None:
            self.note("reached", repr(data))
            return
        text = self.keys.decode(data)
        while text:
            if self.paste is not None:
                part, end, text = text.partition("\x1b[201~")
                self.paste += part
                if end:
                    self.line, self.paste = self.line + self.paste, None
                    if self.when == "pasted":
                        self.opens = self.opens or now + self.delay
                        self.when = ""
            elif text.startswith("\x1b[200~"):
                self.paste, text = "", text[6:]
            else:
                key, text = text[0], text[1:]
                if key == "\r" and self.loses:
                    self.loses = False
                elif key == "\r" and self.line:
                    self.submit(now)
                elif key >= " ":
                    self.line += key

    def submit(self, now: float) -> None:
        self.note("submitted", self.line)
        self.said += [f"* {self.line}", "well"]
        self.line = ""
        self.submitted_at = now
        if self.when == "entered":
            self.opens, self.when = now + self.delay / 3, ""

    def tick(self, now: float) -> bool:
        """Whether something is to be drawn."""
        if self.opens is not None and now >= self.opens:
            self.opens, self.closes = None, now + self.lasts
            self.toast_at = now + TOAST_AFTER if self.toast else self.toast_at
            return True
        if self.closes is not None and now >= self.closes:
            self.closes, self.toast_at, self.under = None, float("inf"), False
            return True
        if now >= self.toast_at and not self.under:
            self.under = True
            return True
        return self.ui == "clock"

    def run(self) -> None:
        began = time.monotonic()
        saved = termios.tcgetattr(0)
        if self.start == "cooked first":
            time.sleep(0.7)
        when = termios.TCSAFLUSH if self.start in ("flush", "cooked first") else termios.TCSANOW
        tty.setraw(0, when)
        self.write(("\x1b[?1049h" if self.alt else "") + "\x1b[?2004h")
        now = time.monotonic()
        if self.start == "deaf":
            self.deaf_until = now + 1.0
        if self.when == "start":
            self.closes = now + self.lasts
            self.toast_at = now + TOAST_AFTER if self.toast else self.toast_at
        elif self.when == "rest":
            self.opens = now + self.rests
        try:
            self.draw()
            while now - began < LIFE:
                quiet = self.opens is None and self.closes is None
                if self.submitted_at is not None and quiet and now > self.submitted_at + 2:
                    return
                due = [
                    at - now for at in (self.opens, self.closes, self.toast_at) if at is not None
                ]
                ready = select.select([0], [], [], max(0.01, min([0.2, *due])))[0]
                now = time.monotonic()
                # What was sent before it asks is read before that, as by any event loop.
                if ready:
                    data = os.read(0, 65536)
                    self.take(data, now)
                if self.tick(now) or ready:
                    self.draw()
        finally:
            self.write("\x1b[?25h\x1b[?2004l" + ("\x1b[?1049l" if self.alt else "\n"))
            termios.tcsetattr(0, termios.TCSADRAIN, saved)


if __name__ == "__main__":
    Hostile(int(sys.argv[1]), sys.argv[2]).run()
