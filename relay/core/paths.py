"""Where relay keeps its state, everything under one RELAY_HOME; and which project a folder is of: a
repository, whatever folder of it somebody works in.

Little is imported at the top: ``relay wrap`` reads this before it starts the agent, which might put
another folder in the place of its own later.
"""

from __future__ import annotations

import os
import stat

from relay.core.errors import RelayError

# A unix socket's path must fit sockaddr_un: 104 bytes on macOS, 108 on Linux, NUL included.
SOCKET_PATH_MAX = 100
#: What a ``.git`` file and a ``commondir`` hold is one short line.
_GIT_LINE_MAX = 8192


class Home:
    """The paths of one RELAY_HOME. Creating the object touches nothing on disk."""

    def __init__(self, root: str) -> None:
        self.root = os.path.abspath(os.path.expanduser(root))
        self.ledger = os.path.join(self.root, "ledger.db")
        self.search = os.path.join(self.root, "search.db")
        self.names = os.path.join(self.root, "names")
        self.logs = os.path.join(self.root, "log")
        self.memory = os.path.join(self.root, "memory")
        self.content = os.path.join(self.root, "content")
        self.models = os.path.join(self.root, "models")
        self.profiles = os.path.join(self.root, "profiles")
        self.trust = os.path.join(self.root, "trust.json")
        self.governance = os.path.join(self.root, "governance.db")
        self.broker_lock = os.path.join(self.root, "broker.lock")
        self.broker_log = os.path.join(self.logs, "broker.log")
        self.run = self._run_dir()
        self.broker_socket = os.path.join(self.run, "broker.sock")

    @classmethod
    def from_env(cls, env: dict[str, str] | None = None) -> Home:
        """``RELAY_HOME``, else ``$XDG_STATE_HOME/relay``, else ``~/.local/state/relay``."""
        source = os.environ if env is None else env
        root = source.get("RELAY_HOME")
        if not root:
            state = source.get("XDG_STATE_HOME")
            if not state or not os.path.isabs(state):
                state = os.path.join(source.get("HOME") or os.path.expanduser("~"), ".local/state")
            root = os.path.join(state, "relay")
        return cls(root)

    def session_socket(self, run_id: str) -> str:
        return os.path.join(self.run, f"{run_id[-16:]}.sock")

    def host_socket(self, name: str) -> str:
        """The unix socket on which the host of the agent ``name`` shows its terminal."""
        import hashlib

        return os.path.join(
            self.run, f"host{hashlib.sha256(name.lower().encode()).hexdigest()[:12]}.sock"
        )

    def run_folder(self, run_id: str) -> str:
        """A folder for files that the agent of ``run_id`` and its session share during the run."""
        return os.path.join(self.run, run_id[-16:])

    def remove_run(self, run_id: str) -> None:
        """Remove the socket and the folder of a run that is over. Never raises."""
        import shutil

        shutil.rmtree(self.run_folder(run_id), ignore_errors=True)
        try:
            os.unlink(self.session_socket(run_id))
        except OSError:
            return

    def create(self) -> list[str]:
        """Make the directories, mode 0700, and close what is there to others.

        Returns what others could write to until now. Raises RelayError with what to do when it
        cannot: of the code ``not_private`` where something is not ours.
        """
        mended = self._own(mend=True)
        if not os.access(self.root, os.W_OK | os.X_OK):
            raise RelayError(
                f"the state directory {self.root} is not writable",
                hint="make it writable, or set RELAY_HOME to a directory that is",
                code="state_dir",
            )
        return mended

    def opened(self) -> list[str]:
        """What others can write to; nothing is made or changed. Raises RelayError as ``create``."""
        return self._own(mend=False)

    def _own(self, *, mend: bool) -> list[str]:
        """The one rule for all that is relay's: it is ours, no link, and closed to others."""
        from relay.core import files

        made = (self.root, self.names, self.logs, self.run)
        there = [path for path in (*made, self.memory, self.content) if os.path.lexists(path)]
        folders = dict.fromkeys([*made, *there] if mend else there)
        log = (*(self.ledger + end for end in ("-wal", "-shm", "-reached")), self.search)
        log += tuple(self.governance + end for end in ("", "-wal", "-shm"))
        try:
            # The person may have put the whole of it elsewhere; nobody puts links into it.
            opened = [
                path
                for path in folders
                if files.own_folder(path, linked=path == self.root, mend=mend)
            ]
            for path in (self.ledger, *log, self.trust, self.broker_lock, self.broker_log):
                if files.own_file(path, mend=mend):
                    opened.append(path)
        except PermissionError as error:
            if error.strerror not in files.NOT_OURS:
                raise _cannot_make(error, self.root) from error
            raise RelayError(
                f"{error.filename} {error.strerror}, so relay does not use it",
                hint="look at who has made it, or set RELAY_HOME to a directory of your own",
                code="not_private",
            ) from error
        except OSError as error:
            raise _cannot_make(error, self.root) from error
        return opened

    def _run_dir(self) -> str:
        near = os.path.join(self.root, "run")
        longest = os.path.join(near, "x" * 16 + ".sock")
        if len(os.fsencode(longest)) <= SOCKET_PATH_MAX:
            return near
        # The home's path is too long for a socket: a short directory of our own stands in, named
        # after the home so that every process finds the same one.
        import hashlib

        tag = hashlib.sha256(os.fsencode(self.root)).hexdigest()[:16]
        return f"/tmp/relay-{os.getuid()}-{tag}"


def _cannot_make(error: OSError, root: str) -> RelayError:
    place = error.filename or root  # what is done to an open file names none
    if isinstance(error, FileExistsError | NotADirectoryError):
        return RelayError(
            f"the state directory cannot be at {place}: a file is in its place",
            hint="move the file away, or set RELAY_HOME to a directory",
            code="state_dir",
        )
    return RelayError(
        f"cannot create the state directory {place}: {error.strerror}",
        hint="make it writable, or set RELAY_HOME to a directory that is",
        code="state_dir",
    )


def working_folder() -> str:
    """Where this process is; where only the user's own applies, once that folder is gone."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return os.sep


def is_within(path: str, folder: str) -> bool:
    """Whether ``path`` is ``folder`` or below it. Both absolute and normal."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")


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
