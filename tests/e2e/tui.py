"""A small full-screen program for tests: an input line that takes pastes, and a log above it.

``python tui.py FILE [lose-enters=N] [dialog] [no-paste]``: what is submitted is appended to FILE as
JSON. ``lose-enters=N`` ignores the first N Enters after each paste, as agents do while busy.
``dialog`` begins with a permission dialog: Enter there is written to FILE as "approved", Escape
closes it. ``no-paste`` never turns bracketed paste on.
"""

from __future__ import annotations

import codecs
import json
import os
import sys
import termios
import tty


class Program:
    def __init__(self, path: str, options: list[str]) -> None:
        self.out = open(path, "a", buffering=1)  # noqa: SIM115 - for the whole run
        lost = [o.partition("=")[2] for o in options if o.startswith("lose-enters=")]
        self.lose = int(lost[0]) if lost else 0
        self.left_to_lose = 0
        self.dialog = "dialog" in options
        self.no_paste = "no-paste" in options
        self.line = ""
        self.log: list[str] = []
        self.paste: str | None = None

    def draw(self) -> None:
        rows = [f"> {text}" for text in self.log[-8:]]
        if self.dialog:
            rows += ["Do you want to proceed?", "❯ 1. Yes", "  2. No"]
        else:
            rows += ["-" * 40, f"❯ {self.line}"]
        text = "\x1b[H\x1b[2J" + "\r\n".join(rows).replace("\n", "\r\n")
        os.write(1, text.encode())

    def submit(self) -> None:
        if self.dialog:
            self.out.write(json.dumps("approved") + "\n")
            self.dialog = False
        elif self.left_to_lose:
            self.left_to_lose -= 1
        elif self.line:
            self.out.write(json.dumps(self.line) + "\n")
            self.log.append(self.line.splitlines()[0])
            self.line = ""

    def keys(self, data: str) -> None:
        while data:
            if self.paste is not None:
                text, end, data = data.partition("\x1b[201~")
                self.paste += text
                if end:
                    if not self.dialog:
                        self.line += self.paste
                        self.left_to_lose = self.lose
                    self.paste = None
            elif data.startswith("\x1b[200~"):
                self.paste, data = "", data[6:]
            else:
                key, data = data[0], data[1:]
                if key == "\r":
                    self.submit()
                elif key == "\x1b":
                    self.dialog = False
                elif key == "\x15":
                    self.line = ""
                elif key >= " ":
                    self.line += key

    def run(self) -> None:
        saved = termios.tcgetattr(0)
        tty.setraw(0)
        os.write(1, b"\x1b[?1049h" + (b"" if self.no_paste else b"\x1b[?2004h"))
        try:
            self.draw()
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            while data := os.read(0, 65536):
                if data == b"\x04":
                    return
                self.keys(decoder.decode(data))
                self.draw()
        finally:
            os.write(1, b"\x1b[?2004l\x1b[?1049l")
            termios.tcsetattr(0, termios.TCSADRAIN, saved)


if __name__ == "__main__":
    Program(sys.argv[1], sys.argv[2:]).run()
