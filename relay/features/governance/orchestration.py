"""What stands in ``.orchestration`` beside the trace: intents, the map, and the lessons.

These texts are shared with people: they are read with bounds and replaced as a whole. The folder
may come from somebody else's repository: no link is followed, and nothing but a file is read.

- ``active_intents.yaml`` is read at each use and parsed when it has changed, so that what a person
  saves holds from the next tool call on. relay changes nothing in it but a status, and adds what
  the person allows an intent always.
- ``intent_map.md`` tells people which intent changed which file last; the trace is what counts.
- ``CLAUDE.md`` has a line for each lesson that an agent leaves for the others. The words are an
  agent's, and other agents read them: they stay on one line, fire no pattern, and import no file.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from relay.core import files
from relay.core.errors import RelayError, StorageError, UsageError
from relay.core.visible import visible
from relay.core.yaml_tree import Mistake
from relay.features.governance.governed_paths import FOLDER
from relay.features.governance.intents import (
    FILE_MAX,
    INTENTS_FILE,
    LESSONS_FILE,
    MAP_FILE,
    Intent,
    IntentDocument,
    IntentsError,
    Status,
    check_id,
    parse,
    with_always,
    with_status,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from relay.features.governance.mutation import FileMutation, LineRange

#: How long a change waits for another one. Seconds.
_LOCK_WAIT, _LOCK_POLL = 5.0, 0.01
_SAID = {
    errno.ELOOP: "it is a link",
    errno.ENOENT: f"the folder {FOLDER} is not there",
    errno.ENOTDIR: f"{FOLDER} is not a folder",
}


def read_text(root: str, name: str, limit: int) -> str | None:
    """What is in a file of the folder; None where there is none. Raises StorageError."""
    path = os.path.join(root, FOLDER, name)
    with _errors(path):
        folder = _open_folder(root)
        try:
            return _read(folder, name, limit)[0]
        finally:
            os.close(folder)


def edit_text(
    root: str, name: str, change: Callable[[str], str], limit: int, *, durable: bool = True
) -> bool:
    """Replace a file of the folder by what ``change`` makes of its text, "" where there is none.

    Returns whether it is another text now. Raises StorageError, also where it would become longer
    than ``limit`` bytes or somebody saves it at that moment, and what ``change`` raises.
    """
    path = os.path.join(root, FOLDER, name)
    with _errors(path):
        folder = _open_folder(root)
        try:
            _wait_for_lock(folder)
            text, mode = _read(folder, name, limit)
            changed = change(text or "")
            if changed == text:
                return False
            if len(changed.encode("utf-8", "surrogateescape")) > limit:
                raise StorageError(
                    f"{path} is full: it may have {limit} bytes",
                    hint="shorten it, or move it away and relay begins another",
                )
            if _read(folder, name, limit)[0] != text:
                raise StorageError(
                    f"{path} has been saved by somebody else just now, so it is not changed",
                    hint="try again",
                )
            files.write_atomically(path, changed, mode=mode, durable=durable)
            return True
        finally:
            os.close(folder)


@contextmanager
def _errors(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        said = _SAID.get(error.errno or 0) or error.strerror or str(error)
        raise StorageError(
            f"{path} cannot be used: {said}", hint="see what lies there", details={"why": said}
        ) from error


def _open_folder(root: str) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(os.path.join(root, FOLDER), flags)


def _read(folder: int, name: str, limit: int) -> tuple[str | None, int]:
    """The text and the mode of a file; None where there is none."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(name, flags, dir_fd=folder)
    except FileNotFoundError:
        return None, 0o644
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(0, "it is not a file")
        with open(fd, "rb", closefd=False) as file:
            data = file.read(limit + 1)
        if len(data) > limit:
            raise OSError(0, f"it has more than {limit} bytes; move it away")
        return data.decode("utf-8", "surrogateescape"), stat.S_IMODE(status.st_mode)
    finally:
        os.close(fd)


def _wait_for_lock(folder: int) -> None:
    # The folder itself is locked, so that nothing of relay's lies in the project for it.
    end = time.monotonic() + _LOCK_WAIT
    while not files.lock_open_file(folder):
        if time.monotonic() >= end:
            raise OSError(0, "somebody else changes it for long")
        time.sleep(_LOCK_POLL)


