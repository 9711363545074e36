"""Lessons that agents leave for each other in ``.orchestration/CLAUDE.md``: one line each.

The words are an agent's, and other agents read them: they stay on one line, fire no pattern, and
import no file.
"""

from __future__ import annotations

import os
import re
import time

from relay.core.errors import RelayError, UsageError
from relay.core.visible import visible
from relay.directive.redact import redact
from relay.features.governance.governed_paths import FOLDER
from relay.features.governance.intents import LESSONS_FILE
from relay.features.governance.orchestration_files import edit_text, read_text

#: Where another file of this name exists it is kept the same.
_OTHER_FILE = "AGENTS.md"
#: Bytes of the file, characters of a lesson, and lessons that are read.
_FILE_MAX = 256 * 1024
LESSON_MAX = 500
_READ_MAX = 50
_HEAD = """\
# Lessons

What was learnt in this project; agents read it when they begin to work on an intent. A line is
added for each `@intent:learn`. Change and remove lines as you like.

"""
_ITEM = re.compile(r"[-*] (?:(\d{4}-\d\d-\d\d) ([^\s:]{1,64}): )?(.+)")


def add_lesson(root: str, text: str, agent: str, at_ms: int) -> bool:
    """Add a lesson in the name of ``agent`` ("": the person); False if it was there already.

    Raises UsageError for one that is empty or too long, StorageError where it cannot be written.
    """
    said = redact(" ".join(visible(text.replace("\n", " ")).split()))
    if not _normalised(said):
        raise UsageError("the lesson is empty", hint="write it behind @intent:learn, on one line")
    if len(said) > LESSON_MAX:
        raise UsageError(
            f"the lesson has {len(said)} characters; it may have {LESSON_MAX}",
            hint="say it shorter, or as several lessons",
        )
    day = time.strftime("%Y-%m-%d", time.gmtime(at_ms / 1000))
    line = f"- {day} {agent or 'person'}: {_inert(said)}"
    added = [
        edit_text(root, name, lambda old: _with(old, line, said), _FILE_MAX)
        for name in _files(root)
    ]
    return any(added)


def read_lessons(root: str) -> tuple[str, ...]:
    """The newest lessons, the newest last; none where the file cannot be read."""
    try:
        name = _files(root)[0]
        found = _items(read_text(root, name, _FILE_MAX) or "")
    except RelayError:
        return ()
    return tuple(
        visible(f"{who}: {text}" if who else text)[:LESSON_MAX] for who, text in found[-_READ_MAX:]
    )


def _files(root: str) -> list[str]:
    """The files that hold the lessons; of two that are one, the one that is no link."""
    folder = os.path.join(root, FOLDER)
    there = [name for name in (LESSONS_FILE, _OTHER_FILE) if os.path.lexists(f"{folder}/{name}")]
    real = [name for name in there if not _leads_to_other(f"{folder}/{name}")]
    return real if LESSONS_FILE in there else [LESSONS_FILE, *real]


def _leads_to_other(path: str) -> bool:
    try:
        return os.readlink(path) in (LESSONS_FILE, _OTHER_FILE)
    except OSError:
        return False


def _with(text: str, line: str, said: str) -> str:
    wanted = _normalised(_inert(said))
    if any(_normalised(one) == wanted for _, one in _items(text)):
        return text
    text = text or _HEAD
    return f"{text}{'' if text.endswith(chr(10)) else chr(10)}{line}\n"


def _items(text: str) -> list[tuple[str, str]]:
    """(who, text) of each line that is an item of a list."""
    found = map(_ITEM.fullmatch, text.splitlines())
    return [(one[2] or "", one[3]) for one in found if one]


def _normalised(text: str) -> str:
    """What must be the same in two lessons that say the same: letters and digits."""
    return " ".join(re.findall(r"\w+", text.casefold()))


def _inert(text: str) -> str:
    """``text`` as Markdown in which nothing is imported (``@file``) and nothing is hidden."""
    return re.sub(r"(?<![\w\\])@(?=\S)", r"\\@", text).replace("<!--", r"<\!--")
