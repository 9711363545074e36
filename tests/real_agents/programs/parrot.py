"""What says exactly what ``relay agent check`` asks for, and small line chats that do so.

``python parrot.py`` is a chat that reads a line and answers; with ``--readline`` by Python's line
editor, so that the terminal is raw while it waits. ``--deaf`` takes lines and answers nothing.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass

_ASKED = re.compile(r"from (?:agent|user) ([^\s:,]+).*\bBEGIN (.*) END", re.DOTALL)
_ADDED = re.compile(r"^\|(?: |…|$)", re.MULTILINE)


@dataclass(frozen=True)
class Answer:
    """What to say, and the command to run before, "" for none; ``slow`` where it takes a while."""

    text: str
    command: str = ""
    slow: bool = False


def answer_to(said: str) -> Answer | None:
    """What a message of the check asks for; None when ``said`` holds none."""
    start = said.rfind("Relay message [")
    found = _ASKED.search(said, max(start, 0))
    if found is None:
        return None
    sender, text = found[1], _ADDED.sub("", found[2])
    text = text.replace("[AT]", "@").replace("[NL]", "\n").replace("[SENDER]", sender)
    run = re.match(r"\[RUN ([^\]]*)\]\n?", text)
    count = re.search(r"\[COUNT (\d+)\]", text)
    if count:
        text = text.replace(count[0], "\n".join(str(n + 1) for n in range(int(count[1]))))
    return Answer(text[run.end() :] if run else text, run[1] if run else "", bool(count))


def chat(prompt: str, *, deaf: bool = False) -> None:
    """Read lines and answer them, with a question before a command is run."""
    import time

    while True:
        try:
            line = input(prompt)
        except EOFError:
            return
        answer = None if deaf else answer_to(line)
        if answer is None:
            continue
        if answer.command:
            print("I would run:", answer.command)
            if input("Do you want to proceed? [Y/n] ").lower() in ("", "y", "yes"):
                subprocess.run(answer.command, shell=True, check=False)
            continue
        print()
        for row in answer.text.split("\n"):
            print(row, flush=True)
            if answer.slow:
                time.sleep(0.05)
        print(flush=True)


if __name__ == "__main__":
    if "--readline" in sys.argv:
        import readline  # noqa: F401 - it is what input() uses then
    chat("> ", deaf="--deaf" in sys.argv)
