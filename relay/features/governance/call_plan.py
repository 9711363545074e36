"""What one call would change, as real files of the project: from what its tool and words say.

And what such a file is now: its hash, and its content where that is small.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from relay.agents.hook_codec import AgentHookCall, text_of
from relay.agents.tool_uses import ToolUse, UseKind, is_relays, tool_use
from relay.core.paths import is_within
from relay.features.governance.commands import CommandKind, CommandUse, classify
from relay.features.governance.confined_shell import ConfinedShell
from relay.features.governance.governance_store import UNREAD
from relay.features.governance.governed_paths import protected, real_places
from relay.features.governance.intents import GovernanceSettings
from relay.features.governance.mutation import ABSENT, LINES_MAX, content_hash

#: Paths of one call that are looked at; a call with more is one of which nobody can tell.
PATHS_MAX = 2000
#: What is outside of every project, and no file.
_NO_FILES = ("/dev/null", "/dev/stdout", "/dev/stderr")
#: What leaves a command behind in the background: fields of a call, and a lone & in its line.
_BACKGROUND_FIELDS = ("run_in_background", "is_background", "background")
_BACKGROUND = re.compile(r"(?<![&>|\\])&(?![&>])")


@dataclass(frozen=True, slots=True)
class GovernedRun:
    """Whose calls these are."""

    run: str
    agent: str
    #: The governed folder, absolute and without links.
    root: str
    #: Where the agent was started.
    cwd: str
    #: A process that lives as long as the agent does: leases of a dead one are free.
    pid: int
    kind: str = ""
    model: str = ""
    #: Real folders outside of the root in which it may write; the first is named in refusals.
    scratch: tuple[str, ...] = ()
    #: Real folders in which it never may, such as RELAY_HOME.
    kept_out: tuple[str, ...] = ()
    #: It was given relay's own MCP server.
    mcp: bool = False
    #: Its shell calls run by this one, which the kernel holds.
    shell: ConfinedShell | None = None

    def is_free(self, path: str) -> bool:
        """Whether it may write there whatever its intent is: nothing of the project's."""
        if path in _NO_FILES:
            return True
        return any(
            is_within(path, one) and not protected(os.path.relpath(path, one))
            for one in self.scratch
        )


@dataclass(frozen=True, slots=True)
class GateCall:
    """One call of a tool."""

    tool: str
    use: ToolUse
    #: The same before and after it; "" where the agent gives none.
    id: str = ""
    #: What relative paths are relative to; "": where the agent was started.
    cwd: str = ""
    #: All that a person has to see of a call whose paths do not tell what it does.
    shown: str = field(default="", compare=False)
    #: The model that calls, as the agent names it; "" where nothing says.
    model: str = field(default="", compare=False)
    #: It goes on in the background after the agent has told of its end.
    lasts: bool = False


def gate_call(kind: str, call: AgentHookCall, model: str = "", *, mcp: bool = False) -> GateCall:
    """The call of a tool that an agent of this kind tells of by its own hook.

    ``model`` is the one that spoke last, where the hook does not name it; ``mcp``: the agent was
    given relay's own server.
    """
    tool = text_of(call.fields, "tool_name")
    given = call.fields.get("tool_input")
    ours = mcp and is_relays(kind, tool)
    use = ToolUse(UseKind.OTHER) if ours else tool_use(kind, tool, given)
    shown = json.dumps(given, ensure_ascii=False, default=str) if use.blind else ""
    id_, cwd = text_of(call.fields, "tool_use_id"), text_of(call.native, "cwd")
    lasts = bool(_BACKGROUND.search(use.command)) or tool.casefold() == "monitor"
    if isinstance(given, Mapping):
        lasts = lasts or any(given.get(name) for name in _BACKGROUND_FIELDS)
    model = text_of(call.native, "model") or model
    return GateCall(tool, use, id_, cwd, shown, model, lasts)