_MAKE = "relay init --governed writes one to begin with"
#: A byte that is not UTF-8, as it was read.
_ODD = re.compile("[\udc80-\udcff]")


class IntentsFile:
    """The intents of the project in ``root``. Safe to use from several threads."""

    def __init__(self, root: str) -> None:
        self.path = os.path.join(root, FOLDER, INTENTS_FILE)
        self._root = root
        self._lock = threading.Lock()
        self._text: str | None = None
        self._made: IntentDocument | IntentsError = IntentDocument()

    def read(self) -> IntentDocument:
        """What is in the file now. Raises IntentsError, also where there is no such file."""
        try:
            text = read_text(self._root, INTENTS_FILE, FILE_MAX)
        except StorageError as error:
            why = error.details.get("why", error.message)
            raise IntentsError([Mistake(0, str(why))], _MAKE) from None
        if text is None:
            raise IntentsError([Mistake(0, "the file is not there")], _MAKE)
        return self._document(text)

    def set_status(
        self, id: str, status: Status, only_from: tuple[Status, ...] = tuple(Status)
    ) -> Intent:
        """Write another status of an intent into the file, and return it as it is then.

        Raises IntentsError, NotFound (it says which ids are valid), and RelayError where the intent
        has none of the statuses ``only_from``, or the file cannot be written.
        """

        def change(text: str) -> str:
            intent = check_id(self._document(text), id)
            if intent.status == status:
                return text
            if intent.status not in only_from:
                raise RelayError(
                    f"intent {id} is {intent.status}, so it does not become {status}",
                    hint="a person changes it with: relay intent status ID STATUS",
                    code="intent_status",
                )
            return with_status(text, id, status)

        self.read()  # says it in the words for a file of intents, where it cannot be read
        edit_text(self._root, INTENTS_FILE, change, FILE_MAX)
        return check_id(self.read(), id)

    def allow_always(self, id: str, call: str) -> None:
        """Add a call to those that the person has allowed an intent always.

        Raises IntentsError, NotFound, and RelayError where the file cannot be written.
        """

        def change(text: str) -> str:
            self._document(text)
            return with_always(text, id, call)

        edit_text(self._root, INTENTS_FILE, change, FILE_MAX)

    def _document(self, text: str) -> IntentDocument:
        with self._lock:
            if text != self._text:
                try:
                    self._made = parse(_checked(text))
                except IntentsError as error:
                    self._made = error
                self._text = text
            made = self._made
        if isinstance(made, IntentsError):
            raise IntentsError(made.mistakes, made.hint)  # a new one: the old has a traceback
        return made


def _checked(text: str) -> str:
    if odd := _ODD.search(text):
        line = text.count("\n", 0, odd.start()) + 1
        raise IntentsError([Mistake(line, "this is not UTF-8")])
    return text


#: Bytes of the file, and rows: those that were changed longest ago make room.
_MAP_MAX = 1024 * 1024
_ROWS_MAX = 1000
_NAME_MAX = 200
#: Ranges of a file that are shown.
_RANGES_SHOWN = 8
_MAP_HEAD = f"""\
# Intent map

Which intent changed which file last. relay keeps this file up to date, with
{_ROWS_MAX} rows at most; `relay intent log` tells all.
"""
_TABLE = (
    "| File | Content hash | Lines | Mutation | Git SHA | Last updated |",
    "|---|---|---|---|---|---|",
)


def update_map(
    root: str,
    intent_id: str,
    name: str,
    files: Sequence[FileMutation],
    now_ms: int,
    revision: str,
) -> None:
    """Note what a call changed for an intent: a row for each file, the newest in place of the last.
    Raises StorageError, also where the map is full."""
    from relay.features.governance.mutation import FileMutation, MutationClass  # ast, and more

    rows: dict[str, str] = {}
    for file in files:
        if file.mutation_class is MutationClass.SAFE_READ:
            continue
        if file.moved_from:
            moved = FileMutation(file.moved_from, file.before, "", file.mutation_class)
            rows[_cell(file.moved_from)] = _row(moved, now_ms, revision)
        rows[_cell(file.path)] = _row(file, now_ms, revision)
    if rows:
        shown = visible(name)[:_NAME_MAX].replace("<", "&lt;")
        heading = f"## {visible(intent_id)}: {shown}"
        # What it says can be read in the trace too, so no disk is waited for.
        edit_text(root, MAP_FILE, lambda text: upsert(text, heading, rows), _MAP_MAX, durable=False)


