"""The places of an intent: which folders and files a confined program may write for it.

The kernel knows folders and files, no globs. A glob becomes what it can mean: ``src/*.py`` is the
folder ``src``, because a new file may come there. What no intent opens, and what ``!`` keeps out,
is left out, as far as it is there: then the rest of its folder is allowed part by part.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from relay.core.errors import RelayError
from relay.core.features import named
from relay.core.paths import is_within
from relay.core.visible import visible
from relay.features.governance.commands import CommandKind, classify
from relay.features.governance.confined_shell import BUILD_FOLDERS
from relay.features.governance.governed_paths import (
    folds_case,
    governed_root,
    protected,
)
from relay.features.governance.intents import GovernanceSettings, Intent, Status, check_id
from relay.features.governance.orchestration import IntentsFile
from relay.features.governance.scope import IntentScope
from relay.features.governance.shell_lines import UnreadableLine, commands_of

_WILD = frozenset("*?[")
#: Programs that write nothing, in lines of git's.
_BESIDE_GIT = {"git", "cd", "echo", "true", "cat", "ls", "head", "tail"}


def scope_of(intent_id: str, cwd: str) -> tuple[list[str], list[str]]:
    """(the places that the intent allows now, what is to be said of them). Raises RelayError."""
    root = governed_root(cwd)
    if not root:
        raise RelayError(
            f"{cwd} is not in a governed project, so there are no intents",
            hint="relay init --governed; or name what it may write: relay confine --write PATH",
            code="not_governed",
        )
    intent = check_id(IntentsFile(root).read(), intent_id)
    if intent.status is not Status.IN_PROGRESS:
        raise RelayError(
            f"intent {intent.id} is {intent.status}, so nobody writes for it",
            hint=f"relay intent status {intent.id} {Status.IN_PROGRESS}",
            code="intent_status",
        )
    return places(root, intent)


def begun(root: str, intent_id: str) -> tuple[list[str], list[str]]:
    """The same for one who begins to work on it now: a pending intent is in progress then."""
    can_begin = (Status.PENDING, Status.IN_PROGRESS)
    return places(root, IntentsFile(root).set_status(intent_id, Status.IN_PROGRESS, can_begin))


def places(root: str, intent: Intent) -> tuple[list[str], list[str]]:
    """The same of an intent of the project in ``root``. Raises RelayError where it allows nothing
    that is there."""
    finder = _Places(root, intent.owned_scope)
    found = list(dict.fromkeys(finder.all()))
    if not found:
        raise RelayError(
            f"nothing of what intent {visible(intent.id)} allows can be written:"
            f" {'; '.join(finder.notes) or 'it is not there yet'}",
            hint="make the folder first, or name another one in its owned_scope",
        )
    return found, finder.notes


class _Places:
    """Finds the places of a scope, and notes what is different from what the globs say."""

    def __init__(self, root: str, globs: tuple[str, ...]) -> None:
        self._root = os.path.realpath(root)
        self._globs = [glob for glob in globs if not glob.startswith("!")]
        self._scope = IntentScope(globs, ignore_case=folds_case(root))
        self.notes: list[str] = []

    def all(self) -> Iterator[str]:
        for glob in self._globs:
            names = [name for name in glob.split("/") if name not in ("", ".")]
            yield from self._matches(self._root, names, glob)

    def _matches(self, folder: str, names: list[str], glob: str) -> Iterator[str]:
        """What the rest of a glob, ``names``, can mean in ``folder``."""
        shown = visible(glob)
        if not names or names[0] == "**":
            yield from self._tree(folder)
            return
        name, *rest = names
        wild = not _WILD.isdisjoint(name)
        if wild and not rest and folder != self._root:
            self._note(f"{shown}: all of {self._name(folder)} can be written")
            yield from self._tree(folder)
            return
        if wild:
            if not rest:
                self._note(f"{shown}: at the top of the project no new files can be made")
            for entry in self._entries(folder):
                inside = IntentScope([os.path.join(self._name(folder), name)])
                if inside.allows(self._name(entry)):
                    yield from self._matches(entry, rest, glob) if rest else self._tree(entry)
            return
        path = os.path.join(folder, name)
        place = os.path.realpath(path)
        if not is_within(place, self._root) or place == self._root:
            self._note(f"{shown} leads out of the project, and allows nothing there")
        elif not os.path.lexists(place):
            if glob.startswith(missing := self._name(path)):  # one that a wildcard may mean is none
                self._note(f"{shown}: {missing} is not there yet, so it cannot be written")
        elif (rest or glob.endswith("/")) and not os.path.isdir(place):
            self._note(f"{shown} means a folder, but {self._name(path)} is a file")
        elif rest:
            yield from self._matches(place, rest, glob)
        else:
            yield from self._tree(place)

    def _tree(self, place: str) -> Iterator[str]:
        """A folder with all below it, or a file; without what is to be left out."""
        if self._kept_out(place):
            self._note(f"{self._name(place)} is written by no agent")
            return
        if not self._holds_kept_out(place):
            yield place
            return
        if place == self._root:
            self._note(
                "the scope means the whole project: what is in it can be written, but nothing new"
                " can be made at its top"
            )
        else:
            self._note(
                f"nothing new can be made in {self._name(place)} itself, because not all in it may"
                " be written"
            )
        for entry in self._entries(place):
            if not self._kept_out(entry):
                yield from self._tree(entry)

    def _holds_kept_out(self, place: str) -> bool:
        """Whether there is something below it that may not be written."""
        waiting = [place]
        while waiting:
            for entry in self._entries(waiting.pop()):
                if self._kept_out(entry):
                    return True
                if os.path.isdir(entry):
                    waiting.append(entry)
        return False

    def _kept_out(self, place: str) -> bool:
        name = self._name(place)
        return protected(name) or self._scope.excludes(name)

    @staticmethod
    def _entries(folder: str) -> list[str]:
        """What is in a folder, but links: what they lead to has a place of its own."""
        try:
            with os.scandir(folder) as entries:
                return sorted(one.path for one in entries if not one.is_symlink())
        except OSError:
            return []

    def _name(self, place: str) -> str:
        return os.path.relpath(place, self._root)

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


# -- what one shell call of a governed agent may write


def of_call(root: str, intent: Intent | None) -> list[str]:
    """The places for a shell call that works for ``intent``: its scope as far as it is there."""
    if intent is None:
        return []
    return list(dict.fromkeys(_Places(root, intent.owned_scope).all()))


def builds(root: str) -> list[str]:
    """Where builds keep what they make, whatever the intent is."""
    places = (os.path.join(root, name) for name in BUILD_FOLDERS)
    return [one for one in places if os.path.isdir(one) and os.path.realpath(one) == one]


def of_git(root: str, line: str, settings: GovernanceSettings) -> list[str]:
    """Where git writes, if ``line`` is git's alone. Of a linked worktree not its repository's hooks
    and settings; those in a folder ``.git`` cannot be kept apart."""
    git = os.path.join(root, ".git")
    if not _is_git(line, settings) or os.path.islink(git) or not os.path.exists(git):
        return []
    if os.path.isdir(git):
        return [git]
    shared_git = named("HELD_SHELLS", "git")
    return [] if shared_git is None else list(shared_git(git))


def beside(places: list[str], targets: Iterable[str]) -> list[str]:
    """Folders in which ``targets`` come or go, where ``places`` do not hold them. relay has read
    that the call changes them and nothing else: a file that is to be replaced, or a folder that is
    not there yet, needs the one above it."""
    found = []
    for target in targets:
        if not any(is_within(target, place) and target != place for place in places):
            folder = os.path.dirname(target)
            while not os.path.isdir(folder):
                folder = os.path.dirname(folder)
            found.append(os.path.realpath(folder))
    return list(dict.fromkeys(found))


def _is_git(line: str, settings: GovernanceSettings) -> bool:
    """Whether git alone writes in it."""
    try:
        commands = commands_of(line)
    except UnreadableLine:
        return False
    names = {one.words[0].text for one in commands if one.words}
    known = classify(line, settings).kind is not CommandKind.UNKNOWN
    return known and "git" in names and names <= _BESIDE_GIT