@dataclass(frozen=True, slots=True)
class Target:
    """One place that a call would change."""

    #: Absolute, without links but for the last name.
    path: str
    #: Relative to the project, and the same for each spelling of a file; None outside of it.
    key: str | None
    #: It would be gone afterwards.
    gone: bool = False
    #: Absolute: where what comes here was before; "" where it is not moved.
    moved_from: str = ""
    #: What is gone here is somewhere else then.
    moved: bool = False
    #: Its content is changed before it is moved.
    changed: bool = False
    #: Nobody named it: it lies in a folder that somebody did.
    below: bool = False

    def why_stale(self, state: FileState, read: str | None) -> str:
        """Why a file must not be changed as it is now; "" where it may. ``read``: its baseline."""
        if state.odd:
            return f"cannot be compared: {state.odd}"
        if state.is_absent:
            return "was removed since you last read it" if read and not self.gone else ""
        if read is None or read.startswith(UNREAD):
            known = self.moved and not self.changed
            return "" if known else "exists, and you have not read it"
        return "" if read == state.hash else "was modified since you last read it"


@dataclass(frozen=True, slots=True)
class CallPlan:
    """One call, as far as it can be told beforehand."""

    kind: CommandKind
    #: Files of the project that it reads, by their keys.
    reads: tuple[Target, ...] = ()
    targets: tuple[Target, ...] = ()
    #: Why nobody can tell, or a person has to agree.
    why: str = ""
    #: There is more than can be looked at: a person decides.
    vast: bool = False

    def without(self, other: CallPlan) -> CallPlan:
        """What it would change and ``other`` would not."""
        known = {one.path for one in other.targets}
        return replace(self, targets=tuple(one for one in self.targets if one.path not in known))


def kind_of(tool: str, use: ToolUse, settings: GovernanceSettings) -> CommandUse:
    """What a call does, in the words of a command."""
    if use.kind is UseKind.EXECUTE:
        if not use.blind:
            return classify(use.command, settings)
        return CommandUse(CommandKind.UNKNOWN, why=use.blind)
    kind: CommandKind = CommandKind.WRITE
    if use.kind in (UseKind.READ, UseKind.OTHER):
        kind = CommandKind.READ
    elif use.kind is UseKind.UNKNOWN:
        lists = (
            (CommandKind.APPROVE, settings.approve_tools),
            (CommandKind.READ, settings.read_tools),
            (CommandKind.RUN, settings.run_tools),
        )
        known = (named for named, globs in lists if any(fnmatchcase(tool, one) for one in globs))
        kind = next(known, CommandKind.UNKNOWN)
    elif use.blind:
        kind = CommandKind.UNKNOWN
    why = use.blind
    if kind is CommandKind.APPROVE:
        why = "the project's settings want a person's yes for this tool"
    return CommandUse(kind, use.reads, use.writes, use.deletes, use.moves, why=why)


def plan_of(use: CommandUse, run: GovernedRun, call: GateCall, folded: bool) -> CallPlan:
    """Find the real files of a call.

    ``folded``: the file system takes two cases of a name for one. Waits for the disk; raises
    OSError.
    """
    finder = _Finder(run.root, os.path.join(run.cwd, call.cwd, call.use.cwd), folded)
    reads = [one for path in use.reads[:PATHS_MAX] for one in finder.found(path)]
    if use.kind is CommandKind.READ:
        return CallPlan(use.kind, tuple(reads))
    for path in use.writes:
        finder.written(path)
    if call.use.guesses:
        finder.must_exist(use.writes)
    for path in use.trees:
        finder.written(path, deep=True)
    finder.works_in(use.folders)
    for path in use.deletes:
        finder.removed(path)
    for source, to in use.copies:
        finder.brought(source, to)
    for source, to in use.moves:
        finder.brought(source, to, moved=True)
    # A link, or a folder that may hold some: where another part of the line works in there, nobody
    # can tell beforehand.
    parts = len(use.writes) + len(use.deletes) + len(use.copies) + len(use.moves)
    if (use.trees and parts) or (finder.brings and parts > 1):
        finder.wrong = "it may write through what it has only brought there itself"
    kind = _max_kind(use.kind, CommandKind.UNKNOWN) if finder.wrong else use.kind
    why = "; ".join(filter(None, (use.why, finder.wrong)))
    return CallPlan(kind, tuple(reads), tuple(finder.targets.values()), why, finder.vast)


