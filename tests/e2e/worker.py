"""A small agent for tests: each prompt begins a turn that goes on until Escape, or "quick" ends it.

``python worker.py FILE``: what is submitted, and where each Escape went (``working``, ``idle``,
``dialog``, ``draft``), is appended to FILE as JSON. A prompt with "ask" in it opens a dialog in the
middle of its turn, which the key ``y`` closes.
"""

from __future__ import annotations

import codecs
import json
import os
import select
import sys
import termios
import time
import tty


class Worker:
    def __init__(self, path: str) -> None:
        self.out = open(path, "a", buffering=1)  # noqa: SIM115 - for the whole run
        self.line = ""
        self.paste: str | None = None
        self.log: list[str] = []
        self.working = self.dialog = False
        self.ticks = 0

    def draw(self) -> None:
        rows = self.log[-6:]
        if self.dialog:
            rows += ["Do you want to proceed? y to agree, Esc to cancel"]
        else:
            rows += ["─" * 40, f"> {self.line}"[:60], "─" * 40]
        if self.working and not self.dialog:
            rows += [f"  ({self.ticks}) esc to interrupt"]
        os.write(1, ("\x1b[H\x1b[2J" + "\r\n".join(rows)).encode())

    def note(self, value: object) -> None:
        self.out.write(json.dumps(value) + "\n")

    def submit(self) -> None:
        if self.line and not self.working:
            self.note({"got": self.line})
            self.log.append(f"* {self.line.splitlines()[0][:50]}")
            self.working, self.dialog = "quick" not in self.line, "ask" in self.line
            self.log.append("- I begin." if self.working else "- I did it.")
            self.line = ""

    def escape(self) -> None:
        where = "dialog" if self.dialog else "draft" if self.line else "idle"
        self.note({"esc": "working" if where == "idle" and self.working else where})
        self.working = self.dialog = False

    def keys(self, data: str) -> None:
        while data:
            if self.paste is not None:
                text, end, data = data.partition("\x1b[201~")
                self.paste += text
                if end:
                    self.line += self.paste
                    self.paste = None
            elif data.startswith("\x1b[200~"):
                self.paste, data = "", data[6:]
            else:
                key, data = data[0], data[1:]
                if key == "\r":
                    self.submit()
                elif key == "\x1b":
                    self.escape()
                elif key == "\x15":
                    self.line = ""
                elif key == "y" and self.dialog:
                    self.dialog = False
                elif key >= " ":
                    self.line += key

    def run(self) -> None:
        saved = termios.tcgetattr(0)
        tty.setraw(0)
        os.write(1, b"\x1b[?1049h\x1b[?2004h")
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        drawn = 0.0
        try:
            while True:
                ready, _, _ = select.select([0], [], [], 0.1)
                if ready:
                    data = os.read(0, 65536)
                    if not data or data == b"\x04":
                        return
                    self.keys(decoder.decode(data))
                elif not self.working and drawn:
                    continue
                self.ticks = int(time.monotonic() - drawn)
                self.draw()
                drawn = drawn or time.monotonic()
        finally:
            os.write(1, b"\x1b[?2004l\x1b[?1049l")
            termios.tcsetattr(0, termios.TCSADRAIN, saved)


if __name__ == "__main__":
    Worker(sys.argv[1]).run()
