"""What a tool call did to a file: which lines, and what sort of change it was. Pure.

A file of its own because the trace, the intent map and the gate all use what it tells.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from relay.features.governance.syntax import same_program

#: The hash of a file that is not there.
ABSENT = ""
#: Bytes of a file whose lines are told; of a larger one only the hashes are.
LINES_MAX = 2 * 1024 * 1024
#: Lines before times lines after, of what differs: beyond it all that lies between the first and
#: the last difference is one range, because telling them apart would take seconds.
_PAIRS_MAX = 4_000_000
#: Bytes of a file whose syntax tree is looked at.
_SYNTAX_MAX = 256 * 1024
_CONFIG_ENDINGS = frozenset(
    (".cfg", ".conf", ".config", ".env", ".gradle", ".hcl", ".ini", ".json", ".json5", ".jsonc")
    + (".lock", ".plist", ".properties", ".tf", ".toml", ".xml", ".yaml", ".yml")
)
_CONFIG_NAMES = frozenset(
    ("brewfile", "build.bazel", "cmakelists.txt", "codeowners", "dockerfile", "gemfile", "go.mod")
    + ("go.sum", "jenkinsfile", "justfile", "makefile", "manifest.in", "pipfile", "procfile")
    + ("rakefile", "setup.py", "vagrantfile", "workspace")
)


class MutationClass(StrEnum):
    """What sort of change it was."""

    CONFIG_CHANGE = "CONFIG_CHANGE"  # how the project is built or set up
    AST_REFACTOR = "AST_REFACTOR"  # another form of the same program
    INTENT_EVOLUTION = "INTENT_EVOLUTION"  # it does something else now
    SAFE_READ = "SAFE_READ"  # nothing is different


@dataclass(frozen=True, slots=True)
class LineRange:
    """Lines of a file, from 1, both included, with the hash of what stands there."""

    start_line: int
    end_line: int
    content_hash: str


@dataclass(frozen=True, slots=True)
class FileMutation:
    """What became of one file. ``path`` is relative to the project's root."""

    path: str
    before: str
    after: str
    mutation_class: MutationClass
    #: The lines that are new, as the file is now; and those that they replaced, as it was.
    ranges: tuple[LineRange, ...] = ()
    replaced: tuple[LineRange, ...] = ()
    moved_from: str = ""


def content_hash(data: bytes) -> str:
    """The hash of a file's or a range's bytes, as the trace has it."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def compare(
    path: str, before: bytes | None, after: bytes | None, *, moved_from: str = ""
) -> FileMutation:
    """What a call did to the file ``path``; None: there is none."""
    ranges, replaced = _line_ranges(before or b"", after or b"")
    was, now = (ABSENT if data is None else content_hash(data) for data in (before, after))
    mutation = _classify(path, before, after)
    return FileMutation(path, was, now, mutation, ranges, replaced, moved_from)


def opaque(path: str, before: str, after: str, *, moved_from: str = "") -> FileMutation:
    """The same where only the hashes are known: the file is too large."""
    mutation = MutationClass.INTENT_EVOLUTION
    if before == after:
        mutation = MutationClass.SAFE_READ
    elif _is_config(path):
        mutation = MutationClass.CONFIG_CHANGE
    return FileMutation(path, before, after, mutation, moved_from=moved_from)


def overall(classes: Iterable[MutationClass]) -> MutationClass:
    """The class of a call that changed several files: the gravest of theirs."""
    order = ("INTENT_EVOLUTION", "CONFIG_CHANGE", "AST_REFACTOR", "SAFE_READ")
    return min(classes, key=order.index, default=MutationClass.SAFE_READ)


def _classify(path: str, before: bytes | None, after: bytes | None) -> MutationClass:
    if before == after:
        return MutationClass.SAFE_READ
    if _is_config(path):
        return MutationClass.CONFIG_CHANGE
    if before is None or after is None or max(len(before), len(after)) > _SYNTAX_MAX:
        return MutationClass.INTENT_EVOLUTION
    same = same_program(path, before, after)
    if same is None:
        same = _shown(before) == _shown(after)
    return MutationClass.AST_REFACTOR if same else MutationClass.INTENT_EVOLUTION


def _shown(data: bytes) -> list[bytes]:
    """The lines that show something, without what no one sees at their ends."""
    return [line.rstrip() for line in data.split(b"\n") if line.strip()]


def _is_config(path: str) -> bool:
    *folders, name = path.lower().split("/")
    return (
        name.startswith((".", "dockerfile.", "requirements"))
        or name in _CONFIG_NAMES
        or "." + name.rpartition(".")[2] in _CONFIG_ENDINGS
        or ".github" in folders
    )


def _line_ranges(old: bytes, new: bytes) -> tuple[tuple[LineRange, ...], tuple[LineRange, ...]]:
    """The lines that are new, and those that are gone."""
    if old == new or max(len(old), len(new)) > LINES_MAX or b"\0" in old or b"\0" in new:
        return (), ()
    was, now = old.splitlines(keepends=True), new.splitlines(keepends=True)
    start = 0
    while start < min(len(was), len(now)) and was[start] == now[start]:
        start += 1
    end = 0
    while end < min(len(was), len(now)) - start and was[-1 - end] == now[-1 - end]:
        end += 1
    was_middle, now_middle = was[start : len(was) - end], now[start : len(now) - end]
    if len(was_middle) * len(now_middle) > _PAIRS_MAX:
        hunks = [(0, len(was_middle), 0, len(now_middle))]
    else:
        matcher = difflib.SequenceMatcher(None, was_middle, now_middle)
        hunks = [found[1:] for found in matcher.get_opcodes() if found[0] != "equal"]
    ranges = [
        _range(now, start + first, start + last) for _, _, first, last in hunks if last > first
    ]
    replaced = [
        _range(was, start + first, start + last) for first, last, *_ in hunks if last > first
    ]
    return tuple(ranges), tuple(replaced)


def _range(lines: list[bytes], first: int, last: int) -> LineRange:
    return LineRange(first + 1, last, content_hash(b"".join(lines[first:last])))