def _max_kind(one: CommandKind, other: CommandKind) -> CommandKind:
    """The one that needs more."""
    order = list(CommandKind)
    return max(one, other, key=order.index)


class _Finder:
    """Collects the places that one call names."""

    def __init__(self, root: str, cwd: str, folded: bool) -> None:
        self._root, self._cwd, self._folded = root, cwd, folded
        self.targets: dict[str, Target] = {}
        #: Why it is not known what the call changes.
        self.wrong = ""
        self.vast = False
        #: A link or a folder comes to another place.
        self.brings = False

    def found(
        self, path: str, *, gone: bool = False, moved: bool = False, follow: bool = True
    ) -> list[Target]:
        try:
            places = real_places(path, self._cwd, follow=follow)
        except ValueError as error:
            self.wrong = f"{path[:100]!r} is not a path: {error}"
            return [Target(os.path.normpath(os.path.join(self._cwd, path)), None, gone)]
        return [Target(place, self._key(place), gone, moved=moved) for place in places]

    def written(self, path: str, *, deep: bool = False) -> None:
        for target in self.found(path):
            self._add(target)
            if deep:
                self._add_below(target.path, target)

    def must_exist(self, paths: tuple[str, ...]) -> None:
        if not all(os.path.lexists(os.path.join(self._cwd, one)) for one in paths):
            self.wrong = "no such file is there, and this tool would look for another one"

    def works_in(self, folders: tuple[str, ...]) -> None:
        """What builds and tests is the project's own, unless it works elsewhere."""
        for folder in folders:
            for place in self.found(folder or ".")[-1:]:
                if not is_within(place.path, self._root):
                    self.wrong = "it builds or tests outside of the project"

    def removed(self, path: str, *, moved: bool = False) -> None:
        # Of a link the name alone goes, unless what it leads to is meant.
        for target in self.found(path, gone=True, moved=moved, follow=path.endswith("/")):
            self._add(target)
            self._add_below(target.path, target)

    def brought(self, source: str, to: str, *, moved: bool = False) -> None:
        """A file or folder comes to another place, or into the folder that is there."""
        if moved:
            self.removed(source, moved=True)
        for start in self.found(source, follow=False):
            into = to
            if os.path.isdir(os.path.join(self._cwd, to)):
                into = os.path.join(to, os.path.basename(start.path))
            for target in self.found(into):
                self.brings |= os.path.islink(start.path) or not os.path.isfile(start.path)
                target = replace(target, moved_from=start.path if moved else "")
                self._add(target)
                self._add_below(start.path, target)

    def _inside(self, folder: Target, name: str) -> list[Target]:
        """Where ``name`` below a folder is: what comes there goes through links that are there."""
        place = os.path.join(folder.path, name)
        origin = folder.moved_from and os.path.join(folder.moved_from, name)
        places = (place,) if folder.gone else real_places(place, "/")
        inside = replace(folder, moved_from=origin, below=True)
        return [replace(inside, path=one, key=self._key(one)) for one in places]

    def _add_below(self, folder: str, target: Target) -> None:
        """Add a place below ``target`` for all that is in ``folder``, if it is one."""
        if os.path.islink(folder) or not os.path.isdir(folder):
            return
        names = tree(folder)
        if names is None:
            self.vast = True
            self.wrong = f"{os.path.basename(folder)} holds more than {TREE_MAX} files"
        for name in names or ():
            for one in self._inside(target, name):
                self._add(one)

    def _add(self, target: Target) -> None:
        if len(self.targets) >= PATHS_MAX:
            self.wrong = f"it changes more than {PATHS_MAX} files"
            self.vast = True
            return
        before = self.targets.get(target.path)
        if before is not None and target.moved and not before.moved:
            target = replace(target, changed=True)
        self.targets[target.path] = target

    def _key(self, place: str) -> str | None:
        root = self._root
        if self._folded:
            place, root = _folded(place), _folded(root)
        if not is_within(place, root):
            return None
        return named(os.path.relpath(place, root)) if place != root else ""


