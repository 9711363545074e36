"""The git worktrees of a team's agents: made, looked at, merged, put aside. Nothing in one is lost.

relay deletes a worktree only when all that is in it has been merged; everything else stays where it
is, or is moved as a whole. git runs without the hooks that the repository or an agent has brought
along, and without an editor, a pager or questions. What its settings name besides (filters, merge
drivers, what signs) runs, so the callers let nobody's repository come here untrusted.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from relay.core.errors import NotFound, RelayError
from relay.core.paths import repository_of
from relay.features.teams.team import WORKTREES

#: Where worktrees are moved that are discarded, seen from the repository's root.
DISCARDED = ".relay/discarded"
#: Commits and files that are told of one worktree.
TOLD_MAX = 20
#: Seconds for one call of git: a checkout or a merge of a large repository takes its time.
GIT_SECONDS = 600.0
_SETTINGS = (
    *("core.hooksPath=/dev/null", "core.fsmonitor=false", "core.untrackedCache=false"),
    *("safe.bareRepository=explicit", "merge.autoStash=false", "advice.detachedHead=false"),
    *("protocol.ext.allow=never", "submodule.recurse=false"),
)
#: Variables that point git to another repository are not for the one that is meant here.
_KEPT_VARIABLES = ("GIT_AUTHOR_", "GIT_COMMITTER_", "GIT_CONFIG_", "GIT_SSH")
#: What git has in a worktree's own folder while something is under way, and how it is called.
_UNDER_WAY = {
    **{"MERGE_HEAD": "a merge", "CHERRY_PICK_HEAD": "a cherry-pick", "REVERT_HEAD": "a revert"},
    **{"rebase-merge": "a rebase", "rebase-apply": "a rebase", "BISECT_LOG": "a bisection"},
}


class GitError(RelayError):
    """git cannot do what it was asked for."""

    code = "git"


@dataclass(frozen=True, slots=True)
class WorktreeContent:
    """What is in an agent's worktree, beside what the branch that it would be merged into has."""

    name: str
    path: str
    #: The branch that is checked out in it; "" where HEAD is on none.
    branch: str
    head: str
    #: The branch of the project that it would be merged into; "" where HEAD is on none.
    target: str
    #: How many commits that has not, and the newest of them, a line each.
    ahead: int = 0
    commits: list[str] = field(default_factory=list)
    #: Files that are not committed, and files that git ignores, as ``git status`` names them.
    changed: list[str] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    #: Why it cannot be merged; "" where it can.
    problem: str = ""

    @property
    def is_bare(self) -> bool:
        """Whether nothing is in it that is not on the target too, not even ignored files."""
        return not (self.ahead or self.changed or self.ignored or self.problem)


