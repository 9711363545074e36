"""What says exactly what ``relay agent check`` asks for, and small line chats that do so.

``python parrot.py`` is a chat in a cooked terminal, which takes lines that come together as one
text; with ``--readline`` it reads a line by Python's line editor, in a raw terminal.
"""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import time
from dataclasses import dataclass

_ASKED = re.compile(r"from (?:agent|user) ([^\s:,]+).*\bBEGIN (.*) END", re.DOTALL)
#: Seconds between two lines of an answer that takes a while, and within which lines come together.
LINE, TOGETHER = 0.05, 0.2
_JOINED = re.compile(r" [⏎|] ")
_ADDED = re.compile(r"^\|(?: |…|$)", re.MULTILINE)


@dataclass(frozen=True)
class Answer:
    """What to say, and the command to run before, "" for none; ``slow`` where it takes a while.

    ``pause`` is how many seconds to stop for behind the first ``at`` characters.
    """

    text: str
    command: str = ""
    slow: bool = False
    pause: int = 0
    at: int = 0


def answer_to(said: str) -> Answer | None:
    """What a message of the check asks for; None when ``said`` holds none."""
    start = said.rfind("Relay message [")
    found = _ASKED.search(said, max(start, 0))
    if found is None:
        return None
    sender, text = found[1], _ADDED.sub("", _JOINED.sub("\n", found[2]))
    text = text.replace("[AT]", "@").replace("[NL]", "\n").replace("[SENDER]", sender)
    text = text.replace(" ⏎ ", "\n")  # as a message of several lines is typed as one
    run = re.match(r"\[RUN ([^\]]*)\]\n?", text)
    count = re.search(r"\[COUNT (\d+)\]", text)
    if count:
        text = text.replace(count[0], "\n".join(str(n + 1) for n in range(int(count[1]))))
    if pause := re.search(r"\[PAUSE (\d+)\]", text):
        text = text.replace(pause[0], "")
        return Answer(text, pause=int(pause[1]), at=pause.start())
    return Answer(text[run.end() :] if run else text, run[1] if run else "", bool(count))


def chat(*, by_readline: bool) -> None:
    """Read texts and answer them, with a question before a command is run."""
    read = input if by_readline else _whole
    while True:
        try:
            answer = answer_to(read("> "))
        except EOFError:
            return
        if answer is None:
            continue
        if answer.command:
            print("I would run:", answer.command)
            if read("Do you want to proceed? [Y/n] ").strip().lower() in ("", "y", "yes"):
                subprocess.run(answer.command, shell=True, check=False)
            continue
        print()
        if answer.pause:
            print(answer.text[: answer.at], end="", flush=True)
            time.sleep(answer.pause)
        for row in answer.text[answer.at :].split("\n"):
            print(row, flush=True)
            time.sleep(LINE if answer.slow else 0)
        print(flush=True)


def _whole(prompt: str) -> str:
    """What is typed until nothing more comes: lines that come together are one text."""
    print(prompt, end="", flush=True)
    data = os.read(0, 65536)
    if not data:
        raise EOFError
    while select.select([0], [], [], TOGETHER)[0]:
        data += os.read(0, 65536)
    return data.decode()


if __name__ == "__main__":
    if "--readline" in sys.argv:
        import readline  # noqa: F401 - it is what input() uses then
    chat(by_readline="--readline" in sys.argv)
