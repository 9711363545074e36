"""What a call has changed that nobody could read beforehand: its files, before and after it.

Builds, scripts, and what a person has agreed to do not say which files they write. A ``Survey`` has
a signature of each file that such a call could change, so that two of them tell what is different.
Where the kernel held the call, those are the files of its places; of the rest of the project only
the modes can have changed.

Left out are ``.git``, ``.orchestration``, and where builds keep what they make. The work is
bounded: beyond FILES_MAX nothing is compared. Waits for the disk.
"""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from relay.core.paths import is_within
from relay.features.governance.call_plan import FileState, named, read_states
from relay.features.governance.confined_shell import BUILD_FOLDERS
from relay.features.governance.governed_paths import FOLDER
from relay.features.governance.mutation import UNKNOWN, FileMutation, compare, opaque

#: Files that are compared; of the rest of the project the modes of a fifth as many.
FILES_MAX = 100_000
#: So many files, with so many bytes together, are read before a call, so that the lines which it
#: changes are known. Of more files there are signatures alone.
_READ_FILES, _READ_BYTES = 500, 8 * 1024 * 1024
#: Said where nothing was compared.
TOO_MANY = "too many files to compare"
_LEFT_OUT = {".git", FOLDER, "__pycache__"}
#: At the top of a project they are left out, too; below it they may be sources.
_ONLY_AT_TOP = {"target", "venv"}
#: Seconds that git may take to say what it ignores.
_GIT_TIMEOUT = 5.0


@dataclass(frozen=True, slots=True)
class Survey:
    """The files of a project at one time."""

    root: str
    #: Real places that the kernel lets the call write; None where it does not hold the call.
    places: tuple[str, ...] | None
    #: Path -> signature, of all that the call can change.
    files: Mapping[str, int]
    #: The same of the rest, where that is not too much.
    rest: Mapping[str, int] = field(default_factory=dict)
    #: What stood in those of ``files`` that were read.
    states: Mapping[str, FileState] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Files that are kept."""
        return len(self.files) + len(self.rest)

    def again(self) -> Survey | None:
        """The same files as they are now, without their contents."""
        return survey(self.root, self.places, read=False, rest=bool(self.rest))


@dataclass(frozen=True, slots=True)
class Change:
    """A file that is different."""

    path: str
    #: What was there before; None where only its signature is known.
    before: FileState | None
    #: Whether its mode has changed.
    mode: bool = False
    #: Whether nothing but its mode can have.
    kept: bool = False


def survey(
    root: str, places: Iterable[str] | None, *, read: bool = True, rest: bool = True
) -> Survey | None:
    """Look at what a call can change: all of the project in ``root``, or what is in ``places`` and,
    with ``rest``, the modes of the rest. None for too many files. ``read``: also what stands in
    them, where they are few."""
    allowed = None if places is None else _outermost(places)
    files: dict[str, int] = {}
    size = 0
    for path, status in _files([root] if allowed is None else allowed, root, set()):
        if len(files) >= FILES_MAX:
            return None
        files[path] = _signature(status)
        size += status.st_size
    beside: dict[str, int] = {}
    held = allowed is not None and rest
    for path, status in _files([root], root, set(allowed or ())) if held else ():
        if len(beside) >= FILES_MAX // 5:
            beside = {}
            break
        beside[path] = _signature(status)
    small = read and len(files) <= _READ_FILES and size <= _READ_BYTES
    return Survey(root, allowed, files, beside, read_states(files) if small else {})


def differences(before: Survey, after: Survey) -> list[Change]:
    """What is different, in the order of the paths."""
    found = []
    for path in before.files.keys() | after.files.keys():
        was, now = before.files.get(path), after.files.get(path)
        if was != now:
            state = before.states.get(path) if was is not None else FileState("")
            mode = was is not None and now is not None and _mode(was) != _mode(now)
            found.append(Change(path, state, mode))
    for path, was in before.rest.items():
        now = after.rest.get(path)
        if now is not None and _mode(was) != _mode(now):
            found.append(Change(path, None, mode=True, kept=True))
    return sorted(found, key=lambda one: one.path)


def mutations(
    changes: Sequence[Change], root: str, known: Mapping[str, str]
) -> list[tuple[Change, FileMutation]]:
    """The changes as they are told; ``known``: the hash of a file as the run last read it, by its
    key. A file in which the same stands as before, with the same mode, is left out."""
    found = []
    now = read_states(one.path for one in changes)
    for change in changes:
        key, after = named(os.path.relpath(change.path, root)), now[change.path]
        if after.is_folder or after.odd:
            continue
        before = change.before or FileState(known.get(key, UNKNOWN))
        if before.is_absent and after.is_absent:
            continue
        if change.kept:
            before = after
        if before.hash == after.hash and not change.mode:
            continue
        whole = all(one.is_absent or one.data is not None for one in (before, after))
        told = (
            compare(key, before.data, after.data) if whole else opaque(key, before.hash, after.hash)
        )
        found.append((change, told))
    return found


def ignored_by_git(root: str, keys: Sequence[str]) -> set[str]:
    """Those of ``keys`` that git keeps out of the repository in ``root``; none where git does not
    say. It is asked so that nothing which the repository brings along runs."""
    if not keys or not os.path.lexists(os.path.join(root, ".git")):
        return set()
    words = ["git", "-c", "core.fsmonitor=false", "check-ignore", "-z", "--stdin"]
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            words,
            cwd=root,
            env=env | {"GIT_OPTIONAL_LOCKS": "0"},
            input=b"".join(os.fsencode(key) + b"\0" for key in keys),
            capture_output=True,
            timeout=_GIT_TIMEOUT,
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        return set()
    return {os.fsdecode(key) for key in done.stdout.split(b"\0") if key}


def _outermost(places: Iterable[str]) -> tuple[str, ...]:
    """The places without those that lie in others."""
    found: list[str] = []
    for place in sorted(set(places)):
        if not any(is_within(place, one) for one in found):
            found.append(place)
    return tuple(found)


def _files(places: Iterable[str], root: str, but: set[str]) -> Iterator[tuple[str, os.stat_result]]:
    """What is in ``places`` and is not a folder, without what is in ``but``."""
    waiting = []
    for place in places:
        try:
            status = os.lstat(place)
        except OSError:
            continue
        if stat.S_ISDIR(status.st_mode):
            waiting.append(place)
        else:
            yield place, status
    while waiting:
        folder = waiting.pop()
        left_out = _LEFT_OUT.union(BUILD_FOLDERS)
        if folder != root:
            left_out -= _ONLY_AT_TOP
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.path in but:
                        continue
                    if not entry.is_dir(follow_symlinks=False):
                        try:
                            yield entry.path, entry.stat(follow_symlinks=False)
                        except OSError:
                            continue  # gone meanwhile
                    elif entry.name not in left_out:
                        waiting.append(entry.path)
        except OSError:
            continue


def _signature(status: os.stat_result) -> int:
    """What is different once a file was written, replaced, or given another mode. The time of the
    last change to its entry can be set by no program."""
    told = hash((status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino))
    return told << 16 | status.st_mode


def _mode(signature: int) -> int:
    return signature & 0xFFFF
