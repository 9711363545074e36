"""Which project a folder belongs to: a repository, whatever folder of it somebody works in.

Only ``os`` and ``stat`` are imported: ``relay wrap`` asks before it starts the agent, which might
put another folder in the place of its own later.
"""

from __future__ import annotations

import os
import stat

#: What a ``.git`` file and a ``commondir`` hold is one short line.
_GIT_LINE_MAX = 8192


def repository_of(cwd: str) -> str:
    """The root of the repository that holds ``cwd``, else ``cwd`` itself; without symbolic links.

    All linked worktrees of a repository are one project, that of its main worktree; a submodule is
    one of its own.
    """
    start = os.path.realpath(cwd)
    folder = start
    while True:
        git = os.path.join(folder, ".git")
        if os.path.isdir(git):
            return folder
        if os.path.isfile(git):
            return _main_worktree(git) or folder
        parent = os.path.dirname(folder)
        if parent == folder:
            return start
        folder = parent


def config_base(place: str) -> str:
    """Where the names in the configuration at ``place`` are looked up: its folder, or the project's
    of ``.claude/settings.json``."""
    folder = os.path.dirname(place)
    if os.path.basename(folder) in (".claude", ".gemini"):
        return os.path.dirname(folder)
    return folder


def _main_worktree(git: str) -> str | None:
    """Where the repository of a linked worktree has its main one; None for what is none."""
    kind, _, where = _line(git).partition(":")
    if kind != "gitdir" or not where.strip():
        return None
    gitdir = os.path.join(os.path.dirname(git), where.strip())
    common = _line(os.path.join(gitdir, "commondir"))
    if not common:
        return None
    shared = os.path.realpath(os.path.join(gitdir, common))
    if not _registered(git, os.path.realpath(gitdir), shared):
        return None
    # A bare repository has no worktree that could stand for all; it is the project itself.
    return os.path.dirname(shared) if os.path.basename(shared) == ".git" else shared


def _registered(git: str, gitdir: str, shared: str) -> bool:
    """Whether the repository itself knows of the worktree, as ``git worktree add`` leaves it.

    Else a folder that came from elsewhere could say that it belongs to any project, and whoever
    works in it would be told what is remembered there.
    """
    if os.path.dirname(gitdir) != os.path.join(shared, "worktrees"):
        return False
    back = _line(os.path.join(gitdir, "gitdir"))  # absolute, or relative to the folder it is in
    return bool(back) and os.path.realpath(os.path.join(gitdir, back)) == os.path.realpath(git)


def _line(path: str) -> str:
    try:
        # To open a pipe of that name would take for ever, and hold up all memories.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return ""
            return os.read(descriptor, _GIT_LINE_MAX).decode(errors="surrogateescape").strip()
        finally:
            os.close(descriptor)
    except OSError:
        return ""