class Worktrees:
    """The agents' worktrees of the repository that holds ``folder``. Raises GitError where there is
    none that can have worktrees."""

    def __init__(self, folder: str) -> None:
        self._git = _Git(folder)
        try:
            self.top = self._git.line("rev-parse", "--show-toplevel")
        except GitError as error:
            raise GitError(
                f"{folder} is not in a checked-out git repository, so it has no worktrees",
                hint=f"leave worktree out, or make one: git init ({error.message})",
            ) from None
        self._git = _Git(self.top)
        if not self._git.works("rev-parse", "--verify", "--quiet", "HEAD^{commit}"):
            raise GitError(
                f"the repository {self.top} has no commit yet, so it can have no worktrees",
                hint='make a first one: git commit --allow-empty -m "Begin"',
            )
        #: A worktree of the person's own may go, with all that is in its folder.
        main = repository_of(self.top)
        self._root = main if os.path.isdir(os.path.join(main, ".git")) else self.top

    def path(self, name: str) -> str:
        """Where the worktree of the agent ``name`` is, or would be."""
        return os.path.join(self._root, WORKTREES, name)

    def make(self, name: str, branch: str) -> str:
        """Make the worktree of the agent ``name`` on ``branch``, which begins where the project is
        now if it is new. One that is there is left as it is. Returns its folder."""
        path = self.path(name)
        entries = self._entries()
        entry = entries.get(path)
        if os.path.lexists(path):
            if entry is not None and not os.path.islink(path):
                return path
            if os.path.islink(path) or not os.path.isdir(path) or os.listdir(path):
                raise GitError(
                    f"{path} exists and is not a worktree of this repository",
                    hint="move it away; relay changes nothing in it",
                )
        elif entry is not None:
            raise GitError(
                f"the folder of the worktree {path} is gone, and git still knows it",
                hint=f"put it back, or let git forget it: git worktree remove {path}",
            )
        for other, found in entries.items():
            if found.get("branch") == f"refs/heads/{branch}":
                raise GitError(
                    f"the branch {branch} is checked out in {other}, and git has it in one place",
                    hint="name another one under worktree, or switch to another one there",
                )
        self._make_folder(WORKTREES)
        there = self._git.works("show-ref", "--verify", "--quiet", f"refs/heads/{branch}")
        remote = self._git.line("for-each-ref", "--count=1", f"refs/remotes/*/{branch}")
        if there or remote:  # git makes a local one of a remote one
            self._git.run("worktree", "add", "--quiet", path, branch)
        else:
            self._git.run("worktree", "add", "--quiet", "-b", branch, path, "HEAD")
        return path

    def content(self, name: str, branch: str) -> WorktreeContent | None:
        """What is in the worktree of the agent ``name``; None where there is none."""
        path = self.path(name)
        if path not in self._entries() or not os.path.isdir(path):
            return None
        git = _Git(path)
        head = git.line("rev-parse", "HEAD")
        on = git.line("branch", "--show-current")
        target = self._git.line("branch", "--show-current")
        ours = self._git.line("rev-parse", "HEAD")
        changed, ignored = _status(git)
        changed += _hidden(git)
        return WorktreeContent(
            *(name, path, on, head, target),
            int(git.line("rev-list", "--count", f"{ours}..{head}")),
            git.run(
                "log",
                "--no-color",
                "--no-show-signature",
                f"-{TOLD_MAX}",
                "--format=%h %s",
                f"{ours}..{head}",
            ).splitlines(),  # fmt: skip
            changed,
            ignored,
            self._in_the_way(git, on, branch, changed),
        )

    def _in_the_way(self, git: _Git, on: str, branch: str, changed: list[str]) -> str:
        """Why the worktree cannot be merged into the project as it is; "" where it can."""
        if what := _under_way(git):
            return f"{what} is under way in it"
        if on != branch:
            return f"it is on {on or 'no branch'}, not on {branch}"
        if changed:
            return "it has uncommitted changes"
        if what := _under_way(self._git):
            return f"{what} is under way in {self.top}"
        if not self._git.line("branch", "--show-current"):
            return f"{self.top} is on no branch"
        if _status(self._git, untracked=False)[0]:
            return f"{self.top} has changes that are not committed"
        return ""

    def merge(self, content: WorktreeContent) -> None:
        """Merge what was looked at into the branch that the project is on. Where that cannot be
        done whole, everything is as before: raises GitError."""
        if content.problem:
            raise GitError(f"{content.name} cannot be merged: {content.problem}")
        now = self.content(content.name, content.branch)
        if now is None or (now.head, now.target, now.problem) != (content.head, content.target, ""):
            why = f": {now.problem}" if now is not None and now.problem else ""
            raise GitError(f"{content.name}'s worktree is not as it was shown any more{why}")
        words = ("merge", "--no-edit", "--commit", "--no-squash", "--quiet")
        try:
            self._git.run(*words, "-m", f"Merge branch '{content.branch}'", content.head)
        except GitError as error:
            files = _split(self._git.run("diff", "--name-only", "--diff-filter=U", "-z"))
            if _under_way(self._git):
                self._git.run("merge", "--abort")
            said = f"it conflicts in {', '.join(files[:TOLD_MAX])}" if files else error.message
            raise GitError(
                f"{content.branch} is not merged into {content.target}: {said}",
                hint=f"nothing is changed; merge it yourself: git merge {content.branch}",
            ) from None

    def remove_merged(self, name: str, branch: str, *, own_branch: bool) -> str:
        """Remove a worktree in which nothing is that is not merged, and its branch where relay has
        made it. Returns "", or why it stays."""
        content = self.content(name, branch)
        if content is None:
            return ""
        if not content.is_bare:
            if content.ignored and not (content.ahead or content.changed or content.problem):
                return f"files that git ignores are in it ({_some(content.ignored)})"
            return content.problem or "there is more in it now"
        try:
            self._git.run("worktree", "remove", content.path)  # which looks for itself once more
        except GitError as error:
            return error.message
        if own_branch:  # -d: only where it is merged
            self._git.works("branch", "--quiet", "-d", branch)
        return ""

    def discard(self, content: WorktreeContent, own_branch: str = "") -> str:
        """Move a worktree aside with all that is in it, on no branch, and remove ``own_branch``,
        which relay has made, if it is on that: its commits stay those of the moved one. Returns
        where it is."""
        folder = self._make_folder(DISCARDED)
        base = os.path.join(folder, time.strftime(f"{content.name}-%Y%m%d-%H%M%S"))
        path = base
        while os.path.lexists(path):
            path += "+"
        self._git.run("worktree", "move", content.path, path)
        moved = _Git(path)
        tip = moved.line("rev-parse", "HEAD")
        if content.branch:
            # Not ``checkout``: whatever is under way in it, index and files stay as they are.
            moved.run("update-ref", "--no-deref", "-m", "relay: discarded", "HEAD", tip)
        if own_branch and content.branch == own_branch:
            # Only if it still is where the moved one is.
            self._git.run("update-ref", "-d", f"refs/heads/{content.branch}", tip)
        return path

    def _make_folder(self, below: str) -> str:
        """A folder of relay's in the repository, which git ignores; no link leads out of it."""
        path = self._root
        for part in below.split("/"):
            path = os.path.join(path, part)
            try:
                os.mkdir(path)
            except FileExistsError:
                if os.path.islink(path) or not os.path.isdir(path):
                    raise GitError(
                        f"{path} is not a folder of this repository: no worktree is made there",
                        hint="look at what it is, and move it away",
                    ) from None
            except OSError as error:
                raise GitError(f"cannot make {path}: {error.strerror}") from None
        try:
            with open(os.path.join(path, ".gitignore"), "x", encoding="utf-8") as file:
                file.write("*\n")
        except FileExistsError:
            pass
        return path

    def _entries(self) -> dict[str, dict[str, str]]:
        """What git knows of each worktree, by its folder."""
        found: dict[str, dict[str, str]] = {}
        for block in self._git.run("worktree", "list", "--porcelain").split("\n\n"):
            fields = dict(line.partition(" ")[::2] for line in block.splitlines())
            if path := fields.get("worktree"):
                found[path] = fields
        return found