def named(path: str) -> str:
    """A path as text that can be stored: bytes that are not UTF-8 are written as escapes."""
    return path.encode(errors="surrogateescape").decode(errors="backslashreplace")


def _folded(path: str) -> str:
    return unicodedata.normalize("NFC", path).casefold()


#: Bytes of a file that is hashed whole; of a larger one size, time and ends are.
HASHED_MAX = 64 * 1024 * 1024
_END = 1024 * 1024
#: Bytes that are read for one call; what is left then counts as not known.
CALL_MAX = 512 * 1024 * 1024
#: Files below one folder that are looked at.
TREE_MAX = 1000


@dataclass(frozen=True, slots=True)
class FileState:
    """One path as it is now."""

    #: ABSENT where nothing is there; "" too where ``odd`` says what is, and no hash can be made.
    hash: str
    #: None where there is no file, or it is larger than what lines are told of.
    data: bytes | None = None
    is_folder: bool = False
    #: Why it has no hash ("it is not a regular file").
    odd: str = ""
    #: Bytes that were read for the hash.
    size: int = 0

    @property
    def is_absent(self) -> bool:
        """Whether nothing is there."""
        return self.hash == ABSENT and not self.is_folder and not self.odd


def read_states(paths: Iterable[str]) -> dict[str, FileState]:
    """Look at all files of one call. Never raises OSError."""
    states: dict[str, FileState] = {}
    room = CALL_MAX
    for path in paths:
        if room > 0:
            states[path] = state = read_state(path)
            room -= state.size
        else:
            states[path] = FileState(ABSENT, odd="it is too much to read for one call")
    return states


def read_state(path: str) -> FileState:
    """Look at ``path`` itself: a link is told by where it leads. Never raises OSError."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return FileState(ABSENT)
    except OSError as error:
        try:
            return FileState(content_hash(b"link:" + os.fsencode(os.readlink(path))))
        except OSError:
            return FileState(ABSENT, odd=f"it cannot be read: {error.strerror}")
    try:
        status = os.fstat(fd)
        if stat.S_ISDIR(status.st_mode):
            return FileState(ABSENT, is_folder=True)
        if not stat.S_ISREG(status.st_mode):
            return FileState(ABSENT, odd="it is not a regular file")
        if status.st_size > HASHED_MAX:
            return FileState(_hash_of_ends(fd, status), size=2 * _END)
        with open(fd, "rb", closefd=False) as file:
            if status.st_size > LINES_MAX:
                digest = hashlib.file_digest(file, "sha256")
                return FileState(f"sha256:{digest.hexdigest()}", size=status.st_size)
            data = file.read(LINES_MAX + 1)
        kept = data if len(data) <= LINES_MAX else None
        return FileState(content_hash(data), kept, size=len(data))
    except OSError as error:
        return FileState(ABSENT, odd=f"it cannot be read: {error.strerror}")
    finally:
        os.close(fd)


def _hash_of_ends(fd: int, status: os.stat_result) -> str:
    told = f"{status.st_size} {status.st_mtime_ns} ".encode()
    ends = os.pread(fd, _END, 0) + os.pread(fd, _END, status.st_size - _END)
    return f"ends:{hashlib.sha256(told + ends).hexdigest()}"


def tree(folder: str) -> list[str] | None:
    """Whatever lies below ``folder``, relative to it; None for more than can be looked at.

    Links are not followed, folders come before what is in them. Raises OSError.
    """
    found: list[str] = []
    left = [""]
    while left:
        below = left.pop()
        with os.scandir(os.path.join(folder, below)) as entries:
            for entry in entries:
                path = os.path.join(below, entry.name)
                found.append(path)
                if len(found) > TREE_MAX:
                    return None
                if entry.is_dir(follow_symlinks=False):
                    left.append(path)
    return found