def upsert(text: str, heading: str, rows: dict[str, str]) -> str:
    """``text`` with these rows, by their first cells, below ``heading``; all else is as it was."""
    lines = (text or _MAP_HEAD).splitlines()
    mark = heading.split(": ", 1)[0]
    start = next((i for i, line in enumerate(lines) if _is_heading(line, mark)), len(lines))
    if start == len(lines):
        lines += ["", heading, "", *_TABLE]
        start += 1
    lines[start] = heading
    end = start + 1
    while end < len(lines) and not lines[end].startswith("## "):
        end += 1
    left, last = dict(rows), 0
    for number in range(start, end):
        if lines[number].startswith("|"):
            last = number
            if (cell := lines[number].partition(" | ")[0].removeprefix("| ")) in left:
                lines[number] = left.pop(cell)
    if not last:  # the table is gone
        lines[start + 1 : start + 1] = ["", *_TABLE]
        last = start + 3
    lines[last + 1 : last + 1] = left.values()
    dated = [(line[-23:], i) for i, line in enumerate(lines) if line.startswith("| `")]
    old = {number for _, number in sorted(dated)[: max(0, len(dated) - _ROWS_MAX)]}
    return "\n".join(line for number, line in enumerate(lines) if number not in old) + "\n"


def _is_heading(line: str, mark: str) -> bool:
    return line == mark or line.startswith(f"{mark}: ")


def _row(file: FileMutation, now_ms: int, revision: str) -> str:
    hash_ = file.after.removeprefix("sha256:")[:12] or "(gone)"
    cells = (hash_, _lines(file.ranges), file.mutation_class.value, revision[:10] or "-")
    from relay.features.governance.trace_records import timestamp  # hashlib, and more

    return f"| {_cell(file.path)} | {' | '.join(cells)} | {timestamp(now_ms)[:19]}Z |"


def _cell(path: str) -> str:
    """A path as Markdown that shows it and is nothing else."""
    text = visible(path).replace("`", "'").replace("|", "¦")
    return f"`{text}`"


def _lines(ranges: tuple[LineRange, ...]) -> str:
    shown = [
        str(one.start_line)
        if one.start_line == one.end_line
        else f"{one.start_line}-{one.end_line}"
        for one in ranges[:_RANGES_SHOWN]
    ]
    return ", ".join([*shown, "…"] if len(ranges) > _RANGES_SHOWN else shown) or "-"


#: Where another file of this name exists it is kept the same.
_OTHER_FILE = "AGENTS.md"
#: Bytes of the file, characters of a lesson, and lessons that are read.
_LESSONS_MAX = 256 * 1024
LESSON_MAX = 500
_READ_MAX = 50
_LESSONS_HEAD = """\
# Lessons

What was learnt in this project; agents read it when they begin to work on an intent. A line is
added for each `@intent:learn`. Change and remove lines as you like.

"""
_ITEM = re.compile(r"[-*] (?:(\d{4}-\d\d-\d\d) ([^\s:]{1,64}): )?(.+)")


def add_lesson(root: str, text: str, agent: str, at_ms: int) -> bool:
    """Add a lesson in the name of ``agent`` ("": the person); False if it was there already.

    Raises UsageError for one that is empty or too long, StorageError where it cannot be written.
    """
    from relay.directive.redact import redact  # many patterns

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
        edit_text(root, name, lambda old: _with(old, line, said), _LESSONS_MAX)
        for name in _files(root)
    ]
    return any(added)


def read_lessons(root: str) -> tuple[str, ...]:
    """The newest lessons, the newest last; none where the file cannot be read."""
    try:
        name = _files(root)[0]
        found = _items(read_text(root, name, _LESSONS_MAX) or "")
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
    text = text or _LESSONS_HEAD
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