class _Git:
    """Runs git in one folder."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def line(self, *words: str) -> str:
        """The one line that it says. Raises GitError."""
        return self.run(*words).strip("\n")

    def works(self, *words: str) -> bool:
        """Whether it ends well."""
        try:
            self.run(*words)
        except GitError:
            return False
        return True

    def run(self, *words: str) -> str:
        """What it says on standard output. Raises GitError with what it says on standard error."""
        settings = [word for one in _SETTINGS for word in ("-c", one)]
        env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("GIT_") or name.startswith(_KEPT_VARIABLES)
        }
        env |= {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_EDITOR": "true"}
        env |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_PAGER": "cat"}
        try:
            # In a session of its own: Ctrl-C ends relay, and never a merge half way.
            with subprocess.Popen(
                ["git", "-C", self._folder, "--no-pager", *settings, *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=env,
                start_new_session=True,
            ) as git:
                try:
                    out, err = git.communicate(timeout=GIT_SECONDS)
                except subprocess.TimeoutExpired:
                    os.killpg(git.pid, signal.SIGKILL)
                    git.communicate()
                    raise GitError(f"git {words[0]} takes longer than {GIT_SECONDS:g} s") from None
        except FileNotFoundError:
            raise NotFound(
                "git is not installed", hint="install it, or leave worktree out"
            ) from None
        if git.returncode:
            said = " ".join(os.fsdecode(err or out).split())[:500]
            raise GitError(f"git {words[0]}: {said or f'exit status {git.returncode}'}")
        return os.fsdecode(out)


def _status(git: _Git, *, untracked: bool = True) -> tuple[list[str], list[str]]:
    """The files that are not committed, with git's two letters, and those that it ignores."""
    words = ("status", "--porcelain", "-z", "--ignore-submodules=none")
    more = ("--untracked-files=normal", "--ignored=traditional")
    changed: list[str] = []
    ignored: list[str] = []
    parts: Iterator[str] = iter(
        _split(git.run(*words, *(more if untracked else ("--untracked-files=no",))))
    )
    for part in parts:
        if part.startswith("!! "):
            ignored.append(part[3:])
            continue
        changed.append(part)
        if part[0] in "RC" or part[1] in "RC":
            next(parts, None)  # the name that it had
    return changed, ignored


def _hidden(git: _Git) -> list[str]:
    """Tracked files whose changes ``git status`` was told not to show."""
    listed = _split(git.run("ls-files", "-v", "-z"))
    return [f"?? {one[2:]} (git does not compare it)" for one in listed if one[0] != "H"]


def _under_way(git: _Git) -> str:
    """What is under way in a worktree: a merge, a rebase; "" for nothing."""
    folder = git.line("rev-parse", "--absolute-git-dir")
    found = (what for name, what in _UNDER_WAY.items() if os.path.lexists(f"{folder}/{name}"))
    return next(found, "")


def _split(text: str) -> list[str]:
    return [one for one in text.split("\0") if one]


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
